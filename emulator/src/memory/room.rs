//! Room for what the input sizes: asked for before it is taken, so that what the host cannot hold is an error of the call
//! and not the end of the process. Zeros are fresh pages of the system's, which cost nothing until somebody uses them.

use bytemuck::Zeroable;

use crate::fault::{Code, Fault, Result};

fn none<T>(count: usize) -> Fault {
    let bytes = count as u128 * size_of::<T>() as u128;
    Fault::new(Code::OutOfMemory, format!("out of memory: the host has no {bytes} bytes"))
}

/// `count` zeros.
pub fn zeroed<T: Zeroable>(count: usize) -> Result<Vec<T>> {
    bytemuck::try_zeroed_vec(count).map_err(|()| none::<T>(count))
}

/// Makes a vector `count` zeros, in the room that it has if that is enough.
pub fn refill<T: Zeroable + Copy>(vector: &mut Vec<T>, count: usize) -> Result<()> {
    if vector.capacity() < count {
        *vector = Vec::new();
        *vector = zeroed(count)?;
    } else {
        vector.clear();
        vector.resize(count, T::zeroed());
    }
    Ok(())
}

/// `count` times the same.
pub fn filled<T: Copy>(value: T, count: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(count).map_err(|_| none::<T>(count))?;
    vector.resize(count, value);
    Ok(vector)
}

/// A copy of what may be large.
pub fn copied<T: Copy>(values: &[T]) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(values.len()).map_err(|_| none::<T>(values.len()))?;
    vector.extend_from_slice(values);
    Ok(vector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_has_no_room_for_is_an_error() {
        for count in [usize::MAX / 8, usize::MAX / 2, usize::MAX] {
            assert_eq!(zeroed::<u64>(count).unwrap_err().code, Code::OutOfMemory);
            assert_eq!(refill(&mut vec![0u64; 2], count).unwrap_err().code, Code::OutOfMemory);
            assert_eq!(filled(1u64, count).unwrap_err().code, Code::OutOfMemory);
        }
    }

    #[test]
    fn a_refilled_vector_is_zeros() {
        let mut vector = vec![1u8, 2, 3];
        for count in [2, 0, 3, 100] {
            refill(&mut vector, count).unwrap();
            assert_eq!(vector, vec![0; count]);
            vector.fill(7);
        }
        assert!(zeroed::<u8>(0).unwrap().is_empty());
        assert_eq!((filled(5u8, 2).unwrap(), copied(&[1u16, 2]).unwrap()), (vec![5, 5], vec![1, 2]));
    }
}

//! Loops over a warp's lanes. Each body is a plain loop of fixed length so that the compiler vectorises it; the
//! choice of operation (a `match`) belongs outside.

use crate::program::{LANES, Mask};

/// `f(a)` in each lane.
#[inline(always)]
pub fn map1<A: Copy, R: Copy + Default>(a: &[A; LANES], f: impl Fn(A) -> R) -> [R; LANES] {
    let mut result = [R::default(); LANES];
    for lane in 0..LANES {
        result[lane] = f(a[lane]);
    }
    result
}

/// `f(a, b)` in each lane.
#[inline(always)]
pub fn map2<A: Copy, B: Copy, R: Copy + Default>(a: &[A; LANES], b: &[B; LANES], f: impl Fn(A, B) -> R) -> [R; LANES] {
    let mut result = [R::default(); LANES];
    for lane in 0..LANES {
        result[lane] = f(a[lane], b[lane]);
    }
    result
}

/// `f(a, b, c)` in each lane.
#[inline(always)]
pub fn map3<A: Copy, B: Copy, C: Copy, R: Copy + Default>(
    a: &[A; LANES],
    b: &[B; LANES],
    c: &[C; LANES],
    f: impl Fn(A, B, C) -> R,
) -> [R; LANES] {
    let mut result = [R::default(); LANES];
    for lane in 0..LANES {
        result[lane] = f(a[lane], b[lane], c[lane]);
    }
    result
}

/// The lanes in which `f(a)` holds.
#[inline(always)]
pub fn mask1<A: Copy>(a: &[A; LANES], f: impl Fn(A) -> bool) -> Mask {
    let mut mask = 0;
    for (lane, &a) in a.iter().enumerate() {
        mask |= (f(a) as Mask) << lane;
    }
    mask
}

/// The lanes in which `f(a, b)` holds.
#[inline(always)]
pub fn mask2<A: Copy, B: Copy>(a: &[A; LANES], b: &[B; LANES], f: impl Fn(A, B) -> bool) -> Mask {
    let mut mask = 0;
    for lane in 0..LANES {
        mask |= (f(a[lane], b[lane]) as Mask) << lane;
    }
    mask
}

/// `yes` in the lanes of `mask`, `no` in the others.
#[inline(always)]
pub fn select<T: Copy>(mask: Mask, yes: &[T; LANES], no: &[T; LANES]) -> [T; LANES] {
    let mut result = *no;
    for lane in 0..LANES {
        // The lane's bit as a sign: compilers turn this into a vector blend, but not the test of a single bit.
        let (one, zero) = (yes[lane], result[lane]);
        result[lane] = if ((mask << (LANES - 1 - lane)) as i32) < 0 { one } else { zero };
    }
    result
}

/// A predicate as one bit a lane, 0 or 1.
#[inline(always)]
pub fn bits(mask: Mask) -> [u32; LANES] {
    let mut result = [0; LANES];
    for (lane, bit) in result.iter_mut().enumerate() {
        *bit = mask >> lane & 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_taken_in_order() {
        let a: [u32; LANES] = std::array::from_fn(|lane| lane as u32);
        let b: [u64; LANES] = std::array::from_fn(|lane| 100 * lane as u64);
        assert_eq!(map1(&a, |x| x as u64 + 1)[31], 32);
        assert_eq!(map2(&a, &b, |x, y| x as u64 + y)[5], 505);
        assert_eq!(map3(&a, &b, &a, |x, y, z| (x * z) as u64 + y)[7], 749);
        assert_eq!(mask1(&a, |x| x == 31), 1 << 31);
        assert_eq!(mask2(&a, &b, |x, y| x as u64 == y), 1);
        assert_eq!(select(0b10, &a, &[99; LANES])[..3], [99, 1, 99]);
        assert_eq!(bits(0x8000_0001)[31], 1);
        assert_eq!(bits(0x8000_0001)[1], 0);
    }
}

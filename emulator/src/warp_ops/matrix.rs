//! Where `ldmatrix` puts an 8×8 matrix of 16-bit elements, and where `stmatrix` takes it from.
//!
//! Lane 4g+t holds two neighbours of row g: columns 2t (low half) and 2t+1. With `.trans` the matrix is transposed on
//! the way: the lane holds rows 2t and 2t+1 of column g. (PTX ISA, "ldmatrix", "stmatrix".)

use crate::program::{LANES, Lanes32};

/// A matrix's register, from its 8 rows of 16 bytes as they lie in shared memory.
#[inline]
pub fn matrix_fragment(rows: &[[u8; 16]; 8], transposed: bool) -> Lanes32 {
    let mut register = [0; LANES];
    if !transposed {
        // Row after row, a lane a pair: the words as they lie.
        for (lane, value) in register.iter_mut().enumerate() {
            let (row, at) = (&rows[lane / 4], lane % 4 * 4);
            *value = u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
        }
        return register;
    }
    for pair in 0..4 {
        let (even, odd) = (&rows[2 * pair], &rows[2 * pair + 1]);
        for group in 0..8 {
            let at = 2 * group;
            register[4 * group + pair] = u32::from_le_bytes([even[at], even[at + 1], odd[at], odd[at + 1]]);
        }
    }
    register
}

/// The 8 rows of 16 bytes that a matrix's register stands for.
#[inline]
pub fn matrix_rows(register: &Lanes32, transposed: bool) -> [[u8; 16]; 8] {
    let mut rows = [[0; 16]; 8];
    let mut put = |row: usize, column: usize, element: u32| {
        rows[row][2 * column..2 * column + 2].copy_from_slice(&(element as u16).to_le_bytes());
    };
    for (lane, &value) in register.iter().enumerate() {
        let (group, pair) = (lane / 4, lane % 4 * 2);
        match transposed {
            false => {
                put(group, pair, value);
                put(group, pair + 1, value >> 16);
            }
            true => {
                put(pair, group, value);
                put(pair + 1, group, value >> 16);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Element (r, c) is 100·r + c.
    fn numbered() -> [[u8; 16]; 8] {
        let mut rows = [[0; 16]; 8];
        for (r, row) in rows.iter_mut().enumerate() {
            for c in 0..8 {
                row[2 * c..2 * c + 2].copy_from_slice(&(100 * r as u16 + c as u16).to_le_bytes());
            }
        }
        rows
    }

    #[test]
    fn a_lane_holds_two_neighbours_of_its_row() {
        let plain = matrix_fragment(&numbered(), false);
        let transposed = matrix_fragment(&numbered(), true);
        for lane in 0..LANES {
            let (g, t) = (lane as u32 / 4, lane as u32 % 4);
            assert_eq!(plain[lane], (100 * g + 2 * t) | (100 * g + 2 * t + 1) << 16, "lane {lane}");
            assert_eq!(transposed[lane], (200 * t + g) | (200 * t + 100 + g) << 16, "lane {lane}, .trans");
        }
        assert_eq!(plain[31], 706 | 707 << 16);
        assert_eq!(transposed[31], 607 | 707 << 16);
    }

    #[test]
    fn storing_is_the_reverse_of_loading() {
        for transposed in [false, true] {
            assert_eq!(matrix_rows(&matrix_fragment(&numbered(), transposed), transposed), numbered());
        }
    }
}

//! What the tests of kernels on rows share: shapes at the edges of teams, blocks and windows, operands at odd elements.

use crate::common::edges;
use proptest::prelude::*;

/// Which operands begin one element behind an aligned address, by a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odd(u32);

impl Odd {
    pub fn offset(self, operand: u32) -> usize {
        (self.0 >> operand & 1) as usize
    }
}

/// None, all, or just one of `operands`.
pub fn odd(operands: u32) -> impl Strategy<Value = Odd> {
    prop_oneof![4 => Just(Odd(0)), 1 => Just(Odd(!0)), 3 => (0..operands).prop_map(|i| Odd(1 << i))]
}

#[derive(Clone, Copy, Debug)]
pub struct Rows {
    pub rows: usize,
    pub cols: usize,
    pub odd: Odd,
}

/// Rows of up to `warp_cols` elements belong to a warp, 8 warps to a block, and with sums at most 256 blocks to a grid;
/// a window of sums has `window` columns where a block takes a row.
pub fn rows(warp_cols: usize, window: usize, operands: u32) -> impl Strategy<Value = Rows> {
    let vectors = || (1usize..=40).prop_map(|n| 8 * n); // aligned in either type
    let shape = prop_oneof![
        2 => (edges(&[8, 64]), vectors()),
        2 => (edges(&[8]), edges(&[4, 8, 32, 128])),
        2 => (1usize..=9, edges(&[warp_cols])),
        1 => (1usize..=3, edges(&[2048])),
        1 => (1usize..=3, edges(&[window])),
        1 => (edges(&[2048]), 1usize..=9),
        1 => (Just(259), Just(warp_cols + 8)),
    ];
    (shape, odd(operands)).prop_map(|((rows, cols), odd)| Rows { rows, cols, odd })
}

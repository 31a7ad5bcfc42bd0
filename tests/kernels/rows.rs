//! What the tests of kernels on rows share: shapes at the edges of teams, blocks and windows, operands at odd elements.

use crate::common::{edges, to_f64, within};
use handgrad::gpu::GpuFloat;
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
        2 => (1usize..=3, Just(window + 8)),
        1 => (edges(&[2048]), 1usize..=9),
        2 => (Just(259), Just(warp_cols + 8)),
    ];
    (shape, odd(operands)).prop_map(|((rows, cols), odd)| Rows { rows, cols, odd })
}

/// f32 roundings that an element may suffer: the longest chain of additions in the tests, twice over.
const ROUNDINGS: f64 = 48.0;

/// The kernels on rows compute in f32 and round once. So errors are bounded element by element, which is stricter than
/// a budget that an eager evaluation sets: half a unit of the type, and some roundings in f32 of the terms that are
/// added up, `terms` being the sum of their absolute values.
pub fn within_rounding<E: GpuFloat>(label: &str, found: &[E], expected: &[f64], terms: &[f64]) {
    assert_eq!(terms.len(), expected.len(), "{label}: number of terms");
    let half = if E::SUFFIX == "bf16" { 2f64.powi(-8) } else { 2f64.powi(-24) };
    let bound = |i: usize| 1.01 * half * expected[i].abs() + ROUNDINGS * 2f64.powi(-24) * terms[i];
    within(label, &to_f64(found), expected, bound);
}

/// Element by element |a|.
pub fn abs<E: GpuFloat>(a: &[E]) -> Vec<f64> {
    to_f64(a).iter().map(|a| a.abs()).collect()
}

/// `sum` + `added`, where there is something to add.
pub fn plus(sum: Vec<f64>, added: Option<Vec<f64>>) -> Vec<f64> {
    let added = added.unwrap_or_else(|| vec![0.0; sum.len()]);
    sum.iter().zip(added).map(|(sum, added)| sum + added).collect()
}

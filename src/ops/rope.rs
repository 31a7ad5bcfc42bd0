//! RoPE: every pair of channels is rotated by an angle that grows with the position (chapter 8.2.1, report §5.5).
//!
//! ```text
//! angle      φ = t θ^(−2i/D)                      position t, pair i
//! forward    y[2i]   = x[2i] cos φ − x[2i+1] sin φ
//!            y[2i+1] = x[2i] sin φ + x[2i+1] cos φ
//! backward   the same with −φ: the inverse of a rotation is its transpose
//! ```
//!
//! Pairs are neighbours (2i, 2i+1), as both documents write them. Checkpoints of Hugging Face pair i with i + D/2;
//! `formats/rope_layout.rs` converts.

use super::unsupported;
use crate::cpu::parallel::par_rows;
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use std::sync::Arc;

/// cos φ and sin φ for every position and pair, computed once in f64. Cloning copies a pointer.
#[derive(Clone, Debug)]
pub struct RopeTable {
    head_dim: usize,
    max_seq_len: usize,
    /// (cos φ, sin φ), `[max_seq_len, D/2]`
    angles: Arc<Vec<(f64, f64)>>,
}

impl RopeTable {
    /// Error: an odd `head_dim`.
    pub fn new(head_dim: usize, max_seq_len: usize, theta: f64) -> Result<RopeTable> {
        ensure!(head_dim > 0 && head_dim.is_multiple_of(2), "rope: found head_dim {head_dim}, expected an even number");
        let pairs = head_dim / 2;
        let angles = (0..max_seq_len * pairs)
            .map(|n| {
                let (t, i) = ((n / pairs) as f64, (n % pairs) as f64);
                let angle = t * theta.powf(-2.0 * i / head_dim as f64);
                (angle.cos(), angle.sin())
            })
            .collect();
        Ok(RopeTable { head_dim, max_seq_len, angles: Arc::new(angles) })
    }

    /// The pairs of one position.
    fn at(&self, position: usize) -> &[(f64, f64)] {
        let pairs = self.head_dim / 2;
        &self.angles[position * pairs..(position + 1) * pairs]
    }

    /// Checks that `x` is `[B,T,H,D]` and that positions start .. start+T are in the table.
    pub(super) fn check(&self, op: &str, x: &Tensor, start: usize) -> Result<()> {
        let (d, max) = (self.head_dim, self.max_seq_len);
        ensure!(x.shape().len() == 4 && x.shape()[3] == d, "{op}: found x {:?}, expected [B,T,H,{d}]", x.shape());
        let t = x.shape()[1];
        ensure!(start + t <= max, "{op}: found positions {start} to {}, expected at most {max} positions", start + t);
        Ok(())
    }
}

/// Rotates each head of `x` `[B,T,H,D]`; token t stands at position `start` + t.
pub fn rope(tape: &mut Tape, x: &Var, table: &RopeTable, start: usize) -> Result<Var> {
    table.check("rope", x.value(), start)?;
    let y = rotate(x.value(), table, start, Direction::Forward)?;
    Ok(tape.record(&[x], y, || Box::new(Rope { table: table.clone(), start })))
}

struct Rope {
    table: RopeTable,
    start: usize,
}

impl Backward for Rope {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(rotate(&only(d_outputs), &self.table, self.start, Direction::Back)?)])
    }
}

#[derive(Clone, Copy)]
pub(super) enum Direction {
    Forward,
    Back,
}

fn rotate(x: &Tensor, table: &RopeTable, start: usize, direction: Direction) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => reference::<f32>(x, table, start, direction),
        DType::F64 => reference::<f64>(x, table, start, direction),
        dtype => Err(unsupported("rope", dtype)),
    }
}

fn reference<F: Float>(x: &Tensor, table: &RopeTable, start: usize, direction: Direction) -> Result<Tensor> {
    let (t, h, d) = (x.shape()[1], x.shape()[2], x.shape()[3]);
    let mut y = x.as_slice::<F>()?.to_vec();
    par_rows(
        &mut y,
        d,
        #[inline(always)]
        |row, y| rotate_row(y, table, start + row / h % t, direction),
    ); // row = (b T + t) H + h
    Tensor::from_vec(y, x.shape())
}

/// Rotates one head in place.
#[inline(always)]
pub(super) fn rotate_row<F: Float>(x: &mut [F], table: &RopeTable, position: usize, direction: Direction) {
    for (pair, &(cos, sin)) in x.chunks_exact_mut(2).zip(table.at(position)) {
        let cos = F::of(cos);
        let sin = match direction {
            Direction::Forward => F::of(sin),
            Direction::Back => F::of(-sin),
        };
        let (even, odd) = (pair[0], pair[1]);
        pair[0] = even * cos - odd * sin;
        pair[1] = even * sin + odd * cos;
    }
}

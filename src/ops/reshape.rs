//! The same values under another shape: how heads are split and joined, `[B,T,H·D]` ↔ `[B,T,H,D]`. Nothing is copied.

use crate::tape::{Tape, Var};
use anyhow::Result;

/// `x` with another shape of the same length. Error: the lengths differ.
pub fn reshape(tape: &mut Tape, x: &Var, shape: &[usize]) -> Result<Var> {
    let y = x.value().reshape(shape)?;
    let x_shape = x.shape().to_vec();
    Ok(tape.record(&[x], y, move |d_y, sink| sink.add(0, d_y.reshape(&x_shape)?)))
}

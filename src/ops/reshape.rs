//! The same values under another shape: how heads are split and joined, `[B,T,H·D]` ↔ `[B,T,H,D]`. Nothing is copied.

use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// `x` with another shape of the same length.
pub fn reshape(tape: &mut Tape, x: &Var, shape: &[usize]) -> Result<Var> {
    let y = x.value().reshape(shape)?;
    let x_shape = x.shape().to_vec();
    Ok(tape.record(&[x], y, || Box::new(Reshape { x_shape })))
}

struct Reshape {
    x_shape: Vec<usize>,
}

impl Backward for Reshape {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(only(d_outputs).reshape(&self.x_shape)?)])
    }
}

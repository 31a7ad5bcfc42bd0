//! Elementwise product.
//!
//! ```text
//! forward    y = a ∘ b               same shape
//! backward   d_a = d_y ∘ b
//!            d_b = d_y ∘ a
//! ```

use super::{same_shape, unsupported, zip};
use crate::dtype::DType;
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// `a ∘ b`. Error: the shapes differ.
pub fn mul(tape: &mut Tape, a: &Var, b: &Var) -> Result<Var> {
    same_shape("mul", a.value(), b.value())?;
    let y = product(a.value(), b.value())?;
    Ok(tape.record(&[a, b], y, || {
        Box::new(Mul {
            a: b.needs_gradient().then(|| a.value().clone()),
            b: a.needs_gradient().then(|| b.value().clone()),
        })
    }))
}

/// Each operand is saved only if the other one needs a gradient.
struct Mul {
    a: Option<Tensor>,
    b: Option<Tensor>,
}

impl Backward for Mul {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let d_a = self.b.map(|b| product(&d_y, &b)).transpose()?;
        let d_b = self.a.map(|a| product(&d_y, &a)).transpose()?;
        Ok(vec![d_a, d_b])
    }
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match a.dtype() {
        DType::F32 => zip::<f32>(a, b, |a, b| a * b),
        DType::F64 => zip::<f64>(a, b, |a, b| a * b),
        dtype => Err(unsupported("mul", dtype)),
    }
}

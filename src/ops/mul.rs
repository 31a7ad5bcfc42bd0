//! Elementwise product.
//!
//! ```text
//! forward    y = a ∘ b               same shape
//! backward   d_a = d_y ∘ b
//!            d_b = d_y ∘ a
//! ```

use super::{dispatch, elementwise, same_shape, zip};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

/// `a ∘ b`. Errors: the shapes, dtypes or devices differ.
pub fn mul(tape: &mut Tape, a: &Var, b: &Var) -> Result<Var> {
    same_shape("mul", a.value(), b.value())?;
    let y = product(a.value(), b.value())?;
    // Each operand is saved only if the other one needs a gradient.
    let a_value = b.needs_gradient().then(|| a.value().clone());
    let b_value = a.needs_gradient().then(|| b.value().clone());
    Ok(tape.record(&[a, b], y, move |d_y, sink| {
        if let Some(b) = b_value {
            sink.add(0, product(&d_y, &b)?)?;
        }
        if let Some(a) = a_value {
            sink.add(1, product(&d_y, &a)?)?;
        }
        Ok(())
    }))
}

fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    dispatch(
        "mul",
        &[a, b],
        || zip::<f32>(a, b, |a, b| a * b),
        || zip::<f64>(a, b, |a, b| a * b),
        |gpu| elementwise(gpu, "mul_forward", &[a, b]),
    )
}

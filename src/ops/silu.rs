//! SiLU, also called swish: x times its own sigmoid.
//!
//! ```text
//! forward    y = x σ(x)                           σ(x) = 1 / (1 + e⁻ˣ)
//! backward   d_x = d_y σ(x) (1 + x (1 − σ(x)))
//! ```

use super::{dispatch, elementwise, map, zip};
use crate::dtype::Float;
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

/// `x σ(x)`, elementwise. Error: a dtype that the device does not compute in.
pub fn silu(tape: &mut Tape, x: &Var) -> Result<Var> {
    let x_value = x.value().clone();
    let y = dispatch(
        "silu",
        &[&x_value],
        || map::<f32>(&x_value, silu_of),
        || map::<f64>(&x_value, silu_of),
        |gpu| elementwise(gpu, "silu_forward", &[&x_value]),
    )?;
    Ok(tape.record(&[x], y, move |d_y, sink| sink.add(0, backward(&x_value, &d_y)?)))
}

fn backward(x: &Tensor, d_y: &Tensor) -> Result<Tensor> {
    dispatch(
        "silu",
        &[x, d_y],
        || zip::<f32>(x, d_y, |x, d_y| d_y * silu_slope(x)),
        || zip::<f64>(x, d_y, |x, d_y| d_y * silu_slope(x)),
        |gpu| elementwise(gpu, "silu_backward", &[x, d_y]),
    )
}

#[inline(always)]
pub(super) fn sigmoid<F: Float>(x: F) -> F {
    F::one() / (F::one() + (-x).exp_simd())
}

#[inline(always)]
pub(super) fn silu_of<F: Float>(x: F) -> F {
    x * sigmoid(x)
}

/// dy/dx of SiLU.
#[inline(always)]
pub(super) fn silu_slope<F: Float>(x: F) -> F {
    let s = sigmoid(x);
    s * (F::one() + x * (F::one() - s))
}

//! GELU in the tanh form of GPT-2, the activation of the `classic` preset.
//!
//! ```text
//! forward    y = x/2 (1 + tanh u),                u = √(2/π) (x + 0.044715 x³)
//! backward   d_x = d_y [ (1 + tanh u)/2 + x/2 (1 − tanh² u) √(2/π) (1 + 3·0.044715 x²) ]
//! ```

use super::{dispatch, elementwise, map, zip};
use crate::dtype::Float;
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

const CUBIC: f64 = 0.044715;

/// GELU, elementwise. Error: a dtype that the device does not compute in.
pub fn gelu(tape: &mut Tape, x: &Var) -> Result<Var> {
    let x_value = x.value().clone();
    let y = dispatch(
        "gelu",
        &[&x_value],
        || map::<f32>(&x_value, gelu_of),
        || map::<f64>(&x_value, gelu_of),
        |gpu| elementwise(gpu, "gelu_forward", &[&x_value]),
    )?;
    Ok(tape.record(&[x], y, move |d_y, sink| sink.add(0, backward(&x_value, &d_y)?)))
}

fn backward(x: &Tensor, d_y: &Tensor) -> Result<Tensor> {
    dispatch(
        "gelu",
        &[x, d_y],
        || zip::<f32>(x, d_y, |x, d_y| d_y * gelu_slope(x)),
        || zip::<f64>(x, d_y, |x, d_y| d_y * gelu_slope(x)),
        |gpu| elementwise(gpu, "gelu_backward", &[x, d_y]),
    )
}

#[inline(always)]
fn gelu_of<F: Float>(x: F) -> F {
    let half = F::of(0.5);
    half * x * (F::one() + tanh_term(x))
}

#[inline(always)]
fn gelu_slope<F: Float>(x: F) -> F {
    let half = F::of(0.5);
    let tanh = tanh_term(x);
    let u_slope = root_two_over_pi::<F>() * (F::one() + F::of(3.0 * CUBIC) * x * x);
    half * (F::one() + tanh) + half * x * (F::one() - tanh * tanh) * u_slope
}

#[inline(always)]
fn tanh_term<F: Float>(x: F) -> F {
    (root_two_over_pi::<F>() * (x + F::of(CUBIC) * x * x * x)).tanh_simd()
}

#[inline(always)]
fn root_two_over_pi<F: Float>() -> F {
    F::of((2.0 / std::f64::consts::PI).sqrt())
}

//! GELU in the tanh form of GPT-2, the activation of the `classic` preset.
//!
//! ```text
//! forward    y = x/2 (1 + tanh u),                u = √(2/π) (x + 0.044715 x³)
//! backward   d_x = d_y [ (1 + tanh u)/2 + x/2 (1 − tanh² u) √(2/π) (1 + 3·0.044715 x²) ]
//! ```
//!
//! (1 + tanh u)/2 = σ(2u) and (1 − tanh² u)/4 = σ(2u) σ(−2u), without the differences that lose digits for large |u|.

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

/// σ(2u) and σ(2u) σ(−2u).
#[inline(always)]
fn gate_of<F: Float>(x: F) -> (F, F) {
    let twice_u = F::of(2.0) * root_two_over_pi::<F>() * (x + F::of(CUBIC) * x * x * x);
    let e = (-twice_u.abs()).exp_simd();
    let larger = F::one() / (F::one() + e);
    let smaller = e * larger;
    (if twice_u > F::zero() { larger } else { smaller }, larger * smaller)
}

#[inline(always)]
fn gelu_of<F: Float>(x: F) -> F {
    x * gate_of(x).0
}

#[inline(always)]
fn gelu_slope<F: Float>(x: F) -> F {
    let (open, slope) = gate_of(x);
    let u_slope = root_two_over_pi::<F>() * (F::one() + F::of(3.0 * CUBIC) * x * x);
    open + F::of(2.0) * x * slope * u_slope
}

#[inline(always)]
fn root_two_over_pi<F: Float>() -> F {
    F::of((2.0 / std::f64::consts::PI).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where tanh is almost −1, a difference from 1 would be off by 1e-7, times x³.
    #[test]
    fn the_tails_keep_their_digits() {
        for i in 0..2000 {
            let x = -3.0 - 0.005 * i as f32;
            let (exact_value, exact_slope) = (gelu_of(f64::from(x)), gelu_slope(f64::from(x)));
            for (found, exact) in [(gelu_of(x), exact_value), (gelu_slope(x), exact_slope)] {
                let error = (f64::from(found) - exact).abs();
                assert!(error <= 1e-4 * exact.abs() + 1e-38, "x {x}: found {found:e}, expected {exact:e}");
            }
        }
    }
}

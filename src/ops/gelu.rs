//! GELU in the tanh form of GPT-2, the activation of the `classic` preset.
//!
//! ```text
//! forward    y = x/2 (1 + tanh u),                u = √(2/π) (x + 0.044715 x³)
//! backward   d_x = d_y [ (1 + tanh u)/2 + x/2 (1 − tanh² u) √(2/π) (1 + 3·0.044715 x²) ]
//! ```

use super::{map, unsupported, zip};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

const CUBIC: f64 = 0.044715;

/// GELU, elementwise.
pub fn gelu(tape: &mut Tape, x: &Var) -> Result<Var> {
    let y = match x.value().dtype() {
        DType::F32 => map::<f32>(x.value(), gelu_of)?,
        DType::F64 => map::<f64>(x.value(), gelu_of)?,
        dtype => return Err(unsupported("gelu", dtype)),
    };
    Ok(tape.record(&[x], y, || Box::new(Gelu { x: x.value().clone() })))
}

struct Gelu {
    x: Tensor,
}

impl Backward for Gelu {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let d_x = match d_y.dtype() {
            DType::F32 => zip::<f32>(&self.x, &d_y, |x, d_y| d_y * gelu_slope(x))?,
            DType::F64 => zip::<f64>(&self.x, &d_y, |x, d_y| d_y * gelu_slope(x))?,
            dtype => return Err(unsupported("gelu", dtype)),
        };
        Ok(vec![Some(d_x)])
    }
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

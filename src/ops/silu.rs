//! SiLU, also called swish: x times its own sigmoid.
//!
//! ```text
//! forward    y = x σ(x)                           σ(x) = 1 / (1 + e⁻ˣ)
//! backward   d_x = d_y σ(x) (1 + x (1 − σ(x)))
//! ```

use super::{map, unsupported, zip};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// `x σ(x)`, elementwise.
pub fn silu(tape: &mut Tape, x: &Var) -> Result<Var> {
    let y = match x.value().dtype() {
        DType::F32 => map::<f32>(x.value(), silu_of)?,
        DType::F64 => map::<f64>(x.value(), silu_of)?,
        dtype => return Err(unsupported("silu", dtype)),
    };
    Ok(tape.record(&[x], y, || Box::new(Silu { x: x.value().clone() })))
}

struct Silu {
    x: Tensor,
}

impl Backward for Silu {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let d_x = match d_y.dtype() {
            DType::F32 => zip::<f32>(&self.x, &d_y, |x, d_y| d_y * silu_slope(x))?,
            DType::F64 => zip::<f64>(&self.x, &d_y, |x, d_y| d_y * silu_slope(x))?,
            dtype => return Err(unsupported("silu", dtype)),
        };
        Ok(vec![Some(d_x)])
    }
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

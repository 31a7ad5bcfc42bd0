//! SwiGLU's gate, fused: SiLU of one projection times another (chapter 8.2.2, report §5.8).
//!
//! ```text
//! forward    y = silu(gate) ∘ up
//! backward   d_gate = d_y ∘ up ∘ silu′(gate)
//!            d_up   = d_y ∘ silu(gate)
//! ```
//!
//! silu(gate) is not saved but computed again: one number less per element.

use super::silu::{silu_of, silu_slope};
use super::{same_shape, unsupported, zip, zip3};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// `silu(gate) ∘ up`, both `[.., F]`. Error: the shapes differ.
pub fn swiglu(tape: &mut Tape, gate: &Var, up: &Var) -> Result<Var> {
    same_shape("swiglu", gate.value(), up.value())?;
    let y = match gate.value().dtype() {
        DType::F32 => reference::<f32>(gate.value(), up.value())?,
        DType::F64 => reference::<f64>(gate.value(), up.value())?,
        dtype => return Err(unsupported("swiglu", dtype)),
    };
    Ok(tape.record(&[gate, up], y, || Box::new(SwiGlu { gate: gate.value().clone(), up: up.value().clone() })))
}

struct SwiGlu {
    gate: Tensor,
    up: Tensor,
}

impl Backward for SwiGlu {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let (d_gate, d_up) = match d_y.dtype() {
            DType::F32 => backward_reference::<f32>(&self.gate, &self.up, &d_y)?,
            DType::F64 => backward_reference::<f64>(&self.gate, &self.up, &d_y)?,
            dtype => return Err(unsupported("swiglu", dtype)),
        };
        Ok(vec![Some(d_gate), Some(d_up)])
    }
}

fn reference<F: Float>(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    zip::<F>(gate, up, |gate, up| silu_of(gate) * up)
}

fn backward_reference<F: Float>(gate: &Tensor, up: &Tensor, d_y: &Tensor) -> Result<(Tensor, Tensor)> {
    let d_gate = zip3::<F>(gate, up, d_y, |gate, up, d_y| d_y * up * silu_slope(gate))?;
    let d_up = zip::<F>(gate, d_y, |gate, d_y| d_y * silu_of(gate))?;
    Ok((d_gate, d_up))
}

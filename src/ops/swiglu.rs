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
use super::{dispatch, elementwise, same_shape, zip, zip3};
use crate::dtype::Float;
use crate::gpu::{Gpu, Grid};
use crate::launch::{In, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

/// `silu(gate) ∘ up`, both `[.., F]`. Errors: the shapes, dtypes or devices differ.
pub fn swiglu(tape: &mut Tape, gate: &Var, up: &Var) -> Result<Var> {
    same_shape("swiglu", gate.value(), up.value())?;
    let (gate_value, up_value) = (gate.value().clone(), up.value().clone());
    let y = dispatch(
        "swiglu",
        &[&gate_value, &up_value],
        || reference::<f32>(&gate_value, &up_value),
        || reference::<f64>(&gate_value, &up_value),
        |gpu| elementwise(gpu, "swiglu_forward", &[&gate_value, &up_value]),
    )?;
    Ok(tape.record(&[gate, up], y, move |d_y, sink| {
        let (d_gate, d_up) = backward(&gate_value, &up_value, &d_y)?;
        sink.add(0, d_gate)?;
        sink.add(1, d_up)
    }))
}

fn backward(gate: &Tensor, up: &Tensor, d_y: &Tensor) -> Result<(Tensor, Tensor)> {
    dispatch(
        "swiglu",
        &[gate, up, d_y],
        || backward_reference::<f32>(gate, up, d_y),
        || backward_reference::<f64>(gate, up, d_y),
        |gpu| launch_backward(gpu, gate, up, d_y),
    )
}

fn reference<F: Float>(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    zip::<F>(gate, up, |gate, up| silu_of(gate) * up)
}

fn backward_reference<F: Float>(gate: &Tensor, up: &Tensor, d_y: &Tensor) -> Result<(Tensor, Tensor)> {
    let d_gate = zip3::<F>(gate, up, d_y, |gate, up, d_y| d_y * up * silu_slope(gate))?;
    let d_up = zip::<F>(gate, d_y, |gate, d_y| d_y * silu_of(gate))?;
    Ok((d_gate, d_up))
}

fn launch_backward(gpu: &Gpu, gate: &Tensor, up: &Tensor, d_y: &Tensor) -> Result<(Tensor, Tensor)> {
    let d_gate = Tensor::empty(gate.shape(), gate.dtype(), gpu)?;
    let d_up = Tensor::empty(gate.shape(), gate.dtype(), gpu)?;
    let grid = Grid::elementwise(gate.len(), gate.dtype().size());
    let args = [In(gate), In(up), In(d_y), Out(&d_gate), Out(&d_up), int(gate.len())];
    gpu.launch("swiglu_backward", &grid, &args)?;
    Ok((d_gate, d_up))
}

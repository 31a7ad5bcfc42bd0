//! AdamW's update of one parameter (report §6.1), in PyTorch's order: decay first, then the step.
//!
//! ```text
//! g = s g                                        s from clipping; not finite: nothing is changed
//! θ = θ (1 − lr λ)
//! m = β₁ m + (1 − β₁) g,    v = β₂ v + (1 − β₂) g²
//! θ = θ − lr m̂ / (√v̂ + ε)                        m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ),  t counted from 1
//! ```
//!
//! θ, m, v and g are f32 (f64 in checks); a bf16 copy of θ, for the next forward pass, is written along. No gradient passes.

use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::Grid;
use crate::gpu::grid::shared::{ADAMW_WIDTH, ELEMENTWISE_THREADS};
use crate::launch::{Absent, Arg, F32, In, Out, int};
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};
use rayon::prelude::*;

const CHUNK: usize = 4096;

/// The numbers of one step of one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWStep {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// λ; 0 for parameters that do not decay.
    pub weight_decay: f64,
    /// t, counted from 1.
    pub t: usize,
}

impl AdamWStep {
    /// β₁, 1 − β₁, β₂, 1 − β₂, ε, 1 − lr λ, lr / (1 − β₁ᵗ), √(1 − β₂ᵗ), each rounded once: in f32, 1 − 0.999 would be off by
    /// 5e-5 if 0.999 were rounded first.
    fn numbers(&self) -> [f64; 8] {
        let &AdamWStep { lr, beta1, beta2, eps, weight_decay, t } = self;
        let (power1, power2) = (beta1.powi(t as i32), beta2.powi(t as i32));
        let (decay, step_size) = (1.0 - lr * weight_decay, lr / (1.0 - power1));
        [beta1, 1.0 - beta1, beta2, 1.0 - beta2, eps, decay, step_size, (1.0 - power2).sqrt()]
    }
}

/// One step in place: `weights`, first moment `m`, second moment `v`, all of the `gradient`'s shape and dtype; the
/// gradient counts times `scale` `[]`. `copy` gets the new weights in bf16. Error: tensors that do not fit.
pub fn adamw_step(
    [weights, m, v]: [&mut Tensor; 3],
    gradient: &Tensor,
    scale: &Tensor,
    copy: Option<&mut Tensor>,
    step: &AdamWStep,
) -> Result<()> {
    let same =
        |x: &Tensor| x.shape() == gradient.shape() && x.dtype() == gradient.dtype() && x.device() == gradient.device();
    let all = same(weights) && same(m) && same(v);
    ensure!(all, "adamw: found gradient {gradient:?}, expected {weights:?} as the weights and moments {m:?}, {v:?}");
    for state in [&mut *weights, &mut *m, &mut *v] {
        state.make_unique()?;
    }
    match (gradient.gpu(), gradient.dtype()) {
        (Some(gpu), DType::F32) => launch(gpu, [weights, m, v], gradient, scale, copy, step),
        (None, DType::F32) => update::<f32>([weights, m, v], gradient, scale, step),
        (None, DType::F64) => update::<f64>([weights, m, v], gradient, scale, step),
        (_, dtype) => bail!("adamw: found a gradient of {dtype}, expected f32, or f64 on the cpu"),
    }
}

fn update<F: Float>(
    [weights, m, v]: [&mut Tensor; 3],
    gradient: &Tensor,
    scale: &Tensor,
    step: &AdamWStep,
) -> Result<()> {
    let scale = scale.item()?;
    if !scale.is_finite() {
        return Ok(());
    }
    let (numbers, scale) = (step.numbers().map(F::of), F::of(scale));
    let weights = weights.as_mut_slice::<F>()?.par_chunks_mut(CHUNK);
    let m = m.as_mut_slice::<F>()?.par_chunks_mut(CHUNK);
    let v = v.as_mut_slice::<F>()?.par_chunks_mut(CHUNK);
    let gradient = gradient.as_slice::<F>()?.par_chunks(CHUNK);
    weights.zip(m).zip(v).zip(gradient).for_each(|(((w, m), v), g)| {
        for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(g) {
            update_one(numbers, w, m, v, g * scale);
        }
    });
    Ok(())
}

fn update_one<F: Float>(numbers: [F; 8], w: &mut F, m: &mut F, v: &mut F, g: F) {
    let [beta1, rest1, beta2, rest2, eps, decay, step_size, root_correction2] = numbers;
    *w *= decay;
    *m = beta1 * *m + rest1 * g;
    *v = beta2 * *v + rest2 * g * g;
    *w -= step_size * *m / (v.sqrt() / root_correction2 + eps);
}

fn launch(
    gpu: &Gpu,
    [weights, m, v]: [&Tensor; 3],
    gradient: &Tensor,
    scale: &Tensor,
    copy: Option<&mut Tensor>,
    step: &AdamWStep,
) -> Result<()> {
    let n = weights.len();
    let copy = match copy {
        Some(copy) => {
            copy.make_unique()?;
            Out(copy)
        }
        None => Absent,
    };
    let grid = Grid::linear(n.div_ceil(ADAMW_WIDTH), ELEMENTWISE_THREADS);
    let tensors = [Out(weights), Out(m), Out(v), In(gradient), copy, int(n), In(scale)];
    let numbers: [Arg; 8] = step.numbers().map(|x| F32(x as f32));
    Ok(gpu.launch("adamw_step", &grid, &[&tensors[..], &numbers].concat())?)
}

//! AdamW (report §6.1), in PyTorch's order: decay first, then the step.
//!
//! ```text
//! θ = θ (1 − lr λ)                               matrices only: gains and biases do not decay
//! m = β₁ m + (1 − β₁) g,    v = β₂ v + (1 − β₂) g²
//! θ = θ − lr m̂ / (√v̂ + ε)                        m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ),  t counted from 1
//! ```

use crate::dtype::{DType, Float};
use crate::nn::Parameter;
use crate::tape::Gradients;
use crate::tensor::Tensor;
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use std::collections::BTreeMap;

const CHUNK: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// λ, for parameters of two or more dimensions.
    pub weight_decay: f64,
}

/// First and second moment of one parameter, in the parameter's dtype.
#[derive(Clone, Debug)]
pub struct Moments {
    pub m: Tensor,
    pub v: Tensor,
}

/// The optimizer and its state.
pub struct AdamW {
    pub config: AdamWConfig,
    /// Steps done.
    pub step: usize,
    /// By parameter name.
    pub moments: BTreeMap<String, Moments>,
}

/// The numbers of one step, the same for every element of a parameter.
struct Step<F> {
    beta1: F,
    /// 1 − β₁, subtracted before rounding to F: in f32, 1 − 0.999 has an error of 5e-5.
    rest1: F,
    beta2: F,
    /// 1 − β₂
    rest2: F,
    eps: F,
    /// 1 − lr λ
    decay: F,
    /// lr / (1 − β₁ᵗ)
    step_size: F,
    /// √(1 − β₂ᵗ)
    root_correction2: F,
}

impl AdamW {
    pub fn new(config: AdamWConfig) -> AdamW {
        AdamW { config, step: 0, moments: BTreeMap::new() }
    }

    /// Whether a parameter decays.
    pub fn decays(parameter: &Parameter) -> bool {
        parameter.value.shape().len() >= 2
    }

    /// One step with learning rate `lr`. A parameter without a gradient is left as it is.
    ///
    /// Error: a gradient whose shape or dtype is not its parameter's.
    pub fn step(&mut self, parameters: Vec<&mut Parameter>, gradients: &Gradients, lr: f64) -> Result<()> {
        for parameter in &parameters {
            let Some(gradient) = gradients.get(&parameter.name) else { continue };
            let (found, expected) = (gradient, &parameter.value);
            let same = found.shape() == expected.shape() && found.dtype() == expected.dtype();
            ensure!(same, "adamw: gradient of {}: found {found:?}, expected {expected:?}", parameter.name);
        }
        self.step += 1;
        for parameter in parameters {
            let Some(gradient) = gradients.get(&parameter.name) else { continue };
            match parameter.value.dtype() {
                DType::F32 => self.update::<f32>(parameter, gradient, lr),
                DType::F64 => self.update::<f64>(parameter, gradient, lr),
                dtype => bail!("found dtype {dtype}, expected f32 or f64"),
            }
            .with_context(|| format!("adamw: {}", parameter.name))?;
        }
        Ok(())
    }

    fn update<F: Float>(&mut self, parameter: &mut Parameter, gradient: &Tensor, lr: f64) -> Result<()> {
        let constants = self.constants::<F>(AdamW::decays(parameter), lr);
        let zeros = || Tensor::zeros(gradient.shape(), F::DTYPE);
        let moments = self.moments.entry(parameter.name.clone()).or_insert_with(|| Moments { m: zeros(), v: zeros() });
        let weights = parameter.value.as_mut_slice::<F>()?.par_chunks_mut(CHUNK);
        let m = moments.m.as_mut_slice::<F>()?.par_chunks_mut(CHUNK);
        let v = moments.v.as_mut_slice::<F>()?.par_chunks_mut(CHUNK);
        let gradient = gradient.as_slice::<F>()?.par_chunks(CHUNK);
        weights.zip(m).zip(v).zip(gradient).for_each(|(((w, m), v), g)| {
            for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(g) {
                update_one(&constants, w, m, v, g);
            }
        });
        Ok(())
    }

    fn constants<F: Float>(&self, decays: bool, lr: f64) -> Step<F> {
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.config;
        let t = self.step as i32;
        Step {
            beta1: F::of(beta1),
            rest1: F::of(1.0 - beta1),
            beta2: F::of(beta2),
            rest2: F::of(1.0 - beta2),
            eps: F::of(eps),
            decay: F::of(if decays { 1.0 - lr * weight_decay } else { 1.0 }),
            step_size: F::of(lr / (1.0 - beta1.powi(t))),
            root_correction2: F::of((1.0 - beta2.powi(t)).sqrt()),
        }
    }
}

fn update_one<F: Float>(step: &Step<F>, w: &mut F, m: &mut F, v: &mut F, g: F) {
    *w *= step.decay;
    *m = step.beta1 * *m + step.rest1 * g;
    *v = step.beta2 * *v + step.rest2 * g * g;
    *w -= step.step_size * *m / (v.sqrt() / step.root_correction2 + step.eps);
}

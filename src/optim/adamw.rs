//! AdamW (report §6.1): the state of all parameters; the update of one is [`ops::adamw`](mod@crate::ops::adamw).
//!
//! Matrices decay, gains and biases do not.

use crate::nn::Parameter;
use crate::ops::{AdamWStep, adamw_step};
use crate::tape::Gradients;
use crate::tensor::Tensor;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWConfig {
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// λ, for parameters of two or more dimensions.
    pub weight_decay: f64,
}

/// First and second moment of one parameter, as its master weights lie.
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

impl AdamW {
    pub fn new(config: AdamWConfig) -> AdamW {
        AdamW { config, step: 0, moments: BTreeMap::new() }
    }

    /// Whether a parameter decays.
    pub fn decays(parameter: &Parameter) -> bool {
        parameter.value.shape().len() >= 2
    }

    /// Makes the moments of parameters that have none yet, so that the first step has all its memory before it begins.
    /// Error: out of memory.
    pub fn prepare(&mut self, parameters: &[&Parameter]) -> Result<()> {
        for Parameter { name, value, .. } in parameters {
            if !self.moments.contains_key(name) {
                let zeros = || Tensor::zeros_on(value.shape(), value.dtype(), &value.device());
                self.moments.insert(name.clone(), Moments { m: zeros()?, v: zeros()? });
            }
        }
        Ok(())
    }

    /// One step with learning rate `lr` and the gradients times `scale` `[]`, which
    /// [`clip_grad_norm`](super::clip_grad_norm) gives. A parameter without a gradient is left as it is.
    ///
    /// Errors: a gradient that does not fit its parameter, before anything is changed; no memory for the moments; what
    /// the device reports.
    pub fn step(
        &mut self,
        parameters: Vec<&mut Parameter>,
        gradients: &Gradients,
        scale: &Tensor,
        lr: f64,
    ) -> Result<()> {
        for parameter in &parameters {
            let Some(gradient) = gradients.get(&parameter.name) else { continue };
            let (found, expected) = (gradient, &parameter.value);
            let same = found.shape() == expected.shape() && found.dtype() == expected.dtype();
            ensure!(same, "adamw: gradient of {}: found {found:?}, expected {expected:?}", parameter.name);
        }
        self.step += 1;
        let AdamWConfig { beta1, beta2, eps, weight_decay } = self.config;
        for parameter in parameters {
            let Some(gradient) = gradients.get(&parameter.name) else { continue };
            let weight_decay = if AdamW::decays(parameter) { weight_decay } else { 0.0 };
            let numbers = AdamWStep { lr, beta1, beta2, eps, weight_decay, t: self.step };
            self.prepare(&[parameter])?;
            let moments = self.moments.get_mut(&parameter.name).context("adamw: moments that were made")?;
            let Parameter { name, value, copy } = parameter;
            adamw_step([value, &mut moments.m, &mut moments.v], gradient, scale, copy.as_mut(), &numbers)
                .with_context(|| format!("adamw: {name}"))?;
        }
        Ok(())
    }
}

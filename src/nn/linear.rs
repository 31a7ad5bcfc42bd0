//! A linear layer y = x Wᵀ + b (report §5.3).

use super::config::{Init, ModelConfig};
use super::{Module, Parameter, init};
use crate::ops;
use crate::tape::{Tape, Var};
use anyhow::Result;
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
pub struct Linear {
    /// `[O,I]`
    pub weight: Parameter,
    /// `[O]`
    pub bias: Option<Parameter>,
}

/// Sizes and initialisation of a linear layer.
#[derive(Clone, Copy)]
pub struct LinearSpec {
    pub in_features: usize,
    pub out_features: usize,
    pub bias: bool,
    pub init: Init,
    /// Multiplies the drawn weights: 1, or 1/√(2L) on the way back into the residual stream.
    pub scale: f64,
}

impl LinearSpec {
    /// A layer with the model's kind of weights and biases.
    pub fn of(config: &ModelConfig, in_features: usize, out_features: usize) -> LinearSpec {
        LinearSpec { in_features, out_features, bias: config.bias, init: config.init, scale: 1.0 }
    }
}

impl Linear {
    pub fn new(name: &str, spec: LinearSpec, rng: &mut ChaCha8Rng) -> Linear {
        let LinearSpec { in_features, out_features, bias, init, scale } = spec;
        let weight = init::matrix(init, out_features, in_features, scale, rng);
        let bias = bias.then(|| init::bias(out_features, in_features, rng));
        Linear {
            weight: Parameter::new(format!("{name}.weight"), weight),
            bias: bias.map(|bias| Parameter::new(format!("{name}.bias"), bias)),
        }
    }

    /// `[.., I]` → `[.., O]`
    pub fn forward(&self, tape: &mut Tape, x: &Var) -> Result<Var> {
        let weight = self.weight.on(tape);
        let bias = self.bias.as_ref().map(|bias| bias.on(tape));
        ops::linear(tape, x, &weight, bias.as_ref())
    }
}

impl Module for Linear {
    fn parameters(&self) -> Vec<&Parameter> {
        let Linear { weight, bias } = self;
        std::iter::once(weight).chain(bias).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Linear { weight, bias } = self;
        std::iter::once(weight).chain(bias).collect()
    }
}

//! The norm of a block: RMSNorm with a gain, or LayerNorm with gain and bias (report §5.4).

use super::config::{ModelConfig, NormKind};
use super::{Module, Parameter, init};
use crate::ops;
use crate::tape::{Tape, Var};
use anyhow::Result;

#[derive(Clone, Debug)]
pub struct Norm {
    /// Gain, `[C]`
    pub weight: Parameter,
    /// `[C]`, LayerNorm only
    pub bias: Option<Parameter>,
    pub eps: f64,
}

impl Norm {
    pub fn new(name: &str, config: &ModelConfig) -> Norm {
        let bias = match config.norm {
            NormKind::RmsNorm => None,
            NormKind::LayerNorm => Some(Parameter::new(format!("{name}.bias"), init::constant(config.n_embd, 0.0))),
        };
        let weight = Parameter::new(format!("{name}.weight"), init::constant(config.n_embd, 1.0));
        Norm { weight, bias, eps: config.norm_eps }
    }

    /// `[.., C]` → `[.., C]`
    pub fn forward(&self, tape: &mut Tape, x: &Var) -> Result<Var> {
        let gain = self.weight.on(tape);
        match &self.bias {
            None => ops::rms_norm(tape, x, &gain, self.eps),
            Some(bias) => {
                let bias = bias.on(tape);
                ops::layer_norm(tape, x, &gain, &bias, self.eps)
            }
        }
    }

    /// The residual sum h = x + residual and the norm of h.
    pub fn forward_residual(&self, tape: &mut Tape, x: &Var, residual: &Var) -> Result<(Var, Var)> {
        if self.bias.is_none() {
            let gain = self.weight.on(tape);
            return ops::rms_norm_residual(tape, x, residual, &gain, self.eps);
        }
        let h = ops::add(tape, x, residual)?;
        let y = self.forward(tape, &h)?;
        Ok((h, y))
    }
}

impl Module for Norm {
    fn parameters(&self) -> Vec<&Parameter> {
        let Norm { weight, bias, eps: _ } = self;
        std::iter::once(weight).chain(bias).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Norm { weight, bias, eps: _ } = self;
        std::iter::once(weight).chain(bias).collect()
    }
}

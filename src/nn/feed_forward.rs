//! The feed-forward branch of a block: SwiGLU (chapter 8.2.2, report §5.8) or the classic GELU one.
//!
//! ```text
//! SwiGLU    down_proj( silu(gate_proj x) ∘ up_proj x )
//! GELU      down_proj( gelu(up_proj x) )
//! ```

use super::config::{FeedForwardKind, ModelConfig};
use super::linear::{Linear, LinearSpec};
use super::{Module, Parameter};
use crate::ops;
use crate::tape::{Tape, Var};
use anyhow::Result;
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
pub struct FeedForward {
    /// `[F,C]`, SwiGLU only
    pub gate_proj: Option<Linear>,
    /// `[F,C]`
    pub up_proj: Linear,
    /// `[C,F]`
    pub down_proj: Linear,
}

impl FeedForward {
    pub fn new(layer: usize, config: &ModelConfig, rng: &mut ChaCha8Rng) -> FeedForward {
        let name = |part: &str| format!("model.layers.{layer}.mlp.{part}");
        let (c, f) = (config.n_embd, config.n_ff);
        let gated = config.feed_forward == FeedForwardKind::SwiGlu;
        FeedForward {
            gate_proj: gated.then(|| Linear::new(&name("gate_proj"), LinearSpec::of(config, c, f), rng)),
            up_proj: Linear::new(&name("up_proj"), LinearSpec::of(config, c, f), rng),
            down_proj: Linear::new(
                &name("down_proj"),
                LinearSpec { scale: config.residual_scale(), ..LinearSpec::of(config, f, c) },
                rng,
            ),
        }
    }

    /// `[B,T,C]` → `[B,T,C]`
    pub fn forward(&self, tape: &mut Tape, x: &Var) -> Result<Var> {
        let up = self.up_proj.forward(tape, x)?; // [B,T,F]
        let hidden = match &self.gate_proj {
            Some(gate_proj) => {
                let gate = gate_proj.forward(tape, x)?; // [B,T,F]
                ops::swiglu(tape, &gate, &up)?
            }
            None => ops::gelu(tape, &up)?,
        };
        self.down_proj.forward(tape, &hidden)
    }
}

impl Module for FeedForward {
    fn parameters(&self) -> Vec<&Parameter> {
        let FeedForward { gate_proj, up_proj, down_proj } = self;
        gate_proj.iter().chain([up_proj, down_proj]).flat_map(Module::parameters).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let FeedForward { gate_proj, up_proj, down_proj } = self;
        gate_proj.iter_mut().chain([up_proj, down_proj]).flat_map(Module::parameters_mut).collect()
    }
}

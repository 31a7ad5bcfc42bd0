//! A transformer block: attention, then feed-forward, each added to the residual stream (chapter 8.1, report §5.9).
//!
//! ```text
//! Pre-LN     h = x + attn(norm(x))            y = h + ffn(norm(h))
//! Post-LN    h = norm(x + attn(x))            y = norm(h + ffn(h))
//! ```

use super::config::{ModelConfig, NormPosition};
use super::{Attention, FeedForward, KvCache, Module, Norm, Parameter};
use crate::ops::{self, RopeTable};
use crate::tape::{Tape, Var};
use anyhow::Result;
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
pub struct Block {
    pub attn_norm: Norm,
    pub attn: Attention,
    pub ffn_norm: Norm,
    pub ffn: FeedForward,
    norm_position: NormPosition,
    layer: usize,
}

impl Block {
    pub fn new(layer: usize, config: &ModelConfig, rope: Option<&RopeTable>, rng: &mut ChaCha8Rng) -> Block {
        Block {
            attn_norm: Norm::new(&format!("model.layers.{layer}.input_layernorm"), config),
            attn: Attention::new(layer, config, rope, rng),
            ffn_norm: Norm::new(&format!("model.layers.{layer}.post_attention_layernorm"), config),
            ffn: FeedForward::new(layer, config, rng),
            norm_position: config.norm_position,
            layer,
        }
    }

    /// `[B,T,C]` → `[B,T,C]`
    pub fn forward(&self, tape: &mut Tape, x: &Var, caches: &mut [KvCache]) -> Result<Var> {
        let y = match self.norm_position {
            NormPosition::Pre => self.pre_norm(tape, x, caches)?,
            NormPosition::Post => self.post_norm(tape, x, caches)?,
        };
        self.trace(tape, "out", &y);
        Ok(y)
    }

    /// [`Block::forward`] without a cache, keeping only `x` for backward, where everything else is computed again: the same
    /// gradients, bit for bit. Errors: as the operators within.
    pub fn recomputed(&self, tape: &mut Tape, x: &Var) -> Result<Var> {
        let names: Vec<String> = self.parameters().iter().map(|parameter| parameter.name.clone()).collect();
        let mut inputs = vec![x.clone()];
        inputs.extend(self.parameters().iter().map(|parameter| parameter.on(tape)));
        let y = self.forward(&mut Tape::inference(), &Var::constant(x.value().clone()), &mut [])?;
        let (block, x_value) = (self.clone(), x.value().clone());
        let inputs: Vec<&Var> = inputs.iter().collect();
        Ok(tape.record(&inputs, y.value().clone(), move |d_y, sink| {
            let mut tape = Tape::new();
            let x = tape.leaf("x", &x_value);
            let y = block.forward(&mut tape, &x, &mut [])?;
            let mut gradients = tape.backward_from(&[(&y, d_y)])?;
            for (i, name) in std::iter::once("x").chain(names.iter().map(String::as_str)).enumerate() {
                if let Some(gradient) = gradients.remove(name) {
                    sink.add(i, gradient)?;
                }
            }
            Ok(())
        }))
    }

    fn pre_norm(&self, tape: &mut Tape, x: &Var, caches: &mut [KvCache]) -> Result<Var> {
        let attn_in = self.attn_norm.forward(tape, x)?;
        self.trace(tape, "attn_norm", &attn_in);
        let attn_out = self.attn.forward(tape, &attn_in, caches)?;
        self.trace(tape, "attn", &attn_out);
        let (h, ffn_in) = self.ffn_norm.forward_residual(tape, &attn_out, x)?;
        self.trace(tape, "h", &h);
        self.trace(tape, "ffn_norm", &ffn_in);
        let ffn_out = self.ffn.forward(tape, &ffn_in)?;
        self.trace(tape, "ffn", &ffn_out);
        ops::add(tape, &h, &ffn_out)
    }

    fn post_norm(&self, tape: &mut Tape, x: &Var, caches: &mut [KvCache]) -> Result<Var> {
        let attn_out = self.attn.forward(tape, x, caches)?;
        self.trace(tape, "attn", &attn_out);
        let (sum, h) = self.attn_norm.forward_residual(tape, &attn_out, x)?;
        self.trace(tape, "h", &sum);
        self.trace(tape, "attn_norm", &h);
        let ffn_out = self.ffn.forward(tape, &h)?;
        self.trace(tape, "ffn", &ffn_out);
        let (_, y) = self.ffn_norm.forward_residual(tape, &ffn_out, &h)?;
        self.trace(tape, "ffn_norm", &y);
        Ok(y)
    }

    fn trace(&self, tape: &mut Tape, what: &str, x: &Var) {
        tape.trace(|| format!("layers.{}.{what}", self.layer), x);
    }
}

impl Module for Block {
    fn parameters(&self) -> Vec<&Parameter> {
        let Block { attn_norm, attn, ffn_norm, ffn, norm_position: _, layer: _ } = self;
        [attn_norm.parameters(), attn.parameters(), ffn_norm.parameters(), ffn.parameters()].concat()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Block { attn_norm, attn, ffn_norm, ffn, norm_position: _, layer: _ } = self;
        let mut all = attn_norm.parameters_mut();
        all.extend(attn.parameters_mut());
        all.extend(ffn_norm.parameters_mut());
        all.extend(ffn.parameters_mut());
        all
    }
}

//! The whole model: embedding, blocks, final norm, output head (chapter 8.2.2, report §5.10).
//!
//! ```text
//! ids [B,T] ─ embedding ─ [B,T,C] ─ L × block ─ final norm (Pre-LN) ─ head ─ logits [B,T,V]
//! ```

use super::config::{ModelConfig, NormPosition, Positions};
use super::linear::{Linear, LinearSpec};
use super::{Block, Embedding, KvCache, Module, Norm, Parameter};
use crate::dtype::DType;
use crate::ops::{self, RopeTable};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
pub struct Transformer {
    pub config: ModelConfig,
    pub embed_tokens: Embedding,
    /// The position table `[max_seq_len, C]` where there is no RoPE.
    pub embed_positions: Option<Embedding>,
    pub layers: Vec<Block>,
    /// Pre-LN only: Post-LN's last block has normalised already.
    pub norm: Option<Norm>,
    /// `[V,C]`; `None` when the head is the embedding.
    pub lm_head: Option<Linear>,
}

impl Transformer {
    /// A model with weights drawn from `seed`, in f32. Error: an impossible configuration.
    pub fn new(config: &ModelConfig, seed: u64) -> Result<Transformer> {
        config.validate()?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rope = match config.positions {
            Positions::Rope => Some(RopeTable::new(config.head_dim, config.max_seq_len, config.rope_theta)?),
            Positions::Absolute => None,
        };
        let (c, v) = (config.n_embd, config.vocab_size);
        let head = LinearSpec { bias: false, ..LinearSpec::of(config, c, v) };
        Ok(Transformer {
            config: config.clone(),
            embed_tokens: Embedding::new("model.embed_tokens", v, c, config.init, &mut rng),
            embed_positions: match config.positions {
                Positions::Rope => None,
                Positions::Absolute => {
                    Some(Embedding::new("model.embed_positions", config.max_seq_len, c, config.init, &mut rng))
                }
            },
            layers: (0..config.n_layer).map(|layer| Block::new(layer, config, rope.as_ref(), &mut rng)).collect(),
            norm: (config.norm_position == NormPosition::Pre).then(|| Norm::new("model.norm", config)),
            lm_head: (!config.tie_embeddings).then(|| Linear::new("lm_head", head, &mut rng)),
        })
    }

    /// The same model in another dtype, for gradient checks in f64.
    pub fn to_dtype(&self, dtype: DType) -> Result<Transformer> {
        let mut model = self.clone();
        for parameter in model.parameters_mut() {
            parameter.value = parameter.value.to_dtype(dtype)?;
        }
        Ok(model)
    }

    pub fn dtype(&self) -> DType {
        self.embed_tokens.weight.value.dtype()
    }

    /// Logits `[B,T,V]` of `ids` `[B,T]`.
    pub fn forward(&self, tape: &mut Tape, ids: &Tensor) -> Result<Var> {
        let hidden = self.hidden(tape, ids, None)?;
        self.logits(tape, &hidden)
    }

    /// The mean loss of predicting `targets` `[B,T]` (u32, [`ops::IGNORE_INDEX`] where none) from `ids` `[B,T]`.
    pub fn loss(&self, tape: &mut Tape, ids: &Tensor, targets: &Tensor) -> Result<Var> {
        let logits = self.forward(tape, ids)?;
        ops::cross_entropy(tape, &logits, targets, ops::IGNORE_INDEX)
    }

    /// What the head reads, `[B,T,C]`. With a cache, `ids` are the T tokens that follow those it holds; it then holds them too.
    ///
    /// Errors: cached and new positions exceed `max_seq_len` or the cache; a cache on a recording tape.
    pub fn hidden(&self, tape: &mut Tape, ids: &Tensor, mut cache: Option<&mut KvCache>) -> Result<Var> {
        ensure!(ids.shape().len() == 2, "transformer: found ids {:?}, expected [B,T]", ids.shape());
        let t = ids.shape()[1];
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let max = self.config.max_seq_len;
        ensure!(t > 0, "transformer: found no tokens, expected at least 1");
        ensure!(
            start + t <= max,
            "transformer: found {start} cached and {t} new tokens, expected at most {max} together"
        );
        let mut x = self.embed_tokens.forward(tape, ids)?; // [B,T,C]
        if let Some(embed_positions) = &self.embed_positions {
            let positions = Tensor::from_vec((start..start + t).map(|p| p as u32).collect(), &[t])?;
            let positions = embed_positions.forward(tape, &positions)?; // [T,C]
            x = ops::add(tape, &x, &positions)?;
        }
        tape.trace(|| "embed".to_string(), &x);
        for block in &self.layers {
            x = block.forward(tape, &x, cache.as_deref_mut())?;
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(tape, &x)?;
            tape.trace(|| "final_norm".to_string(), &x);
        }
        if let Some(cache) = cache {
            cache.advance(t);
        }
        Ok(x)
    }

    /// `[.., C]` → `[.., V]`
    pub fn logits(&self, tape: &mut Tape, hidden: &Var) -> Result<Var> {
        let logits = match &self.lm_head {
            Some(lm_head) => lm_head.forward(tape, hidden)?,
            None => self.embed_tokens.as_head(tape, hidden)?,
        };
        tape.trace(|| "logits".to_string(), &logits);
        Ok(logits)
    }

    /// Number of trained numbers.
    pub fn parameter_count(&self) -> usize {
        self.parameters().iter().map(|p| p.value.len()).sum()
    }
}

impl Module for Transformer {
    fn parameters(&self) -> Vec<&Parameter> {
        let Transformer { config: _, embed_tokens, embed_positions, layers, norm, lm_head } = self;
        let mut all = embed_tokens.parameters();
        all.extend(embed_positions.iter().flat_map(Module::parameters));
        all.extend(layers.iter().flat_map(Module::parameters));
        all.extend(norm.iter().flat_map(Module::parameters));
        all.extend(lm_head.iter().flat_map(Module::parameters));
        all
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Transformer { config: _, embed_tokens, embed_positions, layers, norm, lm_head } = self;
        let mut all = embed_tokens.parameters_mut();
        all.extend(embed_positions.iter_mut().flat_map(Module::parameters_mut));
        all.extend(layers.iter_mut().flat_map(Module::parameters_mut));
        all.extend(norm.iter_mut().flat_map(Module::parameters_mut));
        all.extend(lm_head.iter_mut().flat_map(Module::parameters_mut));
        all
    }
}

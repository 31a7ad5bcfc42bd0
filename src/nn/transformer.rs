//! The whole model: embedding, blocks, final norm, output head (chapter 8.2.2, report §5.10).
//!
//! ```text
//! ids [B,T] ─ embedding ─ [B,T,C] ─ L × block ─ final norm (Pre-LN) ─ head ─ logits [B,T,V]
//! ```

use super::config::{ModelConfig, NormPosition, Positions};
use super::linear::{Linear, LinearSpec};
use super::{Block, Embedding, KvCache, Module, Norm, Parameter};
use crate::device::Device;
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
    /// Whether blocks compute their activations again in backward instead of keeping them.
    pub recompute: bool,
}

impl Transformer {
    /// A model with weights drawn from `seed`, in f32. Error: an impossible configuration.
    pub fn new(config: &ModelConfig, seed: u64) -> Result<Transformer> {
        config.validate()?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let rope = match config.positions {
            Positions::Rope => {
                Some(RopeTable::scaled(config.head_dim, config.max_seq_len, config.rope_theta, config.rope_scaling)?)
            }
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
            recompute: false,
        })
    }

    /// This model with all weights in another dtype, on the CPU: for gradient checks in f64. Error: not a float.
    pub fn to_dtype(&self, dtype: DType) -> Result<Transformer> {
        let mut model = self.clone();
        for parameter in model.parameters_mut() {
            parameter.value = parameter.value.to_dtype(dtype)?;
        }
        Ok(model)
    }

    /// Moves the model to `device`, to compute in `dtype` there: f32, or bf16 by copies of the f32 weights, which stay.
    /// Errors: out of memory; a dtype that the device does not compute in.
    pub fn to(mut self, device: &Device, dtype: DType) -> Result<Transformer> {
        let known = dtype == DType::F32 || dtype == DType::Bf16 && device.gpu().is_some();
        ensure!(
            known,
            "dtype: found {dtype} on {device}, expected f32{}",
            if device.gpu().is_some() { " or bf16" } else { ": bf16 needs --device cuda or emulator" }
        );
        for parameter in self.parameters_mut() {
            parameter.value = parameter.value.to(device)?;
            parameter.copy = match dtype {
                DType::Bf16 => Some(ops::cast(&parameter.value, dtype)?),
                _ => None,
            };
        }
        Ok(self)
    }

    /// What the model computes in.
    pub fn dtype(&self) -> DType {
        self.embed_tokens.weight.compute().dtype()
    }

    pub fn device(&self) -> Device {
        self.embed_tokens.weight.value.device()
    }

    /// Logits `[B,T,V]` of `ids` `[B,T]`. Errors: as [`Transformer::hidden`].
    pub fn forward(&self, tape: &mut Tape, ids: &Tensor) -> Result<Var> {
        let hidden = self.hidden(tape, ids, &mut [])?;
        self.logits(tape, &hidden)
    }

    /// The mean loss of predicting `targets` `[B,T]` (u32, [`ops::IGNORE_INDEX`] where none) from `ids` `[B,T]`. Errors: as
    /// [`Transformer::hidden`]; a target out of range, named with its row.
    pub fn loss(&self, tape: &mut Tape, ids: &Tensor, targets: &Tensor) -> Result<Var> {
        let hidden = self.hidden(tape, ids, &mut [])?; // [B,T,C]
        let head = self.head().on(tape); // [V,C]
        ops::linear_cross_entropy(tape, &hidden, &head, targets, ops::IGNORE_INDEX)
    }

    /// The weights of the output head, `[V,C]`.
    fn head(&self) -> &Parameter {
        self.lm_head.as_ref().map_or(&self.embed_tokens.weight, |lm_head| &lm_head.weight)
    }

    /// What the head reads, `[B,T,C]`. With one cache, `ids` are the T tokens of each sequence that follow those it holds; with
    /// a cache for each sequence, those that follow what its own holds. The caches then hold them too.
    ///
    /// Errors: an id out of range; cached and new positions exceed `max_seq_len` or a cache; a cache on a recording tape.
    pub fn hidden(&self, tape: &mut Tape, ids: &Tensor, caches: &mut [KvCache]) -> Result<Var> {
        ensure!(ids.shape().len() == 2, "transformer: found ids {:?}, expected [B,T]", ids.shape());
        let (b, t) = (ids.shape()[0], ids.shape()[1]);
        let (each, max) = (caches.len(), self.config.max_seq_len);
        ensure!(each <= 1 || each == b, "transformer: found {each} caches for {b} sequences, expected one or {b}");
        ensure!(t > 0, "transformer: found no tokens, expected at least 1");
        let starts: Vec<usize> = caches.iter().map(KvCache::len).collect();
        let start = starts.iter().copied().max().unwrap_or(0);
        ensure!(
            start + t <= max,
            "transformer: found {start} cached and {t} new tokens, expected at most {max} together"
        );
        let mut x = self.embed_tokens.forward(tape, ids)?; // [B,T,C]
        if let Some(embed_positions) = &self.embed_positions {
            let starts = if each > 1 { &starts } else { &vec![start] };
            let positions: Vec<u32> = starts.iter().flat_map(|&start| (start..start + t).map(|p| p as u32)).collect();
            let shape = if each > 1 { vec![b, t] } else { vec![t] };
            let positions = embed_positions.forward(tape, &Tensor::from_vec(positions, &shape)?)?; // [T,C] or [B,T,C]
            x = ops::add(tape, &x, &positions)?;
        }
        tape.trace(|| "embed".to_string(), &x);
        for block in &self.layers {
            x = if self.recompute { block.recomputed(tape, &x)? } else { block.forward(tape, &x, caches)? };
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(tape, &x)?;
            tape.trace(|| "final_norm".to_string(), &x);
        }
        caches.iter_mut().for_each(|cache| cache.advance(t));
        Ok(x)
    }

    /// `[.., C]` → `[.., V]`. Error: shapes, dtypes or devices that do not fit.
    pub fn logits(&self, tape: &mut Tape, hidden: &Var) -> Result<Var> {
        let head = self.head().on(tape);
        let logits = ops::linear(tape, hidden, &head, None)?;
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
        let Transformer { config: _, embed_tokens, embed_positions, layers, norm, lm_head, recompute: _ } = self;
        let mut all = embed_tokens.parameters();
        all.extend(embed_positions.iter().flat_map(Module::parameters));
        all.extend(layers.iter().flat_map(Module::parameters));
        all.extend(norm.iter().flat_map(Module::parameters));
        all.extend(lm_head.iter().flat_map(Module::parameters));
        all
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Transformer { config: _, embed_tokens, embed_positions, layers, norm, lm_head, recompute: _ } = self;
        let mut all = embed_tokens.parameters_mut();
        all.extend(embed_positions.iter_mut().flat_map(Module::parameters_mut));
        all.extend(layers.iter_mut().flat_map(Module::parameters_mut));
        all.extend(norm.iter_mut().flat_map(Module::parameters_mut));
        all.extend(lm_head.iter_mut().flat_map(Module::parameters_mut));
        all
    }
}

//! The attention branch of a block (chapter 8.1, steps 2 to 5; report §5.7).
//!
//! ```text
//! x ─┬─ q_proj ─ [B,T,H,D]   ─ QK-Norm ─ RoPE ─┐
//!    ├─ k_proj ─ [B,T,Hkv,D] ─ QK-Norm ─ RoPE ─┼─ causal attention ─ o_proj
//!    └─ v_proj ─ [B,T,Hkv,D] ──────────────────┘
//! ```
//!
//! The same code trains (a recording tape, no cache), prefills and decodes (a cache).

use super::config::ModelConfig;
use super::linear::{Linear, LinearSpec};
use super::{KvCache, Module, Parameter, init};
use crate::ops::{self, RopeTable};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
pub struct Attention {
    pub q_proj: Linear,
    pub k_proj: Linear,
    pub v_proj: Linear,
    pub o_proj: Linear,
    /// QK-Norm's gains, `[D]`: shared by all heads.
    pub q_norm: Option<Parameter>,
    pub k_norm: Option<Parameter>,
    rope: Option<RopeTable>,
    layer: usize,
    n_head: usize,
    n_kv_head: usize,
    head_dim: usize,
    norm_eps: f64,
}

impl Attention {
    /// `rope` is the table that all layers share, if the model rotates.
    pub fn new(layer: usize, config: &ModelConfig, rope: Option<&RopeTable>, rng: &mut ChaCha8Rng) -> Attention {
        let name = |part: &str| format!("model.layers.{layer}.self_attn.{part}");
        let &ModelConfig { n_embd: c, head_dim: d, n_head: h, n_kv_head: hkv, .. } = config;
        let gain = |part: &str| config.qk_norm.then(|| Parameter::new(name(part), init::constant(d, 1.0)));
        Attention {
            q_proj: Linear::new(&name("q_proj"), LinearSpec::of(config, c, h * d), rng),
            // No bias: without RoPE it adds the same number to every score of a query, which softmax does not see.
            k_proj: Linear::new(&name("k_proj"), LinearSpec { bias: false, ..LinearSpec::of(config, c, hkv * d) }, rng),
            v_proj: Linear::new(&name("v_proj"), LinearSpec::of(config, c, hkv * d), rng),
            o_proj: Linear::new(
                &name("o_proj"),
                LinearSpec { scale: config.residual_scale(), ..LinearSpec::of(config, h * d, c) },
                rng,
            ),
            q_norm: gain("q_norm.weight"),
            k_norm: gain("k_norm.weight"),
            rope: rope.cloned(),
            layer,
            n_head: h,
            n_kv_head: hkv,
            head_dim: d,
            norm_eps: config.norm_eps,
        }
    }

    /// `[B,T,C]` → `[B,T,C]`; with a cache, T new positions behind those it holds; with a cache for each sequence, behind
    /// those that its own holds. Errors: shapes, dtypes or devices that do not fit; no room in a cache.
    pub fn forward(&self, tape: &mut Tape, x: &Var, caches: &mut [KvCache]) -> Result<Var> {
        let (b, t) = (x.shape()[0], x.shape()[1]);
        let &Attention { n_head: h, n_kv_head: hkv, head_dim: d, .. } = self;
        let q = self.q_proj.forward(tape, x)?; // [B,T,H·D]
        let q = ops::reshape(tape, &q, &[b, t, h, d])?;
        let k = self.k_proj.forward(tape, x)?; // [B,T,Hkv·D]
        let k = ops::reshape(tape, &k, &[b, t, hkv, d])?;
        let v = self.v_proj.forward(tape, x)?; // [B,T,Hkv·D]
        let v = ops::reshape(tape, &v, &[b, t, hkv, d])?;
        let y = match caches {
            [] => self.attend(tape, &q, &k, &v, None)?, // [B,T,H,D]
            [cache] => self.attend(tape, &q, &k, &v, Some(cache))?,
            _ => self.attend_each(tape, [&q, &k, &v], caches)?,
        };
        let y = ops::reshape(tape, &y, &[b, t, h * d])?;
        self.o_proj.forward(tape, &y)
    }

    /// QK-Norm, RoPE and attention: q `[B,T,H,D]`, k and v `[B,T,Hkv,D]` → `[B,T,H,D]`.
    fn attend(&self, tape: &mut Tape, q: &Var, k: &Var, v: &Var, cache: Option<&mut KvCache>) -> Result<Var> {
        let start = cache.as_ref().map_or(0, |cache| cache.len());
        let q = self.norm_rope(tape, q, self.q_norm.as_ref(), start)?;
        let k = self.norm_rope(tape, k, self.k_norm.as_ref(), start)?;
        tape.trace(|| format!("layers.{}.q", self.layer), &q);
        tape.trace(|| format!("layers.{}.k", self.layer), &k);
        tape.trace(|| format!("layers.{}.v", self.layer), v);
        let Some(cache) = cache else { return ops::attention(tape, &q, &k, v, true) };
        let needs_gradient = q.needs_gradient() || k.needs_gradient() || v.needs_gradient();
        ensure!(!needs_gradient, "attention: found a KV cache on a recording tape, expected Tape::inference()");
        Ok(Var::constant(cache.attend(self.layer, q.value(), k.value(), v.value())?))
    }

    /// [`Attention::attend`] sequence by sequence, each with its cache.
    fn attend_each(&self, tape: &mut Tape, [q, k, v]: [&Var; 3], caches: &mut [KvCache]) -> Result<Var> {
        let mut all = Tensor::zeros_on(q.shape(), q.value().dtype(), &q.value().device())?;
        for (b, cache) in caches.iter_mut().enumerate() {
            let one = |x: &Var| Ok::<Var, anyhow::Error>(Var::constant(x.value().rows(b..b + 1)?)); // [1,T,..]
            let y = self.attend(tape, &one(q)?, &one(k)?, &one(v)?, Some(cache))?;
            all.write_at(b * y.value().len(), y.value())?;
        }
        Ok(Var::constant(all))
    }

    fn norm_rope(&self, tape: &mut Tape, x: &Var, gain: Option<&Parameter>, start: usize) -> Result<Var> {
        let gain = gain.map(|gain| gain.on(tape));
        let eps = self.norm_eps;
        match (gain, &self.rope) {
            (Some(gain), Some(rope)) => ops::qk_norm_rope(tape, x, &gain, eps, rope, start),
            (Some(gain), None) => ops::rms_norm(tape, x, &gain, eps),
            (None, Some(rope)) => ops::rope(tape, x, rope, start),
            (None, None) => Ok(x.clone()),
        }
    }
}

impl Module for Attention {
    fn parameters(&self) -> Vec<&Parameter> {
        let Attention {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            q_norm,
            k_norm,
            rope: _,
            layer: _,
            n_head: _,
            n_kv_head: _,
            head_dim: _,
            norm_eps: _,
        } = self;
        let linears = [q_proj, k_proj, v_proj, o_proj].into_iter().flat_map(Module::parameters);
        linears.chain(q_norm).chain(k_norm).collect()
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Attention {
            q_proj,
            k_proj,
            v_proj,
            o_proj,
            q_norm,
            k_norm,
            rope: _,
            layer: _,
            n_head: _,
            n_kv_head: _,
            head_dim: _,
            norm_eps: _,
        } = self;
        let linears = [q_proj, k_proj, v_proj, o_proj].into_iter().flat_map(Module::parameters_mut);
        linears.chain(q_norm).chain(k_norm).collect()
    }
}

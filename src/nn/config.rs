//! The configuration of a model: one struct covers both documents.
//!
//! Every row of chapter 8's upgrade table is a switch here (left: `classic`, right: `chapter8`):
//!
//! | row                     | field                | older                      | newer                     |
//! |-------------------------|----------------------|----------------------------|---------------------------|
//! | Post-LN → Pre-LN        | `norm_position`      | [`NormPosition::Post`]     | [`NormPosition::Pre`]     |
//! | LayerNorm → RMSNorm     | `norm`               | [`NormKind::LayerNorm`]    | [`NormKind::RmsNorm`]     |
//! | GELU FFN → SwiGLU       | `feed_forward`       | [`FeedForwardKind::Gelu`]  | [`FeedForwardKind::SwiGlu`] |
//! | position table → RoPE   | `positions`          | [`Positions::Absolute`]    | [`Positions::Rope`]       |
//! | MHA → GQA               | `n_kv_head`          | `= n_head`                 | `< n_head`                |
//! | plain Q, K → QK-Norm    | `qk_norm`            | `false`                    | `true`                    |
//! | recompute → KV cache    | (when generating)    | `--no-cache`               | the default               |

use crate::ops::RopeScaling;
use crate::shown::{quoted, shown};
use anyhow::{Context, Result, bail, ensure};

/// Where a block normalises: before each branch, on the way in, or after each residual sum (report §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPosition {
    Pre,
    Post,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    LayerNorm,
    RmsNorm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedForwardKind {
    Gelu,
    SwiGlu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// A learned vector per position, added to the token embedding.
    Absolute,
    /// Rotations of q and k in every layer.
    Rope,
}

/// How weights are drawn (report §5.1). Gains start at 1, biases of norms at 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// N(0, std²).
    Normal { std: f64 },
    /// N(0, std²) drawn again until it lies within ±3 std.
    TruncatedNormal { std: f64 },
    /// N(0, 2 / (fan_in + fan_out)).
    XavierNormal,
    /// Uniform, of the same variance.
    XavierUniform,
    /// N(0, 2 / fan_in).
    HeNormal,
    /// Uniform, of the same variance.
    HeUniform,
    /// All 0, for weights that are read from a file next.
    Zeros,
}

impl Init {
    /// Every way to draw weights; the first two with their usual spread.
    pub const ALL: [Init; 6] = [
        Init::Normal { std: Init::STD },
        Init::TruncatedNormal { std: Init::STD },
        Init::XavierNormal,
        Init::XavierUniform,
        Init::HeNormal,
        Init::HeUniform,
    ];
    pub const STD: f64 = 0.02;

    /// The name on the command line and, with underscores, in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Init::Normal { .. } => "normal",
            Init::TruncatedNormal { .. } => "truncated-normal",
            Init::XavierNormal => "xavier-normal",
            Init::XavierUniform => "xavier-uniform",
            Init::HeNormal => "he-normal",
            Init::HeUniform => "he-uniform",
            Init::Zeros => "zeros",
        }
    }

    /// The way of drawing that is called `name`. Error: none is.
    pub fn of_name(name: &str) -> Result<Init> {
        let names = || Init::ALL.map(Init::name).join(", ");
        let found = Init::ALL.into_iter().chain([Init::Zeros]).find(|init| init.name() == name);
        found.with_context(|| format!("found {}, expected one of {}", quoted(name), names()))
    }
}

/// The shape of a model and its switches.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub vocab_size: usize,
    /// Longest sequence, in tokens: the context length.
    pub max_seq_len: usize,
    pub n_layer: usize,
    pub n_head: usize,
    pub n_kv_head: usize,
    /// Width of the residual stream, `C`.
    pub n_embd: usize,
    /// Width of one head, `D`; usually `n_embd / n_head`, but its own setting.
    pub head_dim: usize,
    /// Inner width of the feed-forward, `F`.
    pub n_ff: usize,
    pub rope_theta: f64,
    /// Whether and how the context was stretched.
    pub rope_scaling: RopeScaling,
    pub norm_eps: f64,
    pub norm_position: NormPosition,
    pub norm: NormKind,
    pub feed_forward: FeedForwardKind,
    pub positions: Positions,
    pub qk_norm: bool,
    /// Whether the output head is the token embedding, transposed.
    pub tie_embeddings: bool,
    /// Whether linear layers have a bias; never the head, nor `k_proj` (see `nn/attention.rs`).
    pub bias: bool,
    pub init: Init,
    /// Whether `o_proj` and `down_proj` start smaller by 1/√(2L), so that the residual stream's variance does not grow with depth.
    pub scale_residual_init: bool,
}

impl ModelConfig {
    /// The largest size a configuration may name: larger ones are mistakes, and products of two still fit.
    pub const MAX_SIZE: usize = 1 << 28;

    /// Chapter 8's model: Pre-LN, RMSNorm, GQA with QK-Norm then RoPE, SwiGLU, untied head.
    pub fn chapter8(vocab_size: usize) -> ModelConfig {
        ModelConfig {
            vocab_size,
            max_seq_len: 64,
            n_layer: 4,
            n_head: 4,
            n_kv_head: 2,
            n_embd: 128,
            head_dim: 32,
            n_ff: 352,
            rope_theta: 10000.0,
            rope_scaling: RopeScaling::None,
            norm_eps: 1e-6,
            norm_position: NormPosition::Pre,
            norm: NormKind::RmsNorm,
            feed_forward: FeedForwardKind::SwiGlu,
            positions: Positions::Rope,
            qk_norm: true,
            tie_embeddings: false,
            bias: false,
            init: Init::Normal { std: 0.02 },
            scale_residual_init: true,
        }
    }

    /// The left column of chapter 8's table: Post-LN, LayerNorm, GELU, a position table, MHA; as wide and deep as `chapter8`.
    pub fn classic(vocab_size: usize) -> ModelConfig {
        ModelConfig {
            n_kv_head: 4,
            n_ff: 512,
            norm_eps: 1e-5,
            norm_position: NormPosition::Post,
            norm: NormKind::LayerNorm,
            feed_forward: FeedForwardKind::Gelu,
            positions: Positions::Absolute,
            qk_norm: false,
            bias: true,
            scale_residual_init: false,
            ..ModelConfig::chapter8(vocab_size)
        }
    }

    /// The report's 80M model (§8.1): 81,801,984 parameters with its vocabulary of 32,768.
    pub fn report_80m(vocab_size: usize) -> ModelConfig {
        ModelConfig {
            max_seq_len: 768,
            n_layer: 8,
            n_head: 8,
            n_kv_head: 8,
            n_embd: 768,
            head_dim: 96,
            n_ff: 2048,
            norm_eps: 1e-5,
            qk_norm: false,
            tie_embeddings: true,
            init: Init::TruncatedNormal { std: 0.02 },
            scale_residual_init: false,
            ..ModelConfig::chapter8(vocab_size)
        }
    }

    /// The report's larger model (§9.1): 197,157,888 parameters with its vocabulary of 32,768.
    pub fn report_197m(vocab_size: usize) -> ModelConfig {
        ModelConfig {
            n_layer: 12,
            n_head: 16,
            n_kv_head: 16,
            n_embd: 1024,
            head_dim: 64,
            n_ff: 3072,
            ..ModelConfig::report_80m(vocab_size)
        }
    }

    /// A preset by its command-line name. `vocab_size`: `None` takes the document's, where it names one.
    pub fn preset(name: &str, vocab_size: Option<usize>) -> Result<ModelConfig> {
        /// Distinct characters of tinyshakespeare, the corpus that the small presets are usually shown on.
        const SMALL: usize = 65;
        /// Report §4.1.
        const REPORT: usize = 32768;
        Ok(match name {
            "chapter8" => ModelConfig::chapter8(vocab_size.unwrap_or(SMALL)),
            "classic" => ModelConfig::classic(vocab_size.unwrap_or(SMALL)),
            "report-80m" => ModelConfig::report_80m(vocab_size.unwrap_or(REPORT)),
            "report-197m" => ModelConfig::report_197m(vocab_size.unwrap_or(REPORT)),
            _ => bail!("preset: found '{}', expected chapter8, classic, report-80m or report-197m", shown(name)),
        })
    }

    /// The factor on `o_proj`'s and `down_proj`'s first weights.
    pub fn residual_scale(&self) -> f64 {
        if self.scale_residual_init { 1.0 / (2.0 * self.n_layer as f64).sqrt() } else { 1.0 }
    }

    /// Refuses what no model can be built from, naming the field, its value and what was expected.
    pub fn validate(&self) -> Result<()> {
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("max_seq_len", self.max_seq_len),
            ("n_layer", self.n_layer),
            ("n_head", self.n_head),
            ("n_kv_head", self.n_kv_head),
            ("n_embd", self.n_embd),
            ("head_dim", self.head_dim),
            ("n_ff", self.n_ff),
        ] {
            ensure!(value > 0, "config: {name} is 0, expected at least 1");
            ensure!(value <= Self::MAX_SIZE, "config: {name} is {value}, expected at most {}", Self::MAX_SIZE);
        }
        let angles = self.max_seq_len * self.head_dim;
        ensure!(
            angles <= Self::MAX_SIZE,
            "config: max_seq_len times head_dim is {angles}, expected at most {}",
            Self::MAX_SIZE
        );
        let (h, kv) = (self.n_head, self.n_kv_head);
        ensure!(h % kv == 0, "config: n_head {h} is not divisible by n_kv_head {kv}");
        if self.positions == Positions::Rope {
            ensure!(
                self.head_dim.is_multiple_of(2),
                "config: head_dim is {}, expected an even number for RoPE",
                self.head_dim
            );
            let theta = self.rope_theta;
            ensure!(theta.is_finite() && theta > 0.0, "config: rope_theta is {theta}, expected a positive number");
            self.validate_scaling()?;
        }
        let eps = self.norm_eps;
        ensure!(eps.is_finite() && eps >= 0.0, "config: norm_eps is {eps}, expected 0 or a small positive number");
        Ok(())
    }

    fn validate_scaling(&self) -> Result<()> {
        let (factor, turns) = match self.rope_scaling {
            RopeScaling::None => return Ok(()),
            RopeScaling::Linear { factor } => (factor, (1.0, 2.0)),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. } => {
                (factor, (low_freq_factor, high_freq_factor))
            }
        };
        ensure!(factor.is_finite() && factor >= 1.0, "config: rope_scaling's factor is {factor}, expected at least 1");
        let (low, high) = turns;
        ensure!(
            low.is_finite() && high.is_finite() && low < high,
            "config: rope_scaling's low_freq_factor is {low} and high_freq_factor {high}, expected the first to be smaller"
        );
        Ok(())
    }

    /// `head_dim` where a config leaves it out. Error: `n_embd` is not divisible by `n_head`.
    pub fn default_head_dim(n_embd: usize, n_head: usize) -> Result<usize> {
        ensure!(n_head > 0, "config: n_head is 0, expected at least 1");
        ensure!(n_embd.is_multiple_of(n_head), "config: n_embd {n_embd} is not divisible by n_head {n_head}");
        Ok(n_embd / n_head)
    }
}

//! What a model costs: parameters by component (report §8.1), FLOPs and bytes per token, KV cache (chapter 8.3, report §9.2).
//!
//! ```text
//! FLOPs per token, forward     2 per weight of every matrix product + 4 L H D T for the scores and the weighted sum
//! FLOPs per token, training    3 times as much, at T/2: each product has two gradients, and a causal query sees half of the
//!                              context on average
//! KV cache                     2 L Hkv T D numbers a sequence
//! ```

use super::config::{FeedForwardKind, ModelConfig, Positions};
use super::{Module, Transformer};

/// Parameters of one component.
#[derive(Clone, Debug, PartialEq)]
pub struct Component {
    pub name: &'static str,
    pub parameters: usize,
}

/// The parameters of a model, grouped; components that the model lacks are left out.
pub fn components(model: &Transformer) -> Vec<Component> {
    let count = |name, belongs: &dyn Fn(&str) -> bool| {
        let parameters = model.parameters().iter().filter(|p| belongs(&p.name)).map(|p| p.value.len()).sum();
        Component { name, parameters }
    };
    let all = vec![
        count("token embedding", &|name| name.contains("embed_tokens")),
        count("position embedding", &|name| name.contains("embed_positions")),
        count("attention", &|name| name.contains("self_attn") && !name.contains("_norm")),
        count("QK-norm gains", &|name| name.contains("self_attn") && name.contains("_norm")),
        count("feed-forward", &|name| name.contains("mlp")),
        count("norms", &|name| name.contains("layernorm") || name.starts_with("model.norm")),
        count("output head", &|name| name.starts_with("lm_head")),
    ];
    all.into_iter().filter(|component| component.parameters > 0).collect()
}

/// Weights that multiply each token: every matrix but the embedding tables, and the head even when it is tied.
pub fn matmul_weights(config: &ModelConfig) -> usize {
    let embedding = if config.tie_embeddings { 0 } else { config.vocab_size * config.n_embd };
    matrix_parameters(config) as usize - position_parameters(config) as usize - embedding
}

/// Parameters of all matrices, without building the model: almost all there are. In u128, as a damaged configuration may ask for any number.
pub fn matrix_parameters(config: &ModelConfig) -> u128 {
    let wide = |n: usize| n as u128;
    let ModelConfig { n_embd: c, n_head: h, n_kv_head: hkv, head_dim: d, n_ff: f, .. } = *config;
    let matrices = if config.feed_forward == FeedForwardKind::SwiGlu { 3 } else { 2 };
    let layer = wide(c) * wide(d) * (2 * wide(h) + 2 * wide(hkv)) + matrices * wide(c) * wide(f);
    let tables = if config.tie_embeddings { 1 } else { 2 };
    wide(config.n_layer) * layer + tables * wide(config.vocab_size) * wide(c) + position_parameters(config)
}

/// Those of the table of positions, where there is one.
fn position_parameters(config: &ModelConfig) -> u128 {
    match config.positions {
        Positions::Absolute => config.max_seq_len as u128 * config.n_embd as u128,
        Positions::Rope => 0,
    }
}

/// FLOPs by component, all layers together. What looks up, normalises or draws counts nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flops {
    /// Q, K, V and the output projection.
    pub projections: f64,
    pub feed_forward: f64,
    /// Q Kᵀ.
    pub scores: f64,
    /// Scores times V.
    pub weighted_sums: f64,
    pub head: f64,
}

impl Flops {
    pub fn attention(&self) -> f64 {
        self.scores + self.weighted_sums
    }

    /// Of the blocks' matrix products with weights.
    pub fn linear(&self) -> f64 {
        self.projections + self.feed_forward
    }

    pub fn total(&self) -> f64 {
        self.linear() + self.attention() + self.head
    }
}

/// FLOPs of a prompt of `n` tokens at once, with all n × n pairs and logits of every token, as the report counts (§9.2). A
/// kernel that skips what the causal mask hides computes half of the pairs, and generation the logits of the last token.
pub fn prefill_flops(config: &ModelConfig, n: usize) -> Flops {
    token_flops(config, n, n as f64)
}

/// FLOPs of one more token behind `n`, with a cache.
pub fn decode_flops(config: &ModelConfig, n: usize) -> Flops {
    token_flops(config, n, 1.0)
}

/// Those of `tokens` tokens that attend to `n` positions each.
fn token_flops(config: &ModelConfig, n: usize, tokens: f64) -> Flops {
    let pairs = 2.0 * (config.n_layer * config.n_head * config.head_dim) as f64 * n as f64 * tokens;
    let (projections, feed_forward) = block_weights(config);
    let product = |weights: f64| 2.0 * weights * tokens;
    Flops {
        projections: product(config.n_layer as f64 * projections),
        feed_forward: product(config.n_layer as f64 * feed_forward),
        scores: pairs,
        weighted_sums: pairs,
        head: product((config.vocab_size * config.n_embd) as f64),
    }
}

/// Weights of a block's attention projections and of its feed-forward network.
pub fn block_weights(config: &ModelConfig) -> (f64, f64) {
    let ModelConfig { n_embd: c, n_head: h, n_kv_head: hkv, head_dim: d, n_ff: f, .. } = *config;
    let matrices = if config.feed_forward == FeedForwardKind::SwiGlu { 3 } else { 2 };
    ((c * d * (2 * h + 2 * hkv)) as f64, (matrices * c * f) as f64)
}

/// The length at which attention's pairs take as many FLOPs as the blocks' linear layers; with the head's, too.
pub fn crossing(config: &ModelConfig) -> (f64, f64) {
    let one = prefill_flops(config, 1);
    (one.linear() / one.attention(), (one.linear() + one.head) / one.attention())
}

/// Weights that a new token reads: all, but of an input table that is not the head one row.
pub fn weights_read(config: &ModelConfig, parameters: usize) -> usize {
    let table = config.vocab_size * config.n_embd;
    let unread = if config.tie_embeddings { 0 } else { table - config.n_embd };
    parameters - unread - (position_parameters(config) as usize).saturating_sub(config.n_embd)
}

/// FLOPs of computing one token's logits with `t` positions to attend to.
pub fn forward_flops(config: &ModelConfig, t: usize) -> usize {
    2 * matmul_weights(config) + 4 * config.n_layer * config.n_head * config.head_dim * t
}

/// FLOPs per token of training on sequences of `t` tokens: a causal query sees half of them on average.
pub fn training_flops(config: &ModelConfig, t: usize) -> usize {
    3 * forward_flops(config, t.div_ceil(2))
}

/// Bytes of the keys and values of one sequence of `t` positions.
pub fn kv_cache_bytes(config: &ModelConfig, t: usize, bytes_per_number: usize) -> usize {
    2 * config.n_layer * config.n_kv_head * t * config.head_dim * bytes_per_number
}

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

//! What a model needs in memory to compute without a tape: evaluation, and generation with or without a cache.
//!
//! ```text
//! attention      residual stream, its norm, q, k, v, both rotated, the output and a logsumexp a row, o_proj's result
//! feed-forward   seven states of the residual stream: input, norms, sums and results of both branches; up, gate, their product
//! head           the last norm's input and output; the logits of a chunk (evaluation) or of the last rows (generation)
//! ```
//!
//! The peak is the largest of them, beside the weights, the RoPE tables and the caches.

use super::rope_tables;
use crate::dtype::DType;
use crate::generate::Request;
use crate::nn::config::FeedForwardKind;
use crate::nn::{ModelConfig, Transformer, cost};
use crate::ops::linear_cross_entropy::most_rows;
use anyhow::Result;

/// Error: an evaluation in batches of `sequences` × `tokens` needs more than the model's device has left.
pub fn check_evaluation(model: &Transformer, sequences: usize, tokens: usize) -> Result<()> {
    let needed = evaluation(&model.config, sequences, tokens, model.dtype(), model.device().gpu().is_some());
    model.device().check_memory(needed, "to evaluate; lower --batch-size")
}

/// Error: answering `requests` together needs more than the model's device has left.
pub fn check_generation(model: &Transformer, requests: &[Request]) -> Result<()> {
    let (config, device) = (&model.config, model.device());
    let needed = generation(config, requests, model.dtype(), device.gpu().is_some());
    let fewer = if requests.len() > 1 { ", or fewer prompts" } else { "" };
    device.check_memory(needed, &format!("to generate; lower --max-new, or give a shorter prompt{fewer}"))
}

/// Bytes at the peak of [`mean_loss`](crate::train::trainer::mean_loss) beside the weights.
pub fn evaluation(config: &ModelConfig, sequences: usize, tokens: usize, dtype: DType, on_card: bool) -> f64 {
    let (rows, size) = (sequences as f64 * tokens as f64, dtype.size() as f64);
    let losses = if on_card { 4.0 } else { 8.0 + 16.0 }; // with the largest logits and the sums of a chunk
    let logits = rows.min(most_rows(config.vocab_size) as f64) * config.vocab_size as f64 * size;
    let head = rows * (2.0 * config.n_embd as f64 * size + losses + 4.0) + logits;
    let batch = rows * if on_card { 8.0 } else { 16.0 }; // ids, targets, and on the CPU the rows that they were read into
    forward(config, rows, size).max(head) + batch + rope_tables(config, tokens, on_card)
}

/// Bytes at the peak of [`generate_batch`](crate::generate::generate_batch) beside the weights.
pub fn generation(config: &ModelConfig, requests: &[Request], dtype: DType, on_card: bool) -> f64 {
    let (mut caches, mut activations, mut longest) = (0.0, 0.0f64, 0);
    for request in requests {
        let all = request.prompt.len().saturating_add(request.max_new);
        let fed = if request.use_cache { request.prompt.len() } else { all };
        caches += if request.use_cache { kv_cache(config, all, dtype) } else { 0.0 };
        activations = activations.max(forward(config, fed as f64, dtype.size() as f64));
        longest = longest.max(all);
    }
    // Draws need the logits in f64, and each with its id.
    let logits = requests.len() as f64 * config.vocab_size as f64 * (dtype.size() as f64 + 32.0);
    let step = forward(config, requests.len() as f64, dtype.size() as f64);
    caches + activations.max(step) + logits + rope_tables(config, longest, on_card)
}

fn kv_cache(config: &ModelConfig, positions: usize, dtype: DType) -> f64 {
    let one = cost::kv_cache_bytes(config, 1, dtype.size());
    one as f64 * positions as f64
}

/// Bytes of `rows` tokens within the worst block.
fn forward(config: &ModelConfig, rows: f64, size: f64) -> f64 {
    let &ModelConfig { n_embd: c, n_head: h, n_kv_head: hkv, head_dim: d, n_ff: f, bias, .. } = config;
    let [c, q, kv, f, heads] = [c, h * d, hkv * d, f, h].map(|columns| columns as f64);
    let gated = if config.feed_forward == FeedForwardKind::SwiGlu { 3.0 } else { 2.0 };
    let biased = if bias { 1.0 } else { 0.0 }; // a product before its bias is added
    let attention = 2.0 * c + 2.0 * q + 3.0 * kv + (q + 4.0 * heads / size).max(biased * q);
    let output = 2.0 * c + 2.0 * q + 2.0 * kv + (1.0 + biased) * c;
    let feed_forward = 5.0 * c + gated * f + ((1.0 + biased) * c).max(biased * f);
    rows * size * attention.max(output).max(feed_forward)
}

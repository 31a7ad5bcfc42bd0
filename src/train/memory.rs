//! Whether a training run fits into memory, asked before anything is allocated: an allocation that fails ends the process.

use super::{Placement, Recipe};
use crate::device::Device;
use crate::nn::{ModelConfig, cost};
use anyhow::{Result, ensure};

/// Error: the run of a validated configuration needs more than the machine has free. Where that is unknown, there is none.
pub fn check(config: &ModelConfig, recipe: &Recipe, placement: &Placement) -> Result<()> {
    if placement.device != Device::Cpu {
        return Ok(());
    }
    let Some(free) = free_bytes() else { return Ok(()) };
    let needed = training_bytes(config, recipe);
    let gib = |bytes: u128| bytes as f64 / f64::from(1 << 30);
    ensure!(
        needed <= free,
        "memory: training needs about {:.1} GiB, found {:.1} GiB free; lower --batch-size, --seq-len or the model's size",
        gib(needed),
        gib(free)
    );
    Ok(())
}

/// A lower bound in bytes: weights, gradients and two moments; what each layer saves for backward; logits and their gradient.
fn training_bytes(config: &ModelConfig, recipe: &Recipe) -> u128 {
    let wide = |n: usize| n as u128;
    let tokens = wide(recipe.batch_size).saturating_mul(wide(recipe.seq_len));
    let ModelConfig { n_embd: c, n_head: h, n_kv_head: hkv, head_dim: d, n_ff: f, .. } = *config;
    let saved = 4 * wide(c) + wide(d) * (3 * wide(h) + 3 * wide(hkv)) + 3 * wide(f);
    let activations = tokens.saturating_mul(wide(config.n_layer) * saved + 2 * wide(config.vocab_size));
    activations.saturating_add(4 * cost::matrix_parameters(config)).saturating_mul(4)
}

/// Bytes that the system can give without swapping (Linux).
fn free_bytes() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u128 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

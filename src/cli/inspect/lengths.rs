//! `handgrad inspect --lengths`: what a prompt and the token behind it cost, by their length (chapter 8.3, report §9.2).

use super::super::thousands;
use super::Card;
use crate::nn::{ModelConfig, cost};
use anyhow::Result;
use std::io::Write;

/// Prints the tables. `parameters`: the model's; `sequences`: those that share the weights of a decode step.
pub fn print(
    out: &mut impl Write,
    config: &ModelConfig,
    parameters: usize,
    lengths: &[usize],
    sequences: usize,
    card: Option<&Card>,
) -> Result<()> {
    writeln!(
        out,
        "\nprefill, FLOPs of n tokens with all n × n pairs and every token's logits (a causal kernel: half of the pairs)"
    )?;
    writeln!(out, "{:>8} {HEAD}", "n")?;
    for &n in lengths {
        row(out, n, &cost::prefill_flops(config, n))?;
    }
    writeln!(out, "\ndecode, FLOPs of one token behind n with a cache")?;
    writeln!(out, "{:>8} {HEAD}", "n")?;
    for &n in lengths {
        row(out, n, &cost::decode_flops(config, n))?;
    }
    let (blocks, all) = cost::crossing(config);
    writeln!(
        out,
        "\nattention's pairs and the blocks' linear layers take the same at n = {blocks:.0}, with the head's at n = {all:.0}; of causal pairs at twice that"
    )?;
    writeln!(out, "\nKV cache and bandwidth of a decode step for {sequences} sequences in bf16")?;
    writeln!(
        out,
        "{:>8} {:>16} {:>16} {:>12} {:>16}",
        "n", "KV bytes, f32", "KV bytes, bf16", "FLOPs/byte", "cache's share"
    )?;
    for &n in lengths {
        let kv = |bytes| sequences * cost::kv_cache_bytes(config, n, bytes);
        let flops = sequences as f64 * cost::decode_flops(config, n).total();
        let bytes = (2 * cost::weights_read(config, parameters) + kv(2)) as f64;
        let share = 100.0 * kv(2) as f64 / bytes;
        let (wide, narrow) = (thousands(kv(4)), thousands(kv(2)));
        writeln!(out, "{n:>8} {wide:>16} {narrow:>16} {:>12.2} {share:>15.1}%", flops / bytes)?;
    }
    let ratio = config.n_kv_head as f64 / config.n_head as f64;
    writeln!(out, "heads of K and V for each head of queries: {ratio:.3}")?;
    if let Some(card) = card {
        writeln!(
            out,
            "{} computes {:.0} FLOPs in bf16 while it reads a byte: below that a step is bound by memory",
            card.name,
            card.ridge()
        )?;
    }
    Ok(())
}

const HEAD: &str =
    " projections feed-forward      scores weighted sum        head        all  attention: of blocks, of all";

fn row(out: &mut impl Write, n: usize, flops: &cost::Flops) -> Result<()> {
    let cost::Flops { projections, feed_forward, scores, weighted_sums, head } = *flops;
    let share = |of: f64| 100.0 * flops.attention() / of;
    let (blocks, all) = (share(flops.linear() + flops.attention()), share(flops.total()));
    writeln!(
        out,
        "{n:>8}  {projections:>11.3e} {feed_forward:>12.3e} {scores:>11.3e} {weighted_sums:>12.3e} {head:>11.3e} {:>10.3e} {blocks:>21.1}% {all:>6.1}%",
        flops.total()
    )?;
    Ok(())
}

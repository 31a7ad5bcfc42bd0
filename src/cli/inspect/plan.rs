//! `handgrad inspect --run`: a training run before it begins (report §6.4, §7.2, §8.1, §9.1).

use super::super::thousands;
use super::Card;
use crate::nn::{ModelConfig, cost};
use crate::train::Recipe;
use crate::train::scaling::{self, LAWS};
use anyhow::Result;
use std::io::Write;

/// Rows of the schedule.
const ROWS: usize = 10;

/// Prints the plan. `parameters`: the model's; `hours`: how long it may take on `card`.
pub fn print(
    out: &mut impl Write,
    config: &ModelConfig,
    parameters: usize,
    recipe: &Recipe,
    hours: Option<f64>,
    card: Option<&Card>,
) -> Result<()> {
    let step = recipe.tokens_per_step();
    let (n, tokens) = (parameters as f64, recipe.steps * step);
    let d = tokens as f64;
    let Recipe { steps, batch_size, accumulate, seq_len, .. } = *recipe;
    let flops = scaling::training_flops(n, d);
    // All pairs, as the report's 12 L H D T a token; a causal kernel computes half.
    let pairs = 3.0 * cost::decode_flops(config, seq_len).attention() * d;
    writeln!(out, "\na run of {} steps of {batch_size} × {accumulate} × {seq_len} tokens", thousands(steps))?;
    let rows = [
        ("tokens of a step", thousands(step)),
        ("tokens of the run", thousands(tokens)),
        ("tokens for each parameter, D/N", format!("{:.2}", d / n)),
        ("FLOPs, 6 N D", format!("{flops:.3e}")),
        ("FLOPs with attention's pairs, all of them", format!("{:.3e}", flops + pairs)),
        ("bytes of a checkpoint: weights and two moments, f32", thousands(12 * parameters)),
        ("part of as many tokens that random windows see", format!("{:.1}%", 100.0 * (1.0 - (-1f64).exp()))),
    ];
    for (name, value) in rows {
        writeln!(out, "{name:<52} {value:>16}")?;
    }
    for law in LAWS {
        let (best_n, best_d) = law.best(flops);
        writeln!(
            out,
            "{}: loss {:.3} on its text; best for these FLOPs {:.1}M parameters, {:.2}e9 tokens, D/N {:.1}, loss {:.3}",
            law.name,
            law.loss(n, d),
            best_n / 1e6,
            best_d / 1e9,
            best_d / best_n,
            law.loss(best_n, best_d)
        )?;
    }
    writeln!(out, "\n{:>8} {:>16} {:>12}", "step", "tokens", "learning rate")?;
    for t in schedule_steps(recipe) {
        writeln!(out, "{t:>8} {:>16} {:>12.3e}", thousands(t * step), recipe.schedule().at(t))?;
    }
    let Some(hours) = hours else { return Ok(()) };
    let seconds = 3600.0 * hours;
    writeln!(
        out,
        "\nin {hours} hours: {:.0} tokens/s, {:.1} TFLOP/s by 6 N D, {:.1} with attention's pairs",
        d / seconds,
        flops / seconds / 1e12,
        (flops + pairs) / seconds / 1e12
    )?;
    match card {
        Some(card) => writeln!(
            out,
            "of {}'s {:.1} TFLOP/s in bf16: {:.1}% by 6 N D, {:.1}% with attention's pairs",
            card.name,
            card.tflops,
            flops / seconds / card.tflops / 1e10,
            (flops + pairs) / seconds / card.tflops / 1e10
        )?,
        None => writeln!(out, "of a card's peak: unknown without --card")?,
    }
    Ok(())
}

/// The first and the last step, the end of the warm-up, its middle, and steps between.
fn schedule_steps(recipe: &Recipe) -> Vec<usize> {
    let (warmup, total) = (recipe.warmup, recipe.steps);
    let between = (1..ROWS - 3).map(|i| warmup + (total - warmup) * i / (ROWS - 3));
    let mut steps: Vec<usize> = [1, warmup / 2, warmup, total].into_iter().chain(between).filter(|t| *t > 0).collect();
    steps.sort();
    steps.dedup();
    steps
}

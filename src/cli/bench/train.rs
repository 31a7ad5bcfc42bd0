//! `handgrad bench train`

use super::{BenchArgs, SEED, Spread, random_ids, title};
use crate::cli::{argument, say, thousands};
use crate::train::memory;
use crate::train::{Placement, Recipe, Trainer};
use anyhow::Result;
use clap::Args;
use serde_json::json;
use std::time::Instant;

#[derive(Args)]
pub struct TrainBenchArgs {
    /// chapter8, classic, report-80m or report-197m
    #[arg(long, default_value = "report-80m", value_name = "NAME")]
    preset: String,
    /// Sequences that are computed at once [default: the preset's]
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Tokens of each [default: the model's context]
    #[arg(long, value_name = "N")]
    seq_len: Option<usize>,
    /// Batches of a step [default: 1]
    #[arg(long, default_value_t = 1, value_name = "N")]
    accumulate: usize,
    /// Steps that are timed, behind one that is not
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    steps: usize,
    #[command(flatten)]
    bench: BenchArgs,
}

pub fn run(args: &TrainBenchArgs, quiet: bool) -> Result<u8> {
    let base = argument(Recipe::preset(&args.preset))?;
    let recipe = Recipe {
        steps: args.steps + 1,
        warmup: 0,
        batch_size: args.batch_size.unwrap_or(base.batch_size),
        seq_len: args.seq_len.unwrap_or(base.seq_len),
        accumulate: args.accumulate,
        ..base
    };
    recipe.validate()?;
    let model = args.bench.model(&args.preset, recipe.seq_len)?;
    let placement = Placement { device: model.device(), dtype: args.bench.dtype(), recompute: false };
    memory::check(&model.config, &recipe, &placement)?;
    let tokens = random_ids(model.config.vocab_size, recipe.seq_len * 64 + 1, SEED);
    let mut trainer = Trainer::new(model, recipe.clone(), tokens, vec![]);
    let mut speeds = vec![];
    for step in 0..=args.steps {
        let start = Instant::now();
        trainer.train_step()?; // waits for the device
        let speed = recipe.tokens_per_step() as f64 / start.elapsed().as_secs_f64();
        if step > 0 {
            speeds.push(speed);
            say(&format!("step {step}/{}  {speed:.0} tokens/s", args.steps), quiet);
        }
    }
    let Spread { median, p10, p90 } = Spread::of(speeds);
    let Recipe { batch_size, accumulate, seq_len, .. } = recipe;
    println!(
        "{}: {batch_size} × {accumulate} × {seq_len} tokens a step, {} tokens/s (p10 {}, p90 {})",
        title(&args.preset, &args.bench),
        thousands(median as usize),
        thousands(p10 as usize),
        thousands(p90 as usize)
    );
    args.bench.write(&json!({
        "bench": "train", "preset": args.preset, "batch_size": batch_size, "accumulate": accumulate, "seq_len": seq_len,
        "steps": args.steps, "tokens_per_s": median, "p10": p10, "p90": p90,
    }))?;
    Ok(0)
}

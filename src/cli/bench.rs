//! `handgrad bench`: the speed of training and of generation, with random weights, by medians of repeated steps.

mod decode;
mod kv_cache;
mod train;

use super::ComputeArgs;
use crate::dtype::DType;
use crate::formats::write_json;
use crate::nn::{ModelConfig, Transformer};
use crate::shown::shown_path;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Time to the first token and for each further one, with and without a cache, by prompt length (the report's table)
    KvCache(kv_cache::KvCacheArgs),
    /// Tokens a second of training
    Train(train::TrainBenchArgs),
    /// Time to the first token and for each further one
    Decode(decode::DecodeArgs),
}

/// Where to compute, and where the numbers go.
#[derive(Args)]
struct BenchArgs {
    #[command(flatten)]
    compute: ComputeArgs,
    /// A file for the numbers, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl BenchArgs {
    /// The preset's model with a context of at least `context` tokens, in place. Errors: an unknown preset; a device that is
    /// not there; out of memory.
    fn model(&self, preset: &str, context: usize) -> Result<Transformer> {
        let mut config = super::argument(ModelConfig::preset(preset, None))?;
        config.max_seq_len = config.max_seq_len.max(context);
        super::argument(config.validate())?;
        self.compute.place(Transformer::new(&config, SEED)?)
    }

    fn dtype(&self) -> DType {
        self.compute.dtype()
    }

    /// Writes the numbers, if a file was named. Error: it cannot be written.
    fn write(&self, numbers: &Value) -> Result<()> {
        let write = |path: &PathBuf| write_json(path, numbers).with_context(|| format!("--json {}", shown_path(path)));
        self.json.as_ref().map_or(Ok(()), write)
    }
}

const SEED: u64 = 1;

/// Runs a subcommand; exit status 0. Errors: an unknown preset; a device that is not there; too little memory; a file that
/// cannot be written.
pub fn run(command: BenchCommand, quiet: bool) -> Result<u8> {
    match command {
        BenchCommand::KvCache(args) => kv_cache::run(&args, quiet),
        BenchCommand::Train(args) => train::run(&args, quiet),
        BenchCommand::Decode(args) => decode::run(&args, quiet),
    }
}

/// The median of measurements, and what a tenth of them are at most and at least.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    p10: f64,
    p90: f64,
}

impl Spread {
    /// Of at least one number.
    fn of(mut numbers: Vec<f64>) -> Spread {
        numbers.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (numbers.len() - 1) as f64;
            let (low, high) = (numbers[place.floor() as usize], numbers[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Spread { median: at(0.5), p10: at(0.1), p90: at(0.9) }
    }
}

/// Ids drawn from a seed.
fn random_ids(vocab_size: usize, count: usize, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(0..vocab_size as u32)).collect()
}

/// The preset's name, or that of the file, for a title.
fn title(preset: &str, args: &BenchArgs) -> String {
    format!("{preset} in {} on {}", args.dtype(), args.compute.device.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_lies_between_the_numbers() {
        assert_eq!(Spread::of(vec![3.0]), Spread { median: 3.0, p10: 3.0, p90: 3.0 });
        let spread = Spread::of((0..=10).rev().map(f64::from).collect());
        assert_eq!(spread, Spread { median: 5.0, p10: 1.0, p90: 9.0 });
        assert_eq!(Spread::of(vec![1.0, 2.0]).median, 1.5);
    }
}

//! `handgrad inspect`: what a model costs, without training or running it.

mod lengths;
mod plan;

use super::{argument, load_model, parse_device, thousands};
use crate::device::Device;
use crate::dtype::DType;
use crate::formats::config_json;
use crate::nn::config::Init;
use crate::nn::{ModelConfig, Transformer, cost};
use crate::train::memory::{Footprint, Step};
use crate::train::{BadSetting, Placement, Recipe};
use anyhow::{Result, ensure};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct InspectArgs {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    training: Training,
    /// Prompt lengths to cost: FLOPs of prefill and decode by component, KV bytes, FLOPs per byte; --batch-size: sequences
    /// decoded together
    #[arg(long, value_name = "N,N…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    lengths: Vec<u64>,
    /// Plan the training run: tokens, FLOPs, the published fits' loss, schedule, checkpoint
    #[arg(long)]
    run: bool,
    /// Tokens of the planned run, in whole steps [default: those of the recipe's steps]
    #[arg(long, value_name = "N", requires = "run")]
    tokens: Option<u64>,
    /// Hours that the planned run may take: tokens/s, FLOP/s and share of --card's peak
    #[arg(long, value_name = "X", requires = "run")]
    hours: Option<f64>,
    /// A card's peaks: rtx4090, a100, h100 or h200
    #[arg(long, value_name = "NAME", value_parser = Card::of_name)]
    card: Option<Card>,
}

/// What a card can do at most, by its data sheet.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    pub name: &'static str,
    /// Of dense bf16 products with f32 sums.
    pub tflops: f64,
    /// Of its memory.
    pub gigabytes_per_s: f64,
}

impl Card {
    const ALL: [Card; 4] = [
        Card { name: "rtx4090", tflops: 165.2, gigabytes_per_s: 1008.0 },
        Card { name: "a100", tflops: 312.0, gigabytes_per_s: 2039.0 },
        Card { name: "h100", tflops: 989.4, gigabytes_per_s: 3350.0 },
        Card { name: "h200", tflops: 989.4, gigabytes_per_s: 4800.0 },
    ];

    fn of_name(name: &str) -> Result<Card, String> {
        let known = Card::ALL.into_iter().find(|card| card.name == name);
        known.ok_or_else(|| format!("expected {}", Card::ALL.map(|card| card.name).join(", ")))
    }

    /// FLOPs in the time of reading a byte.
    pub fn ridge(&self) -> f64 {
        1000.0 * self.tflops / self.gigabytes_per_s
    }
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// chapter8, classic, report-80m or report-197m, with the vocabulary of its document
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Model directory
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// A config.json, without weights
    #[arg(long, value_name = "FILE.json")]
    config: Option<PathBuf>,
}

/// The training step whose memory is predicted.
#[derive(Args)]
struct Training {
    /// Predict a training step's memory there [default: of a card with 24 GB, for both types, with and without --recompute]
    #[arg(long, value_name = "cpu|cuda[:N]|emulator", value_parser = parse_device)]
    device: Option<String>,
    /// Number type of activations and weights in training
    #[arg(long, default_value = "f32", value_parser = ["f32", "bf16"], requires = "device")]
    dtype: String,
    /// Sequences in a training step [default: that of the preset]
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Tokens in a training window [default: the model's context]
    #[arg(long, value_name = "N")]
    seq_len: Option<usize>,
    /// Training computes each block's activations again in backward
    #[arg(long, requires = "device")]
    recompute: bool,
}

/// Prints the counts, and the memory of a training step. Errors: an unknown preset; a model that cannot be read; a device
/// that is not there or does not compute in the type; a window beyond a model's context.
pub fn run(args: InspectArgs, quiet: bool) -> Result<u8> {
    let model = match &args.which {
        Which { preset: Some(preset), .. } => without_weights(argument(ModelConfig::preset(preset, None))?)?,
        Which { config: Some(path), .. } => without_weights(config_json::read(path)?)?,
        Which { model: Some(dir), .. } => load_model(dir, quiet)?,
        _ => unreachable!("clap asks for one of them"),
    };
    let (trained, recipe) = setup(&args, &model.config)?;
    let placement = place(&args.training)?;
    let config = &model.config;
    let t = config.max_seq_len;
    let total = model.parameter_count();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{} layers, {} channels, {} query and {} KV heads of {}, feed-forward {}, vocabulary {}, context {t}\n",
        config.n_layer,
        config.n_embd,
        config.n_head,
        config.n_kv_head,
        config.head_dim,
        config.n_ff,
        thousands(config.vocab_size),
    )?;
    for component in cost::components(&model) {
        let share = 100.0 * component.parameters as f64 / total as f64;
        writeln!(out, "{:<20} {:>13}  {share:>5.1}%", component.name, thousands(component.parameters))?;
    }
    writeln!(out, "{:<20} {:>13}", "parameters", thousands(total))?;
    let (attention, feed_forward) = cost::block_weights(config);
    let (blocks, wide) = (config.n_layer as f64 * (attention + feed_forward), 8.0 / 3.0 * config.n_embd as f64);
    writeln!(
        out,
        "{:<20} {:>13}  {:>5.1}%; feed-forward is {:.1}% of a block's, its width {} where 8/3 of the channels are {wide:.1}\n",
        "matrices of blocks",
        thousands(blocks as usize),
        100.0 * blocks / total as f64,
        100.0 * feed_forward / (attention + feed_forward),
        config.n_ff
    )?;
    let rows = [
        ("FLOPs per token, forward, at full context", cost::forward_flops(config, t)),
        ("FLOPs per token, training, half seen on average", cost::training_flops(config, t)),
        ("bytes of weights, f32", 4 * total),
        ("bytes of weights, bf16", 2 * total),
        ("bytes of weights read for each new token, f32", 4 * cost::weights_read(config, total)),
        ("KV-cache bytes per token, f32", cost::kv_cache_bytes(config, 1, 4)),
        ("KV-cache bytes per sequence, f32", cost::kv_cache_bytes(config, t, 4)),
        ("KV-cache bytes per sequence, bf16", cost::kv_cache_bytes(config, t, 2)),
    ];
    for (name, value) in rows {
        writeln!(out, "{name:<48} {:>15}", thousands(value))?;
    }
    writeln!(out)?;
    match placement {
        Some(placement) => on_device(&mut out, &trained, &recipe, &placement)?,
        None => on_a_card(&mut out, &trained, &recipe)?,
    }
    if !args.lengths.is_empty() {
        let lengths: Vec<usize> = args.lengths.iter().map(|&n| n as usize).collect();
        let sequences = args.training.batch_size.unwrap_or(1);
        lengths::print(&mut out, config, total, &lengths, sequences, args.card.as_ref())?;
    }
    if args.run {
        let recipe = planned(&args, recipe)?;
        plan::print(&mut out, config, total, &recipe, args.hours, args.card.as_ref())?;
    }
    Ok(0)
}

/// A model to count, all zeros.
fn without_weights(config: ModelConfig) -> Result<Transformer> {
    Transformer::new(&ModelConfig { init: Init::Zeros, ..config }, 0)
}

/// The recipe with as many whole steps as the tokens allow. Errors: fewer than one step's; hours that are none.
fn planned(args: &InspectArgs, mut recipe: Recipe) -> Result<Recipe> {
    let hours = args.hours.unwrap_or(1.0);
    ensure!(
        hours.is_finite() && hours > 0.0,
        BadSetting(format!("--hours: found {hours}, expected a positive number"))
    );
    if let Some(tokens) = args.tokens {
        let step = recipe.tokens_per_step();
        recipe.steps = usize::try_from(tokens)? / step;
        recipe.warmup = recipe.warmup.min(recipe.steps / 10);
        ensure!(
            recipe.steps > 0,
            BadSetting(format!("--tokens: found {tokens}, expected at least the {step} of a step"))
        );
    }
    Ok(recipe)
}

/// What would be trained: the model with a context that holds the windows, and the recipe of its preset, or for a model
/// directory the small one, with what the command line says. Errors: as in training.
fn setup(args: &InspectArgs, config: &ModelConfig) -> Result<(ModelConfig, Recipe)> {
    let mut config = config.clone();
    let base = Recipe::preset(args.which.preset.as_deref().unwrap_or("chapter8"))?;
    let batch_size = args.training.batch_size.unwrap_or(base.batch_size);
    let recipe = Recipe { batch_size, seq_len: args.training.seq_len.unwrap_or(config.max_seq_len), ..base };
    recipe.validate()?;
    if args.which.preset.is_some() {
        config.max_seq_len = config.max_seq_len.max(recipe.seq_len);
        argument(config.validate())?;
    }
    let (windows, context) = (recipe.seq_len, config.max_seq_len);
    ensure!(
        windows <= context,
        BadSetting(format!("--seq-len: found {windows}, expected at most the model's context of {context}"))
    );
    Ok((config, recipe))
}

/// Where the training would be, if that was asked. Errors: a device that is not there; bf16 on the CPU.
fn place(training: &Training) -> Result<Option<Placement>> {
    let Some(device) = &training.device else { return Ok(None) };
    let device = Device::open(device)?;
    let dtype = if training.dtype == "bf16" { DType::Bf16 } else { DType::F32 };
    ensure!(dtype == DType::F32 || device.gpu().is_some(), "dtype: found {dtype} on {device}, expected f32");
    Ok(Some(Placement { device, dtype, recompute: training.recompute }))
}

/// The step on a device, by component, and whether it fits into what is free there.
fn on_device(out: &mut impl Write, config: &ModelConfig, recipe: &Recipe, placement: &Placement) -> Result<()> {
    let step = Step::new(config, recipe, placement);
    let footprint = step.footprint();
    let Footprint { weights, moments, gradients, activations, workspace } = footprint;
    let (batch, t) = (recipe.batch_size, recipe.seq_len);
    let Placement { device, dtype, recompute } = placement;
    let recomputed = if *recompute { ", --recompute" } else { "" };
    writeln!(
        out,
        "memory of a training step of {batch} × {t} tokens in {dtype} on {device}{recomputed}, bytes at the peak"
    )?;
    for (name, bytes) in [
        ("weights", weights),
        ("moments", moments),
        ("gradients of weights", gradients),
        ("activations and their gradients", activations),
        ("workspace", workspace),
        ("total", footprint.total()),
    ] {
        writeln!(out, "{name:<48} {:>15}", thousands(bytes as usize))?;
    }
    let Some(free) = device.free_memory().map(|free| free.bytes) else { return Ok(()) };
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let verdict = if footprint.total() <= free { "fits" } else { "does not fit" };
    let (needed, largest) = (gib(footprint.total()), step.largest_batch(free));
    writeln!(out, "{needed:.1} GiB {verdict}: {:.1} GiB are free; the largest batch is {largest}", gib(free))?;
    Ok(())
}

/// The step on a card like the RTX 4090 that is not there: both types, with and without recomputation.
fn on_a_card(out: &mut impl Write, config: &ModelConfig, recipe: &Recipe) -> Result<()> {
    const BYTES: f64 = 24e9; // of 24 GiB, the rest is for the driver
    const MULTIPROCESSORS: usize = 128;
    let &Recipe { batch_size, accumulate, seq_len, .. } = recipe;
    let accumulate = accumulate > 1;
    writeln!(
        out,
        "memory of a training step of {batch_size} × {seq_len} tokens on a card with 24 GB, bytes at the peak"
    )?;
    for dtype in [DType::F32, DType::Bf16] {
        for recompute in [false, true] {
            let multiprocessors = MULTIPROCESSORS;
            let step = Step { config, batch_size, accumulate, seq_len, dtype, recompute, multiprocessors };
            let needed = step.footprint().total();
            let name = format!("{dtype}{}", if recompute { ", --recompute" } else { "" });
            let verdict = if needed <= BYTES { "fits" } else { "does not fit" };
            let largest = step.largest_batch(BYTES);
            let needed = thousands(needed as usize);
            writeln!(out, "{name:<48} {needed:>15}  {verdict}; the largest batch is {largest}")?;
        }
    }
    Ok(())
}

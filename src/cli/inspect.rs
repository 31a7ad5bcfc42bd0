//! `handgrad inspect`

use super::{argument, load_model, parse_device, thousands};
use crate::device::Device;
use crate::dtype::DType;
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
    let model = match (&args.which.preset, &args.which.model) {
        (Some(preset), _) => {
            Transformer::new(&ModelConfig { init: Init::Zeros, ..argument(ModelConfig::preset(preset, None))? }, 0)?
        }
        (None, Some(dir)) => load_model(dir, quiet)?,
        (None, None) => unreachable!("clap asks for one of them"),
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
    writeln!(out, "{:<20} {:>13}\n", "parameters", thousands(total))?;
    let rows = [
        ("FLOPs per token, forward, at full context", cost::forward_flops(config, t)),
        ("FLOPs per token, training, half seen on average", cost::training_flops(config, t)),
        ("bytes of weights, f32 (read for each new token)", 4 * total),
        ("bytes of weights, bf16", 2 * total),
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
    Ok(0)
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

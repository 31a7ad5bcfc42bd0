//! `handgrad inspect`

use super::{argument, load_model, thousands};
use crate::nn::config::Init;
use crate::nn::{ModelConfig, Transformer, cost};
use anyhow::Result;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct InspectArgs {
    /// chapter8, classic, report-80m or report-197m, with the vocabulary of its document
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Model directory
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
}

/// Prints the counts. Errors: an unknown preset; a model that cannot be read.
pub fn run(args: InspectArgs, quiet: bool) -> Result<u8> {
    let model = match (&args.preset, &args.model) {
        (Some(preset), _) => {
            Transformer::new(&ModelConfig { init: Init::Zeros, ..argument(ModelConfig::preset(preset, None))? }, 0)?
        }
        (None, Some(dir)) => load_model(dir, quiet)?,
        (None, None) => unreachable!("clap asks for one of them"),
    };
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
    Ok(0)
}

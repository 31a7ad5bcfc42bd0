//! `handgrad eval`

use super::{ComputeArgs, load_model, signals, thousands};
use crate::data::batch::whole_batches;
use crate::data::{TokenRow, TrainingData};
use crate::formats::model_dir;
use crate::train::memory::inference::check_evaluation;
use crate::train::trainer::mean_loss;
use anyhow::Result;
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct EvalArgs {
    /// Model directory
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Text to predict: a file, lines of JSON with a document in "text" on each, a directory of files, or of shards
    #[arg(long, value_name = "FILE|DIR")]
    data: PathBuf,
    /// Sequences computed at once; changes the speed only
    #[arg(long, default_value_t = 12, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    batch_size: usize,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Cuts the text into windows of the model's context, in order, so that each token but the first is predicted once. The exit
/// status: 0, or that of the signal that ended it. Errors: a model or data that cannot be read; too
/// little memory; a loss that is not finite.
pub fn run(args: EvalArgs, quiet: bool) -> Result<u8> {
    let model = args.compute.place(load_model(&args.model, quiet)?)?;
    let tokenizer = model_dir::load_tokenizer(&args.model, &model)?;
    let tokens = TrainingData::open(Some(&args.data))?.tokens(&tokenizer)?;
    let window = model.config.max_seq_len.min(tokens.len().saturating_sub(1)).max(1);
    // Of a batch that the text does not fill only what is there is computed.
    let windows = tokens.len().saturating_sub(1) / window;
    check_evaluation(&model, args.batch_size.min(windows.max(1)), window)?;
    let batches = whole_batches(&tokens, args.batch_size, window)?;
    signals::install();
    let Some((loss, count)) = mean_loss(&model, batches, &signals::interrupted)? else {
        return Ok(signals::status().unwrap_or(1));
    };
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "loss {loss:.4}  perplexity {:.3}  over {} tokens", loss.exp(), thousands(count))?;
    Ok(0)
}

//! `handgrad generate`

use super::{DeviceArgs, signals};
use crate::formats::model_dir;
use crate::generate::{Request, Sampler, Stop, generate};
use crate::tokenizer::StreamDecoder;
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

/// New tokens when --max-new is not given and the context allows it.
const DEFAULT_MAX_NEW: usize = 256;

#[derive(Args)]
pub struct GenerateArgs {
    /// Model directory
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Text to continue; special tokens in it are taken as ordinary text
    #[arg(long, value_name = "TEXT", required_unless_present = "prompt_file")]
    prompt: Option<String>,
    /// A file with the text to continue, taken as it is, its last newline too
    #[arg(long, value_name = "FILE", conflicts_with = "prompt")]
    prompt_file: Option<PathBuf>,
    /// Most new tokens [default: as many as the context holds, up to 256]
    #[arg(long, value_name = "N")]
    max_new: Option<usize>,
    /// Divides the logits: below 1 safer, above 1 wilder; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8, value_name = "X", allow_negative_numbers = true)]
    temperature: f64,
    /// Draw from the smallest set of tokens whose probabilities reach this; 1 draws from all
    #[arg(long, default_value_t = 0.95, value_name = "0..1", allow_negative_numbers = true)]
    top_p: f64,
    /// Seed of the draws
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Compute the whole sequence again for each token instead of keeping keys and values
    #[arg(long)]
    no_cache: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// Prints the prompt and its continuation.
pub fn run(args: GenerateArgs) -> Result<u8> {
    args.device.check()?;
    let mut sampler = Sampler::new(args.temperature, args.top_p, args.seed)?;
    let prompt = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => std::fs::read_to_string(path)
            .with_context(|| format!("--prompt-file {}: cannot be read", path.display()))?,
        (None, None) => String::new(),
    };
    ensure!(!prompt.is_empty(), "prompt: found an empty text, expected at least one character");
    let model = model_dir::load(&args.model)?;
    let tokenizer = model_dir::load_tokenizer(&args.model, &model)?;
    let ids = tokenizer.encode(&prompt).context("prompt")?;
    let room = model.config.max_seq_len.saturating_sub(ids.len());
    let request = Request {
        prompt: &ids,
        max_new: args.max_new.unwrap_or(room.min(DEFAULT_MAX_NEW)),
        end_of_text: tokenizer.end_of_text(),
        vocab_size: tokenizer.vocab_size(),
        use_cache: !args.no_cache,
    };
    let mut stdout = std::io::stdout().lock();
    let mut decoder = StreamDecoder::new(&tokenizer);
    let mut started = false;
    let stop = generate(&model, &request, &mut sampler, |id| {
        if !started {
            write!(stdout, "{prompt}")?;
            started = true;
        }
        write!(stdout, "{}", decoder.push(id)?)?;
        stdout.flush()?;
        Ok(!signals::interrupted())
    })?;
    if !started {
        write!(stdout, "{prompt}")?;
    }
    writeln!(stdout, "{}", decoder.flush())?;
    match stop {
        Stop::Interrupted => Ok(signals::status().unwrap_or(0)),
        Stop::MaxNew | Stop::EndOfText => Ok(0),
    }
}

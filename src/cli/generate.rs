//! `handgrad generate`

use super::{DeviceArgs, argument, load_model, note, signals};
use crate::data::corpus::read_text;
use crate::formats::model_dir;
use crate::generate::{Request, Sampler, Stop, check, generate};
use crate::nn::Transformer;
use crate::tokenizer::{SpecialText, StreamDecoder, Tokenizer};
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::io::Write;
use std::path::PathBuf;

/// New tokens when --max-new is not given and the context allows it.
const DEFAULT_MAX_NEW: usize = 256;

#[derive(Args)]
#[command(allow_negative_numbers = true)]
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
    #[arg(long, value_name = "N", help = format!("Most new tokens [default: as many as the context holds, up to {DEFAULT_MAX_NEW}]"))]
    max_new: Option<usize>,
    /// Divides the logits: below 1 safer, above 1 wilder; 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.8, value_name = "X")]
    temperature: f64,
    /// Draw from the smallest set of tokens whose probabilities reach this; 1 draws from all
    #[arg(long, default_value_t = 0.95, value_name = "0..1")]
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

/// Prints the prompt and its continuation. The exit status: 0, or that of the signal that ended it. Errors: a prompt or
/// model that cannot be read; a request that the model cannot serve.
pub fn run(args: GenerateArgs, quiet: bool) -> Result<u8> {
    args.device.check()?;
    let mut sampler = argument(Sampler::new(args.temperature, args.top_p, args.seed))?;
    let prompt = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path).context("--prompt-file")?,
        (None, None) => String::new(),
    };
    ensure!(!prompt.is_empty(), "prompt: found an empty text, expected at least one character");
    let model = load_model(&args.model, quiet)?;
    let tokenizer = model_dir::load_tokenizer(&args.model, &model)?;
    let ids = tokenizer.encode_prompt(&prompt, SpecialText::Text).context("prompt")?;
    let room = model.config.max_seq_len.saturating_sub(ids.len());
    if ids.len() == model.config.max_seq_len && args.max_new.is_none() && !quiet {
        note("handgrad: the prompt fills the model's context: nothing is generated");
    }
    let request = Request {
        prompt: &ids,
        max_new: args.max_new.unwrap_or(room.min(DEFAULT_MAX_NEW)),
        end_of_text: tokenizer.end_of_text(),
        vocab_size: tokenizer.vocab_size(),
        use_cache: !args.no_cache,
    };
    match print_continuation(&model, &tokenizer, &prompt, &request, &mut sampler)? {
        Stop::Interrupted => Ok(signals::status().unwrap_or(1)),
        Stop::MaxNew | Stop::EndOfText => Ok(0),
    }
}

/// Writes `prompt` and what follows it to standard output, as it comes. Nothing is written if the request is refused.
/// Errors: a request that the model cannot serve; standard output that is full or closed.
pub fn print_continuation(
    model: &Transformer,
    tokenizer: &Tokenizer,
    prompt: &str,
    request: &Request,
    sampler: &mut Sampler,
) -> Result<Stop> {
    check(model, request)?;
    signals::install();
    let mut stdout = std::io::stdout().lock();
    let mut decoder = StreamDecoder::new(tokenizer);
    write!(stdout, "{prompt}")?;
    stdout.flush()?;
    let stop = generate(model, request, sampler, |id| {
        write!(stdout, "{}", decoder.push(id)?)?;
        stdout.flush()?;
        Ok(!signals::interrupted())
    });
    writeln!(stdout, "{}", decoder.flush())?; // after an error too, so that its message begins a line
    stop
}

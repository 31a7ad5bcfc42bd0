//! `handgrad generate`

use super::{ComputeArgs, argument, load_model, note, signals, warn};
use crate::data::text::{self, Lossy};
use crate::formats::generation_config::end_of_text_ids;
use crate::formats::model_dir;
use crate::generate::{Request, Sampler, Stop, check, generate, generate_batch};
use crate::nn::Transformer;
use crate::shown::shown_path;
use crate::tokenizer::{SpecialText, StreamDecoder, Tokenizer};
use crate::train::memory::inference::check_generation;
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::fs;
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
    /// Continue every line of --prompt-file as a prompt of its own, all in one batch; an empty line stands between the results
    #[arg(long, requires = "prompt_file")]
    batch: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Prints the prompt and its continuation. The exit status: 0, or that of the signal that ended it. Errors: a prompt or
/// model that cannot be read; a request that the model cannot serve; too little memory.
pub fn run(args: GenerateArgs, quiet: bool) -> Result<u8> {
    let mut sampler = argument(Sampler::new(args.temperature, args.top_p, args.seed))?;
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => {
            let bytes =
                fs::read(path).with_context(|| format!("--prompt-file: {}: cannot be read", shown_path(path)))?;
            text::utf8(bytes, &format!("--prompt-file: {}", shown_path(path)), 0, Lossy::No)?
        }
        (None, None) => String::new(),
    };
    let prompts: Vec<&str> = if args.batch { text.lines().collect() } else { vec![&text] };
    for (i, prompt) in prompts.iter().enumerate() {
        let place = if args.batch { format!("--prompt-file: line {}", i + 1) } else { "prompt".to_string() };
        ensure!(!prompt.is_empty(), "{place}: found an empty text, expected at least one character");
    }
    ensure!(!prompts.is_empty(), "--prompt-file: found no line, expected a prompt a line");
    let model = args.compute.place(load_model(&args.model, quiet)?)?;
    let tokenizer = model_dir::load_tokenizer(&args.model, &model)?;
    let end_of_text = end_of_text_ids(&args.model, &tokenizer, &mut |warning| warn(warning, quiet))?;
    let encode = |prompt: &&str| tokenizer.encode_prompt(prompt, SpecialText::Text).context("prompt");
    let ids: Vec<Vec<u32>> = prompts.iter().map(encode).collect::<Result<_>>()?;
    let requests: Vec<Request> =
        ids.iter().map(|ids| request(&args, &model, &tokenizer, &end_of_text, ids, quiet)).collect();
    requests.iter().try_for_each(|request| check(&model, request))?;
    check_generation(&model, &requests)?;
    let stop = match (&requests[..], args.batch) {
        ([request], false) => print_continuation(&model, &tokenizer, prompts[0], request, &mut sampler)?,
        _ => print_batch(&model, &tokenizer, &prompts, &requests, &mut sampler)?,
    };
    match stop {
        Stop::Interrupted => Ok(signals::status().unwrap_or(1)),
        Stop::MaxNew | Stop::EndOfText => Ok(0),
    }
}

fn request<'a>(
    args: &GenerateArgs,
    model: &Transformer,
    tokenizer: &Tokenizer,
    end_of_text: &'a [u32],
    ids: &'a [u32],
    quiet: bool,
) -> Request<'a> {
    let room = model.config.max_seq_len.saturating_sub(ids.len());
    if room == 0 && ids.len() == model.config.max_seq_len && args.max_new.is_none() && !quiet {
        note("handgrad: the prompt fills the model's context: nothing is generated");
    }
    Request {
        prompt: ids,
        max_new: args.max_new.unwrap_or(room.min(DEFAULT_MAX_NEW)),
        end_of_text,
        vocab_size: tokenizer.vocab_size(),
        use_cache: !args.no_cache,
    }
}

/// Writes each prompt with what follows it, in order, once all have ended; an interrupt ends all at once. Errors: a request
/// that the model cannot serve; standard output that is full or closed.
fn print_batch(
    model: &Transformer,
    tokenizer: &Tokenizer,
    prompts: &[&str],
    requests: &[Request],
    sampler: &mut Sampler,
) -> Result<Stop> {
    signals::install();
    let mut decoders: Vec<StreamDecoder> = prompts.iter().map(|_| StreamDecoder::new(tokenizer)).collect();
    let mut texts: Vec<String> = prompts.iter().map(|prompt| prompt.to_string()).collect();
    let stops = generate_batch(model, requests, sampler, &mut |i, id| {
        texts[i] += &decoders[i].push(id)?;
        Ok(!signals::interrupted())
    })?;
    let mut stdout = std::io::stdout().lock();
    for (i, (text, decoder)) in texts.iter().zip(&mut decoders).enumerate() {
        writeln!(stdout, "{}{text}{}", if i > 0 { "\n" } else { "" }, decoder.flush())?;
    }
    Ok(if stops.contains(&Stop::Interrupted) { Stop::Interrupted } else { Stop::MaxNew })
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

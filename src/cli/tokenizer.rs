//! `handgrad tokenizer`: train, encode, decode, export.

use super::{argument, note, thousands, warn};
use crate::data::text::{self, Lossy};
use crate::formats::{tiktoken, tokenizer_json};
use crate::shown::{quoted, shown_path};
use crate::tokenizer::bpe::split::one_regex;
use crate::tokenizer::bpe::train::{BpeTrainer, Watcher};
use crate::tokenizer::bpe::{BpeTokenizer, Pattern};
use crate::tokenizer::{SpecialText, Tokenizer};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum TokenizerCommand {
    /// Learn a byte-pair vocabulary from text files
    Train(TrainArgs),
    /// Text to ids, separated by blanks, on one line
    Encode(EncodeArgs),
    /// Ids to the bytes they stand for
    Decode(DecodeArgs),
    /// Write a byte-pair vocabulary in tiktoken's format of ranks
    Export(ExportArgs),
}

#[derive(Args)]
pub struct TrainArgs {
    /// Tokens in the end: 256 bytes, the special tokens, and one for each merge
    #[arg(long, value_name = "N")]
    vocab_size: usize,
    /// A special token, such as <|endoftext|>: a boundary in the text, and one token; may be given several times
    #[arg(long, value_name = "TEXT")]
    special: Vec<String>,
    /// How text is cut into words first
    #[arg(long, default_value = "gpt2", value_name = "gpt2|qwen2|llama3", value_parser = parse_pattern)]
    pattern: Pattern,
    /// Read bytes that are not UTF-8 as U+FFFD instead of refusing them
    #[arg(long)]
    lossy: bool,
    /// The tokenizer.json to write
    #[arg(long, value_name = "FILE.json")]
    out: PathBuf,
    /// Text files, or lines of JSON (.jsonl, .ndjson) with a text in "text" on each; no word reaches from one text into the
    /// next
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Args)]
pub struct EncodeArgs {
    /// The tokenizer
    #[arg(long, value_name = "FILE.json")]
    tokenizer: PathBuf,
    /// What a special token's text within the text becomes: text: ids of its characters; allow: the special token;
    /// forbid: an error
    #[arg(long, default_value = "text", value_name = "text|allow|forbid", value_parser = parse_special)]
    special_tokens: SpecialText,
    /// Read bytes that are not UTF-8 as U+FFFD instead of refusing them
    #[arg(long)]
    lossy: bool,
    /// The text [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Args)]
pub struct DecodeArgs {
    /// The tokenizer
    #[arg(long, value_name = "FILE.json")]
    tokenizer: PathBuf,
    /// Ids, separated by blanks or line breaks [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Args)]
pub struct ExportArgs {
    /// The tokenizer
    #[arg(long, value_name = "FILE.json")]
    tokenizer: PathBuf,
    /// The file of ranks to write
    #[arg(long, value_name = "FILE.tiktoken")]
    out: PathBuf,
}

fn parse_pattern(name: &str) -> Result<Pattern, String> {
    let known = Pattern::ALL.into_iter().find(|pattern| pattern.name() == name);
    known.ok_or_else(|| "expected gpt2, qwen2 or llama3".to_string())
}

/// Reads a value of `--special-tokens`. Error: another word.
pub fn parse_special(name: &str) -> Result<SpecialText, String> {
    match name {
        "text" => Ok(SpecialText::Text),
        "allow" => Ok(SpecialText::Allow),
        "forbid" => Ok(SpecialText::Forbid),
        _ => Err("expected text, allow or forbid".to_string()),
    }
}

/// Runs a subcommand. Errors: files that cannot be read or written; text or ids that the tokenizer does not know.
pub fn run(command: TokenizerCommand, quiet: bool) -> Result<u8> {
    match command {
        TokenizerCommand::Train(args) => train(args, quiet),
        TokenizerCommand::Encode(args) => encode(&args, quiet),
        TokenizerCommand::Decode(args) => decode(&args),
        TokenizerCommand::Export(args) => export(&args, quiet),
    }
}

fn train(args: TrainArgs, quiet: bool) -> Result<u8> {
    let TrainArgs { vocab_size, special, pattern, lossy, out, files } = args;
    let trainer =
        BpeTrainer { specials: special, pattern, lossy, lines: Some(text::LINES), ..BpeTrainer::new(vocab_size) };
    let specials = argument(trainer.check())?;
    // Learning may take long: what could not be written then is refused now.
    ensure!(!out.is_dir(), "--out {}: found a directory, expected a file to write", shown_path(out));
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir());
    ensure!(parent.is_none(), "--out {}: found no such directory, expected one to write into", shown_path(out));
    let bytes = files.iter().filter_map(|file| Some(fs::metadata(file).ok()?.len())).sum();
    let progress = TrainProgress { bar: bar(bytes, "{bar:30} {bytes}/{total_bytes} read  {eta} left", quiet) };
    let learned = trainer.files(&files, &progress);
    progress.bar.finish_and_clear();
    let tokenizer = learned?;
    let size = tokenizer.vocab_size();
    let merges = tokenizer.parts().merges.len();
    let has_end = tokenizer.end_of_text().is_some();
    tokenizer_json::write(&out, &Tokenizer::Bpe(Box::new(tokenizer)))?;
    if !quiet {
        note(&format!(
            "{} merges of {} bytes; {} tokens in {}",
            thousands(merges),
            thousands(bytes as usize),
            thousands(size),
            shown_path(out)
        ));
        if size < vocab_size {
            note(&format!(
                "handgrad: stopped early, at {size} of {vocab_size} tokens: no two tokens are left side by side"
            ));
        }
        if !has_end && specials.tokens().is_empty() {
            note("handgrad: no --special was given: a model of this tokenizer cannot learn where a text ends");
        }
    }
    Ok(0)
}

/// A bar of bytes read, then one of merges.
struct TrainProgress {
    bar: ProgressBar,
}

/// A bar, where standard error is a terminal.
pub fn bar(length: u64, template: &str, quiet: bool) -> ProgressBar {
    let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
    match !quiet && std::io::stderr().is_terminal() && !dumb {
        true => ProgressBar::new(length).with_style(style(template)),
        false => ProgressBar::hidden(),
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a valid template").progress_chars("█▌ ")
}

impl Watcher for TrainProgress {
    fn read(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn merged(&self, done: usize, all: usize) {
        if done == 1 {
            self.bar.set_style(style("{bar:30} {pos}/{len} merges  {eta} left"));
            self.bar.set_length(all as u64);
            self.bar.reset();
        }
        if done.is_multiple_of(64) {
            self.bar.set_position(done as u64);
        }
    }
}

fn encode(args: &EncodeArgs, quiet: bool) -> Result<u8> {
    let tokenizer = tokenizer_json::read_with(&args.tokenizer, &mut |warning| warn(warning, quiet))?;
    let (bytes, place) = input(args.file.as_deref())?;
    let text = text::utf8(bytes, &place, 0, Lossy::flag(args.lossy))?;
    let ids = tokenizer.encode_as(&text, args.special_tokens).with_context(|| place)?;
    let mut stdout = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    for (i, id) in ids.iter().enumerate() {
        let blank = if i == 0 { "" } else { " " };
        write!(stdout, "{blank}{id}")?;
    }
    writeln!(stdout)?;
    stdout.flush()?;
    Ok(0)
}

fn decode(args: &DecodeArgs) -> Result<u8> {
    let tokenizer = tokenizer_json::read(&args.tokenizer)?;
    let (bytes, place) = input(args.file.as_deref())?;
    let text = String::from_utf8_lossy(&bytes);
    let id = |(i, word): (usize, &str)| {
        let id = word.parse::<u32>().ok();
        id.with_context(|| format!("{place}: found {} as number {}, expected a token id", quoted(word), i + 1))
    };
    let ids: Vec<u32> = text.split_whitespace().enumerate().map(id).collect::<Result<_>>()?;
    let decoded = tokenizer.decode(&ids).with_context(|| place.clone())?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&decoded)?;
    stdout.flush()?;
    Ok(0)
}

fn export(args: &ExportArgs, quiet: bool) -> Result<u8> {
    let tokenizer = read_bpe(&args.tokenizer)?;
    let pattern = one_regex(&tokenizer.parts().splits).with_context(|| shown_path(&args.tokenizer))?;
    tiktoken::write(&args.out, &tokenizer)?;
    if !quiet {
        // What the file has no room for, to be given to tiktoken.Encoding.
        note(&format!("pat_str: {pattern}"));
        for token in tokenizer.specials().tokens() {
            note(&format!("special_tokens: {:?}: {}", token.text, token.id));
        }
    }
    Ok(0)
}

fn read_bpe(path: &Path) -> Result<BpeTokenizer> {
    match tokenizer_json::read(path)? {
        Tokenizer::Bpe(tokenizer) => Ok(*tokenizer),
        Tokenizer::Char(_) => bail!("{}: found a tokenizer of characters, expected byte pairs", shown_path(path)),
        Tokenizer::Bytes(_) => bail!("{}: found a tokenizer of bytes, expected byte pairs", shown_path(path)),
    }
}

/// The bytes of a file or of standard input, and its name for errors.
fn input(file: Option<&Path>) -> Result<(Vec<u8>, String)> {
    let Some(path) = file else {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).context("standard input: cannot be read")?;
        return Ok((bytes, "standard input".to_string()));
    };
    let place = shown_path(path);
    ensure!(!path.is_dir(), "{place}: found a directory, expected a file");
    let bytes = fs::read(path).with_context(|| format!("{place}: cannot be read"))?;
    Ok((bytes, place))
}

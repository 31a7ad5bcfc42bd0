//! `handgrad data`: texts to shards of token ids, and a look at them.

use super::tokenizer::{bar, parse_special};
use super::{argument, say, signals, thousands, warn};
use crate::data::encode::{self, Settings, encode};
use crate::data::inspect::{Findings, inspect};
use crate::data::shard::ShardSet;
use crate::formats::tokenizer_json;
use crate::shown::shown_path;
use crate::tokenizer::SpecialText;
use anyhow::{Context, Result, anyhow, ensure};
use clap::{Args, Subcommand};
use std::io::Write;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum DataCommand {
    /// Encode texts into shards of token ids, for handgrad train --data DIR; called again, goes on where it was
    /// interrupted
    Encode(EncodeArgs),
    /// Show documents, counts and oddities of shards
    Inspect(InspectArgs),
}

#[derive(Args)]
pub struct EncodeArgs {
    /// The tokenizer
    #[arg(long, value_name = "FILE.json")]
    tokenizer: PathBuf,
    /// The directory of shards to write
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Tokens of a shard, about
    #[arg(long, value_name = "N", default_value_t = Settings::default().shard_tokens)]
    shard_tokens: usize,
    /// What a special token's text within a text becomes: text: ids of its characters; allow: the special token;
    /// forbid: an error
    #[arg(long, default_value = "text", value_name = "text|allow|forbid", value_parser = parse_special)]
    special_tokens: SpecialText,
    /// The token that ends a document; none: documents touch [default: eos_token of a tokenizer_config.json beside
    /// tokenizer.json, or else <|endoftext|> or <|end_of_text|>]
    #[arg(long, value_name = "TEXT|none")]
    end_of_text: Option<String>,
    /// Read bytes that are not UTF-8, and halves of surrogate pairs in JSON, as U+FFFD instead of refusing them
    #[arg(long)]
    lossy: bool,
    /// A text, which is one document; lines of JSON (.jsonl, .ndjson), with a document in "text" on each; a directory of
    /// .txt, .jsonl and .ndjson files
    #[arg(value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
}

#[derive(Args)]
pub struct InspectArgs {
    /// The directory of shards
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Documents to show, drawn at random
    #[arg(long, value_name = "N", default_value_t = 3)]
    documents: usize,
    /// Seed of the draw
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Runs a subcommand. The exit status: 0, or that of the signal that ended it. Errors: files that cannot be read or
/// written, or do not fit each other.
pub fn run(command: DataCommand, quiet: bool) -> Result<u8> {
    match command {
        DataCommand::Encode(args) => run_encode(&args, quiet),
        DataCommand::Inspect(args) => run_inspect(&args, quiet),
    }
}

fn run_encode(args: &EncodeArgs, quiet: bool) -> Result<u8> {
    if args.shard_tokens == 0 {
        return argument(Err(anyhow!("--shard-tokens: found 0, expected at least 1")));
    }
    let mut tokenizer = tokenizer_json::read_with(&args.tokenizer, &mut |warning| warn(warning, quiet))?;
    let touch = args.end_of_text.as_deref() == Some("none");
    if let Some(text) = &args.end_of_text {
        let end = (!touch).then_some(text.as_str());
        let set = tokenizer.set_end_of_text(end);
        argument(set.with_context(|| format!("--end-of-text: {}", shown_path(&args.tokenizer))))?;
    }
    let files = encode::files(&args.files)?;
    let total = files.iter().filter_map(|file| Some(std::fs::metadata(file).ok()?.len())).sum();
    let bar = bar(total, "{bar:30} {bytes}/{total_bytes}  {eta} left", quiet);
    signals::install();
    let settings = Settings {
        shard_tokens: args.shard_tokens,
        lossy: args.lossy,
        specials: args.special_tokens,
        touch,
        ..Settings::default()
    };
    let done = encode(&files, &args.out, &tokenizer, settings, &|bytes| bar.inc(bytes), &signals::interrupted);
    bar.finish_and_clear();
    let done = done?;
    let out = shown_path(&args.out);
    let say = |line: &str| say(line, quiet);
    say(&format!(
        "{} tokens of {} documents, {} bytes of text, in {} shards in {out}",
        thousands(done.tokens as usize),
        thousands(done.documents as usize),
        thousands(done.bytes as usize),
        done.shards
    ));
    if done.empty > 0 {
        say(&format!("{} empty documents were left out", thousands(done.empty as usize)));
    }
    if tokenizer.end_of_text().is_none() {
        say("handgrad: the tokenizer has no end-of-text token: documents touch, and a model cannot learn to end");
    }
    if done.finished {
        return Ok(0);
    }
    say("interrupted: the same command goes on behind the last shard");
    Ok(signals::status().unwrap_or(1))
}

fn run_inspect(args: &InspectArgs, quiet: bool) -> Result<u8> {
    let path = args.dir.join("tokenizer.json");
    ensure!(
        path.exists(),
        "{}: found no tokenizer.json, expected a directory of handgrad data encode",
        shown_path(&args.dir)
    );
    let tokenizer = tokenizer_json::read(&path)?;
    let shards = ShardSet::open(&args.dir, &tokenizer)?;
    let bar = bar(shards.len() as u64, "{bar:30} {pos}/{len} tokens  {eta} left", quiet);
    let found = inspect(&shards, &tokenizer, args.documents, args.seed, &|ids| bar.inc(ids));
    bar.finish_and_clear();
    let found = found.with_context(|| shown_path(&args.dir))?;
    print(&found, tokenizer.vocab_size(), &mut std::io::stdout().lock())?;
    Ok(0)
}

fn print(found: &Findings, vocab_size: usize, out: &mut dyn Write) -> Result<()> {
    let number = |n: u64| thousands(n as usize);
    writeln!(out, "tokens               {}", number(found.tokens))?;
    writeln!(out, "documents            {}", number(found.documents))?;
    writeln!(out, "bytes                {}", number(found.bytes))?;
    writeln!(out, "bytes per token      {:.3}", found.bytes as f64 / found.tokens.max(1) as f64)?;
    writeln!(out, "tokens per document  {:.1}", found.tokens as f64 / found.documents.max(1) as f64)?;
    writeln!(out, "vocabulary used      {} of {}", thousands(found.used_ids), thousands(vocab_size))?;
    writeln!(out, "duplicate documents  {}", number(found.duplicates))?;
    writeln!(out, "empty documents      {}", number(found.empty))?;
    writeln!(out, "\nlongest words, in bytes")?;
    for (len, word) in &found.longest_words {
        writeln!(out, "  {len:>8}  {}", word.escape_debug())?;
    }
    writeln!(out, "\nunusual characters")?;
    for (c, count) in found.unusual.iter().take(20) {
        writeln!(out, "  {:>8}  U+{:04X}", number(*count), *c as u32)?;
    }
    if found.unusual.is_empty() {
        writeln!(out, "  none")?;
    }
    for (i, sample) in found.samples.iter().enumerate() {
        writeln!(out, "\n--- document at random, {} of {}\n{sample}", i + 1, found.samples.len())?;
    }
    Ok(())
}

//! `handgrad` without arguments: trains on this project's own sources, then lets the model write.

use super::generate::print_continuation;
use super::{note, signals, train};
use crate::data::corpus::Corpus;
use crate::generate::{Request, Sampler, Stop};
use crate::nn::{ModelConfig, Transformer};
use crate::tokenizer::Tokenizer;
use crate::train::Recipe;
use crate::train::run::{Run, prepare_out};
use anyhow::Result;
use std::io::Write;
use std::path::{Path, PathBuf};

/// About a minute on two cores.
const STEPS: usize = 800;
const PROMPTS: [&str; 3] = ["/// The ", "pub fn ", "let mut "];

pub fn run(quiet: bool) -> Result<u8> {
    let corpus = Corpus::builtin();
    let tokenizer = Tokenizer::chars_of(corpus.documents.iter().map(String::as_str), true);
    let recipe = Recipe { steps: STEPS, ..Recipe::preset("chapter8")? };
    let config = ModelConfig::chapter8(tokenizer.vocab_size());
    let (mut trainer, source) = train::new_trainer(&corpus, None, 0.1, &tokenizer, &config, recipe)?;
    let out = new_directory();
    prepare_out(&out, false)?;
    let run = Run { out, tokenizer: &tokenizer, source };
    match train::train(&run, &mut trainer, &corpus.name, quiet)? {
        0 => sample(&trainer.model, &tokenizer, &run.out, quiet),
        status => Ok(status),
    }
}

/// out/chapter8, or out/chapter8-2 and so on: a run is never written over.
fn new_directory() -> PathBuf {
    let name = |n: usize| PathBuf::from(if n == 1 { "out/chapter8".to_string() } else { format!("out/chapter8-{n}") });
    (1..).map(name).find(|path| !path.exists()).expect("some number is free")
}

/// Prints a few continuations, each as long as the context allows.
fn sample(model: &Transformer, tokenizer: &Tokenizer, out: &Path, quiet: bool) -> Result<u8> {
    let say = |line: &str| {
        if !quiet {
            note(line)
        }
    };
    say("\nwhat it writes:");
    for (seed, prompt) in PROMPTS.iter().enumerate() {
        let ids = tokenizer.encode(prompt)?;
        let request = Request {
            prompt: &ids,
            max_new: model.config.max_seq_len - ids.len(),
            end_of_text: tokenizer.end_of_text(),
            vocab_size: tokenizer.vocab_size(),
            use_cache: true,
        };
        let mut sampler = Sampler::new(0.6, 0.9, seed as u64)?;
        if print_continuation(model, tokenizer, prompt, &request, &mut sampler)? == Stop::Interrupted {
            return Ok(signals::status().unwrap_or(1));
        }
        writeln!(std::io::stdout())?;
    }
    say(&format!("more of it: handgrad generate --model {} --prompt 'fn '", out.display()));
    say("your own text: handgrad train --data FILE --out DIR");
    Ok(0)
}

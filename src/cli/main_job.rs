//! `handgrad` without arguments: trains on this project's own sources, then lets the model write.

use super::{signals, train};
use crate::data::batch::split;
use crate::data::corpus::Corpus;
use crate::generate::{Request, Sampler, generate};
use crate::nn::{ModelConfig, Transformer};
use crate::tokenizer::{StreamDecoder, Tokenizer};
use crate::train::run::{Run, prepare_out};
use crate::train::state::Source;
use crate::train::{Recipe, Trainer};
use anyhow::Result;
use std::io::Write;
use std::path::PathBuf;

const PROMPTS: [&str; 3] = ["//! ", "pub fn ", "let "];

pub fn run(quiet: bool) -> Result<u8> {
    let corpus = Corpus::builtin();
    let tokenizer = Tokenizer::chars_of(corpus.documents.iter().map(String::as_str), true);
    let recipe = Recipe { steps: 1000, ..Recipe::preset("chapter8")? };
    let source = Source { data: None, val_fraction: 0.1 };
    let tokens = tokenizer.encode_documents(&corpus.documents)?;
    let (train_tokens, validation) = split(&tokens, source.val_fraction, recipe.seq_len)?;
    let out = new_directory();
    prepare_out(&out, false)?;
    let model = Transformer::new(&ModelConfig::chapter8(tokenizer.vocab_size()), recipe.seed)?;
    let mut trainer = Trainer::new(model, recipe, train_tokens.to_vec(), validation.to_vec());
    let run = Run { out, tokenizer: &tokenizer, source };
    let (status, finished) = train::train(&run, &mut trainer, &corpus.name, quiet)?;
    if finished {
        sample(&trainer.model, &tokenizer, &run.out, quiet)?;
    }
    Ok(status)
}

/// out/chapter8, or out/chapter8-2 and so on: a run is never written over.
fn new_directory() -> PathBuf {
    let name = |n: usize| PathBuf::from(if n == 1 { "out/chapter8".to_string() } else { format!("out/chapter8-{n}") });
    (1..).map(name).find(|path| !path.exists()).expect("some number is free")
}

/// Prints a few continuations, each as long as the context allows.
fn sample(model: &Transformer, tokenizer: &Tokenizer, out: &std::path::Path, quiet: bool) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    if !quiet {
        eprintln!("\nwhat it writes:");
    }
    for (seed, prompt) in PROMPTS.iter().enumerate() {
        let ids = tokenizer.encode(prompt)?;
        let request = Request {
            prompt: &ids,
            max_new: model.config.max_seq_len - ids.len(),
            end_of_text: tokenizer.end_of_text(),
            vocab_size: tokenizer.vocab_size(),
            use_cache: true,
        };
        let mut decoder = StreamDecoder::new(tokenizer);
        write!(stdout, "{prompt}")?;
        generate(model, &request, &mut Sampler::new(0.6, 0.9, seed as u64)?, |id| {
            write!(stdout, "{}", decoder.push(id)?)?;
            stdout.flush()?;
            Ok(!signals::interrupted())
        })?;
        writeln!(stdout, "{}\n", decoder.flush())?;
    }
    if !quiet {
        let out = out.display();
        eprintln!("more of it: handgrad generate --model {out} --prompt 'fn '");
        eprintln!("your own text: handgrad train --data FILE --out DIR");
    }
    Ok(())
}

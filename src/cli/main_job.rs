//! `handgrad` without arguments: trains on this project's own sources, then lets the model write.

use super::generate::print_continuation;
use super::{say, signals, train};
use crate::generate::{Request, Sampler, Stop};
use crate::shown::shown_path;
use crate::train::{Model, Placement, Recipe, Run, Setup, VAL_FRACTION};
use anyhow::Result;
use std::io::Write;
use std::path::{Path, PathBuf};

const PRESET: &str = "chapter8";
/// About a minute on two cores.
const STEPS: usize = 800;
const PROMPTS: [&str; 3] = ["/// The ", "pub fn ", "let mut "];

/// Exit status 0, or that of the signal that ended it. Errors: those of a training run; standard output is full.
pub fn run(quiet: bool) -> Result<u8> {
    run_in(Path::new("out"), STEPS, quiet)
}

/// Trains for `steps` into a new directory below `parent`, then prints samples.
fn run_in(parent: &Path, steps: usize, quiet: bool) -> Result<u8> {
    let preset = Recipe::preset(PRESET)?;
    let mut run = Run::new(Setup {
        out: &new_directory(parent),
        overwrite: false,
        model: Model::Preset(PRESET),
        init: None,
        recipe: Recipe { steps, warmup: preset.warmup.min(steps / 8), ..preset },
        data: None,
        tokenizer: None,
        val_fraction: VAL_FRACTION,
        placement: Placement::CPU,
    })?;
    match train::train(&mut run, quiet)? {
        0 => sample(&run, quiet),
        status => Ok(status),
    }
}

/// `chapter8`, or `chapter8-2` and so on: a run is never written over.
fn new_directory(parent: &Path) -> PathBuf {
    let name = |n: usize| parent.join(if n == 1 { PRESET.to_string() } else { format!("{PRESET}-{n}") });
    (1..).map(name).find(|path| !path.exists()).expect("some number is free")
}

/// Prints a few continuations, each as long as the context allows.
fn sample(run: &Run, quiet: bool) -> Result<u8> {
    let (model, tokenizer) = (&run.trainer.model, &run.tokenizer);
    let end_of_text = Vec::from_iter(tokenizer.end_of_text());
    say("\nwhat it writes:", quiet);
    for (seed, prompt) in PROMPTS.iter().enumerate() {
        let ids = tokenizer.encode_ordinary(prompt)?;
        let request = Request {
            prompt: &ids,
            max_new: model.config.max_seq_len - ids.len(),
            end_of_text: &end_of_text,
            vocab_size: tokenizer.vocab_size(),
            use_cache: true,
        };
        let mut sampler = Sampler::new(0.6, 0.9, seed as u64)?;
        if print_continuation(model, tokenizer, prompt, &request, &mut sampler)? == Stop::Interrupted {
            return Ok(signals::status().unwrap_or(1));
        }
        writeln!(std::io::stdout())?;
    }
    say(&format!("more of it: handgrad generate --model {} --prompt 'fn '", shown_path(&run.out)), quiet);
    say("your own text: handgrad train --data FILE --out DIR", quiet);
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_gets_a_directory_of_its_own() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["chapter8", "chapter8-2"] {
            assert_eq!(run_in(parent.path(), 2, true).unwrap(), 0);
            assert!(parent.path().join(name).join("model.safetensors").exists(), "{name}");
        }
    }
}

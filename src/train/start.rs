//! How a run begins: anew, or behind a checkpoint. Nothing is written before everything is known to fit.

use super::directory::{self, Checkpoint, Replace, checkpoints, newest_whole, prepare_out};
use super::state::{self, Source, TrainerState};
use super::{BadSetting, Recipe, Run, Trainer, memory, metrics};
use crate::data::batch::training_part;
use crate::data::{TokenRow, Tokens, TrainingData};
use crate::device::Device;
use crate::dtype::DType;
use crate::formats::lock::Lock;
use crate::formats::{config_json, hex, model_dir, tokenizer_json};
use crate::nn::config::Init;
use crate::nn::{ModelConfig, Transformer};
use crate::shown::{shown, shown_path};
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// The part of the tokens that is kept for validation unless another is asked for.
pub const VAL_FRACTION: f64 = 0.1;

/// What a new run is made from.
pub struct Setup<'a> {
    /// The model directory to write.
    pub out: &'a Path,
    /// Whether a run that `out` holds is replaced.
    pub overwrite: bool,
    pub model: Model<'a>,
    /// How the first weights are drawn, if not as the model says.
    pub init: Option<Init>,
    pub recipe: Recipe,
    /// Texts or shards, see [`TrainingData::open`].
    pub data: Option<&'a Path>,
    /// A tokenizer, see [`TrainingData::tokenizer`].
    pub tokenizer: Option<&'a str>,
    /// The part of the tokens kept for validation, from the end: at least 0 and below 1.
    pub val_fraction: f64,
    pub placement: Placement,
}

/// What a run goes on from.
pub struct Resume<'a> {
    /// A run's directory, of which the newest whole checkpoint is taken, or one checkpoint.
    pub from: &'a Path,
    /// The directory to go on in; by default the run's own. Another one begins with that run's metrics.
    pub out: Option<&'a Path>,
    /// Where the data are now; the ids must be the same.
    pub data: Option<&'a Path>,
    pub placement: Placement,
}

/// Where a run computes, and how.
#[derive(Clone, Debug)]
pub struct Placement {
    pub device: Device,
    /// Of activations and compute weights: f32, or on a card bf16.
    pub dtype: DType,
    /// Whether blocks compute their activations again in backward instead of keeping them.
    pub recompute: bool,
}

impl Placement {
    /// In f32 on the CPU.
    pub const CPU: Placement = Placement { device: Device::Cpu, dtype: DType::F32, recompute: false };

    /// Moves a model there. Errors: as [`Transformer::to`].
    fn place(&self, model: Transformer) -> Result<Transformer> {
        let mut model = model.to(&self.device, self.dtype)?;
        model.recompute = self.recompute;
        Ok(model)
    }
}

/// The model that a new run trains.
pub enum Model<'a> {
    /// A preset's name. The model gets the tokenizer's vocabulary, and a context that holds the training windows.
    Preset(&'a str),
    /// A configuration that has been validated, taken as it is.
    Config(ModelConfig),
}

impl Model<'_> {
    /// The configuration for a tokenizer of `vocab_size` tokens and windows of `seq_len`. Errors: an unknown preset, a
    /// context that is too long for any model, and what the configuration cannot hold.
    fn config(self, vocab_size: usize, seq_len: usize) -> Result<ModelConfig> {
        let config = match self {
            Model::Config(config) => config,
            Model::Preset(name) => {
                let mut config = ModelConfig::preset(name, Some(vocab_size))?;
                config.max_seq_len = config.max_seq_len.max(seq_len);
                config.validate()?;
                config
            }
        };
        let (rows, context) = (config.vocab_size, config.max_seq_len);
        ensure!(
            vocab_size <= rows,
            "--config: found vocab_size {rows}, expected at least the tokenizer's {vocab_size}"
        );
        ensure!(
            seq_len <= context,
            BadSetting(format!("--seq-len: found {seq_len}, expected at most the model's context of {context}"))
        );
        Ok(config)
    }
}

impl Run {
    /// A run of a new model, in a directory that is made for it.
    ///
    /// Errors: a [`BadSetting`] in the recipe, the windows or the validation part; data or a tokenizer that cannot be
    /// read or do not fit each other; too few tokens; too little memory; an output directory that holds a run, lies
    /// within the data or cannot be written to.
    pub fn new(setup: Setup) -> Result<Run> {
        let Setup { out, overwrite, model, init, recipe, data, tokenizer, val_fraction, placement } = setup;
        recipe.validate()?;
        ensure!(
            (0.0..1.0).contains(&val_fraction),
            BadSetting(format!("--val-fraction: found {val_fraction}, expected at least 0 and below 1"))
        );
        refuse_out_in_data(out, data)?;
        let path = data.map(data_path).transpose()?;
        let texts = TrainingData::open(data)?;
        let tokenizer = texts.tokenizer(tokenizer)?;
        let mut config = model.config(tokenizer.vocab_size(), recipe.seq_len)?;
        config.init = init.unwrap_or(config.init);
        memory::check(&config, &recipe, &placement)?;
        let tokens = texts.tokens(&tokenizer)?;
        let (train, validation) = tokens.split_at(training_part(tokens.len(), val_fraction, recipe.seq_len)?);
        let source = Source::of(path, &tokens, &tokenizer, val_fraction)?;
        let id = run_id(&json!([config_json::to_json(&config), recipe, source.ids, source.tokenizer, val_fraction]));
        let model = placement.place(Transformer::new(&config, recipe.seed)?)?;
        let lock = prepare_out(out, if overwrite { Replace::Any } else { Replace::Nothing }, &id)?;
        let trainer = Trainer::new(model, recipe, train, validation);
        Ok(Run { out: out.to_path_buf(), tokenizer, source, data_name: texts.name(), trainer, id, lock })
    }

    /// Goes on behind a checkpoint, which is returned too. `change` makes the recipe to go on with from the checkpoint's;
    /// `warn` is told of checkpoints that are not whole, and of what is odd about the model's files but no error.
    ///
    /// Errors: no whole checkpoint; no steps left; another process at work in the directory; a run that has later
    /// checkpoints in the directory to write; a [`BadSetting`] in the recipe; a tokenizer or data that changed; too little
    /// memory; an output directory that holds another run or cannot be written to.
    pub fn resume(
        resume: &Resume,
        change: impl FnOnce(Recipe) -> Recipe,
        warn: &mut dyn FnMut(&str),
    ) -> Result<(Run, Checkpoint)> {
        let mut origin = Origin::find(resume, warn)?;
        let (state, dir) = (&origin.state, &origin.checkpoint.directory);
        let mut recipe = change(state.recipe.clone());
        recipe.warmup = recipe.warmup.min(recipe.steps); // The new recipe may end within the old one's warmup.
        recipe.validate()?;
        origin.check_steps(recipe.steps)?;
        let model = model_dir::load_with(dir, warn)?;
        let tokenizer = model_dir::load_tokenizer(dir, &model)?;
        state.source.check_tokenizer(&dir.join("tokenizer.json"), &tokenizer)?;
        let data = resume.data.or(state.source.data.as_deref().map(Path::new));
        let path = data.map(data_path).transpose()?;
        let texts = TrainingData::open(data)?;
        let tokens = texts.tokens(&tokenizer)?;
        let source = Source::of(path, &tokens, &tokenizer, state.source.val_fraction)?;
        state.source.check_tokens(&texts.name(), &source)?;
        memory::check(&model.config, &recipe, &resume.placement)?;
        let (train, validation) = tokens.split_at(training_part(tokens.len(), source.val_fraction, recipe.seq_len)?);
        let mut trainer = Trainer::new(resume.placement.place(model)?, recipe, train, validation);
        state::restore(dir, state, &mut trainer)?;
        let (out, id, lock) = origin.enter(resume, &run_id(&json!([state.run, state.step, trainer.recipe])))?;
        Ok((Run { out, tokenizer, source, data_name: texts.name(), trainer, id, lock }, origin.checkpoint))
    }
}

/// The checkpoint that a run goes on from.
struct Origin {
    checkpoint: Checkpoint,
    state: TrainerState,
    /// The full path of its run's directory, if that is known.
    run: Option<PathBuf>,
    /// Whether the run goes on there.
    in_place: Option<Lock>,
}

impl Origin {
    fn find(resume: &Resume, warn: &mut dyn FnMut(&str)) -> Result<Origin> {
        let (place, path) = (shown_path(resume.from), full(resume.from));
        let single = directory::is_checkpoint(&path);
        if !single && checkpoints(&path).is_empty() {
            state::read(&path)?; // which says what is missing
        }
        let run = if single { directory::run_of(&path, &state::read(&path)?.run) } else { Some(path.clone()) };
        let in_place = match &run {
            Some(run) if resume.out.is_none_or(|out| full(out) == *run) => Some(Lock::take(run)?),
            None if resume.out.is_none() => bail!(
                "--resume {place}: found a checkpoint without its run around it, expected --out with a directory to go on in"
            ),
            _ => None,
        };
        let (checkpoint, state) = if single {
            let state = state::read_whole(&path)?;
            (Checkpoint { name: resume.from.to_path_buf(), directory: path, step: state.step }, state)
        } else {
            newest_whole(resume.from, warn)?
        };
        if let Some(run) = run.as_ref().filter(|_| in_place.is_some()) {
            directory::sweep(run, &checkpoint.directory)?;
        }
        Ok(Origin { checkpoint, state, run, in_place })
    }

    /// Errors: the checkpoint is already at the end of `steps`; the run has a later one that is whole, and goes on here.
    fn check_steps(&self, steps: usize) -> Result<()> {
        let (place, done) = (shown_path(&self.checkpoint.name), self.state.step);
        ensure!(
            done < steps || (done == steps && !self.state.finished),
            "--resume {place}: found {done} steps done, expected fewer than --steps, {steps}"
        );
        let Some(run) = self.run.as_ref().filter(|_| self.in_place.is_some()) else { return Ok(()) };
        match newest_whole(run, &mut |_| ()) {
            Ok((last, _)) if last.step > done => bail!(
                "--resume {place}: found step {} in {}, expected {done} to be the run's last step; give --out to branch off",
                last.step,
                shown_path(&last.name)
            ),
            _ => Ok(()),
        }
    }

    /// Makes the directory ready in which the run goes on: its path, the run's identity and the lock. `branch`: the
    /// identity of a run that begins here.
    fn enter(&mut self, resume: &Resume, branch: &str) -> Result<(PathBuf, String, Lock)> {
        let own = self.run.as_deref();
        if let (Some(run), Some(lock)) = (own, self.in_place.take()) {
            let id = if self.state.run.is_empty() { branch } else { &self.state.run };
            directory::claim(run, id)?;
            let named = resume.out.unwrap_or(resume.from);
            let out = if full(named) == run { named } else { run };
            return Ok((out.to_path_buf(), id.to_string(), lock));
        }
        let out = resume.out.context("--out: expected a directory to go on in")?;
        let lock = prepare_out(out, Replace::WithoutCheckpoint, branch)?;
        if let Some(run) = own {
            metrics::copy(&directory::metrics(run), &directory::metrics(out))?;
        }
        Ok((out.to_path_buf(), branch.to_string(), lock))
    }
}

impl Source {
    /// What is to be known of data again. Error: they cannot be read.
    fn of(data: Option<String>, tokens: &Tokens, tokenizer: &Tokenizer, val_fraction: f64) -> Result<Source> {
        let tokenizer = format!("{:016x}", tokenizer_json::fingerprint(tokenizer));
        Ok(Source { data, tokens: tokens.len(), ids: tokens.fingerprint()?, tokenizer, val_fraction })
    }

    /// Error: a checkpoint's tokenizer is not the one that the run began with.
    fn check_tokenizer(&self, path: &Path, tokenizer: &Tokenizer) -> Result<()> {
        let (found, expected) = (format!("{:016x}", tokenizer_json::fingerprint(tokenizer)), &self.tokenizer);
        ensure!(
            expected.is_empty() || found == *expected,
            "{}: found a tokenizer with fingerprint {found}, expected the run's, {}",
            shown_path(path),
            shown(expected)
        );
        Ok(())
    }

    /// Error: the tokens `found` are not those that the run began with.
    fn check_tokens(&self, name: &str, found: &Source) -> Result<()> {
        ensure!(
            found.tokens == self.tokens,
            "{name}: found {} tokens, expected the {} that the run began with; --data names another place",
            found.tokens,
            self.tokens
        );
        ensure!(
            self.ids.is_empty() || found.ids == self.ids,
            "{name}: found {} tokens with fingerprint {:.16}, expected the ones that the run began with, {:.16}: the text changed; --data names another place",
            found.tokens,
            found.ids,
            shown(&self.ids)
        );
        Ok(())
    }
}

/// Tells runs apart that begin with different things.
fn run_id(begun: &serde_json::Value) -> String {
    hex(&Sha256::digest(begun.to_string())[..8])
}

/// The full path of `--data`, as a checkpoint keeps it. Error: it is not UTF-8.
fn data_path(path: &Path) -> Result<String> {
    let full = full(path).into_os_string().into_string();
    full.map_err(|path| anyhow!("--data {}: found a path that is not UTF-8, expected another", shown_path(&path)))
}

/// The absolute path of what exists; of anything else, the path as it is.
fn full(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

/// A run that writes among the texts it reads could not read them again.
fn refuse_out_in_data(out: &Path, data: Option<&Path>) -> Result<()> {
    let existing = |path: &Path| std::path::absolute(path).ok()?.ancestors().find_map(|part| part.canonicalize().ok());
    let directory = data.filter(|data| data.is_dir()).and_then(existing);
    let inside = existing(out).zip(directory).is_some_and(|(out, data)| out.starts_with(data));
    ensure!(!inside, "--out {}: found a directory within --data, expected one elsewhere", shown_path(out));
    Ok(())
}

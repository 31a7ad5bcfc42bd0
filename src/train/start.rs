//! How a run begins: anew, or behind a checkpoint. Nothing is written before everything is known to fit.

use super::directory::{last_checkpoint, prepare_out, run_of};
use super::state::{self, Source, TrainerState};
use super::{BadSetting, Recipe, Run, Trainer, memory, metrics};
use crate::data::batch::training_part;
use crate::data::{TokenRow, TrainingData};
use crate::device::Device;
use crate::dtype::DType;
use crate::formats::{atomic, model_dir};
use crate::nn::{ModelConfig, Transformer};
use anyhow::{Result, bail, ensure};
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
    pub recipe: Recipe,
    /// Texts or shards, see [`TrainingData::open`].
    pub data: Option<&'a Path>,
    /// A tokenizer, see [`TrainingData::tokenizer`].
    pub tokenizer: Option<&'a str>,
    /// The part of the tokens kept for validation, from the end: at least 0 and below 1.
    pub val_fraction: f64,
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
        let Setup { out, overwrite, model, recipe, data, tokenizer, val_fraction, placement } = setup;
        recipe.validate()?;
        ensure!(
            (0.0..1.0).contains(&val_fraction),
            BadSetting(format!("--val-fraction: found {val_fraction}, expected at least 0 and below 1"))
        );
        refuse_out_in_data(out, data)?;
        let texts = TrainingData::open(data)?;
        let tokenizer = texts.tokenizer(tokenizer)?;
        let config = model.config(tokenizer.vocab_size(), recipe.seq_len)?;
        memory::check(&config, &recipe, &placement)?;
        let tokens = texts.tokens(&tokenizer)?;
        let (train, validation) = tokens.split_at(training_part(tokens.len(), val_fraction, recipe.seq_len)?);
        let data = data.map(|path| Ok::<_, std::io::Error>(path.canonicalize()?.display().to_string())).transpose()?;
        let source = Source { data, val_fraction, tokens: tokens.len() };
        let model = placement.place(Transformer::new(&config, recipe.seed)?)?;
        prepare_out(out, overwrite)?;
        let trainer = Trainer::new(model, recipe, train, validation);
        Ok(Run { out: out.to_path_buf(), tokenizer, source, data_name: texts.name(), trainer })
    }

    /// Goes on behind `checkpoint`, in the directory of its run or in `out`, which then begins with that run's metrics.
    /// `change` makes the recipe to go on with from the checkpoint's; `warn` is told of what is odd about the model's
    /// files but no error.
    ///
    /// Errors: a directory that is no checkpoint or a torn one; no steps left; a run that has later checkpoints in the
    /// directory to write; a [`BadSetting`] in the recipe; data that changed; too little memory; an output directory
    /// that holds another run or cannot be written to.
    pub fn resume(
        checkpoint: &Path,
        out: Option<&Path>,
        change: impl FnOnce(Recipe) -> Recipe,
        placement: &Placement,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Run> {
        let state = state::read(checkpoint)?;
        let mut recipe = change(state.recipe.clone());
        recipe.warmup = recipe.warmup.min(recipe.steps); // The new recipe may end within the old one's warmup.
        recipe.validate()?;
        let old_run = run_of(&full(checkpoint));
        let out = out.map_or(old_run.clone(), Path::to_path_buf);
        let in_place = full(&out) == old_run;
        check_steps(checkpoint, &state, recipe.steps, in_place.then_some(&old_run))?;
        let model = model_dir::load_with(checkpoint, warn)?;
        let tokenizer = model_dir::load_tokenizer(checkpoint, &model)?;
        let texts = TrainingData::open(state.source.data.as_deref().map(Path::new))?;
        let tokens = texts.tokens(&tokenizer)?;
        let (name, found, expected) = (texts.name(), tokens.len(), state.source.tokens);
        ensure!(found == expected, "{name}: found {found} tokens, expected the {expected} that the run began with");
        memory::check(&model.config, &recipe, placement)?;
        let (train, validation) = tokens.split_at(training_part(found, state.source.val_fraction, recipe.seq_len)?);
        let mut trainer = Trainer::new(placement.place(model)?, recipe, train, validation);
        state::restore(checkpoint, &state, &mut trainer)?;
        if in_place {
            atomic::clean(&out)?;
        } else {
            prepare_out(&out, false)?;
            metrics::copy(&old_run.join("metrics.jsonl"), &out.join("metrics.jsonl"))?;
        }
        Ok(Run { out, tokenizer, source: state.source, data_name: name, trainer })
    }
}

/// Errors: `checkpoint` is already at the end of `steps`; `written_over`, the run that it belongs to if the same directory is
/// written, has a later checkpoint.
fn check_steps(checkpoint: &Path, state: &TrainerState, steps: usize, written_over: Option<&PathBuf>) -> Result<()> {
    let (place, done) = (checkpoint.display(), state.step);
    ensure!(
        done < steps || (done == steps && !state.finished),
        "--resume {place}: found {done} steps done, expected fewer than --steps, {steps}"
    );
    match written_over.and_then(|run| last_checkpoint(run)) {
        Some((step, last)) if step > done => bail!(
            "--resume {place}: found step {step} in {}, expected {done} to be the run's last step; give --out to branch off",
            last.display()
        ),
        _ => Ok(()),
    }
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
    ensure!(!inside, "--out {}: found a directory within --data, expected one elsewhere", out.display());
    Ok(())
}

//! `handgrad train`

use super::progress::Progress;
use super::training_data::TrainingData;
use super::{DeviceArgs, argument, load_model, memory, signals, thousands};
use crate::data::batch::training_part;
use crate::data::{TokenRow, Tokens};
use crate::formats::{atomic, config_json, model_dir};
use crate::nn::{ModelConfig, Module, Transformer};
use crate::optim::AdamW;
use crate::tokenizer::Tokenizer;
use crate::train::run::{Outcome, Run, last_checkpoint, prepare_out, run_of};
use crate::train::state::{self, Source};
use crate::train::{Recipe, Trainer};
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct TrainArgs {
    /// The model: chapter8, classic, report-80m or report-197m; also sets the defaults of the flags below
    #[arg(long, default_value = "chapter8", value_name = "NAME")]
    pub preset: String,
    /// The model from a config.json instead of the preset's
    #[arg(long, value_name = "FILE.json")]
    pub config: Option<PathBuf>,
    /// Text to train on: a file, a directory of files, or of shards that handgrad data encode made [default: this project's own
    /// sources and guide]
    #[arg(long, value_name = "FILE|DIR")]
    pub data: Option<PathBuf>,
    /// char: the characters of the data; bytes: 256 bytes; or a tokenizer.json [default: char; of shards, the one that made them]
    #[arg(long, value_name = "char|bytes|FILE.json")]
    pub tokenizer: Option<String>,
    /// The model directory to write
    #[arg(long, value_name = "DIR", required_unless_present = "resume")]
    pub out: Option<PathBuf>,
    /// Replace a training run that --out holds
    #[arg(long)]
    pub overwrite: bool,
    /// Continue the run of a checkpoint with its model, data and recipe; --out, --steps and the flags on evaluating, saving
    /// and logging may be given anew
    #[arg(long, value_name = "DIR", conflicts_with_all = ["preset", "config", "data", "tokenizer", "overwrite", "val_fraction",
        "batch_size", "seq_len", "lr", "min_lr", "warmup", "weight_decay", "clip", "beta1", "beta2", "seed"])]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Number type of activations and weights; the CPU computes in f32
    #[arg(long, default_value = "f32", value_parser = ["f32", "bf16"])]
    pub dtype: String,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Part of the tokens kept for validation, from the end of the text [default: 0.1]
    #[arg(long, value_name = "0..1")]
    pub val_fraction: Option<f64>,
}

#[derive(Args, Default)]
pub struct RecipeArgs {
    /// Steps to train [default: 2000; report-*: 7418]
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Sequences in a step [default: 12; report-*: 32]
    #[arg(long, value_name = "N")]
    pub batch_size: Option<usize>,
    /// Tokens in a training window; a longer one than the preset's context raises the context [default: the context: 64; report-*: 768]
    #[arg(long, value_name = "N")]
    pub seq_len: Option<usize>,
    /// Peak learning rate [default: 1e-3; report-*: 4e-4]
    #[arg(long, value_name = "X")]
    pub lr: Option<f64>,
    /// Learning rate of the last step [default: a tenth of --lr]
    #[arg(long, value_name = "X")]
    pub min_lr: Option<f64>,
    /// Steps over which the learning rate rises to its peak [default: 100, report-*: 500, but at most a tenth of --steps]
    #[arg(long, value_name = "N")]
    pub warmup: Option<usize>,
    /// Decay of matrices per step, times the learning rate [default: 0.1]
    #[arg(long, value_name = "X")]
    pub weight_decay: Option<f64>,
    /// Largest norm of all gradients together; 0 never clips [default: 1]
    #[arg(long, value_name = "X")]
    pub clip: Option<f64>,
    /// AdamW's decay of the mean gradient [default: 0.9]
    #[arg(long, value_name = "X")]
    pub beta1: Option<f64>,
    /// AdamW's decay of the mean squared gradient [default: 0.99; report-*: 0.999]
    #[arg(long, value_name = "X")]
    pub beta2: Option<f64>,
    /// Seed of the first weights and of the training windows [default: 1]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Steps between validations; 0: only at the end [default: 500; report-*: 1000]
    #[arg(long, value_name = "N")]
    pub eval_every: Option<usize>,
    /// Batches of a validation; 0: the whole validation part [default: 0; report-*: 1000]
    #[arg(long, value_name = "N")]
    pub eval_batches: Option<usize>,
    /// Steps between checkpoints, OUT/step-000100 and so on; 0: only at the end [default: 0; report-*: 1000]
    #[arg(long, value_name = "N")]
    pub save_every: Option<usize>,
    /// Steps between lines of metrics.jsonl [default: 10]
    #[arg(long, value_name = "N")]
    pub log_every: Option<usize>,
}

impl RecipeArgs {
    /// `base` with what the command line says.
    fn apply(&self, base: Recipe) -> Recipe {
        let lr = self.lr.unwrap_or(base.lr);
        let min_lr = if self.lr.is_some() { lr / 10.0 } else { base.min_lr };
        Recipe {
            steps: self.steps.unwrap_or(base.steps),
            batch_size: self.batch_size.unwrap_or(base.batch_size),
            seq_len: self.seq_len.unwrap_or(base.seq_len),
            lr,
            min_lr: self.min_lr.unwrap_or(min_lr),
            warmup: self.warmup.unwrap_or(base.warmup),
            weight_decay: self.weight_decay.unwrap_or(base.weight_decay),
            clip: self.clip.unwrap_or(base.clip),
            beta1: self.beta1.unwrap_or(base.beta1),
            beta2: self.beta2.unwrap_or(base.beta2),
            eps: base.eps,
            seed: self.seed.unwrap_or(base.seed),
            eval_every: self.eval_every.unwrap_or(base.eval_every),
            eval_batches: self.eval_batches.unwrap_or(base.eval_batches),
            save_every: self.save_every.unwrap_or(base.save_every),
            log_every: self.log_every.unwrap_or(base.log_every),
        }
    }
}

pub fn run(args: TrainArgs, quiet: bool) -> Result<u8> {
    let device = args.device.open()?;
    ensure!(args.dtype == "f32", "--dtype: found {}, expected f32: bf16 needs --device cuda or emulator", args.dtype);
    match &args.resume {
        Some(dir) => resume(dir, &args, quiet),
        None => start(&args, quiet),
    }
}

fn start(args: &TrainArgs, quiet: bool) -> Result<u8> {
    let mut recipe = args.recipe.apply(argument(Recipe::preset(&args.preset))?);
    if args.recipe.warmup.is_none() {
        recipe.warmup = recipe.warmup.min(recipe.steps / 10); // a short run must still reach its peak
    }
    argument(recipe.validate())?;
    let val_fraction = args.val_fraction.unwrap_or(0.1);
    ensure_fraction(val_fraction)?;
    let Some(out) = &args.out else { bail!("--out: expected a directory to write the model to") };
    let data = TrainingData::open(args.data.as_deref())?;
    if let Some(data) = &args.data {
        refuse_out_in_data(out, data)?;
    }
    let tokenizer = data.tokenizer(args.tokenizer.as_deref())?;
    let config = model_config(args, &tokenizer, &mut recipe)?;
    config.validate()?;
    memory::check(&config, &recipe)?;
    let tokens = data.tokens(&tokenizer)?;
    let (mut trainer, source) = new_trainer(tokens, args.data.as_deref(), val_fraction, &config, recipe)?;
    prepare_out(out, args.overwrite)?;
    train(&Run { out: out.clone(), tokenizer: &tokenizer, source }, &mut trainer, &data.name(), quiet)
}

/// A trainer with a new model on tokens that were read from `data`.
pub fn new_trainer(
    tokens: Tokens,
    data: Option<&Path>,
    val_fraction: f64,
    config: &ModelConfig,
    recipe: Recipe,
) -> Result<(Trainer, Source)> {
    config.validate()?;
    memory::check(config, &recipe)?;
    let (train, validation) = tokens.split_at(training_part(tokens.len(), val_fraction, recipe.seq_len)?);
    let data = data.map(|path| Ok::<_, std::io::Error>(path.canonicalize()?.display().to_string())).transpose()?;
    let source = Source { data, val_fraction, tokens: tokens.len() };
    let model = Transformer::new(config, recipe.seed)?;
    Ok((Trainer::new(model, recipe, train, validation), source))
}

/// Goes on behind a checkpoint, in the run's own directory or in a new one.
fn resume(dir: &Path, args: &TrainArgs, quiet: bool) -> Result<u8> {
    let full = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let state = state::read(dir)?;
    let mut recipe = args.recipe.apply(state.recipe.clone());
    recipe.warmup = recipe.warmup.min(recipe.steps); // --steps may cut the run short
    argument(recipe.validate())?;
    let (done, steps) = (state.step, recipe.steps);
    ensure!(
        done < steps || (done == steps && !state.finished),
        "--resume {}: found {done} steps done, expected fewer than --steps, {steps}",
        dir.display()
    );
    let old_run = run_of(&full(dir));
    let out = args.out.clone().unwrap_or(old_run.clone());
    let in_place = full(&out) == old_run;
    if let Some((step, place)) = last_checkpoint(&old_run).filter(|(step, _)| in_place && *step > done) {
        bail!(
            "--resume {}: found step {step} in {}, expected {done} to be the run's last step; give --out to branch off",
            dir.display(),
            place.display()
        );
    }
    let model = load_model(dir, quiet)?;
    let tokenizer = model_dir::load_tokenizer(dir, &model)?;
    let data = TrainingData::open(state.source.data.as_deref().map(Path::new))?;
    let tokens = data.tokens(&tokenizer)?;
    let (found, expected) = (tokens.len(), state.source.tokens);
    ensure!(
        found == expected,
        "{}: found {found} tokens, expected the {expected} that the run began with",
        data.name()
    );
    memory::check(&model.config, &recipe)?;
    let training = training_part(tokens.len(), state.source.val_fraction, recipe.seq_len)?;
    let (train_tokens, validation) = tokens.split_at(training);
    let mut trainer = Trainer::new(model, recipe, train_tokens, validation);
    state::restore(dir, &state, &mut trainer)?;
    if in_place {
        atomic::clean(&out)?;
    } else {
        prepare_out(&out, false)?;
        copy_metrics(&old_run, &out)?;
    }
    train(&Run { out, tokenizer: &tokenizer, source: state.source }, &mut trainer, &data.name(), quiet)
}

/// A run that branches off begins with the history of the old one.
fn copy_metrics(old_run: &Path, out: &Path) -> Result<()> {
    let metrics = old_run.join("metrics.jsonl");
    if metrics.exists() {
        std::fs::copy(&metrics, out.join("metrics.jsonl"))
            .with_context(|| format!("{}: cannot be copied", metrics.display()))?;
    }
    Ok(())
}

/// Runs the training and tells the story on standard error. The exit status: 0, or that of the signal that ended it.
pub fn train(run: &Run, trainer: &mut Trainer, corpus: &str, quiet: bool) -> Result<u8> {
    signals::install();
    let mut progress = Progress::new(&trainer.recipe, trainer.step, quiet);
    progress.say(&summary(trainer, corpus));
    let outcome = run.run(trainer, &mut progress, &signals::interrupted);
    progress.finish();
    match outcome? {
        Outcome::Finished { .. } => Ok(0),
        Outcome::Interrupted { step } => {
            let out = run.out.display();
            progress
                .say(&format!("interrupted: step {step} saved to {out}; go on with: handgrad train --resume {out}"));
            Ok(signals::status().unwrap_or(1))
        }
    }
}

fn summary(trainer: &Trainer, corpus: &str) -> String {
    let parameters = trainer.model.parameters();
    let decayed: usize = parameters.iter().filter(|p| AdamW::decays(p)).map(|p| p.value.len()).sum();
    let all = trainer.model.parameter_count();
    format!(
        "{} training and {} validation tokens of {corpus}; {} parameters, {} with weight decay and {} without",
        thousands(trainer.train.len()),
        thousands(trainer.validation.len()),
        thousands(all),
        thousands(decayed),
        thousands(all - decayed),
    )
}

fn ensure_fraction(val_fraction: f64) -> Result<()> {
    if (0.0..1.0).contains(&val_fraction) {
        return Ok(());
    }
    argument(Err(anyhow!("--val-fraction: found {val_fraction}, expected at least 0 and below 1")))
}

/// A run that writes among the texts it reads could not read them again.
fn refuse_out_in_data(out: &Path, data: &Path) -> Result<()> {
    let full = |path: &Path| std::path::absolute(path).ok()?.ancestors().find_map(|part| part.canonicalize().ok());
    let inside = data.is_dir() && full(out).zip(full(data)).is_some_and(|(out, data)| out.starts_with(data));
    ensure!(!inside, "--out {}: found a directory within --data, expected one elsewhere", out.display());
    Ok(())
}

/// The model of `--config` or `--preset`. A window longer than the preset's context raises the context.
fn model_config(args: &TrainArgs, tokenizer: &Tokenizer, recipe: &mut Recipe) -> Result<ModelConfig> {
    let vocab_size = tokenizer.vocab_size();
    let mut config = match &args.config {
        Some(path) => config_json::read(path)?,
        None => ModelConfig::preset(&args.preset, Some(vocab_size))?,
    };
    ensure!(
        vocab_size <= config.vocab_size,
        "--config: found vocab_size {}, expected at least the tokenizer's {vocab_size}",
        config.vocab_size
    );
    if args.recipe.seq_len.is_none() {
        recipe.seq_len = config.max_seq_len;
    }
    if args.config.is_none() {
        config.max_seq_len = config.max_seq_len.max(recipe.seq_len);
    }
    let (window, context) = (recipe.seq_len, config.max_seq_len);
    argument(if window <= context {
        Ok(config)
    } else {
        Err(anyhow!("--seq-len: found {window}, expected at most the model's context of {context}"))
    })
}

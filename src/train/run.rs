//! A whole training run (report §7.1): steps, logs, evaluations, checkpoints, and a clean end when interrupted.

use super::metrics::Metrics;
use super::state::{self, Source};
use super::{StepReport, Trainer};
use crate::formats::atomic;
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Where a run writes and what it needs besides the trainer.
pub struct Run<'a> {
    /// The model directory that comes out; intermediate checkpoints are `step-000100` within it.
    pub out: PathBuf,
    pub tokenizer: &'a Tokenizer,
    pub source: Source,
}

/// Who watches a run. Every method does nothing unless it is given.
pub trait Observer {
    fn step(&mut self, _report: &StepReport, _tokens_per_s: f64) {}
    fn evaluated(&mut self, _step: usize, _val_loss: f64) {}
    fn saved(&mut self, _step: usize, _dir: &Path) {}
}

/// Watches nothing.
pub struct Silent;
impl Observer for Silent {}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// With the last validation loss, if there is a validation part.
    Finished { val_loss: Option<f64> },
    /// A checkpoint of this step was written.
    Interrupted { step: usize },
}

/// What a run writes into its directory, besides `step-…`.
const FILES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "optimizer.safetensors",
    "trainer_state.json",
    "metrics.jsonl",
];

/// Makes the output directory. One that holds a run is refused, or emptied of that run's files if `overwrite`.
pub fn prepare_out(out: &Path, overwrite: bool) -> Result<()> {
    if out.exists() {
        ensure!(out.is_dir(), "--out {}: found a file, expected a directory or a new path", out.display());
        let holds_run = FILES.iter().any(|file| out.join(file).exists()) || !step_directories(out).is_empty();
        ensure!(
            !holds_run || overwrite,
            "--out {}: found a training run, expected a new directory; choose another, or continue it with --resume, or replace it with --overwrite",
            out.display()
        );
    }
    std::fs::create_dir_all(out).with_context(|| format!("--out {}: cannot be made", out.display()))?;
    atomic::write(&out.join("write-test"), |_| Ok(()))
        .and_then(|_| Ok(std::fs::remove_file(out.join("write-test"))?))
        .with_context(|| format!("--out {}: cannot be written to", out.display()))?;
    remove_run(out).with_context(|| format!("--out {}: the old run cannot be removed", out.display()))?;
    atomic::clean(out)
}

fn remove_run(out: &Path) -> Result<()> {
    for directory in step_directories(out) {
        std::fs::remove_dir_all(directory)?;
    }
    for file in FILES.iter().map(|file| out.join(file)).filter(|file| file.exists()) {
        std::fs::remove_file(file)?;
    }
    Ok(())
}

/// The step and place of a run's last checkpoint: `out` itself or one of its `step-…` directories.
pub fn last_checkpoint(out: &Path) -> Option<(usize, PathBuf)> {
    let all = step_directories(out).into_iter().chain([out.to_path_buf()]);
    all.filter_map(|path| Some((state::read(&path).ok()?.step, path))).max()
}

fn step_directories(out: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| is_step_directory(path)).collect()
}

fn is_step_directory(path: &Path) -> bool {
    let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix("step-"));
    step.is_some_and(|step| !step.is_empty() && step.bytes().all(|b| b.is_ascii_digit())) && path.is_dir()
}

/// The run that a checkpoint belongs to: the directory above `step-000100`, or the checkpoint itself.
pub fn run_of(checkpoint: &Path) -> PathBuf {
    match checkpoint.parent() {
        Some(parent) if is_step_directory(checkpoint) && parent.join("metrics.jsonl").exists() => parent.to_path_buf(),
        _ => checkpoint.to_path_buf(),
    }
}

impl Run<'_> {
    /// Trains to the recipe's last step. `interrupted` is asked after each step and each evaluation batch.
    ///
    /// Errors: a loss or gradient that is not finite, a full disk; checkpoints written before stay as they are.
    pub fn run(
        &self,
        trainer: &mut Trainer,
        observer: &mut dyn Observer,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Outcome> {
        let recipe = trainer.recipe.clone();
        let due = |every: usize, step: usize| every > 0 && step.is_multiple_of(every);
        let resumed = (trainer.step > 0).then_some(trainer.step);
        let mut metrics = Metrics::open(&self.out.join("metrics.jsonl"), resumed)?;
        let mut clock = Clock::start();
        while trainer.step < recipe.steps {
            let report = trainer.train_step().with_context(|| self.what_is_left())?;
            clock.add(trainer.tokens_per_step());
            observer.step(&report, clock.tokens_per_s());
            let (step, last) = (report.step, report.step == recipe.steps);
            if last || due(recipe.log_every, step) {
                metrics.step(&report, step * trainer.tokens_per_step(), clock.tokens_per_s())?;
                clock = Clock::start();
            }
            let pause = Instant::now();
            if !last && due(recipe.eval_every, step) && !interrupted() {
                self.evaluate(trainer, &mut metrics, observer, interrupted)?;
            }
            if interrupted() {
                return self.interrupt(trainer);
            }
            if !last && due(recipe.save_every, step) {
                let dir = self.out.join(format!("step-{step:06}"));
                std::fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
                state::save(&dir, trainer, self.tokenizer, &self.source, false)?;
                observer.saved(step, &dir);
            }
            clock.pause(pause);
        }
        let val_loss = self.evaluate(trainer, &mut metrics, observer, interrupted)?;
        if interrupted() {
            return self.interrupt(trainer);
        }
        state::save(&self.out, trainer, self.tokenizer, &self.source, true)?;
        observer.saved(trainer.step, &self.out);
        Ok(Outcome::Finished { val_loss })
    }

    fn evaluate(
        &self,
        trainer: &Trainer,
        metrics: &mut Metrics,
        observer: &mut dyn Observer,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<f64>> {
        let step = trainer.step;
        let evaluated = trainer
            .evaluate(interrupted)
            .with_context(|| format!("step {step}"))
            .with_context(|| self.what_is_left())?;
        if let Some(loss) = evaluated {
            metrics.evaluation(step, step * trainer.tokens_per_step(), loss)?;
            observer.evaluated(step, loss);
        }
        Ok(evaluated)
    }

    fn interrupt(&self, trainer: &Trainer) -> Result<Outcome> {
        state::save(&self.out, trainer, self.tokenizer, &self.source, false)?;
        Ok(Outcome::Interrupted { step: trainer.step })
    }

    /// For an error in the middle of a run: what there is to go on from.
    fn what_is_left(&self) -> String {
        match last_checkpoint(&self.out) {
            Some((step, path)) => format!("training stopped; the last checkpoint is {}, step {step}", path.display()),
            None => "training stopped before the first checkpoint".to_string(),
        }
    }
}

/// Tokens per second since the last log, evaluation and saving left out.
struct Clock {
    start: Instant,
    tokens: usize,
}

impl Clock {
    fn start() -> Clock {
        Clock { start: Instant::now(), tokens: 0 }
    }

    fn add(&mut self, tokens: usize) {
        self.tokens += tokens;
    }

    fn pause(&mut self, since: Instant) {
        self.start += since.elapsed();
    }

    fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.start.elapsed().as_secs_f64().max(1e-9)
    }
}

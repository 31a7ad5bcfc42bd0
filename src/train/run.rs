//! A whole training run (report §7.1): steps, logs, evaluations, checkpoints, and a clean end when interrupted.

use super::directory::{self, newest_whole};
use super::metrics::Metrics;
use super::state::{self, Source, TrainerState};
use super::trainer::Best;
use super::{StepReport, Submitted, Trainer};
use crate::device::Device;
use crate::formats::lock::Lock;
use crate::shown::shown_path;
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A run and all it needs; [`Run::new`] and [`Run::resume`] make one.
pub struct Run {
    /// The model directory that comes out; intermediate checkpoints are `step-000100` within it.
    pub out: PathBuf,
    /// Saved with every checkpoint.
    pub tokenizer: Tokenizer,
    /// Where the tokens came from, saved with every checkpoint.
    pub source: Source,
    /// The data as messages name it.
    pub data_name: String,
    pub trainer: Trainer,
    /// Tells the run from others: a hash of what it began with. Saved with every checkpoint.
    pub id: String,
    /// Keeps other processes out of `out`.
    pub lock: Lock,
}

/// Who watches a run. Every method does nothing unless it is given.
pub trait Observer {
    /// After each step; `_tokens_per_s`: the mean since the last line of metrics.
    fn step(&mut self, _report: &StepReport, _tokens_per_s: f64) {}
    /// After an evaluation; `_val_loss`: the mean over its tokens.
    fn evaluated(&mut self, _step: usize, _val_loss: f64) {}
    /// Before the run's last checkpoint, or that of an interrupt: all lines of metrics are written.
    fn ending(&mut self) {}
    /// After a checkpoint was written.
    fn saved(&mut self, _step: usize, _dir: &Path) {}
    /// What went wrong without ending the run.
    fn warning(&mut self, _line: &str) {}
}

/// Watches nothing.
pub struct Silent;
impl Observer for Silent {}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// With the last validation loss, if there is a validation part.
    Finished { val_loss: Option<f64> },
    /// A checkpoint of this step was written.
    Interrupted { step: usize },
}

impl Run {
    /// Trains to the recipe's last step. `interrupted` is asked after each step and before each evaluation batch.
    ///
    /// A checkpoint or a line of metrics that cannot be written is a warning, and is tried again with the next one.
    ///
    /// A step whose loss or gradient is not finite is left out, with a warning.
    ///
    /// Errors: too many such steps in a row; a weight that is not finite; the last checkpoint, or that of an interrupt, cannot be
    /// written. Checkpoints written before stay as they are.
    pub fn train(&mut self, observer: &mut dyn Observer, interrupted: &dyn Fn() -> bool) -> Result<Outcome> {
        let recipe = self.trainer.recipe.clone();
        let due = |every: usize, step: usize| every > 0 && step.is_multiple_of(every);
        let resumed = (self.trainer.step > 0).then_some(self.trainer.step);
        let mut metrics = Metrics::open(&directory::metrics(&self.out), resumed)?;
        let mut clock = Clock::start();
        let mut submitted = vec![];
        while self.trainer.step < recipe.steps {
            submitted.push(self.trainer.submit_step().with_context(|| self.what_is_left())?);
            clock.add(recipe.tokens_per_step());
            let step = self.trainer.step;
            let (last, log) = (step == recipe.steps, due(recipe.log_every, step));
            // A card is waited for only where something is written; the CPU is there already.
            if last || log || self.trainer.model.device() == Device::Cpu {
                let report = self.read(&mut submitted, clock.tokens_per_s(), observer)?;
                if let Some(report) = report.as_ref().filter(|_| last || log) {
                    let tokens = step * recipe.tokens_per_step();
                    warn(metrics.step(report, tokens, clock.tokens_per_s()), observer);
                    clock = Clock::start();
                }
            }
            let pause = Instant::now();
            if !last && due(recipe.eval_every, step) && !interrupted() {
                self.evaluate(&mut metrics, observer, interrupted)?;
            }
            if interrupted() {
                self.read(&mut submitted, clock.tokens_per_s(), observer)?;
                observer.ending();
                return self.interrupt(&mut metrics);
            }
            if !last && due(recipe.save_every, step) {
                self.read(&mut submitted, clock.tokens_per_s(), observer)?;
                state::check_finite(&self.trainer).with_context(|| self.what_is_left())?;
                let kept = metrics
                    .flush()
                    .and_then(|()| directory::keep(&self.out, step, recipe.keep, |dir| self.write(dir, false)));
                tell(kept, step, observer);
            }
            clock.pause(pause);
        }
        let val_loss = self.evaluate(&mut metrics, observer, interrupted)?;
        observer.ending();
        if interrupted() {
            return self.interrupt(&mut metrics);
        }
        self.replace(&mut metrics, true)?;
        observer.saved(self.trainer.step, &self.out);
        Ok(Outcome::Finished { val_loss })
    }

    /// Waits for the steps that were submitted, and counts those that were left out; the report of the last one. Error: what
    /// the device reports; too many in a row were left out.
    fn read(
        &mut self,
        submitted: &mut Vec<Submitted>,
        tokens_per_s: f64,
        observer: &mut dyn Observer,
    ) -> Result<Option<StepReport>> {
        let mut last = None;
        for step in submitted.drain(..) {
            let counted = step.report().and_then(|report| self.trainer.count(&report).map(|()| report));
            let report = counted.with_context(|| self.what_is_left())?;
            if let Some(reason) = report.left_out() {
                observer.warning(&format!("{reason}; the step was left out"));
            }
            observer.step(&report, tokens_per_s);
            last = Some(report);
        }
        Ok(last)
    }

    /// The mean loss over the validation part; if it is the lowest so far, that is noted and may be kept.
    fn evaluate(
        &mut self,
        metrics: &mut Metrics,
        observer: &mut dyn Observer,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<f64>> {
        let step = self.trainer.step;
        let evaluated = self.trainer.evaluate(interrupted).with_context(|| format!("step {step}"));
        let evaluated = evaluated.with_context(|| self.what_is_left())?;
        if let Some(loss) = evaluated {
            warn(metrics.evaluation(step, step * self.trainer.recipe.tokens_per_step(), loss), observer);
            observer.evaluated(step, loss);
            if self.trainer.best.is_none_or(|best| loss < best.val_loss) {
                self.trainer.best = Some(Best { step, val_loss: loss });
                if self.trainer.recipe.keep_best {
                    let kept = state::check_finite(&self.trainer)
                        .and_then(|()| metrics.flush())
                        .and_then(|()| directory::keep_best(&self.out, step, |dir| self.write(dir, false)));
                    tell(kept, step, observer);
                }
            }
        }
        Ok(evaluated)
    }

    fn interrupt(&self, metrics: &mut Metrics) -> Result<Outcome> {
        self.replace(metrics, false)?;
        Ok(Outcome::Interrupted { step: self.trainer.step })
    }

    /// Writes the checkpoint that `out` shows from now on.
    fn replace(&self, metrics: &mut Metrics, finished: bool) -> Result<()> {
        let step = self.trainer.step;
        state::check_finite(&self.trainer)
            .and_then(|()| metrics.flush())
            .and_then(|()| directory::replace(&self.out, step, |dir| self.write(dir, finished)))
            .with_context(|| format!("step {step}: not saved"))
            .with_context(|| self.what_is_left())
    }

    fn write(&self, dir: &Path, finished: bool) -> Result<()> {
        let (run, source, recipe) = (self.id.clone(), self.source.clone(), self.trainer.recipe.clone());
        let Trainer { step, skipped, best, .. } = self.trainer;
        let state = TrainerState { step, finished, run, source, recipe, skipped, best, files: Default::default() };
        state::write(dir, &self.trainer, &self.tokenizer, state)
    }

    /// For an error in the middle of a run: what there is to go on from.
    fn what_is_left(&self) -> String {
        match newest_whole(&self.out, &mut |_| ()) {
            Ok((last, _)) => {
                format!("training stopped; the last checkpoint is {}, step {}", shown_path(&last.name), last.step)
            }
            Err(_) => "training stopped before the first checkpoint".to_string(),
        }
    }
}

/// Lines that are not written yet are told of, and no reason to stop.
fn warn(written: Result<()>, observer: &mut dyn Observer) {
    if let Err(error) = written {
        observer.warning(&format!("{error:#}; trying again later"));
    }
}

/// A checkpoint that could not be written is no reason to stop.
fn tell(kept: Result<PathBuf>, step: usize, observer: &mut dyn Observer) {
    match kept {
        Ok(dir) => observer.saved(step, &dir),
        Err(error) => observer.warning(&format!("step {step}: not saved, training goes on: {error:#}")),
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

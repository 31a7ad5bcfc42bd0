//! A whole training run (report §7.1): steps, logs, evaluations, checkpoints, and a clean end when interrupted.

use super::directory::last_checkpoint;
use super::metrics::Metrics;
use super::state::{self, Source};
use super::{StepReport, Trainer};
use crate::device::Device;
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
}

/// Who watches a run. Every method does nothing unless it is given.
pub trait Observer {
    /// After each step; `_tokens_per_s`: the mean since the last line of metrics.
    fn step(&mut self, _report: &StepReport, _tokens_per_s: f64) {}
    /// After an evaluation; `_val_loss`: the mean over its tokens.
    fn evaluated(&mut self, _step: usize, _val_loss: f64) {}
    /// After a checkpoint was written.
    fn saved(&mut self, _step: usize, _dir: &Path) {}
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
    /// Errors: a loss or gradient that is not finite, a full disk; checkpoints written before stay as they are.
    pub fn train(&mut self, observer: &mut dyn Observer, interrupted: &dyn Fn() -> bool) -> Result<Outcome> {
        let recipe = self.trainer.recipe.clone();
        let due = |every: usize, step: usize| every > 0 && step.is_multiple_of(every);
        let resumed = (self.trainer.step > 0).then_some(self.trainer.step);
        let mut metrics = Metrics::open(&self.out.join("metrics.jsonl"), resumed)?;
        let mut clock = Clock::start();
        let mut submitted = vec![];
        while self.trainer.step < recipe.steps {
            submitted.push(self.trainer.submit_step().with_context(|| self.what_is_left())?);
            clock.add(self.trainer.tokens_per_step());
            let step = self.trainer.step;
            let (last, log) = (step == recipe.steps, due(recipe.log_every, step));
            // A card is waited for only where something is written; the CPU is there already.
            if last || log || self.trainer.model.device() == Device::Cpu {
                let reports = submitted.drain(..).map(|step| step.report()).collect::<Result<Vec<_>>>();
                let reports = reports.with_context(|| self.what_is_left())?;
                reports.iter().for_each(|report| observer.step(report, clock.tokens_per_s()));
                if let Some(report) = reports.last().filter(|_| last || log) {
                    metrics.step(report, step * self.trainer.tokens_per_step(), clock.tokens_per_s())?;
                    clock = Clock::start();
                }
            }
            let pause = Instant::now();
            if !last && due(recipe.eval_every, step) && !interrupted() {
                self.evaluate(&mut metrics, observer, interrupted)?;
            }
            if interrupted() {
                return self.interrupt();
            }
            if !last && due(recipe.save_every, step) {
                let dir = self.out.join(format!("step-{step:06}"));
                std::fs::create_dir_all(&dir).with_context(|| format!("{}: cannot be made", dir.display()))?;
                self.save(&dir, false)?;
                observer.saved(step, &dir);
            }
            clock.pause(pause);
        }
        let val_loss = self.evaluate(&mut metrics, observer, interrupted)?;
        if interrupted() {
            return self.interrupt();
        }
        self.save(&self.out, true)?;
        observer.saved(self.trainer.step, &self.out);
        Ok(Outcome::Finished { val_loss })
    }

    fn evaluate(
        &self,
        metrics: &mut Metrics,
        observer: &mut dyn Observer,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<f64>> {
        let step = self.trainer.step;
        let evaluated = self.trainer.evaluate(interrupted).with_context(|| format!("step {step}"));
        let evaluated = evaluated.with_context(|| self.what_is_left())?;
        if let Some(loss) = evaluated {
            metrics.evaluation(step, step * self.trainer.tokens_per_step(), loss)?;
            observer.evaluated(step, loss);
        }
        Ok(evaluated)
    }

    fn interrupt(&self) -> Result<Outcome> {
        self.save(&self.out, false)?;
        Ok(Outcome::Interrupted { step: self.trainer.step })
    }

    fn save(&self, dir: &Path, finished: bool) -> Result<()> {
        state::save(dir, &self.trainer, &self.tokenizer, &self.source, finished)
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

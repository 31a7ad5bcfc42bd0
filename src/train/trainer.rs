//! One training step, and evaluation.
//!
//! A step may take its batch in parts, whose gradients add up. The loss is a mean over targets, so the part m of M has the
//! weight of its targets among all, which are counted beforehand:
//!
//! ```text
//! loss = Σₘ wₘ lossₘ,     d_θ = Σₘ wₘ ∂lossₘ/∂θ,     wₘ = targetsₘ / Σₘ targetsₘ
//! ```

use super::Recipe;
use super::recipe::Order;
use crate::data::batch::{Batch, batch_in_order, random_batch, whole_batches};
use crate::data::{TokenRow, Tokens};
use crate::nn::{Module, Transformer};
use crate::optim::{AdamW, clip_grad_norm, not_finite};
use crate::tape::{Gradients, Tape};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// A model being trained.
pub struct Trainer {
    pub model: Transformer,
    pub optimizer: AdamW,
    pub recipe: Recipe,
    /// Training tokens.
    pub train: Tokens,
    /// Validation tokens; empty if there is no validation.
    pub validation: Tokens,
    /// Steps done, those that were left out among them.
    pub step: usize,
    pub skipped: Skipped,
    pub best: Option<Best>,
}

/// The lowest validation loss, and after how many steps it was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub step: usize,
    pub val_loss: f64,
}

/// Steps whose loss or gradient was not finite: they changed no weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    pub total: usize,
    /// Up to the last step.
    pub in_row: usize,
}

/// What a step did, in numbers.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Counted from 1.
    pub step: usize,
    /// Mean over the step's targets, before the update.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
    /// On the CPU, a parameter whose gradient is not finite.
    pub bad_gradient: Option<String>,
}

impl StepReport {
    /// Why the step was left out, if it was.
    pub fn left_out(&self) -> Option<String> {
        let StepReport { step, loss, grad_norm, bad_gradient, .. } = self;
        if loss.is_finite() && grad_norm.is_finite() {
            return None;
        }
        let of = bad_gradient.as_ref().map_or(String::new(), |name| format!(", of {name} first"));
        Some(format!("step {step}: found loss {loss} and gradient norm {grad_norm}{of}, expected finite numbers"))
    }
}

/// A step that was given to the device; its numbers may not be there yet.
pub struct Submitted {
    step: usize,
    /// Of each part, with its weight.
    losses: Vec<(Tensor, f64)>,
    lr: f64,
    grad_norm: Tensor,
    bad_gradient: Option<String>,
}

impl Submitted {
    /// Waits for the step. Error: what went wrong on the device.
    pub fn report(&self) -> Result<StepReport> {
        let Submitted { step, losses, lr, grad_norm, bad_gradient } = self;
        let (loss, grad_norm) = (mean(losses)?, grad_norm.item()?);
        Ok(StepReport { step: *step, loss, lr: *lr, grad_norm, bad_gradient: bad_gradient.clone() })
    }
}

/// The sum of numbers times their weights.
fn mean(losses: &[(Tensor, f64)]) -> Result<f64> {
    losses.iter().map(|(loss, weight)| Ok(weight * loss.item()?)).sum()
}

impl Trainer {
    /// A model before its first step.
    pub fn new(model: Transformer, recipe: Recipe, train: impl Into<Tokens>, validation: impl Into<Tokens>) -> Trainer {
        let optimizer = AdamW::new(recipe.adamw());
        Trainer {
            model,
            optimizer,
            recipe,
            train: train.into(),
            validation: validation.into(),
            step: 0,
            skipped: Skipped::default(),
            best: None,
        }
    }

    /// The windows of step `step`, in its parts. They follow from the seed and the step alone: the place in the data needs no
    /// saving.
    fn batches(&self, step: usize) -> Result<Vec<Batch>> {
        let Recipe { seed, batch_size, accumulate, seq_len, order, .. } = self.recipe;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(step as u64);
        let batch = |part: usize| match order {
            Order::Random => random_batch(&self.train, batch_size, seq_len, &mut rng),
            Order::Sequential => {
                batch_in_order(&self.train, batch_size, seq_len, ((step - 1) * accumulate + part) * batch_size)
            }
        };
        (0..accumulate).map(batch).collect()
    }

    /// The gradients of the mean loss over all targets of `batches`, and the losses with their weights. Error: what an operator
    /// or the device reports.
    pub fn gradients(&self, batches: &[Batch]) -> Result<(Gradients, Vec<(Tensor, f64)>)> {
        let counted = batches.iter().map(Batch::counted).collect::<Result<Vec<usize>>>()?;
        let all: usize = counted.iter().sum();
        let (mut gradients, mut losses) = (Gradients::default(), vec![]);
        for (batch, counted) in batches.iter().zip(counted) {
            let weight = if all == 0 { 1.0 / batches.len() as f64 } else { counted as f64 / all as f64 };
            let mut tape = Tape::onto(gradients);
            let loss = self.model.loss(&mut tape, &batch.ids, &batch.targets)?;
            let value = loss.value().clone();
            // The weight lies on the CPU on every device, see `Tape::backward`.
            let cotangent = Tensor::full(loss.shape(), weight, value.dtype());
            gradients = tape.backward_from(&[(&loss, cotangent)])?;
            losses.push((value, weight));
        }
        Ok((gradients, losses))
    }

    /// [`Trainer::submit_step`], and its numbers: waits for the device. Error: as there.
    pub fn train_step(&mut self) -> Result<StepReport> {
        self.submit_step()?.report()
    }

    /// Forward, backward, clip, update. Nothing waits for a card: loss and norm are read when somebody asks, and a norm that is
    /// not finite leaves the update out. Error: what an operator or the device reports; weights and moments are then unchanged.
    pub fn submit_step(&mut self) -> Result<Submitted> {
        let step = self.step + 1;
        let parameters = self.model.parameters();
        self.optimizer.prepare(&parameters)?;
        let (gradients, losses) = self.gradients(&self.batches(step)?)?;
        let clipped = clip_grad_norm(&gradients, &parameters, self.recipe.clip)?;
        let is_bad = clipped.norm.gpu().is_none() && !clipped.norm.item()?.is_finite();
        let bad_gradient = if is_bad { not_finite(&gradients, &parameters)?.map(str::to_string) } else { None };
        let lr = self.recipe.schedule().at(step);
        self.optimizer.step(self.model.parameters_mut(), &gradients, &clipped.scale, lr)?;
        self.step = step;
        Ok(Submitted { step, losses, lr, grad_norm: clipped.norm, bad_gradient })
    }

    /// Counts a step that was left out, or that was not. Error: too many in a row were.
    pub fn count(&mut self, report: &StepReport) -> Result<()> {
        let Some(reason) = report.left_out() else {
            self.skipped.in_row = 0;
            return Ok(());
        };
        self.skipped.total += 1;
        self.skipped.in_row += 1;
        let (found, most) = (self.skipped.in_row, self.recipe.max_skipped);
        ensure!(found <= most, "{reason}; so were {found} steps in a row, more than --max-skipped; try a lower --lr");
        Ok(())
    }

    /// Mean loss over the validation part, in order; `None` if there is none or `interrupted` says to stop. Error: a loss
    /// that is not finite.
    pub fn evaluate(&self, interrupted: &dyn Fn() -> bool) -> Result<Option<f64>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let batches = whole_batches(&self.validation, self.recipe.batch_size, self.recipe.seq_len)?;
        let limit = if self.recipe.eval_batches == 0 { usize::MAX } else { self.recipe.eval_batches };
        Ok(mean_loss(&self.model, batches.take(limit), interrupted)?.map(|(loss, _)| loss))
    }
}

/// The mean loss of a model over all targets of `batches`, and their number; `None` if interrupted. Errors: a loss that is not
/// finite; a batch that cannot be read.
pub fn mean_loss(
    model: &Transformer,
    batches: impl Iterator<Item = Result<Batch>>,
    interrupted: &dyn Fn() -> bool,
) -> Result<Option<(f64, usize)>> {
    let (mut sum, mut count) = (0.0, 0);
    for batch in batches {
        if interrupted() {
            return Ok(None);
        }
        let batch = batch?;
        let loss = model.loss(&mut Tape::inference(), &batch.ids, &batch.targets)?.value().item()?;
        ensure!(loss.is_finite(), "evaluation: found loss {loss} after {count} tokens, expected a finite number");
        sum += loss * batch.targets.len() as f64;
        count += batch.targets.len();
    }
    Ok(Some((sum / count as f64, count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_or_a_norm_that_is_not_finite_is_reported_with_its_step() {
        let report = |loss: f64, norm: f64| {
            let (losses, grad_norm) = (vec![(Tensor::scalar(loss), 1.0)], Tensor::scalar(norm));
            Submitted { step: 7, losses, lr: 1e-3, grad_norm, bad_gradient: None }.report().unwrap()
        };
        assert_eq!((report(1.5, 0.5).grad_norm, report(1.5, 0.5).left_out()), (0.5, None));
        for (loss, norm, found) in [(f64::NAN, 0.5, "loss NaN"), (1.5, f64::INFINITY, "gradient norm inf")] {
            let reason = report(loss, norm).left_out().unwrap();
            assert!(reason.contains("step 7") && reason.contains(found), "{reason}");
        }
    }
}

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
use crate::optim::{AdamW, clip_grad_norm};
use crate::tape::{Gradients, Tape};
use crate::tensor::Tensor;
use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A model being trained.
pub struct Trainer {
    pub model: Transformer,
    pub optimizer: AdamW,
    pub recipe: Recipe,
    /// Training tokens.
    pub train: Tokens,
    /// Validation tokens; empty if there is no validation.
    pub validation: Tokens,
    /// Steps done.
    pub step: usize,
}

/// What a step did, in numbers.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Counted from 1.
    pub step: usize,
    /// Mean over the step's targets, before the update.
    pub loss: f64,
    /// Learning rate of the update.
    pub lr: f64,
    /// Global gradient norm before clipping.
    pub grad_norm: f64,
}

/// A step that was given to the device; its numbers may not be there yet.
pub struct Submitted {
    step: usize,
    /// Of each part, with its weight.
    losses: Vec<(Tensor, f64)>,
    lr: f64,
    grad_norm: Tensor,
}

impl Submitted {
    /// Waits for the step. Errors: a loss or gradient norm that is not finite, with the step, which then changed no weight;
    /// what went wrong on the device.
    pub fn report(&self) -> Result<StepReport> {
        let &Submitted { step, lr, .. } = self;
        let loss = mean(&self.losses)?;
        let grad_norm = self.grad_norm.item()?;
        check_loss(step, loss)?;
        ensure!(
            grad_norm.is_finite(),
            "step {step}: found gradient norm {grad_norm}, expected a finite number; the step was left out; try a lower --lr"
        );
        Ok(StepReport { step, loss, lr, grad_norm })
    }
}

/// The sum of numbers times their weights.
fn mean(losses: &[(Tensor, f64)]) -> Result<f64> {
    losses.iter().map(|(loss, weight)| Ok(weight * loss.item()?)).sum()
}

fn check_loss(step: usize, loss: f64) -> Result<()> {
    ensure!(loss.is_finite(), "step {step}: found loss {loss}, expected a finite number; try a lower --lr");
    Ok(())
}

impl Trainer {
    /// A model before its first step.
    pub fn new(model: Transformer, recipe: Recipe, train: impl Into<Tokens>, validation: impl Into<Tokens>) -> Trainer {
        let optimizer = AdamW::new(recipe.adamw());
        Trainer { model, optimizer, recipe, train: train.into(), validation: validation.into(), step: 0 }
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

    /// The gradients of the mean loss over all targets of `batches`, and the losses with their weights. Error: on the CPU, a
    /// loss that is not finite.
    pub fn gradients(&self, step: usize, batches: &[Batch]) -> Result<(Gradients, Vec<(Tensor, f64)>)> {
        let counted = batches.iter().map(Batch::counted).collect::<Result<Vec<usize>>>()?;
        let all: usize = counted.iter().sum();
        let (mut gradients, mut losses) = (Gradients::default(), vec![]);
        for (batch, counted) in batches.iter().zip(counted) {
            let weight = if all == 0 { 1.0 / batches.len() as f64 } else { counted as f64 / all as f64 };
            let mut tape = Tape::onto(gradients);
            let loss = self.model.loss(&mut tape, &batch.ids, &batch.targets)?;
            let value = loss.value().clone();
            if value.gpu().is_none() {
                check_loss(step, value.item()?)?;
            }
            // The weight lies on the CPU on every device, see `Tape::backward`.
            let cotangent = Tensor::full(loss.shape(), weight, value.dtype());
            gradients = tape.backward_from(&[(&loss, cotangent)])?;
            losses.push((value, weight));
        }
        Ok((gradients, losses))
    }

    /// [`Trainer::submit_step`], and its numbers: waits for the device. Errors: as there; a loss or norm that is not finite.
    pub fn train_step(&mut self) -> Result<StepReport> {
        self.submit_step()?.report()
    }

    /// Forward, backward, clip, update. On a card nothing waits for the device: loss and norm are read when somebody asks,
    /// and a norm that is not finite leaves the update out.
    ///
    /// Error: on the CPU, a loss or gradient that is not finite, with the step; weights, moments and step counter are then
    /// unchanged.
    pub fn submit_step(&mut self) -> Result<Submitted> {
        let step = self.step + 1;
        self.optimizer.prepare(&self.model.parameters())?;
        let (gradients, losses) = self.gradients(step, &self.batches(step)?)?;
        let clipped = clip_grad_norm(&gradients, &self.model.parameters(), self.recipe.clip)
            .with_context(|| format!("step {step}"))?;
        let lr = self.recipe.schedule().at(step);
        self.optimizer.step(self.model.parameters_mut(), &gradients, &clipped.scale, lr)?;
        self.step = step;
        Ok(Submitted { step, losses, lr, grad_norm: clipped.norm })
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
            let losses = vec![(Tensor::scalar(loss), 1.0)];
            Submitted { step: 7, losses, lr: 1e-3, grad_norm: Tensor::scalar(norm) }.report()
        };
        assert_eq!(report(1.5, 0.5).unwrap().grad_norm, 0.5);
        for (loss, norm, found) in [(f64::NAN, 0.5, "loss NaN"), (1.5, f64::INFINITY, "gradient norm inf")] {
            let error = report(loss, norm).unwrap_err().to_string();
            assert!(error.contains("step 7") && error.contains(found), "{error}");
        }
    }
}

//! Cross-entropy of next-token prediction, fused with its softmax (report §6.2).
//!
//! ```text
//! forward    L = 1/N Σₙ [ ln Σᵥ exp(x[n,v] − mₙ) + mₙ − x[n, target n] ]      mₙ = maxᵥ x[n,v]
//! backward   d_x[n,v] = d_L / N (p[n,v] − [v = target n]),                     p[n,v] = exp(x[n,v] − mₙ) / Σ
//! ```
//!
//! N counts the rows whose target is not `ignore_index`; ignored rows have gradient 0, and with none counted the loss
//! is 0, never NaN. Only m and the sum are kept per row: no probability tensor. The gradient is written over the
//! logits when nobody else holds them.
//!
//! Targets are a u32 tensor read as i32 in two's complement, so that −100 can stand among token ids.

use super::unsupported;
use crate::cpu::parallel::{map_rows, par_rows};
use crate::cpu::reduce::{max_of, sum_of};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// The target of a position that does not count.
pub const IGNORE_INDEX: i32 = -100;

/// The mean loss, shape [], of `logits` `[.., V]` against `targets` `[..]`.
///
/// Errors: shapes that do not fit; a target that is neither `ignore_index` nor in 0..V, named with its row.
pub fn cross_entropy(tape: &mut Tape, logits: &Var, targets: &Tensor, ignore_index: i32) -> Result<Var> {
    let (_, vocab_size) = logits.value().rows_cols();
    let leading = &logits.shape()[..logits.shape().len().saturating_sub(1)];
    ensure!(
        vocab_size > 0 && targets.shape() == leading,
        "cross_entropy: found logits {:?} and targets {:?}, expected [..,V] and [..]",
        logits.shape(),
        targets.shape()
    );
    let targets = read_targets(targets, vocab_size, ignore_index)?;
    let (row_losses, max, sum) = match logits.value().dtype() {
        DType::F32 => reference::<f32>(logits.value(), &targets)?,
        DType::F64 => reference::<f64>(logits.value(), &targets)?,
        dtype => return Err(unsupported("cross_entropy", dtype)),
    };
    let counted = targets.iter().flatten().count();
    let mean = row_losses.iter().sum::<f64>() / counted.max(1) as f64;
    let loss = match logits.value().dtype() {
        DType::F64 => Tensor::scalar(mean),
        _ => Tensor::scalar(mean as f32),
    };
    Ok(tape.record(&[logits], loss, || {
        Box::new(CrossEntropy { logits: logits.value().clone(), targets, counted, max, sum })
    }))
}

struct CrossEntropy {
    logits: Tensor,
    /// The target of each row, `None` if it is ignored.
    targets: Vec<Option<usize>>,
    counted: usize,
    /// Largest logit of each row, `[rows]`.
    max: Tensor,
    /// Σᵥ exp(x − max) of each row, `[rows]`.
    sum: Tensor,
}

impl Backward for CrossEntropy {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_loss = only(d_outputs).item()?;
        let d_logits = match self.logits.dtype() {
            DType::F32 => backward_reference::<f32>(*self, d_loss)?,
            DType::F64 => backward_reference::<f64>(*self, d_loss)?,
            dtype => return Err(unsupported("cross_entropy", dtype)),
        };
        Ok(vec![Some(d_logits)])
    }
}

fn read_targets(targets: &Tensor, vocab_size: usize, ignore_index: i32) -> Result<Vec<Option<usize>>> {
    let read = |(row, &target): (usize, &u32)| {
        let target = target as i32;
        if target == ignore_index {
            return Ok(None);
        }
        ensure!(
            target >= 0 && (target as usize) < vocab_size,
            "cross_entropy: found target {target} in row {row}, expected 0 to {} or {ignore_index}",
            vocab_size - 1
        );
        Ok(Some(target as usize))
    };
    targets.as_slice::<u32>()?.iter().enumerate().map(read).collect()
}

/// Losses (0 where ignored), largest logits and sums of each row.
fn reference<F: Float>(logits: &Tensor, targets: &[Option<usize>]) -> Result<(Vec<f64>, Tensor, Tensor)> {
    let (rows, cols) = logits.rows_cols();
    let x = logits.as_slice::<F>()?;
    let (max, sum): (Vec<F>, Vec<F>) = map_rows(
        rows,
        cols,
        #[inline(always)]
        |i| {
            let row = &x[i * cols..][..cols];
            let max = max_of(row);
            (max, sum_of(row, |x| (x - max).exp_simd()))
        },
    )
    .into_iter()
    .unzip();
    let loss = |(i, target): (usize, &Option<usize>)| match target {
        Some(target) => (sum[i].ln() + (max[i] - x[i * cols + target])).f64(),
        None => 0.0,
    };
    let losses = targets.iter().enumerate().map(loss).collect();
    Ok((losses, Tensor::from_vec(max, &[rows])?, Tensor::from_vec(sum, &[rows])?))
}

fn backward_reference<F: Float>(saved: CrossEntropy, d_loss: f64) -> Result<Tensor> {
    let CrossEntropy { logits, targets, counted, max, sum } = saved;
    let (_, cols) = logits.rows_cols();
    let (max, sum) = (max.as_slice::<F>()?, sum.as_slice::<F>()?);
    let factor = F::of(d_loss / counted.max(1) as f64);
    let mut d_logits = logits;
    par_rows(
        d_logits.as_mut_slice::<F>()?,
        cols,
        #[inline(always)]
        |i, row| match targets[i] {
            Some(target) => {
                for x in row.iter_mut() {
                    *x = factor * ((*x - max[i]).exp_simd() / sum[i]);
                }
                row[target] -= factor;
            }
            None => row.fill(F::zero()),
        },
    );
    Ok(d_logits)
}

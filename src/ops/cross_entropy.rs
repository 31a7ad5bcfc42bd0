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
//! Targets are a u32 tensor read as i32 in two's complement, so that −100 can stand among token ids. They lie on the CPU,
//! where they are checked and counted before they are copied.

use super::dispatch;
use crate::cpu::parallel::{map_rows, par_rows};
use crate::cpu::reduce::{max_of, sum_of};
use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::Grid;
use crate::gpu::grid::shared::{
    CROSS_ENTROPY_SMALL_THREADS, CROSS_ENTROPY_SMALL_VOCAB, CROSS_ENTROPY_THREADS, ONE_BLOCK_THREADS,
};
use crate::launch::{F32, In, Int, Into, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use std::ops::Range;

/// The target of a position that does not count.
pub const IGNORE_INDEX: i32 = -100;

/// The mean loss, shape [], of `logits` `[.., V]` against `targets` `[..]`; in f32, or f64 for f64 logits.
///
/// Errors: shapes that do not fit; a target that is neither `ignore_index` nor in 0..V, named with its row.
pub fn cross_entropy(tape: &mut Tape, logits: &Var, targets: &Tensor, ignore_index: i32) -> Result<Var> {
    let leading = &logits.shape()[..logits.shape().len().saturating_sub(1)];
    let targets = Targets::new(targets, leading, logits.value(), ignore_index)?;
    let (losses, statistics) = forward(logits.value(), &targets)?;
    let loss = mean(&losses, &targets, logits.value().dtype())?;
    let logits_value = logits.value().clone();
    Ok(tape.record(&[logits], loss, move |d_loss, sink| {
        let factor = d_loss.item()? / targets.counted.max(1) as f64;
        sink.add(0, gradient(logits_value, &targets, statistics, factor)?)
    }))
}

/// Targets that were checked: where the logits lie, and how many count.
pub(super) struct Targets {
    /// `[rows]`, u32
    ids: Tensor,
    pub counted: usize,
    ignore_index: i32,
}

impl Targets {
    /// Checks `targets` of the shape `leading`, and copies them to where the `logits` (or what they are made of) lie,
    /// `[.., V]`. Errors: those of [`cross_entropy`].
    pub fn new(targets: &Tensor, leading: &[usize], logits: &Tensor, ignore_index: i32) -> Result<Targets> {
        let (_, vocab_size) = logits.rows_cols();
        ensure!(
            vocab_size > 0 && targets.shape() == leading,
            "cross_entropy: found logits {:?} and targets {:?}, expected [..,V] and [..]",
            logits.shape(),
            targets.shape()
        );
        Targets::of_vocabulary(targets, vocab_size, &logits.device(), ignore_index)
    }

    /// The same for a vocabulary, before there are logits.
    pub fn of_vocabulary(targets: &Tensor, vocab_size: usize, device: &Device, ignore_index: i32) -> Result<Targets> {
        let ids = targets.to(&Device::Cpu)?.reshape(&[targets.len()])?;
        let mut counted = 0;
        for (row, &target) in ids.as_slice::<u32>()?.iter().enumerate() {
            let target = target as i32;
            ensure!(
                target == ignore_index || target >= 0 && (target as usize) < vocab_size,
                "cross_entropy: found target {target} in row {row}, expected 0 to {} or {ignore_index}",
                vocab_size - 1
            );
            counted += usize::from(target != ignore_index);
        }
        Ok(Targets { ids: ids.to(device)?, counted, ignore_index })
    }

    /// Those of a chunk of rows; `counted` stays that of all.
    pub fn rows(&self, range: Range<usize>) -> Result<Targets> {
        Ok(Targets { ids: self.ids.rows(range)?, ..*self })
    }

    /// The target of each row, on the CPU; `None` if it is ignored.
    fn on_cpu(&self) -> Result<Vec<Option<usize>>> {
        let target = |&id: &u32| (id as i32 != self.ignore_index).then_some(id as usize);
        Ok(self.ids.as_slice::<u32>()?.iter().map(target).collect())
    }
}

/// Largest logit and Σᵥ exp(x − max) of each row, `[rows]` each; a card computes them anew.
pub(super) type Statistics = Option<[Tensor; 2]>;

/// The loss of each row (0 where ignored), f64 on the CPU, f32 on a card.
pub(super) fn forward(logits: &Tensor, targets: &Targets) -> Result<(Tensor, Statistics)> {
    dispatch(
        "cross_entropy",
        &[logits],
        || reference::<f32>(logits, targets),
        || reference::<f64>(logits, targets),
        |gpu| Ok((launch(gpu, logits, targets)?, None)),
    )
}

/// factor (p − one-hot), over the logits if nobody else holds them.
pub(super) fn gradient(logits: Tensor, targets: &Targets, statistics: Statistics, factor: f64) -> Result<Tensor> {
    match (logits.gpu().cloned(), logits.dtype(), statistics) {
        (Some(gpu), ..) => {
            let losses = Tensor::empty(&[targets.ids.len()], DType::F32, &gpu)?;
            launch_gradient(&gpu, logits, targets, &losses, factor)
        }
        (None, DType::F64, Some(statistics)) => backward_reference::<f64>(logits, targets, &statistics, factor),
        (None, _, Some(statistics)) => backward_reference::<f32>(logits, targets, &statistics, factor),
        (None, _, None) => unreachable!("the CPU's forward half gives statistics"),
    }
}

/// The mean of the rows' losses over the targets that count, shape []; 0 if none does.
pub(super) fn mean(losses: &Tensor, targets: &Targets, logits: DType) -> Result<Tensor> {
    let counted = targets.counted.max(1) as f64;
    if let Some(gpu) = losses.gpu() {
        if losses.len() == 0 {
            return Tensor::zeros_on(&[], DType::F32, &losses.device());
        }
        let mean = Tensor::empty(&[], DType::F32, gpu)?;
        let args = [In(losses), Out(&mean), int(losses.len()), F32((1.0 / counted) as f32)];
        gpu.launch("cross_entropy_mean", &Grid::blocks(1, ONE_BLOCK_THREADS), &args)?;
        return Ok(mean);
    }
    let mean = losses.as_slice::<f64>()?.iter().sum::<f64>() / counted;
    Ok(if logits == DType::F64 { Tensor::scalar(mean) } else { Tensor::scalar(mean as f32) })
}

fn reference<F: Float>(logits: &Tensor, targets: &Targets) -> Result<(Tensor, Statistics)> {
    let (rows, cols) = logits.rows_cols();
    let (x, targets) = (logits.as_slice::<F>()?, targets.on_cpu()?);
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
    let losses: Vec<f64> = targets.iter().enumerate().map(loss).collect();
    let statistics = [Tensor::from_vec(max, &[rows])?, Tensor::from_vec(sum, &[rows])?];
    Ok((Tensor::from_vec(losses, &[rows])?, Some(statistics)))
}

fn backward_reference<F: Float>(
    mut logits: Tensor,
    targets: &Targets,
    [max, sum]: &[Tensor; 2],
    factor: f64,
) -> Result<Tensor> {
    let (_, cols) = logits.rows_cols();
    let (max, sum, targets) = (max.as_slice::<F>()?, sum.as_slice::<F>()?, targets.on_cpu()?);
    let factor = F::of(factor);
    par_rows(
        logits.as_mut_slice::<F>()?,
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
    Ok(logits)
}

/// A block a row, smaller where the vocabulary is.
fn rows_grid(rows: usize, vocab: usize) -> Grid {
    let small = vocab <= CROSS_ENTROPY_SMALL_VOCAB;
    Grid::blocks(rows, if small { CROSS_ENTROPY_SMALL_THREADS } else { CROSS_ENTROPY_THREADS })
}

fn launch(gpu: &Gpu, logits: &Tensor, targets: &Targets) -> Result<Tensor> {
    let (rows, vocab) = logits.rows_cols();
    let losses = Tensor::empty(&[rows], DType::F32, gpu)?;
    let args = [In(logits), In(&targets.ids), Out(&losses), int(vocab), Int(targets.ignore_index.into())];
    gpu.launch("cross_entropy_forward", &rows_grid(rows, vocab), &args)?;
    Ok(losses)
}

/// The gradient over the logits, and the rows' losses, `[rows]`, which may be a part of a longer tensor.
pub(super) fn launch_gradient(
    gpu: &Gpu,
    mut logits: Tensor,
    targets: &Targets,
    losses: &Tensor,
    factor: f64,
) -> Result<Tensor> {
    let (rows, vocab) = logits.rows_cols();
    logits.make_unique()?;
    let sizes = [F32(factor as f32), int(vocab), Int(targets.ignore_index.into())];
    let args = [&[Out(&logits), In(&targets.ids), Into(losses)], &sizes[..]].concat();
    gpu.launch("cross_entropy_gradient", &rows_grid(rows, vocab), &args)?;
    Ok(logits)
}

//! The output head and the loss in one, a chunk of rows at a time (report §5.10, §6.2).
//!
//! ```text
//! forward    x = h Wᵀ,  L = cross_entropy(x, targets)          h [.., C], W [V,C]; x [.., V] is never whole in memory
//! backward   d_h = d_x W,  d_W = d_xᵀ h                        d_x as in `cross_entropy`
//! ```
//!
//! A chunk's logits become their own gradient at once, while they are there, and are multiplied into d_h and d_W, both
//! for d_L = 1; backward multiplies by d_L. d_W adds up over the chunks in the product's epilogue. At 32 × 768 tokens and
//! V = 32,768 the logits would be 1.6 GB in bf16.

use super::cross_entropy::{Targets, forward, gradient, launch_gradient, mean};
use super::matmul::{Layout, product, weight_gradient};
use super::scale::scaled;
use crate::dtype::DType;
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// Logits of a chunk at most, unless it is the least number of rows.
const CHUNK_LOGITS: usize = 1 << 24;
/// Rows of a chunk are a multiple of this, a tile of the matrix product.
const CHUNK_ROWS: usize = 128;

/// The mean loss, shape [], of predicting `targets` `[..]` from `hidden` `[.., C]` by the head `weight` `[V,C]`.
///
/// Errors: shapes, dtypes or devices that do not fit; a target that is neither `ignore_index` nor in 0..V.
pub fn linear_cross_entropy(
    tape: &mut Tape,
    hidden: &Var,
    weight: &Var,
    targets: &Tensor,
    ignore_index: i32,
) -> Result<Var> {
    let vocab_size = weight.shape().first().copied().unwrap_or(1).max(1);
    in_chunks(tape, hidden, weight, targets, ignore_index, most_rows(vocab_size))
}

/// Rows of a chunk, at most, of a vocabulary that is not empty.
pub(crate) fn most_rows(vocab_size: usize) -> usize {
    (CHUNK_LOGITS / vocab_size).next_multiple_of(CHUNK_ROWS)
}

/// [`linear_cross_entropy`] in chunks of `chunk_rows` rows, at least 1. Errors: as there.
pub fn in_chunks(
    tape: &mut Tape,
    hidden: &Var,
    weight: &Var,
    targets: &Tensor,
    ignore_index: i32,
    chunk_rows: usize,
) -> Result<Var> {
    let (h, w) = (hidden.value(), weight.value());
    let ((rows, channels), leading) = (h.rows_cols(), &h.shape()[..h.shape().len().saturating_sub(1)]);
    ensure!(
        w.shape().len() == 2 && w.shape()[1] == channels && w.shape()[0] > 0 && targets.shape() == leading,
        "linear_cross_entropy: found hidden {:?}, weight {:?} and targets {:?}, expected [..,C], [V,C] and [..]",
        h.shape(),
        w.shape(),
        targets.shape()
    );
    let targets = Targets::of_vocabulary(targets, w.shape()[0], &h.device(), ignore_index)?;
    let flat = h.reshape(&[rows, channels])?;
    let needs = [hidden.needs_gradient(), weight.needs_gradient()];
    let (losses, d_hidden, d_weight) = chunks(&flat, w, &targets, chunk_rows, needs)?;
    let loss = mean(&losses, &targets, h.dtype())?;
    let shape = h.shape().to_vec();
    Ok(tape.record(&[hidden, weight], loss, move |d_loss, sink| {
        let d_loss = d_loss.item()?;
        let times = |d: Tensor| if d_loss == 1.0 { Ok(d) } else { scaled(&d, d_loss) };
        if let Some(d_hidden) = d_hidden {
            sink.add(0, times(d_hidden.reshape(&shape)?)?)?;
        }
        if let Some(d_weight) = d_weight {
            sink.add(1, times(d_weight)?)?;
        }
        Ok(())
    }))
}

/// The rows' losses and, where they are needed, d_h `[rows, C]` and d_W.
fn chunks(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &Targets,
    chunk_rows: usize,
    [needs_hidden, needs_weight]: [bool; 2],
) -> Result<(Tensor, Option<Tensor>, Option<Tensor>)> {
    let ((rows, _), device) = (hidden.rows_cols(), hidden.device());
    let losses_dtype = if device.gpu().is_some() { DType::F32 } else { DType::F64 };
    let mut losses = Tensor::zeros_on(&[rows], losses_dtype, &device)?;
    let mut d_hidden = needs_hidden.then(|| Tensor::zeros_on(hidden.shape(), hidden.dtype(), &device)).transpose()?;
    let mut d_weight = None;
    let factor = 1.0 / targets.counted.max(1) as f64;
    for start in (0..rows).step_by(chunk_rows) {
        let range = start..rows.min(start + chunk_rows);
        let (hidden, targets) = (hidden.rows(range.clone())?, targets.rows(range.clone())?);
        let logits = product("linear_cross_entropy", &hidden, weight, Layout::NT)?; // [chunk, V]
        let d_logits = match logits.gpu().cloned() {
            Some(gpu) if needs_hidden || needs_weight => {
                launch_gradient(&gpu, logits, &targets, &losses.rows(range)?, factor)?
            }
            _ => {
                let (chunk_losses, statistics) = forward(&logits, &targets)?;
                losses.write_at(start, &chunk_losses)?;
                if !needs_hidden && !needs_weight {
                    continue;
                }
                gradient(logits, &targets, statistics, factor)?
            }
        };
        if let Some(d_hidden) = &mut d_hidden {
            let part = product("linear_cross_entropy", &d_logits, weight, Layout::NN)?; // [chunk, C]
            d_hidden.write_at(start * part.rows_cols().1, &part)?;
        }
        if needs_weight {
            d_weight = Some(weight_gradient("linear_cross_entropy", &d_logits, &hidden, d_weight)?); // [V,C]
        }
    }
    if needs_weight && d_weight.is_none() {
        let dtype = if device.gpu().is_some() { DType::F32 } else { weight.dtype() };
        d_weight = Some(Tensor::zeros_on(weight.shape(), dtype, &device)?); // no rows
    }
    Ok((losses, d_hidden, d_weight))
}

//! RMSNorm, alone or with the residual sum in front of it (chapter 8.2.1, report §5.4).
//!
//! ```text
//! forward    r = 1 / √(mean(x²) + ε)              one per row: `rstd`
//!            y = r x ∘ g
//! backward   d_x = r (g ∘ d_y) − x r³/C Σ_c(g ∘ d_y ∘ x)
//!            d_g = Σ over rows of r x ∘ d_y
//! ```
//!
//! `rms_norm_residual` gives both h = x + residual and y = rms_norm(h); then d_x = d_residual = d_h + (d_x of the norm).

use super::{dispatch, per_column, same_shape, sum_parts};
use crate::cpu::parallel::{par_rows, par_rows_with, sum_over_rows, zip};
use crate::cpu::reduce::sum_of_products;
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::Teams;
use crate::gpu::grid::shared::{RMS_NORM_OWN, RMS_NORM_WARP_COLS};
use crate::launch::{Absent, Arg, F32, In, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

/// RMSNorm of each row of `x` `[.., C]` with gain `[C]`. Errors: shapes, dtypes or devices that do not fit.
pub fn rms_norm(tape: &mut Tape, x: &Var, gain: &Var, eps: f64) -> Result<Var> {
    per_column("rms_norm", "gain", x.value(), gain.value())?;
    let (x_value, gain_value) = (x.value().clone(), gain.value().clone());
    let (y, rstd) = forward(&x_value, &gain_value, eps)?;
    Ok(tape.record(&[x, gain], y, move |d_y, sink| {
        let (d_x, d_gain) = backward(&x_value, &gain_value, &rstd, &d_y, None, sink.needs(1))?;
        sink.add(0, d_x)?;
        d_gain.map_or(Ok(()), |d_gain| sink.add(1, d_gain))
    }))
}

/// h = `x` + `residual` and y = RMSNorm(h), in one pass: the second half of a Pre-LN block's first sum. Errors: shapes,
/// dtypes or devices that do not fit.
pub fn rms_norm_residual(tape: &mut Tape, x: &Var, residual: &Var, gain: &Var, eps: f64) -> Result<(Var, Var)> {
    same_shape("rms_norm", x.value(), residual.value())?;
    per_column("rms_norm", "gain", x.value(), gain.value())?;
    let gain_value = gain.value().clone();
    let (h, y, rstd) = forward_residual(x.value(), residual.value(), &gain_value, eps)?;
    let saved_h = h.clone();
    let mut outputs = tape.record_many(&[x, residual, gain], vec![h, y], move |mut d_outputs, sink| {
        let (d_y, d_h) = (d_outputs.pop().flatten(), d_outputs.pop().flatten());
        let (d_h, d_gain) = match d_y {
            Some(d_y) => {
                let (d_h, d_gain) = backward(&saved_h, &gain_value, &rstd, &d_y, d_h, sink.needs(2))?;
                (Some(d_h), d_gain)
            }
            None => (d_h, None),
        };
        if let Some(d_h) = d_h {
            sink.add(0, d_h.clone())?;
            sink.add(1, d_h)?;
        }
        d_gain.map_or(Ok(()), |d_gain| sink.add(2, d_gain))
    });
    let y = outputs.pop().expect("two outputs");
    let h = outputs.pop().expect("two outputs");
    Ok((h, y))
}

/// y and rstd.
fn forward(x: &Tensor, gain: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    dispatch(
        "rms_norm",
        &[x, gain],
        || reference::<f32>(x, gain, eps),
        || reference::<f64>(x, gain, eps),
        |gpu| launch(gpu, x, None, gain, eps).map(|(_, y, rstd)| (y, rstd)),
    )
}

/// h, y and rstd.
fn forward_residual(x: &Tensor, residual: &Tensor, gain: &Tensor, eps: f64) -> Result<(Tensor, Tensor, Tensor)> {
    if let Some(gpu) = x.gpu() {
        return launch(gpu, x, Some(residual), gain, eps);
    }
    let h = super::add::forward(x, residual)?;
    let (y, rstd) = forward(&h, gain, eps)?;
    Ok((h, y, rstd))
}

/// d_x, with the gradient `d_h` that reaches x past the norm, and, where it is wanted, d_gain (f32 on a card).
fn backward(
    x: &Tensor,
    gain: &Tensor,
    rstd: &Tensor,
    d_y: &Tensor,
    d_h: Option<Tensor>,
    wants_gain: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let past = d_h.as_ref();
    dispatch(
        "rms_norm",
        &[x, gain, d_y],
        || backward_reference::<f32>(x, gain, rstd, d_y, past, wants_gain),
        || backward_reference::<f64>(x, gain, rstd, d_y, past, wants_gain),
        |gpu| launch_backward(gpu, x, gain, rstd, d_y, past, wants_gain),
    )
}

fn reference<F: Float>(x: &Tensor, gain: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    let (rows, cols) = x.rows_cols();
    let (x_data, gain) = (x.as_slice::<F>()?, gain.as_slice::<F>()?);
    let mut y = vec![F::zero(); rows * cols];
    let mut rstd = vec![F::zero(); rows];
    par_rows_with(
        &mut y,
        cols,
        &mut rstd,
        #[inline(always)]
        |i, y| normalize_row(&x_data[i * cols..][..cols], gain, eps, y),
    );
    Ok((Tensor::from_vec(y, x.shape())?, Tensor::from_vec(rstd, &[rows])?))
}

fn backward_reference<F: Float>(
    x: &Tensor,
    gain: &Tensor,
    rstd: &Tensor,
    d_y: &Tensor,
    d_h: Option<&Tensor>,
    wants_gain: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let (rows, cols) = x.rows_cols();
    let (x_data, gain, rstd, d_y) =
        (x.as_slice::<F>()?, gain.as_slice::<F>()?, rstd.as_slice::<F>()?, d_y.as_slice::<F>()?);
    let mut d_x = vec![F::zero(); rows * cols];
    par_rows(
        &mut d_x,
        cols,
        #[inline(always)]
        |i, d_x| normalize_row_backward(&x_data[i * cols..][..cols], gain, rstd[i], &d_y[i * cols..][..cols], d_x),
    );
    if let Some(d_h) = d_h {
        d_x = zip(&d_x, d_h.as_slice()?, |d_x, d_h| d_h + d_x);
    }
    let d_gain = wants_gain.then(|| {
        sum_over_rows(
            rows,
            cols,
            #[inline(always)]
            |i, sum| gain_row_backward(&x_data[i * cols..][..cols], rstd[i], &d_y[i * cols..][..cols], sum),
        )
    });
    Ok((Tensor::from_vec(d_x, x.shape())?, d_gain.map(|d_gain| Tensor::from_vec(d_gain, &[cols])).transpose()?))
}

/// y = r x ∘ g for one row; returns r.
#[inline(always)]
pub(super) fn normalize_row<F: Float>(x: &[F], gain: &[F], eps: f64, y: &mut [F]) -> F {
    let mean_square = sum_of_products(x, x) / F::of(x.len() as f64);
    let rstd = F::one() / (mean_square + F::of(eps)).sqrt();
    for (y, (&x, &gain)) in y.iter_mut().zip(x.iter().zip(gain)) {
        *y = rstd * x * gain;
    }
    rstd
}

#[inline(always)]
pub(super) fn normalize_row_backward<F: Float>(x: &[F], gain: &[F], rstd: F, d_y: &[F], d_x: &mut [F]) {
    for (d_x, (&gain, &d_y)) in d_x.iter_mut().zip(gain.iter().zip(d_y)) {
        *d_x = gain * d_y;
    }
    let inner = sum_of_products(d_x, x);
    let along_x = rstd * rstd * rstd * inner / F::of(x.len() as f64);
    for (d_x, &x) in d_x.iter_mut().zip(x) {
        *d_x = rstd * *d_x - along_x * x;
    }
}

/// Adds one row's r x ∘ d_y to the gain's gradient.
#[inline(always)]
pub(super) fn gain_row_backward<F: Float>(x: &[F], rstd: F, d_y: &[F], d_gain: &mut [F]) {
    for (d_gain, (&x, &d_y)) in d_gain.iter_mut().zip(x.iter().zip(d_y)) {
        *d_gain += rstd * x * d_y;
    }
}

fn teams(x: &Tensor) -> Teams {
    let (rows, cols) = x.rows_cols();
    Teams::new(rows, cols, x.dtype().size(), RMS_NORM_WARP_COLS)
}

/// h (x itself without a residual), y and rstd.
fn launch(
    gpu: &Gpu,
    x: &Tensor,
    residual: Option<&Tensor>,
    gain: &Tensor,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (rows, cols) = x.rows_cols();
    let y = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    let rstd = Tensor::empty(&[rows], DType::F32, gpu)?;
    let h = residual.map(|_| Tensor::empty(x.shape(), x.dtype(), gpu)).transpose()?;
    let (sum, eps) = (h.as_ref().map_or(Absent, Out), F32(eps as f32));
    let args = [In(x), Arg::optional(residual), In(gain), sum, Out(&y), Out(&rstd), int(rows), int(cols), eps];
    gpu.launch("rms_norm_forward", &teams(x).grid(), &args)?;
    Ok((h.unwrap_or_else(|| x.clone()), y, rstd))
}

fn launch_backward(
    gpu: &Gpu,
    x: &Tensor,
    gain: &Tensor,
    rstd: &Tensor,
    d_y: &Tensor,
    d_h: Option<&Tensor>,
    wants_gain: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let (rows, cols) = x.rows_cols();
    let grid = teams(x).summing_grid(RMS_NORM_OWN);
    let d_x = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    let partial = Tensor::empty(&[grid.blocks[0], cols], DType::F32, gpu)?;
    let d_h = Arg::optional(d_h);
    let args = [In(x), In(gain), In(rstd), In(d_y), d_h, Out(&d_x), Out(&partial), int(rows), int(cols)];
    gpu.launch("rms_norm_backward", &grid, &args)?;
    let d_gain = wants_gain.then(|| sum_parts(gpu, "rms_norm_gain", &partial)).transpose()?;
    Ok((d_x, d_gain))
}

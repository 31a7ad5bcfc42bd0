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

use super::{per_column, same_shape, unsupported};
use crate::cpu::parallel::{par_rows, par_rows_with, sum_over_rows};
use crate::cpu::reduce::sum_of_products;
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// RMSNorm of each row of `x` `[.., C]` with gain `[C]`.
pub fn rms_norm(tape: &mut Tape, x: &Var, gain: &Var, eps: f64) -> Result<Var> {
    per_column("rms_norm", "gain", x.value(), gain.value())?;
    let (y, rstd) = forward(x.value(), gain.value(), eps)?;
    Ok(tape.record(&[x, gain], y, || Box::new(RmsNorm { x: x.value().clone(), gain: gain.value().clone(), rstd })))
}

/// h = `x` + `residual` and y = RMSNorm(h), in one pass: the second half of a Pre-LN block's first sum.
pub fn rms_norm_residual(tape: &mut Tape, x: &Var, residual: &Var, gain: &Var, eps: f64) -> Result<(Var, Var)> {
    same_shape("rms_norm", x.value(), residual.value())?;
    per_column("rms_norm", "gain", x.value(), gain.value())?;
    let h = super::add::forward(x.value(), residual.value())?;
    let (y, rstd) = forward(&h, gain.value(), eps)?;
    let norm = RmsNorm { x: h.clone(), gain: gain.value().clone(), rstd };
    let mut outputs = tape.record_many(&[x, residual, gain], vec![h, y], || Box::new(RmsNormResidual { norm }));
    let y = outputs.pop().expect("two outputs");
    let h = outputs.pop().expect("two outputs");
    Ok((h, y))
}

struct RmsNorm {
    x: Tensor,
    gain: Tensor,
    /// `[rows]`
    rstd: Tensor,
}

impl Backward for RmsNorm {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let d_gain = if needs[1] { Some(backward_gain(&self.x, &self.rstd, &d_y)?) } else { None };
        Ok(vec![Some(backward_x(&self.x, &self.gain, &self.rstd, &d_y)?), d_gain])
    }
}

struct RmsNormResidual {
    /// The norm of h.
    norm: RmsNorm,
}

impl Backward for RmsNormResidual {
    fn backward(self: Box<Self>, mut d_outputs: Vec<Option<Tensor>>, needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let RmsNorm { x: h, gain, rstd } = self.norm;
        let d_y = d_outputs.pop().flatten();
        let mut d_h = d_outputs.pop().flatten();
        let mut d_gain = None;
        if let Some(d_y) = d_y {
            if needs[2] {
                d_gain = Some(backward_gain(&h, &rstd, &d_y)?);
            }
            let through_norm = backward_x(&h, &gain, &rstd, &d_y)?;
            match &mut d_h {
                Some(d_h) => d_h.accumulate(&through_norm)?,
                None => d_h = Some(through_norm),
            }
        }
        Ok(vec![d_h.clone(), d_h, d_gain])
    }
}

fn forward(x: &Tensor, gain: &Tensor, eps: f64) -> Result<(Tensor, Tensor)> {
    match x.dtype() {
        DType::F32 => reference::<f32>(x, gain, eps),
        DType::F64 => reference::<f64>(x, gain, eps),
        dtype => Err(unsupported("rms_norm", dtype)),
    }
}

fn backward_x(x: &Tensor, gain: &Tensor, rstd: &Tensor, d_y: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => backward_x_reference::<f32>(x, gain, rstd, d_y),
        DType::F64 => backward_x_reference::<f64>(x, gain, rstd, d_y),
        dtype => Err(unsupported("rms_norm", dtype)),
    }
}

fn backward_gain(x: &Tensor, rstd: &Tensor, d_y: &Tensor) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => backward_gain_reference::<f32>(x, rstd, d_y),
        DType::F64 => backward_gain_reference::<f64>(x, rstd, d_y),
        dtype => Err(unsupported("rms_norm", dtype)),
    }
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

fn backward_x_reference<F: Float>(x: &Tensor, gain: &Tensor, rstd: &Tensor, d_y: &Tensor) -> Result<Tensor> {
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
    Tensor::from_vec(d_x, x.shape())
}

fn backward_gain_reference<F: Float>(x: &Tensor, rstd: &Tensor, d_y: &Tensor) -> Result<Tensor> {
    let (rows, cols) = x.rows_cols();
    let (x, rstd, d_y) = (x.as_slice::<F>()?, rstd.as_slice::<F>()?, d_y.as_slice::<F>()?);
    let d_gain = sum_over_rows(
        rows,
        cols,
        #[inline(always)]
        |i, sum| gain_row_backward(&x[i * cols..][..cols], rstd[i], &d_y[i * cols..][..cols], sum),
    );
    Tensor::from_vec(d_gain, &[cols])
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

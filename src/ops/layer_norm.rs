//! LayerNorm (report §5.4), the norm of the `classic` preset.
//!
//! ```text
//! forward    μ = mean(x),  r = 1 / √(mean((x − μ)²) + ε),  x̂ = r (x − μ)
//!            y = x̂ ∘ g + b
//! backward   with w = g ∘ d_y:
//!            d_x = r (w − mean(w) − x̂ mean(w ∘ x̂))
//!            d_g = Σ over rows of x̂ ∘ d_y,   d_b = Σ over rows of d_y
//! ```

use super::{per_column, unsupported};
use crate::cpu::parallel::{par_rows, par_rows_with, sum_over_rows};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// LayerNorm of each row of `x` `[.., C]` with gain `[C]` and bias `[C]`.
pub fn layer_norm(tape: &mut Tape, x: &Var, gain: &Var, bias: &Var, eps: f64) -> Result<Var> {
    per_column("layer_norm", "gain", x.value(), gain.value())?;
    per_column("layer_norm", "bias", x.value(), bias.value())?;
    let (y, normalized, rstd) = match x.value().dtype() {
        DType::F32 => reference::<f32>(x.value(), gain.value(), bias.value(), eps)?,
        DType::F64 => reference::<f64>(x.value(), gain.value(), bias.value(), eps)?,
        dtype => return Err(unsupported("layer_norm", dtype)),
    };
    let gain_value = gain.value().clone();
    Ok(tape.record(&[x, gain, bias], y, || Box::new(LayerNorm { normalized, gain: gain_value, rstd })))
}

struct LayerNorm {
    /// x̂ `[.., C]`
    normalized: Tensor,
    gain: Tensor,
    /// `[rows]`
    rstd: Tensor,
}

impl Backward for LayerNorm {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let [d_x, d_gain, d_bias] = match d_y.dtype() {
            DType::F32 => backward_reference::<f32>(&self, &d_y)?,
            DType::F64 => backward_reference::<f64>(&self, &d_y)?,
            dtype => return Err(unsupported("layer_norm", dtype)),
        };
        Ok(vec![Some(d_x), Some(d_gain), Some(d_bias)])
    }
}

fn reference<F: Float>(x: &Tensor, gain: &Tensor, bias: &Tensor, eps: f64) -> Result<(Tensor, Tensor, Tensor)> {
    let (rows, cols) = x.rows_cols();
    let (x_data, gain, bias) = (x.as_slice::<F>()?, gain.as_slice::<F>()?, bias.as_slice::<F>()?);
    let count = F::of(cols as f64);
    let mut normalized = vec![F::zero(); rows * cols];
    let mut rstd = vec![F::zero(); rows];
    par_rows_with(&mut normalized, cols, &mut rstd, |i, normalized| {
        let x = &x_data[i * cols..][..cols];
        let mean = x.iter().copied().sum::<F>() / count;
        let variance = x.iter().map(|&x| (x - mean) * (x - mean)).sum::<F>() / count;
        let rstd = F::one() / (variance + F::of(eps)).sqrt();
        for (n, &x) in normalized.iter_mut().zip(x) {
            *n = rstd * (x - mean);
        }
        rstd
    });
    let mut y = vec![F::zero(); rows * cols];
    par_rows(&mut y, cols, |i, y| {
        for c in 0..cols {
            y[c] = normalized[i * cols + c] * gain[c] + bias[c];
        }
    });
    Ok((Tensor::from_vec(y, x.shape())?, Tensor::from_vec(normalized, x.shape())?, Tensor::from_vec(rstd, &[rows])?))
}

fn backward_reference<F: Float>(saved: &LayerNorm, d_y: &Tensor) -> Result<[Tensor; 3]> {
    let (rows, cols) = d_y.rows_cols();
    let (normalized, gain) = (saved.normalized.as_slice::<F>()?, saved.gain.as_slice::<F>()?);
    let (rstd, d_y_data) = (saved.rstd.as_slice::<F>()?, d_y.as_slice::<F>()?);
    let count = F::of(cols as f64);
    let mut d_x = vec![F::zero(); rows * cols];
    par_rows(&mut d_x, cols, |i, d_x| {
        let (x_hat, d_y) = (&normalized[i * cols..][..cols], &d_y_data[i * cols..][..cols]);
        let weighted = || gain.iter().zip(d_y).map(|(&g, &d_y)| g * d_y);
        let mean_weighted = weighted().sum::<F>() / count;
        let mean_along = weighted().zip(x_hat).map(|(w, &x_hat)| w * x_hat).sum::<F>() / count;
        for (c, w) in weighted().enumerate() {
            d_x[c] = rstd[i] * (w - mean_weighted - x_hat[c] * mean_along);
        }
    });
    let d_gain = sum_over_rows(rows, cols, |i, sum: &mut [F]| {
        for c in 0..cols {
            sum[c] += normalized[i * cols + c] * d_y_data[i * cols + c];
        }
    });
    let d_bias = super::add::sum_repeats(d_y, &[cols])?;
    Ok([Tensor::from_vec(d_x, d_y.shape())?, Tensor::from_vec(d_gain, &[cols])?, d_bias])
}

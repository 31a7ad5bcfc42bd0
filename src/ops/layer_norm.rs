//! LayerNorm (report §5.4), the norm of the `classic` preset.
//!
//! ```text
//! forward    μ = mean(x),  r = 1 / √(mean((x − μ)²) + ε),  x̂ = r (x − μ)
//!            y = x̂ ∘ g + b
//! backward   with w = g ∘ d_y:
//!            d_x = r (w − mean(w) − x̂ mean(w ∘ x̂))
//!            d_g = Σ over rows of x̂ ∘ d_y,   d_b = Σ over rows of d_y
//! ```

use super::{dispatch, per_column};
use crate::cpu::parallel::{map_rows, par_rows, par_rows_with, sum_over_rows};
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::shared::{LAYER_NORM_OWN, LAYER_NORM_WARP_COLS};
use crate::gpu::grid::{Teams, sum_parts};
use crate::launch::{F32, In, Int, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

/// LayerNorm of each row of `x` `[.., C]` with gain `[C]` and bias `[C]`. Errors: shapes, dtypes or devices that do not fit.
pub fn layer_norm(tape: &mut Tape, x: &Var, gain: &Var, bias: &Var, eps: f64) -> Result<Var> {
    per_column("layer_norm", "gain", x.value(), gain.value())?;
    per_column("layer_norm", "bias", x.value(), bias.value())?;
    let (x_value, gain_value) = (x.value().clone(), gain.value().clone());
    let (y, mean, rstd) = dispatch(
        "layer_norm",
        &[&x_value, &gain_value, bias.value()],
        || reference::<f32>(&x_value, &gain_value, bias.value(), eps),
        || reference::<f64>(&x_value, &gain_value, bias.value(), eps),
        |gpu| launch(gpu, &x_value, &gain_value, bias.value(), eps),
    )?;
    Ok(tape.record(&[x, gain, bias], y, move |d_y, sink| {
        let [d_x, d_gain, d_bias] = backward(&x_value, &gain_value, &mean, &rstd, &d_y)?;
        sink.add(0, d_x)?;
        sink.add(1, d_gain)?;
        sink.add(2, d_bias)
    }))
}

/// d_x, d_gain and d_bias; the latter two in f32 on a card.
fn backward(x: &Tensor, gain: &Tensor, mean: &Tensor, rstd: &Tensor, d_y: &Tensor) -> Result<[Tensor; 3]> {
    dispatch(
        "layer_norm",
        &[x, gain, d_y],
        || backward_reference::<f32>(x, gain, mean, rstd, d_y),
        || backward_reference::<f64>(x, gain, mean, rstd, d_y),
        |gpu| launch_backward(gpu, x, gain, mean, rstd, d_y),
    )
}

/// y, mean `[rows]` and rstd `[rows]`.
fn reference<F: Float>(x: &Tensor, gain: &Tensor, bias: &Tensor, eps: f64) -> Result<(Tensor, Tensor, Tensor)> {
    let (rows, cols) = x.rows_cols();
    let (x_data, gain, bias) = (x.as_slice::<F>()?, gain.as_slice::<F>()?, bias.as_slice::<F>()?);
    let count = F::of(cols as f64);
    let mean: Vec<F> = map_rows(rows, cols, |i| x_data[i * cols..][..cols].iter().copied().sum::<F>() / count);
    let mut y = vec![F::zero(); rows * cols];
    let mut rstd = vec![F::zero(); rows];
    par_rows_with(&mut y, cols, &mut rstd, |i, y| {
        let (x, mean) = (&x_data[i * cols..][..cols], mean[i]);
        let variance = x.iter().map(|&x| (x - mean) * (x - mean)).sum::<F>() / count;
        let rstd = F::one() / (variance + F::of(eps)).sqrt();
        for c in 0..cols {
            y[c] = rstd * (x[c] - mean) * gain[c] + bias[c];
        }
        rstd
    });
    Ok((Tensor::from_vec(y, x.shape())?, Tensor::from_vec(mean, &[rows])?, Tensor::from_vec(rstd, &[rows])?))
}

fn backward_reference<F: Float>(
    x: &Tensor,
    gain: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
    d_y: &Tensor,
) -> Result<[Tensor; 3]> {
    let (rows, cols) = d_y.rows_cols();
    let (x, gain, d_y_data) = (x.as_slice::<F>()?, gain.as_slice::<F>()?, d_y.as_slice::<F>()?);
    let (mean, rstd) = (mean.as_slice::<F>()?, rstd.as_slice::<F>()?);
    let x_hat = |i: usize, c: usize| rstd[i] * (x[i * cols + c] - mean[i]);
    let count = F::of(cols as f64);
    let mut d_x = vec![F::zero(); rows * cols];
    par_rows(&mut d_x, cols, |i, d_x| {
        let w = |c: usize| gain[c] * d_y_data[i * cols + c];
        let mean_w = (0..cols).map(w).sum::<F>() / count;
        let mean_along = (0..cols).map(|c| w(c) * x_hat(i, c)).sum::<F>() / count;
        for (c, d_x) in d_x.iter_mut().enumerate() {
            *d_x = rstd[i] * (w(c) - mean_w - x_hat(i, c) * mean_along);
        }
    });
    let d_gain = sum_over_rows(rows, cols, |i, sum: &mut [F]| {
        for (c, sum) in sum.iter_mut().enumerate() {
            *sum += x_hat(i, c) * d_y_data[i * cols + c];
        }
    });
    let d_bias = super::add::sum_repeats(&d_y.reshape(&[rows, cols])?, &[cols])?;
    Ok([Tensor::from_vec(d_x, d_y.shape())?, Tensor::from_vec(d_gain, &[cols])?, d_bias])
}

fn teams(x: &Tensor) -> Teams {
    let (rows, cols) = x.rows_cols();
    Teams::new(rows, cols, x.dtype().size(), LAYER_NORM_WARP_COLS)
}

fn launch(gpu: &Gpu, x: &Tensor, gain: &Tensor, bias: &Tensor, eps: f64) -> Result<(Tensor, Tensor, Tensor)> {
    let (rows, cols) = x.rows_cols();
    let y = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    let (mean, rstd) = (Tensor::empty(&[rows], DType::F32, gpu)?, Tensor::empty(&[rows], DType::F32, gpu)?);
    let sizes = [int(rows), int(cols), F32(eps as f32)];
    let args = [&[In(x), In(gain), In(bias), Out(&y), Out(&mean), Out(&rstd)], &sizes[..]].concat();
    gpu.launch("layer_norm_forward", &teams(x).grid(), &args)?;
    Ok((y, mean, rstd))
}

fn launch_backward(
    gpu: &Gpu,
    x: &Tensor,
    gain: &Tensor,
    mean: &Tensor,
    rstd: &Tensor,
    d_y: &Tensor,
) -> Result<[Tensor; 3]> {
    let (rows, cols) = x.rows_cols();
    let grid = teams(x).summing_grid(LAYER_NORM_OWN);
    let d_x = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    if rows == 0 {
        let zeros = Tensor::zeros_on(&[cols], DType::F32, &d_x.device())?;
        return Ok([d_x, zeros.clone(), zeros]);
    }
    let parts = grid.blocks[0];
    let partial = Tensor::empty(&[parts, 2, cols], DType::F32, gpu)?; // gain and bias
    let args = [In(x), In(gain), In(mean), In(rstd), In(d_y), Out(&d_x), Out(&partial), int(rows), int(cols)];
    gpu.launch("layer_norm_backward", &grid, &args)?;
    let (d_gain, d_bias) = (Tensor::empty(&[cols], DType::F32, gpu)?, Tensor::empty(&[cols], DType::F32, gpu)?);
    let mut grid = sum_parts(cols);
    grid.blocks[1] = 2;
    gpu.launch("layer_norm_gain", &grid, &[In(&partial), Out(&d_gain), Out(&d_bias), int(parts), int(cols), Int(0)])?;
    Ok([d_x, d_gain, d_bias])
}

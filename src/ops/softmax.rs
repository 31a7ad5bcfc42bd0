//! Softmax over the last dimension (report §5.6).
//!
//! ```text
//! forward    yᵢ = exp(xᵢ − m) / Σⱼ exp(xⱼ − m),   m = maxⱼ xⱼ, so that nothing overflows
//! backward   d_xᵢ = yᵢ (d_yᵢ − Σⱼ yⱼ d_yⱼ)
//! ```
//!
//! A row of −∞ only, one with nothing to attend to, gives zeros.

use super::dispatch;
use crate::cpu::parallel::par_rows;
use crate::cpu::reduce::{max_of, sum_of, sum_of_products};
use crate::dtype::Float;
use crate::gpu::Gpu;
use crate::gpu::grid::{Teams, shared::SOFTMAX_WARP_COLS};
use crate::launch::{Arg, In, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// Softmax of each row of `x` `[.., C]`. Errors: C = 0; a dtype that the device does not compute in.
pub fn softmax(tape: &mut Tape, x: &Var) -> Result<Var> {
    let cols = x.value().rows_cols().1;
    ensure!(cols > 0, "softmax: found shape {:?}, expected a last dimension of at least 1", x.shape());
    let x_value = x.value();
    let y = dispatch(
        "softmax",
        &[x_value],
        || reference::<f32>(x_value),
        || reference::<f64>(x_value),
        |gpu| launch(gpu, "softmax_forward", &[x_value]),
    )?;
    let saved = y.clone();
    Ok(tape.record(&[x], y, move |d_y, sink| sink.add(0, backward(&saved, &d_y)?)))
}

pub(super) fn backward(y: &Tensor, d_y: &Tensor) -> Result<Tensor> {
    dispatch(
        "softmax",
        &[y, d_y],
        || backward_reference::<f32>(y, d_y),
        || backward_reference::<f64>(y, d_y),
        |gpu| launch(gpu, "softmax_backward", &[y, d_y]),
    )
}

fn reference<F: Float>(x: &Tensor) -> Result<Tensor> {
    let (_, cols) = x.rows_cols();
    let mut y = x.as_slice::<F>()?.to_vec();
    par_rows(
        &mut y,
        cols,
        #[inline(always)]
        |_, row| softmax_row(row),
    );
    Tensor::from_vec(y, x.shape())
}

/// Softmax of one row, in place.
#[inline(always)]
pub(super) fn softmax_row<F: Float>(row: &mut [F]) {
    if row.iter().all(|&x| x == F::neg_infinity()) {
        row.fill(F::zero());
        return;
    }
    let max = max_of(row);
    for x in row.iter_mut() {
        *x = (*x - max).exp_simd();
    }
    let sum = sum_of(row, |x| x);
    for x in row.iter_mut() {
        *x /= sum;
    }
}

fn backward_reference<F: Float>(y: &Tensor, d_y: &Tensor) -> Result<Tensor> {
    let (_, cols) = y.rows_cols();
    let (y_data, d_y) = (y.as_slice::<F>()?, d_y.as_slice::<F>()?);
    let mut d_x = vec![F::zero(); y.len()];
    par_rows(&mut d_x, cols, |i, d_x| {
        let (y, d_y) = (&y_data[i * cols..(i + 1) * cols], &d_y[i * cols..(i + 1) * cols]);
        let inner = sum_of_products(y, d_y);
        for c in 0..cols {
            d_x[c] = y[c] * (d_y[c] - inner);
        }
    });
    Tensor::from_vec(d_x, y.shape())
}

/// Either pass: rows in, rows out.
fn launch(gpu: &Gpu, kernel: &str, inputs: &[&Tensor]) -> Result<Tensor> {
    let (rows, cols) = inputs[0].rows_cols();
    let y = Tensor::empty(inputs[0].shape(), inputs[0].dtype(), gpu)?;
    let grid = Teams::new(rows, cols, y.dtype().size(), SOFTMAX_WARP_COLS).grid();
    let args: Vec<Arg> = inputs.iter().copied().map(In).chain([Out(&y), int(rows), int(cols)]).collect();
    gpu.launch(kernel, &grid, &args)?;
    Ok(y)
}

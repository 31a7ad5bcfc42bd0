//! Softmax over the last dimension (report §5.6).
//!
//! ```text
//! forward    yᵢ = exp(xᵢ − m) / Σⱼ exp(xⱼ − m),   m = maxⱼ xⱼ, so that nothing overflows
//! backward   d_xᵢ = yᵢ (d_yᵢ − Σⱼ yⱼ d_yⱼ)
//! ```
//!
//! A row of −∞ only, one with nothing to attend to, gives zeros.

use super::unsupported;
use crate::cpu::parallel::par_rows;
use crate::cpu::reduce::{max_of, sum_of, sum_of_products};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// Softmax of each row of `x` `[.., C]`.
pub fn softmax(tape: &mut Tape, x: &Var) -> Result<Var> {
    let cols = x.value().rows_cols().1;
    ensure!(cols > 0, "softmax: found shape {:?}, expected a last dimension of at least 1", x.shape());
    let y = match x.value().dtype() {
        DType::F32 => reference::<f32>(x.value())?,
        DType::F64 => reference::<f64>(x.value())?,
        dtype => return Err(unsupported("softmax", dtype)),
    };
    let saved = y.clone();
    Ok(tape.record(&[x], y, || Box::new(Softmax { y: saved })))
}

struct Softmax {
    y: Tensor,
}

impl Backward for Softmax {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let d_x = match d_y.dtype() {
            DType::F32 => backward_reference::<f32>(&self.y, &d_y)?,
            DType::F64 => backward_reference::<f64>(&self.y, &d_y)?,
            dtype => return Err(unsupported("softmax", dtype)),
        };
        Ok(vec![Some(d_x)])
    }
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

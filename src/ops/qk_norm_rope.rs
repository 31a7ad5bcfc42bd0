//! QK-Norm then RoPE, fused: RMSNorm of every head of q or k, then its rotation (chapter 8.1, steps 3 and 4).
//!
//! ```text
//! forward    n = r x ∘ g                          r = 1/√(mean(x²) + ε) of one head, g [D] shared by all heads
//!            y = R(t) n                           R(t): the rotations of `rope` at position t
//! backward   d_n = R(t)ᵀ d_y                      then d_x and d_g as in `rms_norm`
//! ```
//!
//! The order is part of the model: with learned gains, rotating first gives other values.

use super::rms_norm::{gain_row_backward, normalize_row, normalize_row_backward};
use super::rope::{Direction, RopeTable, rotate_row};
use super::{per_column, unsupported};
use crate::cpu::parallel::{par_rows, par_rows_with, sum_over_rows};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// Normalises with gain `[D]` and rotates each head of `x` `[B,T,H,D]`; token t stands at position `start` + t.
pub fn qk_norm_rope(tape: &mut Tape, x: &Var, gain: &Var, eps: f64, table: &RopeTable, start: usize) -> Result<Var> {
    table.check("qk_norm_rope", x.value(), start)?;
    per_column("qk_norm_rope", "gain", x.value(), gain.value())?;
    let (y, rstd) = match x.value().dtype() {
        DType::F32 => reference::<f32>(x.value(), gain.value(), eps, table, start)?,
        DType::F64 => reference::<f64>(x.value(), gain.value(), eps, table, start)?,
        dtype => return Err(unsupported("qk_norm_rope", dtype)),
    };
    Ok(tape.record(&[x, gain], y, || {
        Box::new(QkNormRope { x: x.value().clone(), gain: gain.value().clone(), rstd, table: table.clone(), start })
    }))
}

struct QkNormRope {
    x: Tensor,
    gain: Tensor,
    /// `[B·T·H]`
    rstd: Tensor,
    table: RopeTable,
    start: usize,
}

impl Backward for QkNormRope {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let (d_x, d_gain) = match d_y.dtype() {
            DType::F32 => backward_reference::<f32>(&self, &d_y)?,
            DType::F64 => backward_reference::<f64>(&self, &d_y)?,
            dtype => return Err(unsupported("qk_norm_rope", dtype)),
        };
        Ok(vec![Some(d_x), Some(d_gain)])
    }
}

fn reference<F: Float>(
    x: &Tensor,
    gain: &Tensor,
    eps: f64,
    table: &RopeTable,
    start: usize,
) -> Result<(Tensor, Tensor)> {
    let (t, h, d) = (x.shape()[1], x.shape()[2], x.shape()[3]);
    let (x_data, gain) = (x.as_slice::<F>()?, gain.as_slice::<F>()?);
    let mut y = vec![F::zero(); x.len()];
    let mut rstd = vec![F::zero(); x.len() / d];
    par_rows_with(
        &mut y,
        d,
        &mut rstd,
        #[inline(always)]
        |row, y| {
            let rstd = normalize_row(&x_data[row * d..][..d], gain, eps, y);
            rotate_row(y, table, start + row / h % t, Direction::Forward); // row = (b T + t) H + h
            rstd
        },
    );
    let rows = rstd.len();
    Ok((Tensor::from_vec(y, x.shape())?, Tensor::from_vec(rstd, &[rows])?))
}

fn backward_reference<F: Float>(saved: &QkNormRope, d_y: &Tensor) -> Result<(Tensor, Tensor)> {
    let (t, h, d) = (d_y.shape()[1], d_y.shape()[2], d_y.shape()[3]);
    let (x, gain, rstd) = (saved.x.as_slice::<F>()?, saved.gain.as_slice::<F>()?, saved.rstd.as_slice::<F>()?);
    let mut d_n = d_y.as_slice::<F>()?.to_vec();
    par_rows(
        &mut d_n,
        d,
        #[inline(always)]
        |row, d_n| rotate_row(d_n, &saved.table, saved.start + row / h % t, Direction::Back),
    );
    let mut d_x = vec![F::zero(); x.len()];
    par_rows(
        &mut d_x,
        d,
        #[inline(always)]
        |row, d_x| normalize_row_backward(&x[row * d..][..d], gain, rstd[row], &d_n[row * d..][..d], d_x),
    );
    let d_gain = sum_over_rows(
        rstd.len(),
        d,
        #[inline(always)]
        |row, sum| gain_row_backward(&x[row * d..][..d], rstd[row], &d_n[row * d..][..d], sum),
    );
    Ok((Tensor::from_vec(d_x, d_y.shape())?, Tensor::from_vec(d_gain, &[d])?))
}

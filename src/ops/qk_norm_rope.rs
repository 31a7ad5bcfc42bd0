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
use super::rope::{Direction, RopeTable, heads_grid, rotate_row};
use super::{dispatch, per_column, sum_parts};
use crate::cpu::parallel::{par_rows, par_rows_with, sum_over_rows};
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::shared::{QK_NORM_MOST_BLOCKS, QK_NORM_WINDOW};
use crate::launch::{F32, In, Int, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

/// Normalises with gain `[D]` and rotates each head of `x` `[B,T,H,D]`; token t stands at position `start` + t. Errors: shapes,
/// dtypes or devices that do not fit; positions beyond the table.
pub fn qk_norm_rope(tape: &mut Tape, x: &Var, gain: &Var, eps: f64, table: &RopeTable, start: usize) -> Result<Var> {
    table.check("qk_norm_rope", x.value(), start)?;
    per_column("qk_norm_rope", "gain", x.value(), gain.value())?;
    let (x_value, gain_value, table) = (x.value().clone(), gain.value().clone(), table.clone());
    let (y, rstd) = dispatch(
        "qk_norm_rope",
        &[&x_value, &gain_value],
        || reference::<f32>(&x_value, &gain_value, eps, &table, start),
        || reference::<f64>(&x_value, &gain_value, eps, &table, start),
        |gpu| launch(gpu, &x_value, &gain_value, eps, &table, start),
    )?;
    Ok(tape.record(&[x, gain], y, move |d_y, sink| {
        let (d_x, d_gain) = backward(&x_value, &gain_value, &rstd, &table, start, &d_y)?;
        sink.add(0, d_x)?;
        sink.add(1, d_gain)
    }))
}

/// d_x and d_gain (f32 on a card), with rstd `[B·T·H]`.
fn backward(
    x: &Tensor,
    gain: &Tensor,
    rstd: &Tensor,
    table: &RopeTable,
    start: usize,
    d_y: &Tensor,
) -> Result<(Tensor, Tensor)> {
    dispatch(
        "qk_norm_rope",
        &[x, gain, d_y],
        || backward_reference::<f32>(x, gain, rstd, table, start, d_y),
        || backward_reference::<f64>(x, gain, rstd, table, start, d_y),
        |gpu| launch_backward(gpu, x, gain, rstd, table, start, d_y),
    )
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
    let (mut rstd, angles) = (vec![F::zero(); x.len() / d], table.angles(start + t));
    par_rows_with(
        &mut y,
        d,
        &mut rstd,
        #[inline(always)]
        |row, y| {
            let rstd = normalize_row(&x_data[row * d..][..d], gain, eps, y);
            rotate_row(y, angles.at(start + row / h % t), Direction::Forward); // row = (b T + t) H + h
            rstd
        },
    );
    let rows = rstd.len();
    Ok((Tensor::from_vec(y, x.shape())?, Tensor::from_vec(rstd, &[rows])?))
}

fn backward_reference<F: Float>(
    x: &Tensor,
    gain: &Tensor,
    rstd: &Tensor,
    table: &RopeTable,
    start: usize,
    d_y: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (t, h, d) = (d_y.shape()[1], d_y.shape()[2], d_y.shape()[3]);
    let (x, gain, rstd) = (x.as_slice::<F>()?, gain.as_slice::<F>()?, rstd.as_slice::<F>()?);
    let (mut d_n, angles) = (d_y.as_slice::<F>()?.to_vec(), table.angles(start + t));
    par_rows(
        &mut d_n,
        d,
        #[inline(always)]
        |row, d_n| rotate_row(d_n, angles.at(start + row / h % t), Direction::Back),
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

fn launch(gpu: &Gpu, x: &Tensor, gain: &Tensor, eps: f64, table: &RopeTable, start: usize) -> Result<(Tensor, Tensor)> {
    let (t, h, d) = (x.shape()[1], x.shape()[2], x.shape()[3]);
    let (heads, [cos, sin]) = (x.len() / d, table.on(gpu, start + t)?);
    let y = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    let rstd = Tensor::empty(&[heads], DType::F32, gpu)?;
    let tensors = [In(x), In(gain), In(&cos), In(&sin), Out(&y), Out(&rstd)];
    // The last two: y has a slot for each token, and the first token goes to the first one.
    let sizes = [int(heads), int(t), int(h), int(d), int(start), int(t), Int(0)];
    let grid = heads_grid(heads, d, x.dtype(), usize::MAX);
    gpu.launch("qk_norm_rope_forward", &grid, &[&tensors[..], &sizes, &[F32(eps as f32)]].concat())?;
    Ok((y, rstd))
}

fn launch_backward(
    gpu: &Gpu,
    x: &Tensor,
    gain: &Tensor,
    rstd: &Tensor,
    table: &RopeTable,
    start: usize,
    d_y: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (t, h, d) = (x.shape()[1], x.shape()[2], x.shape()[3]);
    let (heads, [cos, sin]) = (x.len() / d, table.on(gpu, start + t)?);
    let mut grid = heads_grid(heads, d, x.dtype(), QK_NORM_MOST_BLOCKS);
    grid.blocks[1] = d.div_ceil(QK_NORM_WINDOW);
    let d_x = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    let partial = Tensor::empty(&[grid.blocks[0], d], DType::F32, gpu)?;
    let tensors = [In(x), In(gain), In(&cos), In(&sin), In(rstd), In(d_y), Out(&d_x), Out(&partial)];
    let sizes = [int(heads), int(t), int(h), int(d), int(start)];
    gpu.launch("qk_norm_rope_backward", &grid, &[&tensors[..], &sizes].concat())?;
    Ok((d_x, sum_parts(gpu, "qk_norm_rope_gain", &partial)?))
}

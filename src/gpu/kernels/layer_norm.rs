//! LayerNorm on the device: `kernels/layer_norm.cu`.

use super::rows::{Teams, check_shape, sum_config};
use crate::gpu::{Arg, Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

use Param::{F32, I32, I64, Pointer};

const FORWARD: Kernel = Kernel {
    file: "layer_norm",
    name: "layer_norm_forward",
    params: &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I64, I64, F32],
};
const BACKWARD: Kernel = Kernel {
    file: "layer_norm",
    name: "layer_norm_backward",
    params: &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I64, I64],
};
const GAIN: Kernel =
    Kernel { file: "layer_norm", name: "layer_norm_gain", params: &[Pointer, Pointer, Pointer, I32, I64, I32] };

pub const KERNELS: &[&Kernel] = &[&FORWARD, &BACKWARD, &GAIN];

/// Columns up to which a warp takes a row.
const WARP_COLS: usize = 512;
/// Columns that a thread of the backward kernel sums over the rows.
const OWN: usize = 16;

/// Operands of [`forward`]: `[rows, C]`, but gain, bias `[C]` and mean, rstd `[rows]`.
pub struct Forward<'a, E> {
    pub x: View<'a, E>,
    pub gain: View<'a, E>,
    pub bias: View<'a, E>,
    pub y: ViewMut<'a, E>,
    /// mean(x), for [`backward`]
    pub mean: ViewMut<'a, f32>,
    /// 1/√(variance + ε), for [`backward`]
    pub rstd: ViewMut<'a, f32>,
}

/// y = LayerNorm(x) of `rows` rows of `cols` elements.
pub fn forward<E: GpuFloat>(gpu: &Gpu, operands: Forward<E>, rows: usize, cols: usize, eps: f32) -> Result<()> {
    let check = Check("layer_norm_forward");
    let Forward { x, gain, bias, y, mean, rstd } = operands;
    let len = check_shape(check, rows, cols)?;
    check.operand("x", x, len)?;
    check.operand("gain", gain, cols)?;
    check.operand("bias", bias, cols)?;
    check.output("y", &y, len)?;
    check.output("mean", &mean, rows)?;
    check.output("rstd", &rstd, rows)?;
    let aligned = [x, gain, bias].iter().all(|view| view.is_aligned(16)) && y.is_aligned(16);
    let teams = Teams::new::<E>(rows, cols, WARP_COLS, aligned);
    let (rows, cols) = (Arg::I64(rows as i64), Arg::I64(cols as i64));
    let args = [x.arg(), gain.arg(), bias.arg(), y.arg(), mean.arg(), rstd.arg(), rows, cols, Arg::F32(eps)];
    gpu.launch(&FORWARD, &teams.variant::<E>(), teams.config()?, &args)
}

/// Operands of [`backward`]: `[rows, C]`, but gain, d_gain, d_bias `[C]` and mean, rstd `[rows]`.
pub struct Backward<'a, E> {
    pub x: View<'a, E>,
    pub gain: View<'a, E>,
    pub mean: View<'a, f32>,
    pub rstd: View<'a, f32>,
    pub d_y: View<'a, E>,
    pub d_x: ViewMut<'a, E>,
    pub d_gain: ViewMut<'a, f32>,
    pub d_bias: ViewMut<'a, f32>,
}

/// d_x, d_gain and d_bias; with `accumulate`, the latter two are added to what lies there.
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    operands: Backward<E>,
    rows: usize,
    cols: usize,
    accumulate: bool,
) -> Result<()> {
    let check = Check("layer_norm_backward");
    let Backward { x, gain, mean, rstd, d_y, d_x, d_gain, d_bias } = operands;
    let len = check_shape(check, rows, cols)?;
    check.operand("x", x, len)?;
    check.operand("gain", gain, cols)?;
    check.operand("mean", mean, rows)?;
    check.operand("rstd", rstd, rows)?;
    check.operand("d_y", d_y, len)?;
    check.output("d_x", &d_x, len)?;
    check.output("d_gain", &d_gain, cols)?;
    check.output("d_bias", &d_bias, cols)?;
    let aligned = [x, gain, d_y].iter().all(|view| view.is_aligned(16)) && d_x.is_aligned(16);
    let teams = Teams::new::<E>(rows, cols, WARP_COLS, aligned);
    let config = teams.summing_config(check, OWN)?;
    let parts = config.grid[0];
    let partial = gpu.alloc::<f32>(check.product("partial", &[parts as usize, 2, cols])?)?;
    let (partial, shape) = (partial.view().arg(), (Arg::I64(rows as i64), Arg::I64(cols as i64)));
    let args = [x.arg(), gain.arg(), mean.arg(), rstd.arg(), d_y.arg(), d_x.arg(), partial, shape.0, shape.1];
    gpu.launch(&BACKWARD, &teams.variant::<E>(), config, &args)?;
    let mut config = sum_config(cols)?;
    config.grid[1] = 2; // gain and bias
    let args = [partial, d_gain.arg(), d_bias.arg(), Arg::I32(parts as i32), shape.1, Arg::I32(accumulate.into())];
    gpu.launch(&GAIN, "", config, &args)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    for cols in [512, 768] {
        run_both::<f32>(gpu, 32, cols, 0)?;
        run_both::<bf16>(gpu, 32, cols, 0)?;
        run_both::<f32>(gpu, 8, cols, 1)?;
        run_both::<bf16>(gpu, 8, cols, 1)?;
    }
    Ok(())
}

/// Both passes, with operands that begin at element `offset`.
fn run_both<E: GpuFloat>(gpu: &Gpu, rows: usize, cols: usize, offset: usize) -> Result<()> {
    let len = rows * cols;
    let all = offset..offset + len;
    let (x, mut y) = (gpu.zeros::<E>(offset + len)?, gpu.alloc::<E>(offset + len)?);
    let (mut mean, mut rstd) = (gpu.alloc::<f32>(rows)?, gpu.alloc::<f32>(rows)?);
    let (mut d_gain, mut d_bias) = (gpu.alloc::<f32>(cols)?, gpu.alloc::<f32>(cols)?);
    let view = x.range(all.clone());
    let y_view = y.range_mut(all.clone());
    let operands = Forward { x: view, gain: view, bias: view, y: y_view, mean: mean.view_mut(), rstd: rstd.view_mut() };
    forward(gpu, operands, rows, cols, 1e-5)?;
    let operands = Backward {
        x: view,
        gain: view,
        mean: mean.view(),
        rstd: rstd.view(),
        d_y: view,
        d_x: y.range_mut(all),
        d_gain: d_gain.view_mut(),
        d_bias: d_bias.view_mut(),
    };
    backward(gpu, operands, rows, cols, false)
}

//! RMSNorm on the device: `kernels/rms_norm.cu`.

use super::rows::{SUM_PARAMS, Teams, check_shape, sum_partials};
use crate::gpu::{Arg, Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

use Param::{F32, I64, Pointer};

const FORWARD: Kernel = Kernel {
    file: "rms_norm",
    name: "rms_norm_forward",
    params: &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I64, I64, F32],
};
const BACKWARD: Kernel = Kernel {
    file: "rms_norm",
    name: "rms_norm_backward",
    params: &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I64, I64],
};
const GAIN: Kernel = Kernel { file: "rms_norm", name: "rms_norm_gain", params: SUM_PARAMS };

pub const KERNELS: &[&Kernel] = &[&FORWARD, &BACKWARD, &GAIN];

/// Columns up to which a warp takes a row.
const WARP_COLS: usize = 1024;
/// Columns that a thread of the backward kernel sums over the rows.
const OWN: usize = 32;

/// Operands of [`forward`]: `[rows, C]`, but gain `[C]` and rstd `[rows]`.
pub struct Forward<'a, E> {
    pub x: View<'a, E>,
    pub gain: View<'a, E>,
    pub y: ViewMut<'a, E>,
    /// 1/√(mean(x²) + ε), for [`backward`]
    pub rstd: ViewMut<'a, f32>,
}

/// y = RMSNorm(x) of `rows` rows of `cols` elements.
pub fn forward<E: GpuFloat>(gpu: &Gpu, operands: Forward<E>, rows: usize, cols: usize, eps: f32) -> Result<()> {
    launch_forward(gpu, operands, None, rows, cols, eps)
}

/// The sum in front of a norm: `residual` and h = x + residual, both `[rows, C]`.
pub struct Residual<'a, E> {
    pub residual: View<'a, E>,
    pub h: ViewMut<'a, E>,
}

/// h = x + residual and y = RMSNorm(h), in one pass.
pub fn forward_residual<E: GpuFloat>(
    gpu: &Gpu,
    operands: Forward<E>,
    residual: Residual<E>,
    rows: usize,
    cols: usize,
    eps: f32,
) -> Result<()> {
    launch_forward(gpu, operands, Some(residual), rows, cols, eps)
}

fn launch_forward<E: GpuFloat>(
    gpu: &Gpu,
    operands: Forward<E>,
    sum: Option<Residual<E>>,
    rows: usize,
    cols: usize,
    eps: f32,
) -> Result<()> {
    let check = Check("rms_norm_forward");
    let Forward { x, gain, y, rstd } = operands;
    let len = check_shape(check, rows, cols)?;
    check.operand("x", x, len)?;
    check.operand("gain", gain, cols)?;
    check.output("y", &y, len)?;
    check.output("rstd", &rstd, rows)?;
    let mut aligned = x.is_aligned(16) && gain.is_aligned(16) && y.is_aligned(16);
    let (mut residual_arg, mut h_arg) = (Arg::Pointer(0), Arg::Pointer(0));
    if let Some(Residual { residual, h }) = sum {
        check.operand("residual", residual, len)?;
        check.output("h", &h, len)?;
        aligned &= residual.is_aligned(16) && h.is_aligned(16);
        (residual_arg, h_arg) = (residual.arg(), h.arg());
    }
    let teams = Teams::new::<E>(rows, cols, WARP_COLS, aligned);
    let (rows, cols) = (Arg::I64(rows as i64), Arg::I64(cols as i64));
    let args = [x.arg(), residual_arg, gain.arg(), h_arg, y.arg(), rstd.arg(), rows, cols, Arg::F32(eps)];
    gpu.launch(&FORWARD, &teams.variant::<E>(), teams.config()?, &args)
}

/// Operands of [`backward`]: `[rows, C]`, but gain, d_gain `[C]` and rstd `[rows]`.
pub struct Backward<'a, E> {
    /// What was normalised: of [`forward_residual`], h.
    pub x: View<'a, E>,
    pub gain: View<'a, E>,
    pub rstd: View<'a, f32>,
    pub d_y: View<'a, E>,
    /// The gradient that reaches h past the norm; it is added.
    pub d_h: Option<View<'a, E>>,
    pub d_x: ViewMut<'a, E>,
    pub d_gain: ViewMut<'a, f32>,
}

/// d_x and d_gain; with `accumulate`, d_gain is added to what lies there.
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    operands: Backward<E>,
    rows: usize,
    cols: usize,
    accumulate: bool,
) -> Result<()> {
    let check = Check("rms_norm_backward");
    let Backward { x, gain, rstd, d_y, d_h, d_x, mut d_gain } = operands;
    let len = check_shape(check, rows, cols)?;
    check.operand("x", x, len)?;
    check.operand("gain", gain, cols)?;
    check.operand("rstd", rstd, rows)?;
    check.operand("d_y", d_y, len)?;
    check.output("d_x", &d_x, len)?;
    check.output("d_gain", &d_gain, cols)?;
    let mut aligned = [x, gain, d_y].iter().all(|view| view.is_aligned(16)) && d_x.is_aligned(16);
    if let Some(d_h) = d_h {
        check.operand("d_h", d_h, len)?;
        aligned &= d_h.is_aligned(16);
    }
    let teams = Teams::new::<E>(rows, cols, WARP_COLS, aligned);
    let config = teams.summing_config(check, OWN)?;
    let parts = config.grid[0];
    let partial = gpu.alloc::<f32>(check.product("partial", &[parts as usize, cols])?)?;
    let shape = (Arg::I64(rows as i64), Arg::I64(cols as i64));
    let d_h = Arg::optional(d_h);
    let args = [x.arg(), gain.arg(), rstd.arg(), d_y.arg(), d_h, d_x.arg(), partial.view().arg(), shape.0, shape.1];
    gpu.launch(&BACKWARD, &teams.variant::<E>(), config, &args)?;
    sum_partials(gpu, &GAIN, partial.view(), &mut d_gain, parts, cols, accumulate)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    for cols in [768, 2048] {
        run_all::<f32>(gpu, 32, cols, 0)?;
        run_all::<bf16>(gpu, 32, cols, 0)?;
        run_all::<f32>(gpu, 8, cols, 1)?;
        run_all::<bf16>(gpu, 8, cols, 1)?;
    }
    Ok(())
}

/// Both passes, with operands that begin at element `offset`.
fn run_all<E: GpuFloat>(gpu: &Gpu, rows: usize, cols: usize, offset: usize) -> Result<()> {
    let len = rows * cols;
    let all = offset..offset + len;
    let x = gpu.zeros::<E>(offset + len)?;
    let (mut h, mut y) = (gpu.alloc::<E>(offset + len)?, gpu.alloc::<E>(offset + len)?);
    let (mut rstd, mut d_gain) = (gpu.alloc::<f32>(rows)?, gpu.alloc::<f32>(cols)?);
    let view = x.range(all.clone());
    let operands = Forward { x: view, gain: view, y: y.range_mut(all.clone()), rstd: rstd.view_mut() };
    let residual = Residual { residual: view, h: h.range_mut(all.clone()) };
    forward_residual(gpu, operands, residual, rows, cols, 1e-6)?;
    let operands = Backward {
        x: h.range(all.clone()),
        gain: view,
        rstd: rstd.view(),
        d_y: view,
        d_h: Some(view),
        d_x: y.range_mut(all),
        d_gain: d_gain.view_mut(),
    };
    backward(gpu, operands, rows, cols, false)
}

//! Softmax on the device: `kernels/softmax.cu`.

use super::rows::{Teams, check_shape};
use crate::gpu::{Arg, Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

use Param::{I64, Pointer};

const FORWARD: Kernel = Kernel { file: "softmax", name: "softmax_forward", params: &[Pointer, Pointer, I64, I64] };
const BACKWARD: Kernel =
    Kernel { file: "softmax", name: "softmax_backward", params: &[Pointer, Pointer, Pointer, I64, I64] };

pub const KERNELS: &[&Kernel] = &[&FORWARD, &BACKWARD];

/// Columns up to which a warp takes a row.
const WARP_COLS: usize = 1024;

/// y = softmax(x) of `rows` rows of `cols` elements; a row of −∞ only gives zeros.
pub fn forward<E: GpuFloat>(gpu: &Gpu, x: View<E>, y: &mut ViewMut<E>, rows: usize, cols: usize) -> Result<()> {
    let check = Check("softmax_forward");
    let len = check_shape(check, rows, cols)?;
    check.operand("x", x, len)?;
    check.output("y", y, len)?;
    let teams = Teams::new::<E>(rows, cols, WARP_COLS, x.is_aligned(16) && y.is_aligned(16));
    let args = [x.arg(), y.arg(), Arg::I64(rows as i64), Arg::I64(cols as i64)];
    gpu.launch(&FORWARD, &teams.variant::<E>(), teams.config()?, &args)
}

/// d_x from the forward pass's y and the gradient d_y, all `[rows, cols]`.
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    y: View<E>,
    d_y: View<E>,
    d_x: &mut ViewMut<E>,
    rows: usize,
    cols: usize,
) -> Result<()> {
    let check = Check("softmax_backward");
    let len = check_shape(check, rows, cols)?;
    check.operand("y", y, len)?;
    check.operand("d_y", d_y, len)?;
    check.output("d_x", d_x, len)?;
    let aligned = y.is_aligned(16) && d_y.is_aligned(16) && d_x.is_aligned(16);
    let teams = Teams::new::<E>(rows, cols, WARP_COLS, aligned);
    let args = [y.arg(), d_y.arg(), d_x.arg(), Arg::I64(rows as i64), Arg::I64(cols as i64)];
    gpu.launch(&BACKWARD, &teams.variant::<E>(), teams.config()?, &args)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    for cols in [1024, 2048] {
        run_both::<f32>(gpu, 32, cols, 0)?;
        run_both::<bf16>(gpu, 32, cols, 0)?;
        run_both::<f32>(gpu, 8, cols, 1)?;
        run_both::<bf16>(gpu, 8, cols, 1)?;
    }
    Ok(())
}

/// Both passes, with operands that begin at element `offset`.
fn run_both<E: GpuFloat>(gpu: &Gpu, rows: usize, cols: usize, offset: usize) -> Result<()> {
    let len = offset + rows * cols;
    let (x, mut y, mut d_x) = (gpu.zeros::<E>(len)?, gpu.alloc::<E>(len)?, gpu.alloc::<E>(len)?);
    forward(gpu, x.range(offset..len), &mut y.range_mut(offset..len), rows, cols)?;
    backward(gpu, y.range(offset..len), x.range(offset..len), &mut d_x.range_mut(offset..len), rows, cols)
}

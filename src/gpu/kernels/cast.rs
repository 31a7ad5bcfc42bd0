//! Conversion between f32 and bf16 on the device: `kernels/cast.cu`.

use super::elementwise::launch;
use crate::gpu::{Check, Gpu, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const TO_BF16: Kernel =
    Kernel { file: "cast", name: "cast_to_bf16", params: &[Param::Pointer, Param::Pointer, Param::I64] };
const TO_F32: Kernel =
    Kernel { file: "cast", name: "cast_to_f32", params: &[Param::Pointer, Param::Pointer, Param::I64] };

pub const KERNELS: &[&Kernel] = &[&TO_BF16, &TO_F32];

/// Elements that an aligned thread converts: 16 bytes of f32.
const WIDTH: usize = 4;

/// y = x, rounded to nearest even, both `[n]`.
pub fn to_bf16(gpu: &Gpu, x: View<f32>, y: &mut ViewMut<bf16>, n: usize) -> Result<()> {
    let check = Check("cast_to_bf16");
    check.product("x", &[n])?;
    check.operand("x", x, n)?;
    check.output("y", y, n)?;
    launch::<f32>(gpu, &TO_BF16, WIDTH, &[x.arg(), y.arg()], n, &[])
}

/// y = x, exactly, both `[n]`.
pub fn to_f32(gpu: &Gpu, x: View<bf16>, y: &mut ViewMut<f32>, n: usize) -> Result<()> {
    let check = Check("cast_to_f32");
    check.product("x", &[n])?;
    check.operand("x", x, n)?;
    check.output("y", y, n)?;
    launch::<bf16>(gpu, &TO_F32, WIDTH, &[x.arg(), y.arg()], n, &[])
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    let n = 16 << 10;
    let (mut x, mut y) = (gpu.upload(&vec![1.0f32; n])?, gpu.alloc::<bf16>(n)?);
    for start in [0, 1] {
        to_bf16(gpu, x.range(start..n), &mut y.range_mut(start..n), n - start)?;
        to_f32(gpu, y.range(start..n), &mut x.range_mut(start..n), n - start)?;
    }
    Ok(())
}

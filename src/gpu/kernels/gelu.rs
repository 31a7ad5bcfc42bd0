//! GELU and its gradient on the device: `kernels/gelu.cu`.

use super::elementwise::{launch, most};
use crate::gpu::{Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const FORWARD: Kernel =
    Kernel { file: "gelu", name: "gelu_forward", params: &[Param::Pointer, Param::Pointer, Param::I64] };
const BACKWARD: Kernel = Kernel {
    file: "gelu",
    name: "gelu_backward",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64],
};

pub const KERNELS: &[&Kernel] = &[&FORWARD, &BACKWARD];

/// y = gelu(x), both `[n]`.
pub fn forward<E: GpuFloat>(gpu: &Gpu, x: View<E>, y: &mut ViewMut<E>, n: usize) -> Result<()> {
    let check = Check("gelu_forward");
    check.product("x", &[n])?;
    check.operand("x", x, n)?;
    check.output("y", y, n)?;
    launch::<E>(gpu, &FORWARD, most::<E>(), &[x.arg(), y.arg()], n, &[])
}

/// d_x from x and d_y, all `[n]`.
pub fn backward<E: GpuFloat>(gpu: &Gpu, x: View<E>, d_y: View<E>, d_x: &mut ViewMut<E>, n: usize) -> Result<()> {
    let check = Check("gelu_backward");
    check.product("x", &[n])?;
    check.operand("x", x, n)?;
    check.operand("d_y", d_y, n)?;
    check.output("d_x", d_x, n)?;
    launch::<E>(gpu, &BACKWARD, most::<E>(), &[x.arg(), d_y.arg(), d_x.arg()], n, &[])
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 16 << 10])?;
    run(gpu, &vec![bf16::ONE; 16 << 10])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (x, mut y) = (gpu.upload(data)?, gpu.alloc::<E>(data.len())?);
    for start in [0, 1] {
        let (range, n) = (start..data.len(), data.len() - start);
        forward(gpu, x.range(range.clone()), &mut y.range_mut(range.clone()), n)?;
        backward(gpu, x.range(range.clone()), x.range(range.clone()), &mut y.range_mut(range.clone()), n)?;
    }
    Ok(())
}

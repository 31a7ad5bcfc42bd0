//! The elementwise product on the device, which is also its own gradient: `kernels/mul.cu`.

use super::elementwise::{launch, most};
use crate::gpu::{Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const FORWARD: Kernel =
    Kernel { file: "mul", name: "mul_forward", params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64] };

pub const KERNELS: &[&Kernel] = &[&FORWARD];

/// y = a ∘ b, all `[n]`. The gradient is `d_a = forward(d_y, b)` and `d_b = forward(d_y, a)`.
pub fn forward<E: GpuFloat>(gpu: &Gpu, a: View<E>, b: View<E>, y: &mut ViewMut<E>, n: usize) -> Result<()> {
    let check = Check("mul_forward");
    check.product("a", &[n])?;
    check.operand("a", a, n)?;
    check.operand("b", b, n)?;
    check.output("y", y, n)?;
    launch::<E>(gpu, &FORWARD, most::<E>(), &[a.arg(), b.arg(), y.arg()], n, &[])
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 16 << 10])?;
    run(gpu, &vec![bf16::ONE; 16 << 10])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (x, mut y) = (gpu.upload(data)?, gpu.alloc::<E>(data.len())?);
    for start in [0, 1] {
        let range = start..data.len();
        forward(gpu, x.range(range.clone()), x.range(range.clone()), &mut y.range_mut(range.clone()), range.len())?;
    }
    Ok(())
}

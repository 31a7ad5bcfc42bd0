//! y = c·x on the device: `kernels/scale.cu`.

use super::elementwise::{THREADS, aligned, most, variant};
use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const SCALE: Kernel =
    Kernel { file: "scale", name: "scale", params: &[Param::Pointer, Param::Pointer, Param::F32, Param::I64] };

pub const KERNELS: &[&Kernel] = &[&SCALE];

/// The first `n` elements of `y` become `c` times those of `x`.
pub fn scale<E: GpuFloat>(gpu: &Gpu, x: View<E>, y: &mut ViewMut<E>, c: f32, n: usize) -> Result<()> {
    let check = Check("scale");
    check.product("x", &[n])?;
    check.operand("x", x, n)?;
    check.output("y", y, n)?;
    let aligned = aligned(&[x.arg(), y.arg()]);
    let config = Config::linear(n.div_ceil(if aligned { most::<E>() } else { 1 }), THREADS)?;
    gpu.launch(&SCALE, &variant::<E>(aligned), config, &[x.arg(), y.arg(), Arg::F32(c), Arg::I64(n as i64)])
}

/// The same over `x` itself.
pub fn scale_in_place<E: GpuFloat>(gpu: &Gpu, x: &mut ViewMut<E>, c: f32, n: usize) -> Result<()> {
    // The kernel reads an element before it writes it, in the same thread.
    let (x, mut y) = x.in_place();
    scale(gpu, x, &mut y, c, n)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run_both(gpu, &vec![1.0f32; 64 << 10])?;
    run_both(gpu, &vec![bf16::ONE; 64 << 10])
}

/// Once from the beginning, once from an odd element.
fn run_both<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (x, mut y) = (gpu.upload(data)?, gpu.alloc::<E>(data.len())?);
    scale(gpu, x.view(), &mut y.view_mut(), 2.0, data.len())?;
    let n = data.len() - 1;
    scale(gpu, x.range(1..n + 1), &mut y.range_mut(1..n + 1), 2.0, n)
}

//! SwiGLU's gate and its gradient on the device: `kernels/swiglu.cu`.

use super::elementwise::{launch, most};
use crate::gpu::{Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const FORWARD: Kernel = Kernel {
    file: "swiglu",
    name: "swiglu_forward",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64],
};
const BACKWARD: Kernel = Kernel {
    file: "swiglu",
    name: "swiglu_backward",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::Pointer, Param::Pointer, Param::I64],
};

pub const KERNELS: &[&Kernel] = &[&FORWARD, &BACKWARD];

/// y = silu(gate) ∘ up, all `[n]`.
pub fn forward<E: GpuFloat>(gpu: &Gpu, gate: View<E>, up: View<E>, y: &mut ViewMut<E>, n: usize) -> Result<()> {
    let check = Check("swiglu_forward");
    check.product("gate", &[n])?;
    check.operand("gate", gate, n)?;
    check.operand("up", up, n)?;
    check.output("y", y, n)?;
    launch::<E>(gpu, &FORWARD, most::<E>(), &[gate.arg(), up.arg(), y.arg()], n, &[])
}

/// d_gate and d_up, all `[n]`.
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    gate: View<E>,
    up: View<E>,
    d_y: View<E>,
    d_gate: &mut ViewMut<E>,
    d_up: &mut ViewMut<E>,
    n: usize,
) -> Result<()> {
    let check = Check("swiglu_backward");
    check.product("gate", &[n])?;
    check.operand("gate", gate, n)?;
    check.operand("up", up, n)?;
    check.operand("d_y", d_y, n)?;
    check.output("d_gate", d_gate, n)?;
    check.output("d_up", d_up, n)?;
    let pointers = [gate.arg(), up.arg(), d_y.arg(), d_gate.arg(), d_up.arg()];
    launch::<E>(gpu, &BACKWARD, most::<E>(), &pointers, n, &[])
}

/// The same with d_gate over gate and d_up over up.
pub fn backward_in_place<E: GpuFloat>(
    gpu: &Gpu,
    gate: &mut ViewMut<E>,
    up: &mut ViewMut<E>,
    d_y: View<E>,
    n: usize,
) -> Result<()> {
    // The kernel reads an element of all inputs before it writes it, in the same thread.
    let ((gate, mut d_gate), (up, mut d_up)) = (gate.in_place(), up.in_place());
    backward(gpu, gate, up, d_y, &mut d_gate, &mut d_up, n)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 16 << 10])?;
    run(gpu, &vec![bf16::ONE; 16 << 10])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (x, mut y, mut z) = (gpu.upload(data)?, gpu.alloc::<E>(data.len())?, gpu.alloc::<E>(data.len())?);
    for start in [0, 1] {
        let range = start..data.len();
        let (from, n) = (x.range(range.clone()), range.len());
        forward(gpu, from, from, &mut y.range_mut(range.clone()), n)?;
        backward(gpu, from, from, from, &mut y.range_mut(range.clone()), &mut z.range_mut(range), n)?;
    }
    Ok(())
}

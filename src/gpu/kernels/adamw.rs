//! The optimizer's step on the device: `kernels/adamw.cu`.

use super::elementwise::launch;
use crate::gpu::{Arg, Check, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const STEP: Kernel = Kernel {
    file: "adamw",
    name: "adamw_step",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::I64,
        Param::Pointer,
        Param::F32,
        Param::F32,
        Param::F32,
        Param::F32,
        Param::F32,
        Param::F32,
        Param::F32,
        Param::F32,
    ],
};

pub const KERNELS: &[&Kernel] = &[&STEP];

/// Elements that an aligned thread updates.
const WIDTH: usize = 4;

/// The numbers of one step, the same for every element of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// λ; 0 for parameters that do not decay.
    pub weight_decay: f64,
    /// Counted from 1.
    pub step: usize,
}

impl Step {
    /// What the kernel takes, rounded once: 1 − β₂ is 5e-5 off if β₂ is rounded first.
    fn args(&self) -> [Arg; 8] {
        let t = self.step as i32;
        [
            self.beta1,
            1.0 - self.beta1,
            self.beta2,
            1.0 - self.beta2,
            self.eps,
            1.0 - self.lr * self.weight_decay,
            self.lr / (1.0 - self.beta1.powi(t)),
            (1.0 - self.beta2.powi(t)).sqrt(),
        ]
        .map(|x| Arg::F32(x as f32))
    }
}

/// A parameter and its state, each `[n]`.
pub struct Parameter<'a> {
    pub weights: ViewMut<'a, f32>,
    pub m: ViewMut<'a, f32>,
    pub v: ViewMut<'a, f32>,
    /// The weights in bf16, for the next forward pass.
    pub copy: Option<ViewMut<'a, bf16>>,
}

/// One step with the gradient `[n]` times `scale` `[1]`, which clipping wrote (1 if it is not given). A scale that is
/// not finite leaves parameter and state as they are.
pub fn step<E: GpuFloat>(
    gpu: &Gpu,
    parameter: &mut Parameter,
    gradient: View<E>,
    scale: Option<View<f32>>,
    step: &Step,
    n: usize,
) -> Result<()> {
    let check = Check("adamw_step");
    check.product("weights", &[n])?;
    check.output("weights", &parameter.weights, n)?;
    check.output("m", &parameter.m, n)?;
    check.output("v", &parameter.v, n)?;
    check.operand("gradient", gradient, n)?;
    if let Some(copy) = &parameter.copy {
        check.output("copy", copy, n)?;
    }
    if let Some(scale) = scale {
        check.operand("scale", scale, 1)?;
    }
    check.positive("step", step.step)?;
    check.i32("step", step.step)?;
    let copy = parameter.copy.as_ref().map_or(Arg::Pointer(0), ViewMut::arg);
    let state = [parameter.weights.arg(), parameter.m.arg(), parameter.v.arg(), gradient.arg(), copy];
    let rest = [&[Arg::optional(scale)][..], &step.args()].concat();
    launch::<E>(gpu, &STEP, WIDTH, &state, n, &rest)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 16 << 10])?;
    run(gpu, &vec![bf16::ONE; 16 << 10])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (len, gradient) = (data.len(), gpu.upload(data)?);
    let (mut weights, mut m, mut v) = (gpu.zeros::<f32>(len)?, gpu.zeros::<f32>(len)?, gpu.zeros::<f32>(len)?);
    let mut copy = gpu.alloc::<bf16>(len)?;
    let settings = Step { lr: 1e-3, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 1 };
    for start in [0, 1] {
        let mut parameter = Parameter {
            weights: weights.range_mut(start..len),
            m: m.range_mut(start..len),
            v: v.range_mut(start..len),
            copy: Some(copy.range_mut(start..len)),
        };
        step(gpu, &mut parameter, gradient.range(start..len), None, &settings, len - start)?;
    }
    Ok(())
}

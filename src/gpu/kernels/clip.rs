//! The global norm of gradients and the factor that clips it, on the device: `kernels/clip.cu`.

use super::elementwise::{THREADS, aligned, variant};
use crate::gpu::{Arg, Buffer, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const SQUARES: Kernel =
    Kernel { file: "clip", name: "clip_squares", params: &[Param::Pointer, Param::Pointer, Param::I64, Param::I64] };
const NORM: Kernel = Kernel {
    file: "clip",
    name: "clip_norm",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::F32],
};

pub const KERNELS: &[&Kernel] = &[&SQUARES, &NORM];

/// Elements that one block of the first stage takes at least, and the most blocks for one gradient.
const LEAST_SHARE: usize = 16 << 10;
const MOST_BLOCKS: usize = 512;

/// The norm of several gradients, under way: [`add`](GlobalNorm::add) each, then [`finish`](GlobalNorm::finish).
pub struct GlobalNorm<'a> {
    gpu: &'a Gpu,
    /// f64, as pairs of words.
    partial: Buffer<u32>,
    slots: usize,
    used: usize,
}

/// Partial sums for a gradient of `n` elements; a matter of its length alone, so that the bits are, too.
fn blocks(n: usize) -> usize {
    n.div_ceil(LEAST_SHARE).min(MOST_BLOCKS)
}

impl<'a> GlobalNorm<'a> {
    /// Room for gradients of these lengths.
    pub fn new(gpu: &'a Gpu, lengths: &[usize]) -> Result<GlobalNorm<'a>> {
        let slots = lengths.iter().map(|&n| blocks(n)).sum();
        Ok(GlobalNorm { gpu, partial: gpu.alloc(2 * slots)?, slots, used: 0 })
    }

    /// Adds the squares of a gradient `[n]`. Error: more than there is room for.
    pub fn add<E: GpuFloat>(&mut self, gradient: View<E>, n: usize) -> Result<()> {
        let check = Check("clip_squares");
        check.product("gradient", &[n])?;
        check.operand("gradient", gradient, n)?;
        let blocks = blocks(n);
        if self.used + blocks > self.slots {
            return Err(check.range("gradient", format!("{n} elements"), "those whose length was announced"));
        }
        let variant = variant::<E>(aligned(&[gradient.arg()]));
        let config = Config { grid: [blocks as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
        let sizes = [Arg::I64(n as i64), Arg::I64(self.used as i64)];
        let args = [&[gradient.arg(), self.partial.view().arg()], &sizes[..]].concat();
        self.used += blocks;
        self.gpu.launch(&SQUARES, &variant, config, &args)
    }

    /// Writes the norm and scale = min(1, max_norm / (norm + 1e-6)), each `[1]`; `max_norm` 0 gives 1. A norm that is
    /// not finite gives a scale of NaN, with which [`adamw::step`](super::adamw::step) changes nothing.
    pub fn finish(self, max_norm: f32, norm: &mut ViewMut<f32>, scale: &mut ViewMut<f32>) -> Result<()> {
        let check = Check("clip_norm");
        if !(max_norm >= 0.0 && max_norm.is_finite()) {
            return Err(check.range("max_norm", max_norm, "0 or a positive number"));
        }
        check.output("norm", norm, 1)?;
        check.output("scale", scale, 1)?;
        let config = Config { grid: [1, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
        let pointers = [self.partial.view().arg(), norm.arg(), scale.arg()];
        let rest = [Arg::I64(self.used as i64), Arg::F32(max_norm)];
        self.gpu.launch(&NORM, "", config, &[&pointers[..], &rest].concat())
    }
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 40 << 10])?;
    run(gpu, &vec![bf16::ONE; 40 << 10])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let n = data.len();
    let (x, mut norm, mut scale) = (gpu.upload(data)?, gpu.alloc::<f32>(1)?, gpu.alloc::<f32>(1)?);
    let mut sum = GlobalNorm::new(gpu, &[n, n - 1])?;
    sum.add(x.view(), n)?;
    sum.add(x.range(1..n), n - 1)?;
    sum.finish(1.0, &mut norm.view_mut(), &mut scale.view_mut())
}

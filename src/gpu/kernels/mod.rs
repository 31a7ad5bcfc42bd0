//! The launches, one file per operator with the name of its `kernels/FILE.cu`: which kernel variant, which grid, which
//! arguments, and the checks that keep bad input from the device.
//!
//! Each file lists its kernels in `KERNELS` and runs every one of them once, at a size that shows how it behaves, in `showcase`.

pub mod adamw;
pub mod add;
pub mod attention_backward;
pub mod attention_decode;
pub mod attention_dims;
pub mod attention_forward;
pub mod cast;
pub mod clip;
pub mod cross_entropy;
pub mod elementwise;
pub mod embedding;
pub mod gelu;
pub mod ladder;
pub mod layer_norm;
pub mod matmul;
pub mod mul;
pub mod qk_norm_rope;
pub mod rms_norm;
pub mod rope;
pub mod rows;
pub mod sample;
pub mod scale;
pub mod silu;
pub mod softmax;
pub mod swiglu;

use super::{Gpu, Kernel, Result};

/// An operator's kernels.
pub struct Family {
    pub name: &'static str,
    pub kernels: &'static [&'static Kernel],
    pub showcase: fn(&Gpu) -> Result<()>,
}

const fn family(name: &'static str, kernels: &'static [&'static Kernel], showcase: fn(&Gpu) -> Result<()>) -> Family {
    Family { name, kernels, showcase }
}

/// Every file of this folder.
pub const FAMILIES: &[Family] = &[
    family("adamw", adamw::KERNELS, adamw::showcase),
    family("add", add::KERNELS, add::showcase),
    family("attention_backward", attention_backward::KERNELS, attention_backward::showcase),
    family("attention_decode", attention_decode::KERNELS, attention_decode::showcase),
    family("attention_forward", attention_forward::KERNELS, attention_forward::showcase),
    family("cast", cast::KERNELS, cast::showcase),
    family("clip", clip::KERNELS, clip::showcase),
    family("cross_entropy", cross_entropy::KERNELS, cross_entropy::showcase),
    family("embedding", embedding::KERNELS, embedding::showcase),
    family("gelu", gelu::KERNELS, gelu::showcase),
    family("ladder", ladder::KERNELS, ladder::showcase),
    family("layer_norm", layer_norm::KERNELS, layer_norm::showcase),
    family("matmul", matmul::KERNELS, matmul::showcase),
    family("matmul_f32", matmul::KERNELS_F32, matmul::showcase_f32),
    family("mul", mul::KERNELS, mul::showcase),
    family("qk_norm_rope", qk_norm_rope::KERNELS, qk_norm_rope::showcase),
    family("rms_norm", rms_norm::KERNELS, rms_norm::showcase),
    family("rope", rope::KERNELS, rope::showcase),
    family("sample", sample::KERNELS, sample::showcase),
    family("scale", scale::KERNELS, scale::showcase),
    family("silu", silu::KERNELS, silu::showcase),
    family("softmax", softmax::KERNELS, softmax::showcase),
    family("swiglu", swiglu::KERNELS, swiglu::showcase),
];

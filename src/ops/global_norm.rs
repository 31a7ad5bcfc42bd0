//! The norm of all gradients together, and the factor that clips it (report §6.5).
//!
//! ```text
//! ‖g‖ = √ Σ over all gradients of g²             in f64, so that large gradients do not overflow
//! s   = min(1, max_norm / (‖g‖ + 1e-6))          1 with max_norm = 0; NaN where the norm is not finite
//! ```
//!
//! Nothing is scaled here: AdamW multiplies by s as it reads a gradient, and changes nothing where s is NaN. No gradient
//! passes.

use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::Grid;
use crate::gpu::grid::shared::{NORM_MOST_BLOCKS, NORM_SHARE, NORM_THREADS};
use crate::launch::{F32, In, Into, Out, int};
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};
use rayon::prelude::*;

/// Elements whose squares are added up one after the other; a constant, so that the norm's bits do not depend on threads.
const CHUNK: usize = 4096;

/// The norm and the factor, shape [] each: f64 on the CPU, f32 on a card, where nothing waits for them.
///
/// Errors: no gradients; dtypes or devices that do not fit; a `max_norm` that is negative or not finite.
pub fn global_norm(gradients: &[&Tensor], max_norm: f64) -> Result<[Tensor; 2]> {
    ensure!(!gradients.is_empty(), "global_norm: found no gradients, expected at least one");
    ensure!(
        max_norm.is_finite() && max_norm >= 0.0,
        "global_norm: found max_norm {max_norm}, expected 0 or a positive number"
    );
    if let Device::Gpu(gpu) = gradients[0].device() {
        return launch(&gpu, gradients, max_norm);
    }
    let squares: Vec<f64> = gradients.iter().map(|gradient| sum_of_squares(gradient)).collect::<Result<_>>()?;
    let norm = squares.iter().sum::<f64>().sqrt();
    let scale = match max_norm / (norm + 1e-6) {
        _ if !norm.is_finite() => f64::NAN,
        factor if max_norm > 0.0 && factor < 1.0 => factor,
        _ => 1.0,
    };
    // The factor is rounded to the gradients' type, as it would be if they were multiplied by it first.
    Ok([Tensor::scalar(norm), Tensor::scalar(scale).to_dtype(gradients[0].dtype())?])
}

fn sum_of_squares(x: &Tensor) -> Result<f64> {
    match x.dtype() {
        DType::F32 => Ok(sum_of_squares_of::<f32>(x.as_slice()?)),
        DType::F64 => Ok(sum_of_squares_of::<f64>(x.as_slice()?)),
        dtype => bail!("global_norm: found a gradient of dtype {dtype}, expected f32 or f64 on the cpu"),
    }
}

fn sum_of_squares_of<F: Float>(x: &[F]) -> f64 {
    let chunks: Vec<f64> =
        x.par_chunks(CHUNK).map(|chunk| chunk.iter().map(|x| x.f64() * x.f64()).sum::<f64>()).collect();
    chunks.iter().sum()
}

/// Partial sums of a gradient of `n` elements; a matter of its length alone, so that the bits are, too.
fn parts(n: usize) -> usize {
    n.div_ceil(NORM_SHARE).min(NORM_MOST_BLOCKS)
}

fn launch(gpu: &Gpu, gradients: &[&Tensor], max_norm: f64) -> Result<[Tensor; 2]> {
    let slots: usize = gradients.iter().map(|gradient| parts(gradient.len())).sum();
    let partial = Tensor::empty(&[slots.max(1), 2], DType::U32, gpu)?; // f64, as pairs of words
    let mut first = 0;
    for gradient in gradients {
        let (n, blocks) = (gradient.len(), parts(gradient.len()));
        let args = [In(gradient), Into(&partial), int(n), int(first)];
        gpu.launch("global_norm_squares", &Grid::blocks(blocks, NORM_THREADS), &args)?;
        first += blocks;
    }
    let (norm, scale) = (Tensor::empty(&[], DType::F32, gpu)?, Tensor::empty(&[], DType::F32, gpu)?);
    let args = [In(&partial), Out(&norm), Out(&scale), int(slots), F32(max_norm as f32)];
    gpu.launch("global_norm_finish", &Grid::blocks(1, NORM_THREADS), &args)?;
    Ok([norm, scale])
}

//! Clipping by the global norm of all gradients (report §6.5).
//!
//! ```text
//! ‖g‖ = √ Σ over all parameters of g²            in f64, so that large gradients do not overflow
//! g   = g · max_norm / (‖g‖ + 1e-6)              if that factor is below 1
//! ```

use crate::dtype::{DType, Float};
use crate::nn::Parameter;
use crate::tape::Gradients;
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};
use rayon::prelude::*;

/// Elements whose squares are added up one after the other; a constant, so that the norm's bits do not depend on threads.
const CHUNK: usize = 4096;

/// Scales all gradients so that their global norm is at most `max_norm` (0: leave them) and returns the norm before.
///
/// Error: a gradient that is not finite, named. The gradients are then unchanged, and the step must be skipped.
pub fn clip_grad_norm(gradients: &mut Gradients, parameters: &[&Parameter], max_norm: f64) -> Result<f64> {
    let mut sum = 0.0;
    for parameter in parameters {
        let Some(gradient) = gradients.get(&parameter.name) else { continue };
        let square = sum_of_squares(gradient)?;
        ensure!(square.is_finite(), "gradient of {}: found NaN or infinity, expected finite numbers", parameter.name);
        sum += square;
    }
    let norm = sum.sqrt();
    let factor = max_norm / (norm + 1e-6);
    if max_norm > 0.0 && factor < 1.0 {
        for parameter in parameters {
            let Some(gradient) = gradients.get_mut(&parameter.name) else { continue };
            match gradient.dtype() {
                DType::F32 => scale::<f32>(gradient, factor)?,
                DType::F64 => scale::<f64>(gradient, factor)?,
                dtype => bail!("clip: found a gradient of dtype {dtype}, expected f32 or f64"),
            }
        }
    }
    Ok(norm)
}

fn sum_of_squares(x: &Tensor) -> Result<f64> {
    match x.dtype() {
        DType::F32 => Ok(sum_of_squares_of::<f32>(x.as_slice()?)),
        DType::F64 => Ok(sum_of_squares_of::<f64>(x.as_slice()?)),
        dtype => bail!("clip: found a gradient of dtype {dtype}, expected f32 or f64"),
    }
}

fn sum_of_squares_of<F: Float>(x: &[F]) -> f64 {
    let chunks: Vec<f64> =
        x.par_chunks(CHUNK).map(|chunk| chunk.iter().map(|x| x.f64() * x.f64()).sum::<f64>()).collect();
    chunks.iter().sum()
}

fn scale<F: Float>(x: &mut Tensor, factor: f64) -> Result<()> {
    let factor = F::of(factor);
    x.as_mut_slice::<F>()?.par_chunks_mut(CHUNK).for_each(|chunk| {
        for x in chunk {
            *x *= factor;
        }
    });
    Ok(())
}

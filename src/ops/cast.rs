//! Conversion between element types, rounded to nearest even. No gradient passes: it makes compute weights of master weights.

use crate::dtype::DType;
use crate::gpu::grid::shared::CAST_WIDTH;
use crate::gpu::grid::{Grid, shared::ELEMENTWISE_THREADS};
use crate::launch::{In, Out, int};
use crate::tensor::Tensor;
use anyhow::{Result, bail};

/// `x` in `dtype`, where it lies. Error: a conversion that the device does not do: ids, and f64 on a card.
pub fn cast(x: &Tensor, dtype: DType) -> Result<Tensor> {
    let Some(gpu) = x.gpu().filter(|_| x.dtype() != dtype) else { return x.to_dtype(dtype) };
    let kernel = match (x.dtype(), dtype) {
        (DType::F32, DType::Bf16) => "cast_to_bf16",
        (DType::Bf16, DType::F32) => "cast_to_f32",
        (from, to) => bail!("cast: found {from} to {to}, expected f32 to bf16 or back on {}", gpu.name()),
    };
    let y = Tensor::empty(x.shape(), dtype, gpu)?;
    let grid = Grid::linear(x.len().div_ceil(CAST_WIDTH), ELEMENTWISE_THREADS);
    gpu.launch(kernel, &grid, &[In(x), Out(&y), int(x.len())])?;
    Ok(y)
}

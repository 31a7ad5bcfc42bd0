//! New keys or values written behind those that a cache holds (report §9.2). No gradient passes.

use crate::dtype::DType;
use crate::gpu::Gpu;
use crate::gpu::grid::shared::ELEMENTWISE_THREADS;
use crate::gpu::grid::{Grid, in_vectors};
use crate::launch::{In, Out, int};
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};

/// Copies `x` `[B,T,H,D]` into `cache` `[B,capacity,H,D]`: token t to position `start` + t. Errors: shapes, dtypes or devices
/// that do not fit; no room for the tokens.
pub fn cache_write(cache: &mut Tensor, x: &Tensor, start: usize) -> Result<()> {
    let (room, found) = (cache.shape().to_vec(), x.shape());
    let fits = found.len() == 4 && room.len() == 4 && found[0] == room[0] && found[2..] == room[2..];
    ensure!(fits, "cache_write: found keys or values {found:?}, expected a part of {room:?}, [B,capacity,H,D]");
    let end = start + found[1];
    ensure!(end <= room[1], "cache_write: found positions {start} to {end}, expected at most the cache's {}", room[1]);
    let same = cache.dtype() == x.dtype() && cache.device() == x.device();
    ensure!(same, "cache_write: found {x:?} on {}, expected {cache:?} on {}", x.device(), cache.device());
    cache.make_unique()?;
    match (x.gpu(), x.dtype()) {
        (Some(gpu), _) => launch(gpu, cache, x, start),
        (None, DType::F32) => copy::<f32>(cache, x, start),
        (None, DType::F64) => copy::<f64>(cache, x, start),
        (None, dtype) => bail!("cache_write: found dtype {dtype}, expected f32 or f64 on the cpu"),
    }
}

fn copy<F: crate::dtype::Float>(cache: &mut Tensor, x: &Tensor, start: usize) -> Result<()> {
    let (capacity, t) = (cache.shape()[1], x.shape()[1]);
    let row = x.shape()[2] * x.shape()[3];
    let x = x.as_slice::<F>()?;
    let cache = cache.as_mut_slice::<F>()?;
    for (b, x) in x.chunks_exact((t * row).max(1)).enumerate() {
        cache[(b * capacity + start) * row..][..t * row].copy_from_slice(x);
    }
    Ok(())
}

fn launch(gpu: &Gpu, cache: &Tensor, x: &Tensor, start: usize) -> Result<()> {
    let (batch, t, row) = (x.shape()[0], x.shape()[1], x.shape()[2] * x.shape()[3]);
    let size = x.dtype().size();
    let (width, variant) = if in_vectors(row, size) { (16 / size, "") } else { (1, "_unaligned") };
    let words = |slots: usize| slots * (row / width);
    let mut grid = Grid::linear(words(t), ELEMENTWISE_THREADS).variant(variant);
    grid.blocks[1] = batch.min(65_535);
    let sizes = [int(batch), int(words(t)), int(words(cache.shape()[1])), int(words(start))];
    Ok(gpu.launch("cache_write", &grid, &[&[In(x), Out(cache)], &sizes[..]].concat())?)
}

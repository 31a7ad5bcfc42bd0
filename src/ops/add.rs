//! Addition, with the second operand repeated over leading dimensions.
//!
//! ```text
//! forward    y = a + b               a [.., S..], b [S..]: residual sums (same shape), biases [C], position tables [T,C]
//! backward   d_a = d_y
//!            d_b = Σ over the repeats of d_y
//! ```

use super::{dispatch, elementwise, same_dtype, sum_parts, zip};
use crate::cpu::parallel::{par_rows, sum_over_rows};
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::shared::{ADD_LANES, ADD_THREAD_ROWS};
use crate::gpu::grid::{Grid, in_vectors};
use crate::launch::{In, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// `a + b`. Errors: `b`'s shape is not the end of `a`'s; dtypes or devices differ.
pub fn add(tape: &mut Tape, a: &Var, b: &Var) -> Result<Var> {
    let y = forward(a.value(), b.value())?;
    let b_shape = b.shape().to_vec();
    Ok(tape.record(&[a, b], y, move |d_y, sink| {
        if sink.needs(1) {
            sink.add(1, sum_repeats(&d_y, &b_shape)?)?;
        }
        sink.add(0, d_y)
    }))
}

pub(super) fn forward(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ensure!(
        a.shape().ends_with(b.shape()),
        "add: found shapes {:?} and {:?}, expected the second to be the end of the first",
        a.shape(),
        b.shape()
    );
    same_dtype("add", a, b)?;
    dispatch(
        "add",
        &[a, b],
        || reference::<f32>(a, b),
        || reference::<f64>(a, b),
        |gpu| if a.shape() == b.shape() { elementwise(gpu, "add_forward", &[a, b]) } else { launch(gpu, a, b) },
    )
}

/// The gradient of an operand that was repeated over leading dimensions: `[R.., S..]` → `[S..]`; on a card in f32.
pub(super) fn sum_repeats(d_y: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if d_y.shape() == shape {
        return Ok(d_y.clone());
    }
    dispatch(
        "add",
        &[d_y],
        || sum_repeats_reference::<f32>(d_y, shape),
        || sum_repeats_reference::<f64>(d_y, shape),
        |gpu| launch_sum_repeats(gpu, d_y, shape),
    )
}

fn reference<F: Float>(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.shape() == b.shape() {
        return zip::<F>(a, b, |a, b| a + b);
    }
    let b_data = b.as_slice::<F>()?;
    let mut y = a.as_slice::<F>()?.to_vec();
    par_rows(&mut y, b.len(), |_, y| {
        for (y, &b) in y.iter_mut().zip(b_data) {
            *y += b;
        }
    });
    Tensor::from_vec(y, a.shape())
}

fn sum_repeats_reference<F: Float>(d_y: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let d_y = d_y.as_slice::<F>()?;
    let cols: usize = shape.iter().product();
    let sum = sum_over_rows(d_y.len() / cols.max(1), cols, |i, sum: &mut [F]| {
        for (s, &d) in sum.iter_mut().zip(&d_y[i * cols..]) {
            *s += d;
        }
    });
    Tensor::from_vec(sum, shape)
}

/// Rows whose sums are one row of the first stage's result: at least, and so many of these at most.
pub(crate) const LEAST_CHUNK: usize = 64;
pub(crate) const MOST_CHUNKS: usize = 128;

/// Blocks of 32 × 8 threads: `tiles` of columns along x, and the variant.
fn column_tiles(cols: usize, dtype: DType) -> (usize, Grid) {
    let (width, variant) = if in_vectors(cols, dtype.size()) { (16 / dtype.size(), "") } else { (1, "_unaligned") };
    let threads = [ADD_LANES as u32, ADD_THREAD_ROWS as u32, 1];
    let tiles = cols.div_ceil(ADD_LANES * width);
    (tiles, Grid { blocks: [tiles, 1, 1], threads, shared_bytes: 0, variant })
}

/// `b` `[cols]` added to each row of `a` `[rows, cols]`: a bias, or a position table with rows = B, cols = T·C.
fn launch(gpu: &Gpu, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (cols, y) = (b.len(), Tensor::empty(a.shape(), a.dtype(), gpu)?);
    let rows = a.len() / cols.max(1);
    let (tiles, grid) = column_tiles(cols, a.dtype());
    let grid = Grid { blocks: [tiles * rows.div_ceil(ADD_THREAD_ROWS), 1, 1], ..grid };
    gpu.launch("add_repeated_forward", &grid, &[In(a), In(b), Out(&y), int(rows), int(cols)])?;
    Ok(y)
}

fn launch_sum_repeats(gpu: &Gpu, d_y: &Tensor, shape: &[usize]) -> Result<Tensor> {
    let cols: usize = shape.iter().product();
    let rows = d_y.len() / cols.max(1);
    let chunk_rows = rows.div_ceil(MOST_CHUNKS).max(LEAST_CHUNK);
    let chunks = rows.div_ceil(chunk_rows);
    let partial = Tensor::empty(&[chunks, cols], DType::F32, gpu)?;
    let (tiles, grid) = column_tiles(cols, d_y.dtype());
    let grid = Grid { blocks: [tiles, chunks, 1], ..grid };
    gpu.launch("add_repeated_backward", &grid, &[In(d_y), Out(&partial), int(rows), int(cols), int(chunk_rows)])?;
    sum_parts(gpu, "add_repeated_reduce", &partial)?.reshape(shape)
}

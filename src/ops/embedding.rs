//! Embedding: a row of the table for each token id (report §5.2).
//!
//! ```text
//! forward    y[n] = table[ids[n]]                 table [V,C], ids [..] → y [.., C]
//! backward   d_table[v] = Σ over n with ids[n] = v of d_y[n]
//! ```
//!
//! The backward adds the rows of one token in the order of their positions, so it is the same bits every time.

use super::dispatch;
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::shared::{
    EMBEDDING_THREADS, ONE_BLOCK_THREADS, SORT_DIGIT_BITS, SORT_DIGITS, SORT_TILE, SUM_PIECE, SUM_THREADS, WARP,
};
use crate::gpu::grid::{Grid, in_vectors};
use crate::launch::{Arg, In, Int, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Context, Result, ensure};

/// Rows of `table` `[V,C]` for `ids` (u32, any shape), which lie on the CPU, where they are checked before they are copied,
/// or on the table's card, where an id ≥ V gives a row of NaN. Error: an id ≥ V, named with its place.
pub fn embedding(tape: &mut Tape, table: &Var, ids: &Tensor) -> Result<Var> {
    ensure!(table.shape().len() == 2, "embedding: found a table {:?}, expected [V,C]", table.shape());
    let table_shape = [table.shape()[0], table.shape()[1]];
    if ids.gpu().is_none() {
        check_ids(ids, table_shape[0])?;
    }
    let (table_value, ids) = (table.value(), ids.to(&table.value().device())?);
    let y = dispatch(
        "embedding",
        &[table_value],
        || reference::<f32>(table_value, &ids),
        || reference::<f64>(table_value, &ids),
        |gpu| launch(gpu, table_value, &ids),
    )?;
    Ok(tape.record(&[table], y, move |d_y, sink| {
        let sum = sink.take(0);
        sink.add(0, backward(&d_y, &ids, table_shape, sum)?)
    }))
}

fn check_ids(ids: &Tensor, vocab_size: usize) -> Result<()> {
    for (n, &id) in ids.as_slice::<u32>()?.iter().enumerate() {
        ensure!(
            (id as usize) < vocab_size,
            "embedding: found id {id} at position {n}, expected ids below {vocab_size}"
        );
    }
    Ok(())
}

/// The sum so far of the table's gradient, or zeros, with d_y's rows added; in f32 on a card.
fn backward(d_y: &Tensor, ids: &Tensor, table_shape: [usize; 2], sum: Option<Tensor>) -> Result<Tensor> {
    let dtype = if d_y.gpu().is_some() { DType::F32 } else { d_y.dtype() };
    let sum = sum.map_or_else(|| Tensor::zeros_on(&table_shape, dtype, &d_y.device()), Ok)?;
    match (d_y.gpu(), d_y.dtype()) {
        (Some(gpu), _) => launch_backward(gpu, d_y, ids, sum),
        (None, DType::F64) => backward_reference::<f64>(d_y, ids, sum),
        (None, _) => backward_reference::<f32>(d_y, ids, sum),
    }
}

fn reference<F: Float>(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let channels = table.shape()[1];
    let table = table.as_slice::<F>()?;
    let mut y = Vec::with_capacity(ids.len() * channels);
    for &id in ids.as_slice::<u32>()? {
        y.extend_from_slice(&table[id as usize * channels..(id as usize + 1) * channels]);
    }
    Tensor::from_vec(y, &[ids.shape(), &[channels]].concat())
}

fn backward_reference<F: Float>(d_y: &Tensor, ids: &Tensor, mut sum: Tensor) -> Result<Tensor> {
    let (_, channels) = sum.rows_cols();
    let d_y = d_y.as_slice::<F>()?;
    let d_table = sum.as_mut_slice::<F>()?;
    for (n, &id) in ids.as_slice::<u32>()?.iter().enumerate() {
        let d_row = &mut d_table[id as usize * channels..(id as usize + 1) * channels];
        for (d, &d_y) in d_row.iter_mut().zip(&d_y[n * channels..]) {
            *d += d_y;
        }
    }
    Ok(sum)
}

fn launch(gpu: &Gpu, table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (n, vocab, cols) = (ids.len(), table.shape()[0], table.shape()[1]);
    let y = Tensor::empty(&[ids.shape(), &[cols]].concat(), table.dtype(), gpu)?;
    let variant = if in_vectors(cols, table.dtype().size()) { "" } else { "_unaligned" };
    let grid = Grid::linear(n * WARP, EMBEDDING_THREADS).variant(variant); // a warp a token
    gpu.launch("embedding_forward", &grid, &[In(table), In(ids), Out(&y), int(n), int(vocab), int(cols)])?;
    Ok(y)
}

/// Tokens are sorted by id; a block adds up a piece of the sorted rows, and a second kernel those ids that more than one
/// piece has.
fn launch_backward(gpu: &Gpu, d_y: &Tensor, ids: &Tensor, mut sum: Tensor) -> Result<Tensor> {
    let (n, vocab, cols) = (ids.len(), sum.shape()[0], sum.shape()[1]);
    if n == 0 || cols == 0 {
        return Ok(sum);
    }
    sum.make_unique()?;
    let (keys, positions) = sort(gpu, ids, vocab)?;
    let pieces = n.div_ceil(SUM_PIECE);
    let edge = Tensor::empty(&[pieces, 2, cols], DType::F32, gpu)?;
    let (width, variant) = if cols.is_multiple_of(4) { (4, "") } else { (1, "_unaligned") };
    let mut grid = Grid::blocks(pieces, SUM_THREADS).variant(variant);
    grid.blocks[1] = cols.div_ceil(SUM_THREADS * width);
    let sizes = [int(n), int(vocab), int(cols)];
    let tensors = [In(d_y), In(&keys), In(&positions), Out(&edge), Out(&sum)];
    gpu.launch("embedding_backward", &grid, &[&tensors[..], &sizes].concat())?;
    gpu.launch("embedding_merge", &grid, &[&[In(&keys), In(&edge), Out(&sum)], &sizes[..]].concat())?;
    Ok(sum)
}

/// The ids in rising order (those out of range as `vocab`, at the end) with their positions, which rise among equal ids.
fn sort(gpu: &Gpu, ids: &Tensor, vocab: usize) -> Result<(Tensor, Tensor)> {
    let n = ids.len();
    let grid = Grid::linear(n, SORT_TILE);
    let grid = Grid { threads: [EMBEDDING_THREADS as u32, 1, 1], ..grid };
    let words = |len: usize| Tensor::empty(&[len], DType::U32, gpu);
    let counts = words(SORT_DIGITS * grid.blocks[0])?;
    let mut sorted: Option<(Tensor, Tensor)> = None;
    for shift in (0..usize::BITS - vocab.leading_zeros()).step_by(SORT_DIGIT_BITS) {
        let (keys, positions) = sorted.as_ref().map_or((ids, None), |(keys, positions)| (keys, Some(positions)));
        let (to_keys, to_positions) = (words(n)?, words(n)?);
        let rest = [int(n), int(vocab), Int(shift.into())];
        gpu.launch("embedding_sort_count", &grid, &[&[In(keys), Out(&counts)], &rest[..]].concat())?;
        gpu.launch("embedding_sort_scan", &Grid::blocks(1, ONE_BLOCK_THREADS), &[Out(&counts), int(counts.len())])?;
        let tensors = [In(keys), Arg::optional(positions), In(&counts), Out(&to_keys), Out(&to_positions)];
        gpu.launch("embedding_sort_place", &grid, &[&tensors[..], &rest].concat())?;
        sorted = Some((to_keys, to_positions));
    }
    sorted.context("embedding: found a table without rows, expected at least one")
}

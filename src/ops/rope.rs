//! RoPE: every pair of channels is rotated by an angle that grows with the position (chapter 8.2.1, report §5.5).
//!
//! ```text
//! angle      φ = t θ^(−2i/D)                      position t, pair i
//! forward    y[2i]   = x[2i] cos φ − x[2i+1] sin φ
//!            y[2i+1] = x[2i] sin φ + x[2i+1] cos φ
//! backward   the same with −φ: the inverse of a rotation is its transpose
//! ```
//!
//! Pairs are neighbours (2i, 2i+1), as both documents write them. Checkpoints of Hugging Face pair i with i + D/2;
//! `formats/rope_layout.rs` converts.

use super::dispatch;
use crate::cpu::parallel::par_rows;
use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::shared::{ROPE_THREADS, WARP};
use crate::gpu::grid::{Grid, in_vectors};
use crate::launch::{F32, In, Int, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use std::sync::{Arc, Mutex, PoisonError};

/// cos φ and sin φ for every position and pair, computed once in f64. Cloning copies a pointer.
#[derive(Clone, Debug)]
pub struct RopeTable {
    head_dim: usize,
    max_seq_len: usize,
    /// (cos φ, sin φ), `[max_seq_len, D/2]`
    angles: Arc<Vec<(f64, f64)>>,
    /// The two in f32 on the card that asked for them.
    on_card: Arc<Mutex<Option<[Tensor; 2]>>>,
}

impl RopeTable {
    /// Error: an odd `head_dim`.
    pub fn new(head_dim: usize, max_seq_len: usize, theta: f64) -> Result<RopeTable> {
        ensure!(head_dim > 0 && head_dim.is_multiple_of(2), "rope: found head_dim {head_dim}, expected an even number");
        let pairs = head_dim / 2;
        let angles = (0..max_seq_len * pairs)
            .map(|n| {
                let (t, i) = ((n / pairs) as f64, (n % pairs) as f64);
                let angle = t * theta.powf(-2.0 * i / head_dim as f64);
                (angle.cos(), angle.sin())
            })
            .collect();
        Ok(RopeTable { head_dim, max_seq_len, angles: Arc::new(angles), on_card: Arc::default() })
    }

    /// The pairs of one position.
    fn at(&self, position: usize) -> &[(f64, f64)] {
        let pairs = self.head_dim / 2;
        &self.angles[position * pairs..(position + 1) * pairs]
    }

    /// cos φ and sin φ on the card, `[max_seq_len, D/2]` each; copied at the first use. Error: out of memory.
    pub(super) fn on(&self, gpu: &Gpu) -> Result<[Tensor; 2]> {
        let mut on_card = self.on_card.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tables) = on_card.as_ref().filter(|[cos, _]| cos.gpu() == Some(gpu)) {
            return Ok(tables.clone());
        }
        let upload = |part: fn(&(f64, f64)) -> f32| {
            let data: Vec<f32> = self.angles.iter().map(part).collect();
            Tensor::from_vec(data, &[self.max_seq_len, self.head_dim / 2])?.to(&Device::Gpu(gpu.clone()))
        };
        let tables = [upload(|&(cos, _)| cos as f32)?, upload(|&(_, sin)| sin as f32)?];
        *on_card = Some(tables.clone());
        Ok(tables)
    }

    /// Checks that `x` is `[B,T,H,D]` and that positions start .. start+T are in the table.
    pub(super) fn check(&self, op: &str, x: &Tensor, start: usize) -> Result<()> {
        let (d, max) = (self.head_dim, self.max_seq_len);
        ensure!(x.shape().len() == 4 && x.shape()[3] == d, "{op}: found x {:?}, expected [B,T,H,{d}]", x.shape());
        let t = x.shape()[1];
        ensure!(start + t <= max, "{op}: found positions {start} to {}, expected at most {max} positions", start + t);
        Ok(())
    }
}

/// Rotates each head of `x` `[B,T,H,D]`; token t stands at position `start` + t. Errors: another shape; positions beyond the
/// table.
pub fn rope(tape: &mut Tape, x: &Var, table: &RopeTable, start: usize) -> Result<Var> {
    table.check("rope", x.value(), start)?;
    let y = rotate(x.value(), table, start, Direction::Forward)?;
    let table = table.clone();
    Ok(tape.record(&[x], y, move |d_y, sink| sink.add(0, rotate(&d_y, &table, start, Direction::Back)?)))
}

#[derive(Clone, Copy)]
pub(super) enum Direction {
    Forward,
    Back,
}

fn rotate(x: &Tensor, table: &RopeTable, start: usize, direction: Direction) -> Result<Tensor> {
    dispatch(
        "rope",
        &[x],
        || reference::<f32>(x, table, start, direction),
        || reference::<f64>(x, table, start, direction),
        |gpu| launch(gpu, x, table, start, direction),
    )
}

fn reference<F: Float>(x: &Tensor, table: &RopeTable, start: usize, direction: Direction) -> Result<Tensor> {
    let (t, h, d) = (x.shape()[1], x.shape()[2], x.shape()[3]);
    let mut y = x.as_slice::<F>()?.to_vec();
    par_rows(
        &mut y,
        d,
        #[inline(always)]
        |row, y| rotate_row(y, table, start + row / h % t, direction),
    ); // row = (b T + t) H + h
    Tensor::from_vec(y, x.shape())
}

/// Rotates one head in place.
#[inline(always)]
pub(super) fn rotate_row<F: Float>(x: &mut [F], table: &RopeTable, position: usize, direction: Direction) {
    for (pair, &(cos, sin)) in x.chunks_exact_mut(2).zip(table.at(position)) {
        let cos = F::of(cos);
        let sin = match direction {
            Direction::Forward => F::of(sin),
            Direction::Back => F::of(-sin),
        };
        let (even, odd) = (pair[0], pair[1]);
        pair[0] = even * cos - odd * sin;
        pair[1] = even * sin + odd * cos;
    }
}

/// For kernels on heads: 4 or 8 lanes a head, or 16 where heads are not moved 16 bytes at a time; blocks for all heads, at
/// most `most`.
pub(super) fn heads_grid(heads: usize, head_dim: usize, dtype: DType, most: usize) -> Grid {
    let aligned = in_vectors(head_dim, dtype.size());
    let lanes = if aligned { WARP * dtype.size() / 16 } else { WARP / 2 };
    let blocks = (heads * lanes).div_ceil(ROPE_THREADS).min(most);
    Grid::blocks(blocks, ROPE_THREADS).variant(if aligned { "" } else { "_unaligned" })
}

fn launch(gpu: &Gpu, x: &Tensor, table: &RopeTable, start: usize, direction: Direction) -> Result<Tensor> {
    let (t, h, d) = (x.shape()[1], x.shape()[2], x.shape()[3]);
    let (heads, [cos, sin]) = (x.len() / d, table.on(gpu)?);
    let y = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    let sign = match direction {
        Direction::Forward => F32(1.0),
        Direction::Back => F32(-1.0),
    };
    let tensors = [In(x), In(&cos), In(&sin), Out(&y)];
    // The last two: y has a slot for each token, and the first token goes to the first one.
    let sizes = [int(heads), int(t), int(h), int(d), int(start), int(t), Int(0)];
    gpu.launch("rope", &heads_grid(heads, d, x.dtype(), usize::MAX), &[&tensors[..], &sizes, &[sign]].concat())?;
    Ok(y)
}

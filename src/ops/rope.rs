//! RoPE: every pair of channels is rotated by an angle that grows with the position (chapter 8.2.1, report §5.5).
//!
//! ```text
//! angle      φ = t θ^(−2i/D)                      position t, pair i
//! forward    y[2i]   = x[2i] cos φ − x[2i+1] sin φ
//!            y[2i+1] = x[2i] sin φ + x[2i+1] cos φ
//! backward   the same with −φ: the inverse of a rotation is its transpose
//! ```
//!
//! Models whose context was stretched turn more slowly: [`RopeScaling`].
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

/// How a model's context was stretched after training: the angles of each pair grow more slowly with the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// φ / factor (position interpolation, arXiv:2306.15595).
    Linear {
        factor: f64,
    },
    /// Llama 3.1: φ / factor for pairs that turn fewer than `low_freq_factor` times within the original context, φ for those
    /// that turn more than `high_freq_factor` times, and between them a mean weighted by the number of turns.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_seq_len: usize,
    },
}

impl RopeScaling {
    /// What a pair's angle grows by with each position, from `frequency` = θ^(−2i/D).
    fn scale(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_max_seq_len } => {
                let turns = original_max_seq_len as f64 * frequency / std::f64::consts::TAU;
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                kept * frequency + (1.0 - kept) * frequency / factor
            }
        }
    }
}

/// cos φ and sin φ of the positions in use and every pair, computed in f64. A model's context may be far longer than what is
/// ever asked of it, so the table grows with need; its numbers depend on position and pair only. Cloning copies a pointer.
#[derive(Clone, Debug)]
pub struct RopeTable {
    max_seq_len: usize,
    /// What the angle of each pair grows by with each position, `[D/2]`.
    frequencies: Vec<f64>,
    angles: Arc<Mutex<Angles>>,
    /// cos φ and sin φ in f32 on the card that asked for them, `[rows, D/2]` each.
    on_card: Arc<Mutex<Option<[Tensor; 2]>>>,
}

/// (cos φ, sin φ), `[rows, D/2]`.
#[derive(Clone, Debug)]
pub(super) struct Angles {
    pairs: usize,
    values: Arc<Vec<(f64, f64)>>,
}

impl Angles {
    /// The pairs of one position.
    pub(super) fn at(&self, position: usize) -> &[(f64, f64)] {
        &self.values[position * self.pairs..(position + 1) * self.pairs]
    }

    fn rows(&self) -> usize {
        self.values.len() / self.pairs
    }
}

impl RopeTable {
    /// A table for positions up to `max_seq_len`, in a context as it was trained. Error: an odd `head_dim`.
    pub fn new(head_dim: usize, max_seq_len: usize, theta: f64) -> Result<RopeTable> {
        RopeTable::scaled(head_dim, max_seq_len, theta, RopeScaling::None)
    }

    /// The same in a stretched context. Error: an odd `head_dim`.
    pub fn scaled(head_dim: usize, max_seq_len: usize, theta: f64, scaling: RopeScaling) -> Result<RopeTable> {
        ensure!(head_dim > 0 && head_dim.is_multiple_of(2), "rope: found head_dim {head_dim}, expected an even number");
        let angles = Arc::new(Mutex::new(Angles { pairs: head_dim / 2, values: Arc::default() }));
        let frequency = |i| scaling.scale(theta.powf(-2.0 * i as f64 / head_dim as f64));
        let frequencies = (0..head_dim / 2).map(frequency).collect();
        Ok(RopeTable { max_seq_len, frequencies, angles, on_card: Arc::default() })
    }

    /// Rows of a table that has been asked for positions `0..end` of `max_seq_len`: a power of two, so that generation does
    /// not make it anew for each token.
    pub fn rows(end: usize, max_seq_len: usize) -> usize {
        end.max(64).next_power_of_two().min(max_seq_len)
    }

    /// The angles of positions `0..end` at least, which are within the table.
    pub(super) fn angles(&self, end: usize) -> Angles {
        let mut angles = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        if angles.rows() < end {
            let (pairs, rows) = (angles.pairs, RopeTable::rows(end, self.max_seq_len));
            let mut values = Vec::with_capacity(rows * pairs);
            values.extend_from_slice(&angles.values);
            values.extend((values.len()..rows * pairs).map(|n| {
                let angle = (n / pairs) as f64 * self.frequencies[n % pairs];
                (angle.cos(), angle.sin())
            }));
            angles.values = Arc::new(values);
        }
        angles.clone()
    }

    /// cos φ and sin φ of positions `0..end` at least on the card, `[rows, D/2]` each; copied when they are first needed.
    /// Error: out of memory.
    pub(super) fn on(&self, gpu: &Gpu, end: usize) -> Result<[Tensor; 2]> {
        let mut on_card = self.on_card.lock().unwrap_or_else(PoisonError::into_inner);
        let serves = |[cos, _]: &&[Tensor; 2]| cos.gpu() == Some(gpu) && cos.shape()[0] >= end;
        if let Some(tables) = on_card.as_ref().filter(serves) {
            return Ok(tables.clone());
        }
        let angles = self.angles(end);
        let upload = |part: fn(&(f64, f64)) -> f32| {
            let data: Vec<f32> = angles.values.iter().map(part).collect();
            Tensor::from_vec(data, &[angles.rows(), angles.pairs])?.to(&Device::Gpu(gpu.clone()))
        };
        *on_card = None; // the shorter table's memory can serve the longer one
        let tables = [upload(|&(cos, _)| cos as f32)?, upload(|&(_, sin)| sin as f32)?];
        *on_card = Some(tables.clone());
        Ok(tables)
    }

    /// Checks that `x` is `[B,T,H,D]` and that positions start .. start+T are in the table.
    pub(super) fn check(&self, op: &str, x: &Tensor, start: usize) -> Result<()> {
        let (d, max) = (2 * self.frequencies.len(), self.max_seq_len);
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
    let (mut y, angles) = (x.as_slice::<F>()?.to_vec(), table.angles(start + t));
    par_rows(
        &mut y,
        d,
        #[inline(always)]
        |row, y| rotate_row(y, angles.at(start + row / h % t), direction),
    ); // row = (b T + t) H + h
    Tensor::from_vec(y, x.shape())
}

/// Rotates one head in place by the angles of its position.
#[inline(always)]
pub(super) fn rotate_row<F: Float>(x: &mut [F], angles: &[(f64, f64)], direction: Direction) {
    for (pair, &(cos, sin)) in x.chunks_exact_mut(2).zip(angles) {
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
    let (heads, [cos, sin]) = (x.len() / d, table.on(gpu, start + t)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula, and bit for bit the same whether the table grew or was made in one go.
    #[test]
    fn a_table_grows_with_need_and_keeps_its_numbers() {
        let (grown, max) = (RopeTable::new(6, 1 << 26, 1e4).unwrap(), 1 << 26);
        let mut rows = vec![];
        for end in [1, 64, 65, 128, 1000, 7] {
            let angles = grown.angles(end);
            rows.push(angles.rows());
            let whole = RopeTable::new(6, max, 1e4).unwrap().angles(angles.rows());
            assert_eq!(whole.values, angles.values, "for {end} positions");
        }
        assert_eq!(rows, [64, 64, 128, 128, 1024, 1024]);
        let angle = 999.0 * 1e4f64.powf(-2.0 / 6.0);
        assert_eq!(grown.angles(1000).at(999)[1], (angle.cos(), angle.sin()));
        assert_eq!(RopeTable::new(6, 70, 1e4).unwrap().angles(70).rows(), 70, "no position behind the last");
    }
}

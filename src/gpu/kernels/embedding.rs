//! Embedding rows and their gradients on the device: `kernels/embedding.cu`.

use super::elementwise::{THREADS, aligned, most, variant};
use crate::gpu::{Arg, Buffer, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const FORWARD: Kernel = Kernel {
    file: "embedding",
    name: "embedding_forward",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I32, Param::I32],
};
const CLEAR: Kernel = Kernel { file: "embedding", name: "embedding_clear", params: &[Param::Pointer, Param::I64] };
const SORT_COUNT: Kernel = Kernel {
    file: "embedding",
    name: "embedding_sort_count",
    params: &[Param::Pointer, Param::Pointer, Param::I32, Param::I32, Param::I32],
};
const SORT_SCAN: Kernel =
    Kernel { file: "embedding", name: "embedding_sort_scan", params: &[Param::Pointer, Param::I64] };
const SORT_PLACE: Kernel = Kernel {
    file: "embedding",
    name: "embedding_sort_place",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::I32,
        Param::I32,
        Param::I32,
    ],
};
const BACKWARD: Kernel = Kernel {
    file: "embedding",
    name: "embedding_backward",
    params: &[
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::Pointer,
        Param::I32,
        Param::I32,
        Param::I32,
    ],
};
const MERGE: Kernel = Kernel {
    file: "embedding",
    name: "embedding_merge",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I32, Param::I32, Param::I32],
};

pub const KERNELS: &[&Kernel] = &[&FORWARD, &CLEAR, &SORT_COUNT, &SORT_SCAN, &SORT_PLACE, &BACKWARD, &MERGE];

/// Tokens of a block of the sort; digits of a pass and their bits.
const TILE: usize = 1024;
const DIGITS: usize = 256;
const DIGIT_BITS: u32 = 8;
/// Sorted tokens that one block adds up, and its threads.
const PIECE: usize = 32;
const SUM_THREADS: usize = 128;
/// Of one piece, 65,535 blocks along y.
const MOST_COLS: usize = 65_535 * SUM_THREADS;

/// Where [`forward`] notes the first id that is out of range. One may serve many launches.
pub struct BadId {
    /// The id, then its position; all ones if there is none.
    words: Buffer<u32>,
}

impl BadId {
    pub fn none(gpu: &Gpu) -> Result<BadId> {
        Ok(BadId { words: gpu.upload(&[u32::MAX; 2])? })
    }

    /// Waits for the device. Error: an id that was not below `vocab`, with its position.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let words = self.words.download()?;
        let (id, position) = (words[0], words[1]);
        if position == u32::MAX {
            return Ok(());
        }
        Err(Check("embedding").range("ids", format!("id {id} at position {position}"), format!("ids below {vocab}")))
    }
}

/// `y[n] = table[ids[n]]`: table `[vocab,cols]`, ids `[n]`, y `[n,cols]`. An id out of range gives a row of NaN and a
/// note in `bad`.
#[expect(clippy::too_many_arguments, reason = "operands and sizes of one kernel")]
pub fn forward<E: GpuFloat>(
    gpu: &Gpu,
    table: View<E>,
    ids: View<u32>,
    y: &mut ViewMut<E>,
    bad: &BadId,
    n: usize,
    vocab: usize,
    cols: usize,
) -> Result<()> {
    let check = Check("embedding_forward");
    check.positive("vocab", vocab)?;
    check.operand("table", table, check.product("table", &[vocab, cols])?)?;
    check.operand("ids", ids, n)?;
    check.output("y", y, check.product("y", &[n, cols])?)?;
    check.i32("n", n)?;
    let sizes = [Arg::I64(n as i64), Arg::I32(check.i32("vocab", vocab)?), Arg::I32(check.i32("cols", cols)?)];
    let aligned = aligned(&[table.arg(), y.arg()]) && cols.is_multiple_of(most::<E>());
    let pointers = [table.arg(), ids.arg(), y.arg(), bad.words.view().arg()];
    let config = Config::linear(n * 32, THREADS)?; // a warp a token
    gpu.launch(&FORWARD, &variant::<E>(aligned), config, &[&pointers[..], &sizes].concat())
}

/// `d_table[v] = Σ d_y[n]` over the n with `ids[n] = v`, or += with `accumulate`: d_y `[n,cols]`, ids `[n]`, d_table
/// `[vocab,cols]` in f32. Ids out of range are left out. The same bits every time.
#[expect(clippy::too_many_arguments, reason = "operands and sizes of one kernel")]
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    d_y: View<E>,
    ids: View<u32>,
    d_table: &mut ViewMut<f32>,
    n: usize,
    vocab: usize,
    cols: usize,
    accumulate: bool,
) -> Result<()> {
    let check = Check("embedding_backward");
    check.positive("vocab", vocab)?;
    check.operand("d_y", d_y, check.product("d_y", &[n, cols])?)?;
    check.operand("ids", ids, n)?;
    let len = check.product("d_table", &[vocab, cols])?;
    check.output("d_table", d_table, len)?;
    if cols > MOST_COLS {
        return Err(check.range("cols", cols, format!("at most {MOST_COLS}")));
    }
    let sizes = [("n", n), ("vocab", vocab), ("cols", cols)].map(|(what, size)| check.i32(what, size));
    let [n_arg, vocab_arg, cols_arg] = sizes;
    let sizes = [Arg::I32(n_arg?), Arg::I32(vocab_arg?), Arg::I32(cols_arg?)];
    if !accumulate {
        clear(gpu, d_table, len)?;
    }
    if n == 0 || cols == 0 {
        return Ok(());
    }
    let (keys, positions) = sort(gpu, ids, n, vocab)?;
    let pieces = n.div_ceil(PIECE);
    let edge = gpu.alloc::<f32>(check.product("edge", &[pieces, 2, cols])?)?;

    let vectors = cols.is_multiple_of(4) && d_table.is_aligned(16);
    let config = |aligned: bool| {
        let tiles = cols.div_ceil(SUM_THREADS * if aligned { 4 } else { 1 });
        Config { grid: [pieces as u32, tiles as u32, 1], block: [SUM_THREADS as u32, 1, 1], shared_bytes: 0 }
    };
    let aligned = vectors && d_y.is_aligned(4 * size_of::<E>() as u64);
    let pointers = [d_y.arg(), keys.view().arg(), positions.view().arg(), edge.view().arg(), d_table.arg()];
    gpu.launch(&BACKWARD, &variant::<E>(aligned), config(aligned), &[&pointers[..], &sizes].concat())?;
    let pointers = [keys.view().arg(), edge.view().arg(), d_table.arg()];
    let variant = if vectors { "" } else { "unaligned" };
    gpu.launch(&MERGE, variant, config(vectors), &[&pointers[..], &sizes].concat())
}

fn clear(gpu: &Gpu, d_table: &mut ViewMut<f32>, len: usize) -> Result<()> {
    let aligned = d_table.is_aligned(16);
    let config = Config::linear(len.div_ceil(if aligned { 4 } else { 1 }), THREADS)?;
    gpu.launch(&CLEAR, if aligned { "" } else { "unaligned" }, config, &[d_table.arg(), Arg::I64(len as i64)])
}

/// The ids in rising order (those out of range as `vocab`, at the end) with their positions, which rise among equal
/// ids.
fn sort(gpu: &Gpu, ids: View<u32>, n: usize, vocab: usize) -> Result<(Buffer<u32>, Buffer<u32>)> {
    let tiles = n.div_ceil(TILE);
    let (n_arg, vocab_arg) = (Arg::I32(n as i32), Arg::I32(vocab as i32));
    let config = Config { grid: [tiles as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
    let one_block = Config { grid: [1, 1, 1], block: [1024, 1, 1], shared_bytes: 0 };
    let counts = gpu.alloc::<u32>(DIGITS * tiles)?;
    let mut sorted: Option<(Buffer<u32>, Buffer<u32>)> = None;
    for shift in (0..usize::BITS - vocab.leading_zeros()).step_by(DIGIT_BITS as usize) {
        let (keys, positions) = match &sorted {
            Some((keys, positions)) => (keys.view(), Some(positions.view())),
            None => (ids, None),
        };
        let to = (gpu.alloc::<u32>(n)?, gpu.alloc::<u32>(n)?);
        let shift = Arg::I32(shift as i32);
        gpu.launch(&SORT_COUNT, "", config, &[keys.arg(), counts.view().arg(), n_arg, vocab_arg, shift])?;
        gpu.launch(&SORT_SCAN, "", one_block, &[counts.view().arg(), Arg::I64(counts.len() as i64)])?;
        let pointers = [keys.arg(), Arg::optional(positions), counts.view().arg()];
        let rest = [to.0.view().arg(), to.1.view().arg(), n_arg, vocab_arg, shift];
        gpu.launch(&SORT_PLACE, "", config, &[&pointers[..], &rest].concat())?;
        sorted = Some(to);
    }
    sorted.ok_or_else(|| Check("embedding_backward").range("vocab", vocab, "at least 1"))
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 300 * 256])?;
    run(gpu, &vec![bf16::ONE; 300 * 256])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (n, vocab) = (200, 300 - 1);
    let ids: Vec<u32> = (0..n as u32).map(|i| i * i % 300 % 64).collect();
    let (table, ids, bad) = (gpu.upload(data)?, gpu.upload(&ids)?, BadId::none(gpu)?);
    let (mut y, mut d_table) = (gpu.alloc::<E>(data.len())?, gpu.alloc::<f32>(data.len())?);
    for start in [0, 1] {
        let range = start..data.len();
        let from = table.range(range.clone());
        forward(gpu, from, ids.view(), &mut y.range_mut(range.clone()), &bad, n, vocab, 256)?;
        backward(gpu, from, ids.view(), &mut d_table.range_mut(range), n, vocab, 256, false)?;
    }
    Ok(())
}

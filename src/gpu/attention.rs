//! How attention is cut into blocks on a card: `kernels/attention_forward*.cu`, `attention_decode.cu` and
//! `attention_backward_*.cu`.

use super::grid::Grid;
use super::grid::shared::*;
use super::{LaunchError, Limits, Result};

/// The head dimensions that kernels are compiled for, and their variants.
pub const HEAD_DIMS: [(usize, &str); 4] = [(32, "_32"), (64, "_64"), (96, "_96"), (128, "_128")];

/// The variant for a head_dim. Error: one that no kernel was compiled for.
fn variant(kernel: &'static str, head_dim: usize) -> Result<&'static str> {
    let found = HEAD_DIMS.iter().find(|(dim, _)| *dim == head_dim);
    found.map(|(_, variant)| *variant).ok_or_else(|| LaunchError::HeadDim {
        kernel,
        found: head_dim,
        expected: HEAD_DIMS.map(|(dim, _)| dim).to_vec(),
    })
}

/// A block for each tile of the `tq` queries of each head; elements have `size` bytes. Error: the head_dim.
pub fn forward_grid(head_dim: usize, size: usize, tq: usize, heads: usize) -> Result<Grid> {
    let (queries, tiles) = if size == 2 {
        let queries = if head_dim <= 64 { ATTENTION_QUERIES_TO_64 } else { ATTENTION_QUERIES };
        // K and V take turns in one tile each, and Q begins where V comes to lie.
        (queries, ATTENTION_KEYS + queries.max(ATTENTION_KEYS))
    } else {
        (ATTENTION_F32_QUERIES, ATTENTION_F32_QUERIES + 2 * ATTENTION_F32_KEYS)
    };
    let grid = Grid::blocks(tq.div_ceil(queries) * heads, ATTENTION_THREADS);
    Ok(Grid { shared_bytes: tiles * head_dim * size, ..grid }.variant(variant("attention_forward", head_dim)?))
}

/// How few queries over a cache are cut into blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decode {
    /// Warps that share the rows of a block; the others share its keys.
    pub row_tiles: usize,
    pub splits: usize,
    pub tiles_per_split: usize,
    pub grid: Grid,
}

impl Decode {
    /// For `rows` query rows of each of `kv_heads` KV heads of the batch, over `tk` positions. A warp takes 16 rows in
    /// bf16, 4 in f32; shared memory is for as many stages as let two blocks fit. Error: the head_dim.
    pub fn new(
        limits: &Limits,
        head_dim: usize,
        size: usize,
        rows: usize,
        tk: usize,
        kv_heads: usize,
    ) -> Result<Decode> {
        let (warp_rows, keys, q_bytes) = if size == 2 {
            (DECODE_BF16_ROWS, DECODE_BF16_KEYS, 0)
        } else {
            (DECODE_F32_ROWS, DECODE_F32_KEYS, DECODE_WARPS * DECODE_F32_ROWS * head_dim * size)
        };
        let stages = if head_dim <= 64 { DECODE_STAGES_TO_64 } else { DECODE_STAGES };
        let shared_bytes = stages * 2 * keys * head_dim * size + q_bytes;

        let row_tiles = rows.div_ceil(warp_rows).next_power_of_two().clamp(1, DECODE_WARPS);
        let row_blocks = rows.div_ceil(row_tiles * warp_rows);
        let tiles = tk.div_ceil(keys);
        let blocks = kv_heads * row_blocks;
        let splits = splits(blocks, tiles, slots(limits, shared_bytes));
        let tiles_per_split = tiles.div_ceil(splits).max(1);
        let splits = tiles.div_ceil(tiles_per_split).max(1);
        let grid = Grid { shared_bytes, ..Grid::blocks(blocks * splits, DECODE_WARPS * WARP) };
        Ok(Decode { row_tiles, splits, tiles_per_split, grid: grid.variant(variant("attention_decode", head_dim)?) })
    }
}

/// Merges the splits of `rows` query rows: a warp for each.
pub fn merge_grid(rows: usize) -> Grid {
    Grid::blocks(rows.div_ceil(DECODE_WARPS), DECODE_WARPS * WARP)
}

/// Blocks at work at once: two a multiprocessor, or one where two do not fit.
fn slots(limits: &Limits, shared_bytes: usize) -> usize {
    let reserved = limits.multiprocessor.shared_reserved as usize;
    let fit = (limits.shared_memory_optin + reserved) / (shared_bytes + reserved);
    limits.multiprocessors as usize * fit.clamp(1, 2)
}

/// Into how many ranges a cache of `tiles` tiles is split so that `blocks` blocks a range fill the card's `slots`.
///
/// 1 if the card is nearly full without (80%). Else the fewest whose last wave wastes little: with at least 85% of the
/// best efficiency that any number has, where efficiency = waves / ⌈waves⌉ and waves = blocks · splits / slots. Numbers
/// that only make ranges uneven, without making the longest shorter, do not count.
fn splits(blocks: usize, tiles: usize, slots: usize) -> usize {
    const MOST: usize = 128; // bounds the workspace and the merge
    if blocks == 0 || blocks * 5 >= slots * 4 {
        return 1;
    }
    let shortens = |n: &usize| *n == 1 || tiles.div_ceil(*n) < tiles.div_ceil(*n - 1);
    let efficiency = |n: usize| {
        let waves = (blocks * n) as f64 / slots as f64;
        waves / waves.ceil()
    };
    let candidates = || (1..=tiles.min(MOST)).filter(shortens);
    let best = candidates().map(efficiency).fold(0.0, f64::max);
    candidates().find(|&n| efficiency(n) >= 0.85 * best).unwrap_or(1)
}

/// δ and the logsumexp of every query row, in tiles of queries and heads.
pub fn delta_grid(padded_queries: usize, n_head: usize, batch: usize) -> Grid {
    let tiles = n_head.div_ceil(DELTA_HEADS) * (padded_queries / DELTA_QUERIES);
    Grid::blocks(tiles * batch, DELTA_THREADS)
}

/// One of the two passes of backward: a block takes a tile of stationary rows and walks through tiles of streamed rows.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    stationary: usize,
    threads: usize,
    shared_bytes: usize,
    variant: &'static str,
}

/// The pass for d_q, whose stationary rows are queries, and the one for d_k and d_v, whose stationary rows are keys.
/// Error: the head_dim.
pub fn backward_passes(head_dim: usize, size: usize) -> Result<[Pass; 2]> {
    let variant = variant("attention_backward", head_dim)?;
    if size == 4 {
        // Four tiles of padded rows, and as many matrices of weights.
        let pass = |weights: usize| {
            let row = BACKWARD_F32_TILE + BACKWARD_F32_PAD;
            let tiles = 4 * BACKWARD_F32_TILE * (head_dim + BACKWARD_F32_PAD) + weights * BACKWARD_F32_TILE * row;
            let shared_bytes = tiles * size;
            Pass { stationary: BACKWARD_F32_TILE, threads: BACKWARD_F32_THREADS, shared_bytes, variant }
        };
        return Ok([pass(1), pass(2)]);
    }
    // Two stationary tiles, two double buffers, and for the keys' pass the statistics of two tiles of queries.
    let pass = |streamed: usize, more: usize| {
        let shared_bytes = (2 * BACKWARD_STATIONARY + 4 * streamed) * head_dim * size + more;
        Pass { stationary: BACKWARD_STATIONARY, threads: 2 * BACKWARD_STATIONARY, shared_bytes, variant }
    };
    let (keys, queries) = match head_dim {
        32 => (DQ_KEYS_32, DKV_QUERIES_32),
        64 => (DQ_KEYS_64, DKV_QUERIES_64),
        96 => (DQ_KEYS_96, DKV_QUERIES_96),
        _ => (DQ_KEYS_128, DKV_QUERIES_128),
    };
    Ok([pass(keys, 0), pass(queries, 2 * queries * size_of::<[f32; 2]>())])
}

impl Pass {
    /// For `length` rows of each of `heads` heads of the batch.
    pub fn grid(&self, length: usize, heads: usize) -> Grid {
        let grid = Grid::blocks(length.div_ceil(self.stationary) * heads, self.threads);
        Grid { shared_bytes: self.shared_bytes, ..grid }.variant(self.variant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Multiprocessor;

    #[test]
    fn splits_fill_the_card() {
        assert_eq!(splits(205, 100, 256), 1); // 80% full without
        assert_eq!(splits(204, 100, 256), 5); // 204·5 = 1020 of 1024; 2, 3 and 4 fill 80% only
        assert_eq!(splits(1, 1, 256), 1);
        assert_eq!(splits(1, 64, 256), 64); // one wave that is never full: the shortest ranges
        assert_eq!(splits(8, 32, 256), 32);
        assert_eq!(splits(16, 1000, 256), 14); // 16 would be full, 14 have 87.5% of that
        assert_eq!(splits(0, 10, 256), 1);
        assert_eq!(splits(4, 0, 256), 1);
        assert!(splits(1, 1 << 20, 256) <= 128);
    }

    #[test]
    fn no_range_is_empty_and_none_is_left_out() {
        let limits = Limits {
            multiprocessors: 128,
            shared_memory: 48 << 10,
            shared_memory_optin: 99 << 10,
            grid: [i32::MAX as u32, 65535, 65535],
            capability: 89,
            multiprocessor: Multiprocessor {
                threads: 1536,
                blocks: 24,
                registers: 65_536,
                shared: 100 << 10,
                shared_reserved: 1024,
            },
        };
        for (tk, n_kv_head) in [(0, 1), (1, 1), (64, 2), (65, 2), (2000, 8), (131_072, 8), (5000, 3)] {
            let plan = Decode::new(&limits, 96, 2, 8, tk, n_kv_head).unwrap();
            let tiles = tk.div_ceil(64);
            assert!(plan.splits * plan.tiles_per_split >= tiles, "{plan:?}");
            assert!(plan.splits == 1 || (plan.splits - 1) * plan.tiles_per_split < tiles, "{plan:?}");
        }
    }
}

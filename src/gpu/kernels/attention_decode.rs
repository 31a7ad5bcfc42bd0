//! Attention of few queries over a cache: `kernels/attention_decode.cu`.
//!
//! A block reads a range of one KV head's cache for all query heads of the group. Where there are too few blocks for
//! the card, the ranges get shorter and a second kernel merges them.

use super::attention_dims::{AttentionShape, HEAD_DIMS, vectors};
use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, Limits, Param, Result, View, ViewMut};
use half::bf16;

const SPLIT: Kernel = Kernel {
    file: "attention_decode",
    name: "attention_decode_split",
    params: &[
        Param::Pointer, // q
        Param::Pointer, // k
        Param::Pointer, // v
        Param::Pointer, // o
        Param::Pointer, // o of each split
        Param::Pointer, // logsumexp of each split
        Param::I32,     // batch
        Param::I32,     // tq
        Param::I32,     // tk
        Param::I32,     // n_head
        Param::I32,     // n_kv_head
        Param::I32,     // kv_capacity
        Param::I32,     // causal
        Param::I32,     // row_tiles
        Param::I32,     // splits
        Param::I32,     // tiles_per_split
        Param::F32,     // log2(e)/√D
    ],
};
const MERGE: Kernel = Kernel {
    file: "attention_decode",
    name: "attention_decode_merge",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I32, Param::I32],
};

pub const KERNELS: &[&Kernel] = &[&SPLIT, &MERGE];

const WARPS: usize = 4;
const BLOCK: [u32; 3] = [WARPS as u32 * 32, 1, 1];

/// How a call is cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    /// Warps that share the rows of a block; the others share its keys.
    row_tiles: usize,
    /// Blocks that share the rows of a KV head.
    row_blocks: usize,
    splits: usize,
    tiles_per_split: usize,
    shared_bytes: usize,
}

impl Plan {
    /// The kernel's tiles: 16 rows a warp and 64 keys in bf16, 4 and 32 in f32; 3 stages where the shared memory of two
    /// blocks allows it.
    fn new<E: GpuFloat>(shape: &AttentionShape, limits: &Limits) -> Plan {
        let d = shape.head_dim;
        let (warp_rows, keys, q_bytes) =
            if E::SUFFIX == "bf16" { (16, 64, 0) } else { (4, 32, 16 * d * size_of::<f32>()) };
        let stages = if d <= 64 { 3 } else { 2 };
        let shared_bytes = stages * 2 * keys * d * size_of::<E>() + q_bytes;

        let rows = shape.tq * shape.group_size();
        let row_tiles = rows.div_ceil(warp_rows).next_power_of_two().clamp(1, WARPS);
        let row_blocks = rows.div_ceil(row_tiles * warp_rows);
        let tiles = shape.tk.div_ceil(keys);
        let blocks = shape.batch * shape.n_kv_head * row_blocks;
        let splits = splits(blocks, tiles, slots(limits, shared_bytes));
        let tiles_per_split = tiles.div_ceil(splits).max(1);
        Plan { row_tiles, row_blocks, splits: tiles.div_ceil(tiles_per_split).max(1), tiles_per_split, shared_bytes }
    }
}

/// Blocks at work at once: two a multiprocessor, or one where two do not fit.
fn slots(limits: &Limits, shared_bytes: usize) -> usize {
    const RESERVED: usize = 1024; // of each block, by the driver
    let fit = (limits.shared_memory_optin + RESERVED) / (shared_bytes + RESERVED);
    limits.multiprocessors as usize * fit.clamp(1, 2)
}

/// Into how many ranges a cache of `tiles` tiles is split so that `blocks` blocks a range fill the card's `slots`.
///
/// 1 if the card is nearly full without (80%). Else the fewest whose last wave wastes little: with at least 85% of the
/// best efficiency that any number has, where efficiency = waves / ⌈waves⌉ and waves = blocks · splits / slots. Numbers
/// that only make ranges uneven, without making the longest shorter, do not count.
pub fn splits(blocks: usize, tiles: usize, slots: usize) -> usize {
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

/// `o` `[B,Tq,H,D]` = softmax(q·kᵀ/√D, masked)·v over the first `tk` positions of the cache; few queries, any group.
///
/// A query that sees no key gives 0. Positions from `tk` on are not read. Errors: those of [`AttentionShape::lens`],
/// operands that are too small or do not begin at a multiple of 16 bytes, no memory for the ranges' results.
pub fn decode<E: GpuFloat>(
    gpu: &Gpu,
    q: View<E>,
    k: View<E>,
    v: View<E>,
    o: &mut ViewMut<E>,
    shape: &AttentionShape,
) -> Result<()> {
    let check = Check("attention_decode");
    let lens = shape.lens(check)?;
    vectors(check, "q", q, lens.q)?;
    vectors(check, "k", k, lens.kv)?;
    vectors(check, "v", v, lens.kv)?;
    vectors(check, "o", o.as_view(), lens.q)?;
    if lens.rows == 0 {
        return Ok(());
    }
    check.i32("rows of a KV head", check.product("q", &[shape.tq, shape.group_size()])?)?;
    let plan = Plan::new::<E>(shape, gpu.limits());
    let parts = if plan.splits > 1 { check.product("workspace", &[lens.rows, plan.splits])? } else { 0 };
    let mut o_part = gpu.alloc::<f32>(check.product("workspace", &[parts, shape.head_dim])?)?;
    let mut lse_part = gpu.alloc::<f32>(parts)?;

    let blocks = check.product("blocks", &[shape.batch, shape.n_kv_head, plan.row_blocks, plan.splits])?;
    let grid = [check.i32("blocks", blocks)? as u32, 1, 1];
    let mut args = vec![q.arg(), k.arg(), v.arg(), o.arg(), o_part.view_mut().arg(), lse_part.view_mut().arg()];
    let sizes = [shape.batch, shape.tq, shape.tk, shape.n_head, shape.n_kv_head, shape.kv_capacity];
    let cuts = [shape.causal.into(), plan.row_tiles, plan.splits, plan.tiles_per_split];
    args.extend(sizes.into_iter().chain(cuts).map(|n| Arg::I32(n as i32))); // 31 bits: `lens`
    args.push(Arg::F32(shape.scale_log2()));
    let config = Config { grid, block: BLOCK, shared_bytes: plan.shared_bytes };
    gpu.launch(&SPLIT, &format!("{}_{}", E::SUFFIX, shape.head_dim), config, &args)?;
    if plan.splits > 1 {
        merge(gpu, (o_part.view(), lse_part.view()), o, lens.rows, plan.splits, shape)
    } else {
        Ok(())
    }
}

/// `o` from each split's `o` `[rows,splits,D]` and logsumexp `[rows,splits]`: a warp for each row.
fn merge<E: GpuFloat>(
    gpu: &Gpu,
    (o_part, lse_part): (View<f32>, View<f32>),
    o: &mut ViewMut<E>,
    rows: usize,
    splits: usize,
    shape: &AttentionShape,
) -> Result<()> {
    let grid = [Check("attention_decode").i32("blocks", rows.div_ceil(WARPS))? as u32, 1, 1];
    let (splits, head_dim) = (Arg::I32(splits as i32), Arg::I32(shape.head_dim as i32));
    let args = [o_part.arg(), lse_part.arg(), o.arg(), Arg::I64(rows as i64), splits, head_dim];
    gpu.launch(&MERGE, E::SUFFIX, Config { grid, block: BLOCK, shared_bytes: 0 }, &args)
}

/// One new position over 512, 4 query heads for each of 2 KV heads.
pub fn showcase(gpu: &Gpu) -> Result<()> {
    for head_dim in HEAD_DIMS {
        show::<bf16>(gpu, head_dim)?;
        show::<f32>(gpu, head_dim)?;
    }
    Ok(())
}

fn show<E: GpuFloat>(gpu: &Gpu, head_dim: usize) -> Result<()> {
    let (tk, n_head, n_kv_head) = (512, 8, 2);
    let shape = AttentionShape { batch: 1, tq: 1, tk, n_head, n_kv_head, head_dim, kv_capacity: tk, causal: true };
    let lens = shape.lens(Check("attention_decode"))?;
    let (q, kv, mut o) = (gpu.zeros::<E>(lens.q)?, gpu.zeros::<E>(lens.kv)?, gpu.alloc::<E>(lens.q)?);
    decode(gpu, q.view(), kv.view(), kv.view(), &mut o.view_mut(), &shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::occupancy::Multiprocessor;

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
            let (tq, n_head) = (2, n_kv_head * 4);
            let shape =
                AttentionShape { batch: 1, tq, tk, n_head, n_kv_head, head_dim: 96, kv_capacity: tk, causal: true };
            let plan = Plan::new::<bf16>(&shape, &limits);
            let tiles = tk.div_ceil(64);
            assert!(plan.splits * plan.tiles_per_split >= tiles, "{plan:?}");
            assert!(plan.splits == 1 || (plan.splits - 1) * plan.tiles_per_split < tiles, "{plan:?}");
        }
    }
}

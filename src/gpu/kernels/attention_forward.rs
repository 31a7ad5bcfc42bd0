//! Attention forward on the device: `kernels/attention_forward.cu` (bf16) and `kernels/attention_forward_f32.cu`.

use super::attention_dims::{AttentionShape, vectors};
use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const PARAMS: &[Param] = &[
    Param::Pointer, // q
    Param::Pointer, // k
    Param::Pointer, // v
    Param::Pointer, // o
    Param::Pointer, // logsumexp
    Param::I32,     // batch
    Param::I32,     // tq
    Param::I32,     // tk
    Param::I32,     // n_head
    Param::I32,     // n_kv_head
    Param::I32,     // kv_capacity
    Param::I32,     // causal
    Param::F32,     // log2(e)/√D
];
const FORWARD_BF16: Kernel = Kernel { file: "attention_forward", name: "attention_forward", params: PARAMS };
const FORWARD_F32: Kernel = Kernel { file: "attention_forward_f32", name: "attention_forward", params: PARAMS };

pub const KERNELS: &[&Kernel] = &[&FORWARD_BF16, &FORWARD_F32];

const THREADS: u32 = 128;

/// Which kernel, the queries of a block, and its bytes of shared memory.
fn tiling<E: GpuFloat>(head_dim: usize) -> (&'static Kernel, usize, usize) {
    if E::SUFFIX == "bf16" {
        let (queries, keys) = (if head_dim <= 64 { 128 } else { 64 }, 64);
        return (&FORWARD_BF16, queries, (keys + queries.max(keys)) * head_dim * size_of::<bf16>());
    }
    let (queries, keys) = (64, 32);
    (&FORWARD_F32, queries, (queries + 2 * keys) * head_dim * size_of::<f32>())
}

/// `o` `[B,Tq,H,D]` = softmax(q·kᵀ/√D, masked)·v, and the rows' natural `logsumexp` `[B,Tq,H]` of the scaled scores.
///
/// A query that sees no key gives 0 and −∞. Errors: those of [`AttentionShape::lens`], operands that are too small or
/// do not begin at a multiple of 16 bytes.
pub fn forward<E: GpuFloat>(
    gpu: &Gpu,
    q: View<E>,
    k: View<E>,
    v: View<E>,
    o: &mut ViewMut<E>,
    logsumexp: &mut ViewMut<f32>,
    shape: &AttentionShape,
) -> Result<()> {
    let check = Check("attention_forward");
    let lens = shape.lens(check)?;
    vectors(check, "q", q, lens.q)?;
    vectors(check, "k", k, lens.kv)?;
    vectors(check, "v", v, lens.kv)?;
    vectors(check, "o", o.as_view(), lens.q)?;
    check.output("logsumexp", logsumexp, lens.rows)?;
    if lens.rows == 0 {
        return Ok(());
    }
    let (kernel, queries, shared_bytes) = tiling::<E>(shape.head_dim);
    let blocks = check.product("blocks", &[shape.tq.div_ceil(queries), shape.n_head, shape.batch])?;
    let config = Config { grid: [check.i32("blocks", blocks)? as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes };
    let variant = format!("{}_{}", E::SUFFIX, shape.head_dim);
    let mut args = vec![q.arg(), k.arg(), v.arg(), o.arg(), logsumexp.arg()];
    for n in [shape.batch, shape.tq, shape.tk, shape.n_head, shape.n_kv_head, shape.kv_capacity] {
        args.push(Arg::I32(n as i32)); // 31 bits: `lens`
    }
    args.extend([Arg::I32(shape.causal.into()), Arg::F32(shape.scale_log2())]);
    gpu.launch(kernel, &variant, config, &args)
}

/// 256 positions, 2 query heads of one KV head.
pub fn showcase(gpu: &Gpu) -> Result<()> {
    for head_dim in super::attention_dims::HEAD_DIMS {
        show::<bf16>(gpu, head_dim)?;
        show::<f32>(gpu, head_dim)?;
    }
    Ok(())
}

fn show<E: GpuFloat>(gpu: &Gpu, head_dim: usize) -> Result<()> {
    let (tq, tk) = (256, 256);
    let shape = AttentionShape { batch: 1, tq, tk, n_head: 2, n_kv_head: 1, head_dim, kv_capacity: tk, causal: true };
    let lens = shape.lens(Check("attention_forward"))?;
    let (q, kv) = (gpu.zeros::<E>(lens.q)?, gpu.zeros::<E>(lens.kv)?);
    let (mut o, mut logsumexp) = (gpu.alloc::<E>(lens.q)?, gpu.alloc::<f32>(lens.rows)?);
    forward(gpu, q.view(), kv.view(), kv.view(), &mut o.view_mut(), &mut logsumexp.view_mut(), &shape)
}

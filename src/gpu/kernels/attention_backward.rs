//! Gradients of attention on the device: `kernels/attention_backward_*.cu`.
//!
//! Three launches: δ of every query row, then d_q, then d_k and d_v. Each output element belongs to one block, so the
//! same input gives the same bits.

use super::attention_dims::{AttentionLens, AttentionShape, HEAD_DIMS, vectors};
use crate::gpu::{Arg, Buffer, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

use Param::{I32, Pointer};

const DELTA: Kernel = Kernel {
    file: "attention_backward_delta",
    name: "attention_backward_delta",
    params: &[Pointer, Pointer, Pointer, Pointer, I32, I32, I32, I32],
};
const DQ_PARAMS: &[Param] = &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I32, I32, I32, I32, I32, I32];
const DKV_PARAMS: &[Param] =
    &[Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, I32, I32, I32, I32, I32, I32];
const DQ_F32: Kernel = Kernel { file: "attention_backward_f32", name: "attention_backward_dq_f32", params: DQ_PARAMS };
const DKV_F32: Kernel =
    Kernel { file: "attention_backward_f32", name: "attention_backward_dkv_f32", params: DKV_PARAMS };
const DQ_BF16: Kernel = Kernel { file: "attention_backward_dq", name: "attention_backward_dq_bf16", params: DQ_PARAMS };
const DKV_BF16: Kernel =
    Kernel { file: "attention_backward_dkv", name: "attention_backward_dkv_bf16", params: DKV_PARAMS };

pub const KERNELS: &[&Kernel] = &[&DELTA, &DQ_F32, &DKV_F32, &DQ_BF16, &DKV_BF16];

/// Queries that a block of the δ kernel takes, heads that it takes, and the multiple that its output is padded to.
const DELTA_QUERIES: usize = 32;
const DELTA_HEADS: usize = 8;
const STATISTICS_PAD: usize = 128;

/// What attention read and wrote, and the gradient of its output.
///
/// `q`, `o`, `d_o` are `[B,Tq,H,D]`, `k` and `v` `[B,Tk,Hkv,D]`, `logsumexp` `[B,Tq,H]`, natural, and −∞ for a query
/// that sees no key.
#[derive(Clone, Copy)]
pub struct Saved<'a, E> {
    pub q: View<'a, E>,
    pub k: View<'a, E>,
    pub v: View<'a, E>,
    pub o: View<'a, E>,
    pub d_o: View<'a, E>,
    pub logsumexp: View<'a, f32>,
}

/// Where the gradients go: `[B,Tq,H,D]`, and `[B,Tk,Hkv,D]` twice. They are written whole.
pub struct Gradients<'a, E> {
    pub d_q: ViewMut<'a, E>,
    pub d_k: ViewMut<'a, E>,
    pub d_v: ViewMut<'a, E>,
}

/// d_q, d_k and d_v of [`attention`](crate::ops::attention::attention).
///
/// Errors: a shape that [`AttentionShape::lens`] refuses, or with K and V in a cache that is longer than Tk; operands
/// that are null, too small or not at a multiple of 16 bytes.
pub fn backward<E: GpuFloat>(
    gpu: &Gpu,
    shape: &AttentionShape,
    saved: &Saved<E>,
    gradients: &mut Gradients<E>,
) -> Result<()> {
    let check = Check("attention_backward");
    let lens = shape.lens(check)?;
    let numbers = numbers(check, shape)?;
    check_operands(check, &lens, saved, gradients)?;
    let statistics = delta(gpu, check, shape, saved)?;

    let Saved { q, k, v, d_o, .. } = *saved;
    let inputs = [q.arg(), k.arg(), v.arg(), d_o.arg(), statistics.view().arg()];
    let args = |outputs: &[Arg]| [&inputs[..], outputs, &numbers].concat();
    let dq = Pass::d_queries::<E>(shape.head_dim);
    dq.launch(gpu, shape.tq, [shape.batch, shape.n_head], &args(&[gradients.d_q.arg()]))?;
    let dkv = Pass::d_keys_values::<E>(shape.head_dim);
    let outputs = [gradients.d_k.arg(), gradients.d_v.arg()];
    dkv.launch(gpu, shape.tk, [shape.batch, shape.n_kv_head], &args(&outputs))
}

/// The numbers at the end of both passes' arguments: Tq, Tq padded, Tk, H, Hkv and the reach. Query i sees the keys up
/// to i + reach.
fn numbers(check: Check, shape: &AttentionShape) -> Result<[Arg; 6]> {
    if shape.kv_capacity != shape.tk {
        return Err(check.range("kv_capacity", shape.kv_capacity, format!("Tk, {}", shape.tk)));
    }
    // The furthest query of a tile and the last key that it would see have to be 32-bit numbers.
    check.i32("Tq + Tk", shape.tq + shape.tk + 2 * STATISTICS_PAD)?;
    let (tq, tk) = (shape.tq as i32, shape.tk as i32);
    let reach = if shape.causal { tk - tq } else { tk };
    Ok([tq, padded(shape), tk, shape.n_head as i32, shape.n_kv_head as i32, reach].map(Arg::I32))
}

/// Tq, rounded up to whole tiles.
fn padded(shape: &AttentionShape) -> i32 {
    shape.tq.next_multiple_of(STATISTICS_PAD) as i32
}

fn check_operands<E: GpuFloat>(
    check: Check,
    lens: &AttentionLens,
    saved: &Saved<E>,
    gradients: &Gradients<E>,
) -> Result<()> {
    for (name, view) in [("q", saved.q), ("o", saved.o), ("d_o", saved.d_o), ("d_q", gradients.d_q.as_view())] {
        vectors(check, name, view, lens.q)?;
    }
    let d_kv = [("d_k", gradients.d_k.as_view()), ("d_v", gradients.d_v.as_view())];
    for (name, view) in [("k", saved.k), ("v", saved.v)].into_iter().chain(d_kv) {
        vectors(check, name, view, lens.kv)?;
    }
    check.operand("logsumexp", saved.logsumexp, lens.rows)
}

/// The statistics of every query row, pairs `[B,H,padded]`.
fn delta<E: GpuFloat>(gpu: &Gpu, check: Check, shape: &AttentionShape, saved: &Saved<E>) -> Result<Buffer<f32>> {
    let &AttentionShape { batch, tq, n_head, head_dim, .. } = shape;
    let padded = padded(shape);
    let statistics = gpu.alloc::<f32>(check.product("statistics", &[batch, n_head, padded as usize, 2])?)?;
    let tiles = n_head.div_ceil(DELTA_HEADS) * (padded as usize / DELTA_QUERIES);
    let numbers = [tq as i32, padded, n_head as i32, head_dim as i32].map(Arg::I32);
    let pointers = [saved.o.arg(), saved.d_o.arg(), saved.logsumexp.arg(), statistics.view().arg()];
    let config = Config { block: [256, 1, 1], ..Config::linear(tiles.saturating_mul(batch), 1)? };
    gpu.launch(&DELTA, E::SUFFIX, config, &[pointers, numbers].concat())?;
    Ok(statistics)
}

/// One of the two passes: a block takes a tile of stationary rows and walks through tiles of streamed rows.
struct Pass {
    kernel: &'static Kernel,
    head_dim: usize,
    stationary: usize,
    threads: usize,
    shared_bytes: usize,
}

impl Pass {
    fn d_queries<E: GpuFloat>(head_dim: usize) -> Pass {
        if E::SUFFIX == f32::SUFFIX {
            return Pass::f32(&DQ_F32, head_dim, 1);
        }
        // As at the end of attention_backward_dq.cu.
        let (queries, keys) = match head_dim {
            32 | 96 => (128, 64),
            _ => (128, 32),
        };
        Pass::bf16(&DQ_BF16, head_dim, queries, keys, 0)
    }

    fn d_keys_values<E: GpuFloat>(head_dim: usize) -> Pass {
        if E::SUFFIX == f32::SUFFIX {
            return Pass::f32(&DKV_F32, head_dim, 2);
        }
        // As at the end of attention_backward_dkv.cu.
        let (keys, queries) = if head_dim == 128 { (128, 32) } else { (128, 64) };
        Pass::bf16(&DKV_BF16, head_dim, keys, queries, 2 * queries * size_of::<[f32; 2]>())
    }

    /// Two stationary tiles, two double buffers, and `more` bytes.
    fn bf16(kernel: &'static Kernel, head_dim: usize, stationary: usize, streamed: usize, more: usize) -> Pass {
        let shared_bytes = (2 * stationary + 4 * streamed) * head_dim * size_of::<bf16>() + more;
        Pass { kernel, head_dim, stationary, threads: stationary * 2, shared_bytes }
    }

    /// Four tiles of 32 rows, padded by 4, and as many matrices of weights, 32 × 36.
    fn f32(kernel: &'static Kernel, head_dim: usize, weights: usize) -> Pass {
        let shared_bytes = (4 * 32 * (head_dim + 4) + weights * 32 * 36) * size_of::<f32>();
        Pass { kernel, head_dim, stationary: 32, threads: 128, shared_bytes }
    }

    /// For `length` rows of each of the heads.
    fn launch(&self, gpu: &Gpu, length: usize, [batch, heads]: [usize; 2], args: &[Arg]) -> Result<()> {
        let tiles = length.div_ceil(self.stationary);
        let config = Config::linear(tiles.saturating_mul(batch).saturating_mul(heads), 1)?;
        let config = Config { block: [self.threads as u32, 1, 1], shared_bytes: self.shared_bytes, ..config };
        gpu.launch(self.kernel, &self.head_dim.to_string(), config, args)
    }
}

/// Every kernel once: causal, two query heads of one KV head, several tiles of bf16.
pub fn showcase(gpu: &Gpu) -> Result<()> {
    for head_dim in HEAD_DIMS {
        showcase_of::<f32>(gpu, head_dim, 64)?;
        showcase_of::<bf16>(gpu, head_dim, 256)?;
    }
    Ok(())
}

fn showcase_of<E: GpuFloat>(gpu: &Gpu, head_dim: usize, length: usize) -> Result<()> {
    let (n_head, n_kv_head) = (2, 1);
    let shape = AttentionShape {
        batch: 1,
        tq: length,
        tk: length,
        n_head,
        n_kv_head,
        head_dim,
        kv_capacity: length,
        causal: true,
    };
    let (q_len, k_len) = (length * n_head * head_dim, length * n_kv_head * head_dim);
    let (q, k, logsumexp) = (gpu.zeros::<E>(q_len)?, gpu.zeros::<E>(k_len)?, gpu.zeros::<f32>(length * n_head)?);
    let (mut d_q, mut d_k, mut d_v) = (gpu.alloc::<E>(q_len)?, gpu.alloc::<E>(k_len)?, gpu.alloc::<E>(k_len)?);
    let saved =
        Saved { q: q.view(), k: k.view(), v: k.view(), o: q.view(), d_o: q.view(), logsumexp: logsumexp.view() };
    let mut gradients = Gradients { d_q: d_q.view_mut(), d_k: d_k.view_mut(), d_v: d_v.view_mut() };
    backward(gpu, &shape, &saved, &mut gradients)
}

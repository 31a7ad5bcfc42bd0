//! Causal grouped-query attention (chapter 8.2.1, report §5.7 and §9.3).
//!
//! ```text
//! forward    sᵢⱼ = qᵢ·kⱼ / √D for the keys j that query i sees,   pᵢⱼ = exp(sᵢⱼ − ℓᵢ),   oᵢ = Σⱼ pᵢⱼ vⱼ
//!            ℓᵢ = ln Σⱼ exp sᵢⱼ                                   `logsumexp`, the only thing saved besides q, k, v, o
//! backward   δᵢ = d_oᵢ·oᵢ,   d_sᵢⱼ = pᵢⱼ (d_oᵢ·vⱼ − δᵢ) / √D
//!            d_qᵢ = Σⱼ d_sᵢⱼ kⱼ,   d_kⱼ = Σᵢ d_sᵢⱼ qᵢ,   d_vⱼ = Σᵢ pᵢⱼ d_oᵢ
//! ```
//!
//! q is `[B,Tq,H,D]`, k and v are `[B,Tk,Hkv,D]`: heads are read in place. Query head h uses KV head ⌊h/g⌋, g = H/Hkv, so K and V are
//! never repeated, and d_k, d_v sum over the g query heads. The causal mask is aligned to the bottom right: the last
//! query sees all keys. A query that sees no key gives 0, with ℓ = −∞ and gradients 0.
//!
//! On a card, few queries over a cache are another kernel: it splits the cache among blocks where there are too few of
//! them for the card, and merges the parts. The reference below walks whole rows of scores; the tuned version is `cpu/attention.rs`.

use super::{dispatch, same_dtype};
use crate::cpu::attention as tuned;
use crate::cpu::parallel::{par_rows, par_rows_with};
use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::gpu::attention::{Decode, Pass, backward_passes, delta_grid, forward_grid, merge_grid};
use crate::gpu::grid::shared::STATISTICS_PAD;
use crate::gpu::{Gpu, LaunchError};
use crate::launch::{Absent, Arg, F32, In, Int, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

pub use crate::cpu::attention::AttentionDims;

/// Attention of `q` `[B,Tq,H,D]` over `k`, `v` `[B,Tk,Hkv,D]`, scaled by 1/√D; gives `[B,Tq,H,D]`. Errors: shapes, dtypes or
/// devices that do not fit; on a card, a head_dim that no kernel was compiled for.
pub fn attention(tape: &mut Tape, q: &Var, k: &Var, v: &Var, causal: bool) -> Result<Var> {
    let dims = dims(q.value(), k.value(), v.value(), None, causal)?;
    let (out, logsumexp) = forward(&dims, q.value(), k.value(), v.value())?;
    let (q_value, k_value, v_value) = (q.value().clone(), k.value().clone(), v.value().clone());
    let saved = Saved { q: q_value, k: k_value, v: v_value, out: out.clone(), logsumexp };
    Ok(tape.record(&[q, k, v], out, move |d_out, sink| {
        let gradients = backward(&dims, &saved, &d_out)?;
        gradients.into_iter().enumerate().try_for_each(|(i, gradient)| sink.add(i, gradient))
    }))
}

/// Causal attention over the first `len` positions of a preallocated cache, `k`, `v` `[B,capacity,Hkv,D]`. Inference
/// only. Errors: as [`attention`]; more positions than the cache has.
pub fn attention_cached(q: &Tensor, k: &Tensor, v: &Tensor, len: usize) -> Result<Tensor> {
    let dims = dims(q, k, v, Some(len), true)?;
    match q.gpu() {
        Some(gpu) if dims.tq * dims.group_size() <= DECODE_ROWS => launch_decode(gpu, &dims, q, k, v),
        _ => Ok(forward(&dims, q, k, v)?.0),
    }
}

/// What forward kept for backward.
struct Saved {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    /// `[B,Tq,H]`
    logsumexp: Tensor,
}

/// d_q, d_k and d_v.
fn backward(dims: &AttentionDims, saved: &Saved, d_out: &Tensor) -> Result<[Tensor; 3]> {
    dispatch(
        "attention",
        &[&saved.q, d_out],
        || tuned_backward(dims, saved, d_out),
        || backward_reference::<f64>(dims, saved, d_out),
        |gpu| launch_backward(gpu, dims, saved, d_out),
    )
}

fn tuned_backward(dims: &AttentionDims, saved: &Saved, d_out: &Tensor) -> Result<[Tensor; 3]> {
    let slices = tuned::Saved {
        q: saved.q.as_slice()?,
        k: saved.k.as_slice()?,
        v: saved.v.as_slice()?,
        out: saved.out.as_slice()?,
        logsumexp: saved.logsumexp.as_slice()?,
    };
    let (d_q, d_k, d_v) = tuned::backward(dims, &slices, d_out.as_slice()?);
    Ok([
        Tensor::from_vec(d_q, saved.q.shape())?,
        Tensor::from_vec(d_k, saved.k.shape())?,
        Tensor::from_vec(d_v, saved.v.shape())?,
    ])
}

fn dims(q: &Tensor, k: &Tensor, v: &Tensor, len: Option<usize>, causal: bool) -> Result<AttentionDims> {
    let (qs, ks) = (q.shape(), k.shape());
    let found = || format!("attention: found q {qs:?}, k {ks:?} and v {:?}", v.shape());
    ensure!(qs.len() == 4 && ks.len() == 4 && ks == v.shape(), "{}, expected [B,Tq,H,D], [B,Tk,Hkv,D] twice", found());
    ensure!(qs[0] == ks[0] && qs[3] == ks[3], "{}, expected the same B and D", found());
    ensure!(ks[2] > 0 && qs[2] % ks[2] == 0, "{}, expected H to be a multiple of Hkv", found());
    ensure!(qs[3] > 0, "{}, expected a head_dim of at least 1", found());
    let tk = len.unwrap_or(ks[1]);
    ensure!(tk <= ks[1], "attention: found {tk} positions, expected at most the cache's {}", ks[1]);
    same_dtype("attention", q, k)?;
    same_dtype("attention", q, v)?;
    Ok(AttentionDims {
        batch: qs[0],
        tq: qs[1],
        tk,
        n_head: qs[2],
        n_kv_head: ks[2],
        head_dim: qs[3],
        kv_capacity: ks[1],
        causal,
    })
}

/// The output and logsumexp `[B,Tq,H]`.
fn forward(dims: &AttentionDims, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
    dispatch(
        "attention",
        &[q, k, v],
        || {
            let (out, logsumexp) = tuned::forward(dims, q.as_slice()?, k.as_slice()?, v.as_slice()?);
            Ok((Tensor::from_vec(out, q.shape())?, Tensor::from_vec(logsumexp, &q.shape()[..3])?))
        },
        || reference::<f64>(dims, q, k, v),
        |gpu| launch(gpu, dims, q, k, v),
    )
}

/// One query row: which keys it sees, and its scores. Rows of q are numbered (b Tq + i) H + h.
struct Row {
    b: usize,
    h: usize,
    visible: usize,
}

impl Row {
    fn new(dims: &AttentionDims, row: usize) -> Row {
        let (bi, h) = (row / dims.n_head, row % dims.n_head);
        Row { b: bi / dims.tq, h, visible: dims.visible_keys(bi % dims.tq) }
    }

    /// Where row (b, j, kv_head) of k or v begins.
    fn key_offset(&self, dims: &AttentionDims, j: usize) -> usize {
        ((self.b * dims.kv_capacity + j) * dims.n_kv_head + self.h / dims.group_size()) * dims.head_dim
    }

    fn score<F: Float>(&self, dims: &AttentionDims, q: &[F], k: &[F], j: usize) -> F {
        dot(q, &k[self.key_offset(dims, j)..]) * F::of(dims.scale())
    }
}

fn reference<F: Float>(dims: &AttentionDims, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
    let d = dims.head_dim;
    let (q_data, k, v) = (q.as_slice::<F>()?, k.as_slice::<F>()?, v.as_slice::<F>()?);
    let mut out = vec![F::zero(); q.len()];
    let mut logsumexp = vec![F::zero(); q.len() / d];
    par_rows_with(&mut out, d, &mut logsumexp, |n, out| {
        let row = Row::new(dims, n);
        let q = &q_data[n * d..][..d];
        let scores: Vec<F> = (0..row.visible).map(|j| row.score(dims, q, k, j)).collect();
        let max = scores.iter().fold(F::neg_infinity(), |m, &s| if s > m || s.is_nan() { s } else { m });
        if max == F::neg_infinity() {
            return max; // nothing to attend to: out stays 0
        }
        let sum: F = scores.iter().map(|&s| (s - max).exp()).sum();
        for (j, &s) in scores.iter().enumerate() {
            let p = (s - max).exp() / sum;
            for (out, &v) in out.iter_mut().zip(&v[row.key_offset(dims, j)..]) {
                *out += p * v;
            }
        }
        max + sum.ln()
    });
    Ok((Tensor::from_vec(out, q.shape())?, Tensor::from_vec(logsumexp, &q.shape()[..3])?))
}

fn backward_reference<F: Float>(dims: &AttentionDims, saved: &Saved, d_out: &Tensor) -> Result<[Tensor; 3]> {
    let (d, scale) = (dims.head_dim, F::of(dims.scale()));
    let (q, k, v) = (saved.q.as_slice::<F>()?, saved.k.as_slice::<F>()?, saved.v.as_slice::<F>()?);
    let (out, logsumexp, d_out) =
        (saved.out.as_slice::<F>()?, saved.logsumexp.as_slice::<F>()?, d_out.as_slice::<F>()?);
    // p and d_s of query row n and key j
    let p = |row: &Row, n: usize, j: usize| (row.score(dims, &q[n * d..][..d], k, j) - logsumexp[n]).exp();
    let d_s = |row: &Row, n: usize, j: usize| {
        let delta = dot(&d_out[n * d..][..d], &out[n * d..]);
        p(row, n, j) * (dot(&d_out[n * d..][..d], &v[row.key_offset(dims, j)..]) - delta) * scale
    };

    let mut d_q = vec![F::zero(); q.len()];
    par_rows(&mut d_q, d, |n, d_q| {
        let row = Row::new(dims, n);
        for j in 0..row.visible {
            add_scaled(d_q, d_s(&row, n, j), &k[row.key_offset(dims, j)..]);
        }
    });

    // Row m of d_k and d_v is (b Tk + j) Hkv + kv_head; the query rows that read it are those of its group.
    let readers = |m: usize| {
        let (j, first) = (m / dims.n_kv_head % dims.tk, m % dims.n_kv_head * dims.group_size());
        let b = m / dims.n_kv_head / dims.tk;
        let queries = (0..dims.tq).filter(move |&i| j < dims.visible_keys(i));
        (j, queries.flat_map(move |i| (0..dims.group_size()).map(move |g| (b * dims.tq + i) * dims.n_head + first + g)))
    };
    let mut d_k = vec![F::zero(); k.len()];
    par_rows(&mut d_k, d, |m, d_k| {
        let (j, rows) = readers(m);
        rows.for_each(|n| add_scaled(d_k, d_s(&Row::new(dims, n), n, j), &q[n * d..]));
    });
    let mut d_v = vec![F::zero(); v.len()];
    par_rows(&mut d_v, d, |m, d_v| {
        let (j, rows) = readers(m);
        rows.for_each(|n| add_scaled(d_v, p(&Row::new(dims, n), n, j), &d_out[n * d..]));
    });
    Ok([
        Tensor::from_vec(d_q, saved.q.shape())?,
        Tensor::from_vec(d_k, saved.k.shape())?,
        Tensor::from_vec(d_v, saved.v.shape())?,
    ])
}

fn dot<F: Float>(a: &[F], b: &[F]) -> F {
    a.iter().zip(b).map(|(&a, &b)| a * b).sum()
}

fn add_scaled<F: Float>(sum: &mut [F], factor: F, x: &[F]) {
    for (sum, &x) in sum.iter_mut().zip(x) {
        *sum += factor * x;
    }
}

/// Query rows of a KV head up to which the kernel for few queries is taken.
const DECODE_ROWS: usize = 64;
/// The most positions of a sequence on a card: sums of two fit in a kernel's 32-bit integers.
const MOST_POSITIONS: usize = 1 << 30;

/// B, Tq, Tk, H, Hkv, capacity and whether causal, as the forward kernels take them. Error: too many positions.
fn sizes(dims: &AttentionDims) -> Result<[Arg<'static>; 7]> {
    for positions in [dims.tq, dims.kv_capacity] {
        if positions > MOST_POSITIONS {
            let expected = format!("at most {MOST_POSITIONS}");
            let (kernel, what) = ("attention".to_string(), "positions".to_string());
            return Err(LaunchError::Range { kernel, what, found: positions.to_string(), expected }.into());
        }
    }
    let sizes = [dims.batch, dims.tq, dims.tk, dims.n_head, dims.n_kv_head, dims.kv_capacity, dims.causal.into()];
    Ok(sizes.map(int))
}

/// log2(e)/√D: what scores are multiplied with, so that their exponentials are powers of two.
fn scale_log2(dims: &AttentionDims) -> Arg<'static> {
    F32((dims.scale() * std::f64::consts::LOG2_E) as f32)
}

/// Zeros where no query sees a key, as the kernels have nothing to read then.
fn sees_nothing(dims: &AttentionDims, q: &Tensor) -> bool {
    q.len() == 0 || dims.tk == 0
}

fn launch(gpu: &Gpu, dims: &AttentionDims, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
    let device = Device::Gpu(gpu.clone());
    if sees_nothing(dims, q) {
        let logsumexp = Tensor::full(&q.shape()[..3], f64::NEG_INFINITY, DType::F32).to(&device)?;
        return Ok((Tensor::zeros_on(q.shape(), q.dtype(), &device)?, logsumexp));
    }
    let out = Tensor::empty(q.shape(), q.dtype(), gpu)?;
    let logsumexp = Tensor::empty(&q.shape()[..3], DType::F32, gpu)?;
    let grid = forward_grid(dims.head_dim, q.dtype().size(), dims.tq, dims.n_head * dims.batch)?;
    let tensors = [In(q), In(k), In(v), Out(&out), Out(&logsumexp)];
    gpu.launch("attention_forward", &grid, &[&tensors[..], &sizes(dims)?, &[scale_log2(dims)]].concat())?;
    Ok((out, logsumexp))
}

fn launch_decode(gpu: &Gpu, dims: &AttentionDims, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    if sees_nothing(dims, q) {
        return Tensor::zeros_on(q.shape(), q.dtype(), &Device::Gpu(gpu.clone()));
    }
    let rows = dims.tq * dims.group_size();
    let plan = Decode::new(gpu.limits(), dims.head_dim, q.dtype().size(), rows, dims.tk, dims.batch * dims.n_kv_head)?;
    let out = Tensor::empty(q.shape(), q.dtype(), gpu)?;
    let (all_rows, d) = (q.len() / dims.head_dim, dims.head_dim);
    let part = |shape: &[usize]| Tensor::empty(shape, DType::F32, gpu);
    let parts = match plan.splits {
        1 => None,
        splits => Some((part(&[all_rows, splits, d])?, part(&[all_rows, splits])?)),
    };
    let (o_part, lse_part) = parts.as_ref().map_or((Absent, Absent), |(o, lse)| (Out(o), Out(lse)));
    let tensors = [In(q), In(k), In(v), Out(&out), o_part, lse_part];
    let cuts = [int(plan.row_tiles), int(plan.splits), int(plan.tiles_per_split), scale_log2(dims)];
    gpu.launch("attention_decode_split", &plan.grid, &[&tensors[..], &sizes(dims)?, &cuts].concat())?;
    if let Some((o_part, lse_part)) = &parts {
        let args = [In(o_part), In(lse_part), Out(&out), int(all_rows), int(plan.splits), int(d)];
        gpu.launch("attention_decode_merge", &merge_grid(all_rows), &args)?;
    }
    Ok(out)
}

/// δ of every query row, then d_q, then d_k and d_v: each output element belongs to one block.
fn launch_backward(gpu: &Gpu, dims: &AttentionDims, saved: &Saved, d_out: &Tensor) -> Result<[Tensor; 3]> {
    let Saved { q, k, v, out, logsumexp } = saved;
    let &AttentionDims { batch, tq, tk, n_head, n_kv_head, head_dim, causal, .. } = dims;
    let zeros = |x: &Tensor| Tensor::zeros_on(x.shape(), x.dtype(), &x.device());
    if sees_nothing(dims, q) {
        return Ok([zeros(q)?, zeros(k)?, zeros(v)?]);
    }
    sizes(dims)?;
    let padded = tq.next_multiple_of(STATISTICS_PAD);
    let statistics = Tensor::empty(&[batch, n_head, padded, 2], DType::F32, gpu)?;
    let tensors = [In(out), In(d_out), In(logsumexp), Out(&statistics)];
    let shape = [int(tq), int(padded), int(n_head), int(head_dim)];
    gpu.launch("attention_backward_delta", &delta_grid(padded, n_head, batch), &[&tensors[..], &shape].concat())?;

    let empty = |x: &Tensor| Tensor::empty(x.shape(), x.dtype(), gpu);
    let (d_q, d_k, d_v) = (empty(q)?, empty(k)?, empty(v)?);
    // Query i sees the keys up to i + reach.
    let reach = if causal { tk as i64 - tq as i64 } else { tk as i64 };
    let numbers = [int(tq), int(padded), int(tk), int(n_head), int(n_kv_head), Int(reach)];
    let inputs = [In(q), In(k), In(v), In(d_out), In(&statistics)];
    let [queries, keys]: [Pass; 2] = backward_passes(head_dim, q.dtype().size())?;
    let args = [&inputs[..], &[Out(&d_q)], &numbers].concat();
    gpu.launch("attention_backward_dq", &queries.grid(tq, batch * n_head), &args)?;
    let args = [&inputs[..], &[Out(&d_k), Out(&d_v)], &numbers].concat();
    gpu.launch("attention_backward_dkv", &keys.grid(tk, batch * n_kv_head), &args)?;
    Ok([d_q, d_k, d_v])
}

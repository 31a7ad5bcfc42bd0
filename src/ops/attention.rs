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
//! The reference below walks whole rows of scores; the tuned version is `cpu/attention.rs`.

use super::{same_dtype, unsupported};
use crate::cpu::attention as tuned;
use crate::cpu::parallel::{par_rows, par_rows_with};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

pub use crate::cpu::attention::AttentionDims;

/// Attention of `q` `[B,Tq,H,D]` over `k`, `v` `[B,Tk,Hkv,D]`, scaled by 1/√D; gives `[B,Tq,H,D]`.
pub fn attention(tape: &mut Tape, q: &Var, k: &Var, v: &Var, causal: bool) -> Result<Var> {
    let dims = dims(q.value(), k.value(), v.value(), None, causal)?;
    let (out, logsumexp) = forward(&dims, q.value(), k.value(), v.value())?;
    let saved_out = out.clone();
    Ok(tape.record(&[q, k, v], out, || {
        Box::new(Attention {
            q: q.value().clone(),
            k: k.value().clone(),
            v: v.value().clone(),
            out: saved_out,
            logsumexp,
            dims,
        })
    }))
}

/// Causal attention over the first `len` positions of a preallocated cache, `k`, `v` `[B,capacity,Hkv,D]`. Inference only.
pub fn attention_cached(q: &Tensor, k: &Tensor, v: &Tensor, len: usize) -> Result<Tensor> {
    let dims = dims(q, k, v, Some(len), true)?;
    Ok(forward(&dims, q, k, v)?.0)
}

struct Attention {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    /// `[B,Tq,H]`
    logsumexp: Tensor,
    dims: AttentionDims,
}

impl Backward for Attention {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_out = only(d_outputs);
        let [d_q, d_k, d_v] = match d_out.dtype() {
            DType::F32 => self.tuned_backward(&d_out)?,
            DType::F64 => backward_reference::<f64>(&self, &d_out)?,
            dtype => return Err(unsupported("attention", dtype)),
        };
        Ok(vec![Some(d_q), Some(d_k), Some(d_v)])
    }
}

impl Attention {
    fn tuned_backward(&self, d_out: &Tensor) -> Result<[Tensor; 3]> {
        let saved = tuned::Saved {
            q: self.q.as_slice()?,
            k: self.k.as_slice()?,
            v: self.v.as_slice()?,
            out: self.out.as_slice()?,
            logsumexp: self.logsumexp.as_slice()?,
        };
        let (d_q, d_k, d_v) = tuned::backward(&self.dims, &saved, d_out.as_slice()?);
        Ok([
            Tensor::from_vec(d_q, self.q.shape())?,
            Tensor::from_vec(d_k, self.k.shape())?,
            Tensor::from_vec(d_v, self.v.shape())?,
        ])
    }
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

fn forward(dims: &AttentionDims, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
    let (out, logsumexp) = match q.dtype() {
        DType::F32 => {
            let (out, logsumexp) = tuned::forward(dims, q.as_slice()?, k.as_slice()?, v.as_slice()?);
            (Tensor::from_vec(out, q.shape())?, Tensor::from_vec(logsumexp, &q.shape()[..3])?)
        }
        DType::F64 => reference::<f64>(dims, q, k, v)?,
        dtype => return Err(unsupported("attention", dtype)),
    };
    Ok((out, logsumexp))
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

fn backward_reference<F: Float>(saved: &Attention, d_out: &Tensor) -> Result<[Tensor; 3]> {
    let dims = &saved.dims;
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

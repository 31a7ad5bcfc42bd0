//! Attention in tiles on the CPU, f32: FlashAttention-2's algorithm (report §9.3) with matrix products per tile.
//!
//! ```text
//! forward, for each tile of BLOCK queries and each head        memory: one [BLOCK,BLOCK] tile of scores a thread,
//!   for each tile of BLOCK keys that some query sees           so O(T) and not O(T²)
//!     S  = Q Kᵀ / √D,  masked
//!     m' = max(m, rowmax S),  P = exp(S − m'),  c = exp(m − m')
//!     l  = c l + rowsum P,    O = c O + P V
//!   O = O / l,  logsumexp = m + ln l
//!
//! backward   P = exp(S − logsumexp) is computed again, tile by tile, twice: once for d_q (a task owns queries),
//!            once for d_k and d_v (a task owns keys and loops over the query heads of its group)
//! ```
//!
//! Every output element belongs to one task, so nothing is added across threads and the bits do not depend on them.

use super::gemm::{MatRef, gemm_serial};
use super::{reduce, simd};
use rayon::prelude::*;

/// Queries or keys in a tile.
const BLOCK: usize = 64;

/// Sizes of an attention call.
#[derive(Clone, Copy, Debug)]
pub struct AttentionDims {
    pub batch: usize,
    pub tq: usize,
    pub tk: usize,
    pub n_head: usize,
    pub n_kv_head: usize,
    pub head_dim: usize,
    /// Positions that k and v have room for; `tk` unless they are a cache.
    pub kv_capacity: usize,
    pub causal: bool,
}

impl AttentionDims {
    /// Query heads per KV head.
    pub fn group_size(&self) -> usize {
        self.n_head / self.n_kv_head
    }

    pub fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// How many keys query `i` sees, from the first: all up to its own position, counted from the end.
    pub fn visible_keys(&self, i: usize) -> usize {
        if self.causal { (i + 1 + self.tk).saturating_sub(self.tq) } else { self.tk }
    }

    fn q_len(&self) -> usize {
        self.batch * self.tq * self.n_head * self.head_dim
    }

    /// Rows `first..` of one head of a `[B,T,H,D]` tensor with room for `capacity` positions, as a `[T,D]` matrix.
    fn head<'a>(&self, x: &'a [f32], b: usize, capacity: usize, heads: usize, head: usize, first: usize) -> MatRef<'a> {
        let start = ((b * capacity + first) * heads + head) * self.head_dim;
        MatRef { data: &x[start..], row_stride: heads * self.head_dim, col_stride: 1 }
    }

    fn query_head<'a>(&self, x: &'a [f32], b: usize, head: usize, first: usize) -> MatRef<'a> {
        self.head(x, b, self.tq, self.n_head, head, first)
    }

    fn kv_head<'a>(&self, x: &'a [f32], b: usize, head: usize, first: usize) -> MatRef<'a> {
        self.head(x, b, self.kv_capacity, self.n_kv_head, head, first)
    }
}

fn transposed(x: MatRef) -> MatRef {
    MatRef { data: x.data, row_stride: x.col_stride, col_stride: x.row_stride }
}

/// A tile of scores, `[rows, cols]` within `[BLOCK, BLOCK]`.
fn tile_ref(tile: &[f32]) -> MatRef<'_> {
    MatRef { data: tile, row_stride: BLOCK, col_stride: 1 }
}

/// Output `[B,Tq,H,D]` and logsumexp `[B,Tq,H]`.
pub fn forward(dims: &AttentionDims, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let &AttentionDims { tq, n_head: h, head_dim: d, .. } = dims;
    let mut out = vec![0.0; dims.q_len()];
    let mut logsumexp = vec![f32::NEG_INFINITY; dims.q_len() / d];
    if out.is_empty() {
        return (out, logsumexp);
    }
    let batches = out.par_chunks_mut(tq * h * d).zip(logsumexp.par_chunks_mut(tq * h)).enumerate();
    batches.for_each(|(b, (out, logsumexp))| {
        let tiles = out.par_chunks_mut(BLOCK * h * d).zip(logsumexp.par_chunks_mut(BLOCK * h)).enumerate();
        tiles.for_each(|(tile, (out, logsumexp))| {
            for head in 0..h {
                forward_tile(dims, (q, k, v), b, head, tile * BLOCK, out, logsumexp);
            }
        });
    });
    (out, logsumexp)
}

/// One head of one query tile: `out` `[rows,H,D]` and `logsumexp` `[rows,H]` are the tile's own.
fn forward_tile(
    dims: &AttentionDims,
    (q, k, v): (&[f32], &[f32], &[f32]),
    b: usize,
    head: usize,
    first: usize,
    out: &mut [f32],
    logsumexp: &mut [f32],
) {
    let &AttentionDims { n_head: h, head_dim: d, .. } = dims;
    let rows = logsumexp.len() / h;
    let kv = head / dims.group_size();
    let mut scores = vec![0.0; BLOCK * BLOCK];
    let (mut max, mut sum) = ([f32::NEG_INFINITY; BLOCK], [0.0; BLOCK]);
    for key in (0..dims.visible_keys(first + rows - 1)).step_by(BLOCK) {
        let cols = BLOCK.min(dims.tk - key);
        let (q, k, v) = (dims.query_head(q, b, head, first), dims.kv_head(k, b, kv, key), dims.kv_head(v, b, kv, key));
        gemm_serial(rows, cols, d, q, transposed(k), &mut scores, BLOCK, false);
        for i in 0..rows {
            let visible = dims.visible_keys(first + i).saturating_sub(key).min(cols);
            let rescale =
                softmax_step(&mut scores[i * BLOCK..][..cols], visible, dims.scale(), &mut max[i], &mut sum[i]);
            scale_row(&mut out[(i * h + head) * d..][..d], rescale);
        }
        gemm_serial(rows, d, cols, tile_ref(&scores), v, &mut out[head * d..], h * d, true);
    }
    for i in 0..rows {
        if sum[i] > 0.0 || sum[i].is_nan() {
            scale_row(&mut out[(i * h + head) * d..][..d], 1.0 / sum[i]);
            logsumexp[i * h + head] = max[i] + sum[i].ln();
        }
    }
}

/// Turns a row of raw scores into exp(score − max), zeros from `visible` on; returns what older sums must be multiplied by.
fn softmax_step(row: &mut [f32], visible: usize, scale: f64, max: &mut f32, sum: &mut f32) -> f32 {
    let (seen, hidden) = row.split_at_mut(visible);
    hidden.fill(0.0);
    let scale = scale as f32;
    simd::vectorize(
        #[inline(always)]
        || {
            let mut new_max = *max;
            for s in seen.iter_mut() {
                *s *= scale;
                new_max = if *s > new_max || s.is_nan() { *s } else { new_max }; // a NaN stays
            }
            if new_max == f32::NEG_INFINITY {
                seen.fill(0.0); // all visible scores are −∞ so far
                return 1.0;
            }
            let rescale = simd::exp(*max - new_max);
            for s in seen.iter_mut() {
                *s = simd::exp(*s - new_max);
            }
            *sum = *sum * rescale + reduce::sum_of(seen, |p| p);
            *max = new_max;
            rescale
        },
    )
}

fn scale_row(row: &mut [f32], factor: f32) {
    for x in row {
        *x *= factor;
    }
}

/// What forward kept for backward.
pub struct Saved<'a> {
    pub q: &'a [f32],
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub out: &'a [f32],
    pub logsumexp: &'a [f32],
}

/// (d_q, d_k, d_v) for d_out `[B,Tq,H,D]`.
pub fn backward(dims: &AttentionDims, saved: &Saved, d_out: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let &AttentionDims { tq, tk, n_head: h, n_kv_head: hkv, head_dim: d, .. } = dims;
    let mut d_q = vec![0.0; saved.q.len()];
    let (mut d_k, mut d_v) = (vec![0.0; saved.k.len()], vec![0.0; saved.v.len()]);
    if d_q.is_empty() || d_k.is_empty() {
        return (d_q, d_k, d_v);
    }
    let rows = d_out.chunks_exact(d).zip(saved.out.chunks_exact(d));
    let delta: Vec<f32> = simd::vectorize(
        #[inline(always)]
        || rows.map(|(d_out, out)| reduce::sum_of_products(d_out, out)).collect(),
    );
    let task = Task { dims, saved, d_out, delta: &delta };
    d_q.par_chunks_mut(tq * h * d).enumerate().for_each(|(b, d_q)| {
        d_q.par_chunks_mut(BLOCK * h * d).enumerate().for_each(|(tile, d_q)| {
            (0..h).for_each(|head| task.query_tile(b, head, tile * BLOCK, d_q));
        });
    });
    let batches = d_k.par_chunks_mut(tk * hkv * d).zip(d_v.par_chunks_mut(tk * hkv * d)).enumerate();
    batches.for_each(|(b, (d_k, d_v))| {
        let tiles = d_k.par_chunks_mut(BLOCK * hkv * d).zip(d_v.par_chunks_mut(BLOCK * hkv * d)).enumerate();
        tiles.for_each(|(tile, (d_k, d_v))| (0..h).for_each(|head| task.key_tile(b, head, tile * BLOCK, d_k, d_v)));
    });
    (d_q, d_k, d_v)
}

/// The inputs of backward that all tiles share.
struct Task<'a> {
    dims: &'a AttentionDims,
    saved: &'a Saved<'a>,
    d_out: &'a [f32],
    /// d_o·o, `[B,Tq,H]`
    delta: &'a [f32],
}

impl Task<'_> {
    /// d_q of one head of the query tile that starts at `first`; `d_q` `[rows,H,D]` is the tile's own.
    fn query_tile(&self, b: usize, head: usize, first: usize, d_q: &mut [f32]) {
        let &AttentionDims { n_head: h, head_dim: d, .. } = self.dims;
        let rows = d_q.len() / (h * d);
        let kv = head / self.dims.group_size();
        let (mut p, mut d_s) = (vec![0.0; BLOCK * BLOCK], vec![0.0; BLOCK * BLOCK]);
        for key in (0..self.dims.visible_keys(first + rows - 1)).step_by(BLOCK) {
            let cols = BLOCK.min(self.dims.tk - key);
            self.scores(b, head, (first, rows), (key, cols), &mut p, &mut d_s);
            let k = self.dims.kv_head(self.saved.k, b, kv, key);
            gemm_serial(rows, d, cols, tile_ref(&d_s), k, &mut d_q[head * d..], h * d, true);
        }
    }

    /// Adds one query head's part of d_k and d_v for the key tile that starts at `key`.
    fn key_tile(&self, b: usize, head: usize, key: usize, d_k: &mut [f32], d_v: &mut [f32]) {
        let &AttentionDims { tq, n_kv_head: hkv, head_dim: d, .. } = self.dims;
        let cols = d_k.len() / (hkv * d);
        let kv = head / self.dims.group_size();
        let (mut p, mut d_s) = (vec![0.0; BLOCK * BLOCK], vec![0.0; BLOCK * BLOCK]);
        for first in (0..tq).step_by(BLOCK) {
            let rows = BLOCK.min(tq - first);
            if self.dims.visible_keys(first + rows - 1) <= key {
                continue; // the whole tile lies above the diagonal
            }
            self.scores(b, head, (first, rows), (key, cols), &mut p, &mut d_s);
            let q = self.dims.query_head(self.saved.q, b, head, first);
            let d_out = self.dims.query_head(self.d_out, b, head, first);
            gemm_serial(cols, d, rows, transposed(tile_ref(&p)), d_out, &mut d_v[kv * d..], hkv * d, true);
            gemm_serial(cols, d, rows, transposed(tile_ref(&d_s)), q, &mut d_k[kv * d..], hkv * d, true);
        }
    }

    /// P and d_S of the tile of queries `first..first+rows` and keys `key..key+cols`, zeros where a key is hidden.
    fn scores(
        &self,
        b: usize,
        head: usize,
        (first, rows): (usize, usize),
        (key, cols): (usize, usize),
        p: &mut [f32],
        d_s: &mut [f32],
    ) {
        let &AttentionDims { tq, n_head: h, head_dim: d, .. } = self.dims;
        let kv = head / self.dims.group_size();
        let (k, v) = (self.dims.kv_head(self.saved.k, b, kv, key), self.dims.kv_head(self.saved.v, b, kv, key));
        gemm_serial(rows, cols, d, self.dims.query_head(self.saved.q, b, head, first), transposed(k), p, BLOCK, false);
        gemm_serial(rows, cols, d, self.dims.query_head(self.d_out, b, head, first), transposed(v), d_s, BLOCK, false);
        let scale = self.dims.scale() as f32;
        for i in 0..rows {
            let n = (b * tq + first + i) * h + head;
            let visible = self.dims.visible_keys(first + i).saturating_sub(key).min(cols);
            let (p, d_s) = (&mut p[i * BLOCK..][..cols], &mut d_s[i * BLOCK..][..cols]);
            p[visible..].fill(0.0);
            d_s[visible..].fill(0.0);
            let (logsumexp, delta) = (self.saved.logsumexp[n], self.delta[n]);
            simd::vectorize(
                #[inline(always)]
                || {
                    for (p, d_s) in p[..visible].iter_mut().zip(&mut d_s[..visible]) {
                        *p = simd::exp(*p * scale - logsumexp);
                        *d_s = *p * (*d_s - delta) * scale;
                    }
                },
            );
        }
    }
}

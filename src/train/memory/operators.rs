//! What the backward half of each operator does to memory: the terms of the walk, in its order, from the last to the first.

use super::Step;
use crate::gpu::gemm::{Product, Tiling};
use crate::gpu::grid::shared::*;
use crate::gpu::grid::{Teams, in_vectors};
use crate::nn::ModelConfig;
use crate::nn::config::{FeedForwardKind, NormKind, NormPosition, Positions};
use crate::ops::add::{LEAST_CHUNK, MOST_CHUNKS};
use crate::ops::linear_cross_entropy::most_rows;

/// Bytes that a backward half makes and lets go.
#[derive(Clone, Copy, Default)]
pub struct Op {
    /// Tensors of the forward pass that no operator before it keeps as well: they go when it is done.
    pub keeps: f64,
    /// Gradients of activations that are no longer needed when it is done, and those that it makes.
    pub takes: f64,
    pub gives: f64,
    /// Gradients of parameters that it makes.
    pub weight: f64,
    /// What it needs besides, within itself.
    pub workspace: f64,
}

/// The operators of a block.
pub struct Block {
    pub ops: Vec<Op>,
    /// What it keeps from forward on.
    pub keeps: f64,
}

/// Where a linear layer's d_x goes: it becomes a gradient, or, once it is there, is added to one.
#[derive(Clone, Copy, PartialEq)]
enum Into {
    New,
    Sum,
}

impl Step<'_> {
    pub(super) fn tokens(&self) -> f64 {
        self.batch_size as f64 * self.seq_len as f64
    }

    /// `columns` numbers for each token, in the activations' type.
    pub(super) fn activation(&self, columns: f64) -> f64 {
        self.tokens() * columns * self.dtype.size() as f64
    }

    pub(super) fn block(&self) -> Block {
        let config = self.config;
        let &ModelConfig { n_embd: c, n_head: h, n_kv_head: hkv, head_dim: d, n_ff: f, bias, .. } = config;
        let (pre, gated) = (config.norm_position == NormPosition::Pre, config.feed_forward == FeedForwardKind::SwiGlu);
        let [c, f, wide_q, wide_kv] = [c as f64, f as f64, h as f64 * d as f64, hkv as f64 * d as f64];
        let [stream, inner, q, kv] = [c, f, wide_q, wide_kv].map(|columns| self.activation(columns));
        // In Pre-LN a branch's input has no other reader; in Post-LN it is the residual stream, whose gradient is there already.
        let into = if pre { Into::New } else { Into::Sum };
        // With --recompute whoever called the block holds the gradient of its output to the end.
        let held = if self.recompute { stream } else { 0.0 };
        let nothing = Op::default();

        let mut ops = vec![];
        if !pre {
            ops.push(self.norm(stream - held, stream)); // ffn_norm keeps the sum before it
        }
        // down_proj keeps what swiglu or gelu gave; its d_y stays: it is the residual stream's, too.
        ops.extend(self.linear(f, c, bias, Into::New, Op { keeps: inner, ..nothing }));
        if gated {
            // swiglu keeps gate and up, gate_proj and up_proj their input, which goes with the second.
            ops.push(Op { takes: inner, gives: 2.0 * inner, keeps: 2.0 * inner, ..nothing });
            ops.extend(self.linear(c, f, bias, into, Op { takes: inner, ..nothing }));
            ops.extend(self.linear(c, f, bias, Into::Sum, Op { takes: inner, keeps: stream, ..nothing }));
        } else {
            // gelu keeps up, up_proj its input.
            ops.push(Op { takes: inner, gives: inner, keeps: inner, ..nothing });
            ops.extend(self.linear(c, f, bias, into, Op { takes: inner, keeps: stream, ..nothing }));
        }
        // The norm between the branches keeps their sum. In Pre-LN it makes one gradient of that of its output and that of the
        // block's output.
        ops.push(self.norm(if pre { 2.0 * stream - held } else { stream }, stream));
        // o_proj's d_y is the residual stream's; its input is attention's output.
        ops.extend(self.linear(wide_q, c, bias, Into::New, nothing));
        ops.push(self.attention(q, kv));
        ops.extend(self.norm_rope(hkv, kv));
        ops.extend(self.norm_rope(h, q));
        // v_proj, k_proj (never with a bias) and q_proj keep one input, which goes with the last.
        let input = if pre { stream } else { 0.0 };
        ops.extend(self.linear(c, wide_kv, bias, into, Op { takes: kv, ..nothing }));
        ops.extend(self.linear(c, wide_kv, false, Into::Sum, Op { takes: kv, ..nothing }));
        ops.extend(self.linear(c, wide_q, bias, Into::Sum, Op { takes: q, keeps: input, ..nothing }));
        if pre {
            ops.push(self.norm(2.0 * stream, 0.0)); // attn_norm adds to the gradient that came past the branch
        }

        // The block's input is kept either way, by attn_norm or by q_proj, or alone.
        let inside: f64 = ops.iter().map(|op| op.keeps).sum();
        if !self.recompute {
            ops.push(Op { keeps: stream, ..nothing });
            return Block { ops, keeps: inside + stream };
        }
        // Forward again: what it keeps, its output, and until it returns the outputs of both branches.
        ops.insert(0, Op { gives: inside + stream, workspace: 2.0 * stream, ..nothing });
        ops.push(Op { keeps: 2.0 * stream + held, ..nothing }); // input and output
        Block { ops, keeps: stream }
    }

    /// A linear layer `[O,I]` after the addition of its bias: d_x, then d_W, each with the parts of its splits. `op` has what
    /// it takes and keeps.
    fn linear(&self, i: f64, o: f64, bias: bool, into: Into, op: Op) -> impl Iterator<Item = Op> {
        let (tokens, d_x, weight) = (self.tokens(), self.activation(i), 4.0 * i * o);
        let (new, sum) = if into == Into::New { (d_x, 0.0) } else { (0.0, d_x) };
        let (parts_x, parts_w) = (self.parts([tokens, i, o], [o, i]), self.parts([o, i, tokens], [o, i]));
        let workspace = parts_w.max(sum + parts_x - weight); // d_W is not there yet when d_x is made
        let bias = bias.then(|| Op { weight: 4.0 * o, workspace: 4.0 * repeat_parts(tokens) * o, ..Op::default() });
        bias.into_iter().chain([Op { gives: op.gives + new, weight, workspace, ..op }])
    }

    /// RMSNorm keeps a number a row besides `keeps`, LayerNorm two; partial sums of d_gain, and LayerNorm's d_bias.
    pub(super) fn norm(&self, takes: f64, keeps: f64) -> Op {
        let (rows, cols) = (self.tokens(), self.config.n_embd);
        let (vectors, warp_cols, own) = match self.config.norm {
            NormKind::RmsNorm => (1.0, RMS_NORM_WARP_COLS, RMS_NORM_OWN),
            NormKind::LayerNorm => (2.0, LAYER_NORM_WARP_COLS, LAYER_NORM_OWN),
        };
        let weight = 4.0 * vectors * cols as f64;
        Op {
            takes,
            keeps: keeps + 4.0 * vectors * rows,
            gives: self.activation(cols as f64),
            weight,
            workspace: weight * self.summing_parts(rows, cols, warp_cols, own),
        }
    }

    /// attention keeps q, k, v, its output and a logsumexp a row; δ and logsumexp of padded rows are its workspace.
    fn attention(&self, q: f64, kv: f64) -> Op {
        let heads = self.config.n_head as f64;
        let padded = (self.seq_len as f64 / STATISTICS_PAD as f64).ceil() * STATISTICS_PAD as f64;
        Op {
            takes: q,
            gives: q + 2.0 * kv,
            keeps: 2.0 * q + 2.0 * kv + 4.0 * self.tokens() * heads,
            workspace: 8.0 * self.batch_size as f64 * heads * padded,
            ..Op::default()
        }
    }

    /// rope keeps nothing; qk_norm_rope, and rms_norm in its place where there is no RoPE, the heads that it read and a number
    /// for each. `heads` for each token, `bytes` all together.
    fn norm_rope(&self, heads: usize, bytes: f64) -> Option<Op> {
        let (d, rows) = (self.config.head_dim, self.tokens() * heads as f64);
        let rope = self.config.positions == Positions::Rope;
        let rotated = Op { takes: bytes, gives: bytes, ..Op::default() };
        if !self.config.qk_norm {
            return rope.then_some(rotated);
        }
        let lanes = if in_vectors(d, self.dtype.size()) { WARP * self.dtype.size() / 16 } else { WARP / 2 };
        let parts = match rope {
            true => (rows * lanes as f64 / ROPE_THREADS as f64).ceil().min(QK_NORM_MOST_BLOCKS as f64),
            false => self.summing_parts(rows, d, RMS_NORM_WARP_COLS, RMS_NORM_OWN),
        };
        let weight = 4.0 * d as f64;
        Some(Op { keeps: bytes + 4.0 * rows, weight, workspace: weight * parts, ..rotated })
    }

    /// The position table, if there is one, with the sum of its gradients over the batch; then the token table, whose
    /// gradient is the head's where both are one. They keep ids.
    pub(super) fn embeddings(&self) -> Vec<Op> {
        let &ModelConfig { n_embd: c, vocab_size: v, max_seq_len: max, tie_embeddings: tied, .. } = self.config;
        let (tokens, t) = (self.tokens(), self.seq_len as f64);
        let table = |rows: usize| 4.0 * rows as f64 * c as f64;
        let mut ops = vec![];
        if self.config.positions == Positions::Absolute {
            let sum = 4.0 * t * c as f64;
            let parts = repeat_parts(self.batch_size as f64);
            ops.push(Op { gives: sum, workspace: sum * parts, ..Op::default() });
            let workspace = self.sort(t, max);
            ops.push(Op { takes: sum, keeps: 4.0 * t, weight: table(max), workspace, gives: 0.0 });
        }
        let (weight, workspace) = (if tied { 0.0 } else { table(v) }, self.sort(tokens, v));
        ops.push(Op { takes: self.activation(c as f64), keeps: 4.0 * tokens, weight, workspace, gives: 0.0 });
        ops
    }

    /// embedding sorts its ids, then adds up pieces of the sorted rows, with two sums at the edges of each.
    fn sort(&self, ids: f64, rows: usize) -> f64 {
        let passes = (usize::BITS - rows.leading_zeros()).div_ceil(SORT_DIGIT_BITS as u32);
        let counts = 4.0 * SORT_DIGITS as f64 * (ids / SORT_TILE as f64).ceil();
        let sorted = 8.0 * ids; // an id and its position
        let sorting = counts + if passes > 1 { 2.0 * sorted } else { sorted };
        sorting.max(sorted + 8.0 * self.config.n_embd as f64 * (ids / SUM_PIECE as f64).ceil())
    }

    /// linear_cross_entropy within a chunk of rows: its logits, then its part of d_hidden, then, once d_weight is there, that
    /// product's parts.
    pub(super) fn logits(&self) -> f64 {
        let (c, v) = (self.config.n_embd as f64, self.config.vocab_size as f64);
        let rows = self.tokens().min(most_rows(self.config.vocab_size) as f64);
        let d_weight = if rows == self.tokens() { 4.0 * v * c } else { 0.0 }; // of the first chunk, not there before
        let size = self.dtype.size() as f64;
        let before = self.parts([rows, v, c], [c, c]).max(rows * c * size + self.parts([rows, c, v], [v, c]));
        rows * v * size + self.parts([v, c, rows], [v, c]).max(before - d_weight)
    }

    /// A product `[m,k] × [k,n]` whose K is split on a card: all its splits' results in f32. `rows`: those of the operands.
    fn parts(&self, [m, n, k]: [f64; 3], rows: [f64; 2]) -> f64 {
        if self.multiprocessors == 0 || m.max(n).max(k) > f64::from(i32::MAX) {
            return 0.0;
        }
        let aligned = rows.iter().all(|&row| in_vectors(row as usize, self.dtype.size()));
        let product = Product { batch: 1, m: m as usize, n: n as usize, k: k as usize };
        let splits = Tiling::new(self.multiprocessors, product, self.dtype.size(), aligned).splits;
        if splits == 1 { 0.0 } else { 4.0 * splits as f64 * m * n }
    }

    /// Partial sums over `rows` rows by a norm's backward half.
    fn summing_parts(&self, rows: f64, cols: usize, warp_cols: usize, own: usize) -> f64 {
        const ENOUGH: f64 = SUMMING_THREADS as f64; // more rows make no more parts
        let teams = Teams::new(rows.min(ENOUGH) as usize, cols, self.dtype.size(), warp_cols);
        teams.summing_grid(own).blocks[0] as f64
    }
}

/// add's partial sums over so many repeats.
fn repeat_parts(repeats: f64) -> f64 {
    let rows = (repeats / MOST_CHUNKS as f64).ceil().max(LEAST_CHUNK as f64);
    (repeats / rows).ceil()
}

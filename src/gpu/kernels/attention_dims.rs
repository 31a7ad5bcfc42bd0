//! The sizes of an attention call on the device, and the checks that forward, backward and decode share.

use crate::gpu::{Check, Result, View};

/// The head dimensions that kernels are compiled for.
pub const HEAD_DIMS: [usize; 4] = [32, 64, 96, 128];

/// The most positions of a sequence: sums of two fit in a kernel's 32-bit integers.
pub const MOST_POSITIONS: usize = 1 << 30;

/// Sizes of an attention call. q is `[B,Tq,H,D]`, k and v are `[B,capacity,Hkv,D]`, of which the first `tk` positions
/// are used. Causal: query i sees the keys j ≤ i + Tk − Tq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
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

/// Numbers of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionLens {
    /// q, o and their gradients.
    pub q: usize,
    /// k and v each, and their gradients.
    pub kv: usize,
    /// Rows `[B,Tq,H]` of q: logsumexp.
    pub rows: usize,
}

impl AttentionShape {
    /// Query heads of a KV head. Panics without KV heads, which [`AttentionShape::lens`] refuses.
    pub fn group_size(&self) -> usize {
        self.n_head / self.n_kv_head
    }

    /// 1/√D
    pub fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }

    /// log2(e)/√D: what scores are multiplied with, so that their exponentials are powers of two.
    pub fn scale_log2(&self) -> f32 {
        (self.scale() * std::f64::consts::LOG2_E) as f32
    }

    /// The operands' lengths. Errors: a head_dim that is not in the list, heads that are no multiple, more positions
    /// than the cache has, numbers beyond 32 bits, products beyond 63.
    pub fn lens(&self, check: Check) -> Result<AttentionLens> {
        check.head_dim(self.head_dim, &HEAD_DIMS)?;
        check.group(self.n_head, self.n_kv_head)?;
        if self.tk > self.kv_capacity {
            return Err(check.range("tk", self.tk, format!("at most the cache's {}", self.kv_capacity)));
        }
        let rows = check.product("logsumexp", &[self.batch, self.tq, self.n_head])?;
        let q = check.product("q", &[self.batch, self.tq, self.n_head, self.head_dim])?;
        let kv = check.product("k", &[self.batch, self.kv_capacity, self.n_kv_head, self.head_dim])?;
        for (what, positions) in [("tq", self.tq), ("kv_capacity", self.kv_capacity)] {
            if positions > MOST_POSITIONS {
                return Err(check.range(what, positions, format!("at most {MOST_POSITIONS}")));
            }
        }
        for (what, n) in [("batch", self.batch), ("n_head", self.n_head)] {
            check.i32(what, n)?;
        }
        Ok(AttentionLens { q, kv, rows })
    }
}

/// An operand of `expected` elements that the kernels move 16 bytes at a time. Errors as [`Check::operand`], and an
/// address that is not a multiple of 16.
pub fn vectors<E>(check: Check, operand: &'static str, view: View<E>, expected: usize) -> Result<()> {
    check.operand(operand, view, expected)?;
    if expected > 0 { check.aligned(operand, view, 16) } else { Ok(()) }
}

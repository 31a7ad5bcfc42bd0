//! Microkernels: the innermost product, one register tile of C.
//!
//! ```text
//!                         b_k ↓   B: NR contiguous floats per k
//!                       ┌─────────────┐
//!        a_k →          │             │
//!   ┌──────────┐        ├─────────────┤
//!   │ A: rows  │        │ C: rows × NR, in registers over all of kc
//!   └──────────┘        └─────────────┘
//! ```
//!
//! Every element of C is summed over k in order, one multiply-add at a time, whichever row of the tile it is in.

use crate::cpu::simd::Level;

/// The operands of one tile. A is read one scalar at a time, so it may be packed or lie in the matrix itself.
pub struct TileOperands {
    pub kc: usize,
    pub a: *const f32,
    pub a_row: usize,
    pub a_k: usize,
    pub b: *const f32,
    pub b_k: usize,
    pub c: *mut f32,
    pub c_row: usize,
    /// Whether the product is added to C or replaces it.
    pub add: bool,
}

/// Computes one tile.
///
/// # Safety
/// With R rows, for all p < kc, i < R: a[i * a_row + p * a_k] and the NR floats at b[p * b_k] must be readable, the NR
/// floats at c[i * c_row] readable, writable and not accessed by anybody else. The CPU must support the kernel's level.
pub type TileFn = unsafe fn(&TileOperands);

/// A register tile size and its code.
pub struct Kernel {
    pub level: Level,
    pub mr: usize,
    pub nr: usize,
    /// `tiles[r - 1]` computes r rows, 1 <= r <= mr.
    pub tiles: &'static [TileFn],
}

/// The widest NR of all kernels.
pub const MAX_NR: usize = 32;

/// The largest MR of all kernels.
pub const MAX_MR: usize = 12;

/// The kernel for a level.
pub fn kernel(level: Level) -> &'static Kernel {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => &x86::AVX512,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => &x86::AVX2,
        _ => &PORTABLE,
    }
}

static PORTABLE: Kernel = Kernel {
    level: Level::Portable,
    mr: 4,
    nr: PORTABLE_NR,
    tiles: &[portable::<1>, portable::<2>, portable::<3>, portable::<4>],
};

const PORTABLE_NR: usize = 8;

unsafe fn portable<const ROWS: usize>(tile: &TileOperands) {
    let mut acc = [[0.0f32; PORTABLE_NR]; ROWS];
    for p in 0..tile.kc {
        // SAFETY: p < kc, and the caller vouches for NR floats of B at every p.
        let b = unsafe { *tile.b.add(p * tile.b_k).cast::<[f32; PORTABLE_NR]>() };
        for (i, row) in acc.iter_mut().enumerate() {
            // SAFETY: p < kc and i < ROWS, for which the caller vouches.
            let a = unsafe { *tile.a.add(i * tile.a_row + p * tile.a_k) };
            for (c, b) in row.iter_mut().zip(b) {
                *c += a * b;
            }
        }
    }
    for (i, row) in acc.iter().enumerate() {
        // SAFETY: i < ROWS; the caller gives this call alone NR floats in each of these rows of C.
        let c = unsafe { &mut *tile.c.add(i * tile.c_row).cast::<[f32; PORTABLE_NR]>() };
        for (c, x) in c.iter_mut().zip(row) {
            *c = if tile.add { *c + x } else { *x };
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Kernel, TileOperands};
    use crate::cpu::simd::Level;
    use std::arch::x86_64::*;

    /// 24 of 32 registers accumulate, 2 hold B, the rest broadcast A.
    pub static AVX512: Kernel = Kernel {
        level: Level::Avx512,
        mr: 12,
        nr: 32,
        tiles: &[
            avx512::<1>,
            avx512::<2>,
            avx512::<3>,
            avx512::<4>,
            avx512::<5>,
            avx512::<6>,
            avx512::<7>,
            avx512::<8>,
            avx512::<9>,
            avx512::<10>,
            avx512::<11>,
            avx512::<12>,
        ],
    };

    /// 12 of 16 registers accumulate, 2 hold B, 2 broadcast A.
    pub static AVX2: Kernel = Kernel {
        level: Level::Avx2,
        mr: 6,
        nr: 16,
        tiles: &[avx2::<1>, avx2::<2>, avx2::<3>, avx2::<4>, avx2::<5>, avx2::<6>],
    };

    #[target_feature(enable = "avx512f")]
    unsafe fn avx512<const ROWS: usize>(tile: &TileOperands) {
        let mut acc = [[_mm512_setzero_ps(); 2]; ROWS];
        let (mut a, mut b) = (row_groups(tile), tile.b);
        prefetch_c(tile, ROWS);
        for _ in 0..tile.kc {
            // SAFETY: `b` stands at a k < kc, where the caller vouches for NR = 32 floats.
            let (b0, b1) = unsafe { (_mm512_loadu_ps(b), _mm512_loadu_ps(b.add(16))) };
            for (i, [c0, c1]) in acc.iter_mut().enumerate() {
                // SAFETY: `a` stands at a k < kc and i < ROWS, for which the caller vouches.
                let ai = _mm512_set1_ps(unsafe { *a[i / 3].wrapping_add(i % 3 * tile.a_row) });
                *c0 = _mm512_fmadd_ps(ai, b0, *c0);
                *c1 = _mm512_fmadd_ps(ai, b1, *c1);
            }
            // Wrapping, because after the last k the pointers leave the matrices.
            a = a.map(|a| a.wrapping_add(tile.a_k));
            b = b.wrapping_add(tile.b_k);
        }
        for (i, [mut c0, mut c1]) in acc.into_iter().enumerate() {
            // SAFETY: i < ROWS; the caller gives this call alone 32 floats in each of these rows of C.
            unsafe {
                let c = tile.c.add(i * tile.c_row);
                if tile.add {
                    c0 = _mm512_add_ps(_mm512_loadu_ps(c), c0);
                    c1 = _mm512_add_ps(_mm512_loadu_ps(c.add(16)), c1);
                }
                _mm512_storeu_ps(c, c0);
                _mm512_storeu_ps(c.add(16), c1);
            }
        }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<const ROWS: usize>(tile: &TileOperands) {
        let mut acc = [[_mm256_setzero_ps(); 2]; ROWS];
        let (mut a, mut b) = (row_groups(tile), tile.b);
        prefetch_c(tile, ROWS);
        for _ in 0..tile.kc {
            // SAFETY: `b` stands at a k < kc, where the caller vouches for NR = 16 floats.
            let (b0, b1) = unsafe { (_mm256_loadu_ps(b), _mm256_loadu_ps(b.add(8))) };
            for (i, [c0, c1]) in acc.iter_mut().enumerate() {
                // SAFETY: `a` stands at a k < kc and i < ROWS, for which the caller vouches.
                let ai = _mm256_set1_ps(unsafe { *a[i / 3].wrapping_add(i % 3 * tile.a_row) });
                *c0 = _mm256_fmadd_ps(ai, b0, *c0);
                *c1 = _mm256_fmadd_ps(ai, b1, *c1);
            }
            // Wrapping, because after the last k the pointers leave the matrices.
            a = a.map(|a| a.wrapping_add(tile.a_k));
            b = b.wrapping_add(tile.b_k);
        }
        for (i, [mut c0, mut c1]) in acc.into_iter().enumerate() {
            // SAFETY: i < ROWS; the caller gives this call alone 16 floats in each of these rows of C.
            unsafe {
                let c = tile.c.add(i * tile.c_row);
                if tile.add {
                    c0 = _mm256_add_ps(_mm256_loadu_ps(c), c0);
                    c1 = _mm256_add_ps(_mm256_loadu_ps(c.add(8)), c1);
                }
                _mm256_storeu_ps(c, c0);
                _mm256_storeu_ps(c.add(8), c1);
            }
        }
    }

    /// Pointers to every third row of A: three rows share a register by the addressing modes base, base + stride and
    /// base + 2·stride.
    #[inline(always)]
    fn row_groups(tile: &TileOperands) -> [*const f32; 4] {
        [0, 3, 6, 9].map(|i| tile.a.wrapping_add(i * tile.a_row))
    }

    /// Fetches the tile of C while the product is computed.
    #[inline(always)]
    fn prefetch_c(tile: &TileOperands, rows: usize) {
        for i in 0..rows {
            let c = tile.c.wrapping_add(i * tile.c_row).cast::<i8>();
            // SAFETY: prefetching has no effect but on caches, whatever the address; SSE is part of x86-64.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(c);
                _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(64));
            }
        }
    }
}

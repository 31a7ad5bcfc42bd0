//! A few rows of A times a B that is contiguous along k, as in decoding: y = x·Wᵀ.
//!
//! Each weight is used only once or a few times, so packing would cost more than the product. Instead, a strip of
//! columns streams through registers, transposed on the way:
//!
//! ```text
//!   column j   of B: k0 k1 k2 k3 …            register q: element kq of all columns of the strip,
//!   column j+1 of B: k0 k1 k2 k3 …   ──────►  multiplied by a[i][kq] and added to the strip's sums
//!   …
//! ```
//!
//! Sums run over k in the order of the microkernel, so the result has the same bits as the packed product.

use super::CheckedProduct;
use crate::cpu::simd::Level;

/// The most rows for which this path is taken.
const MAX_ROWS: usize = 4;

/// Computes a leading part of the columns of C and returns how many; the rest is left to the packed product.
pub fn columns_done(level: Level, product: &CheckedProduct) -> usize {
    if product.m > MAX_ROWS || product.b.row_stride != 1 || level == Level::Portable {
        return 0;
    }
    #[cfg(target_arch = "x86_64")]
    {
        x86::strips(level, product)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        0
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CheckedProduct, Level};
    use crate::cpu::gemm::KC;
    use std::arch::x86_64::*;

    /// All whole strips of columns.
    pub fn strips(level: Level, product: &CheckedProduct) -> usize {
        let avx512 = level == Level::Avx512;
        let strip: unsafe fn(&CheckedProduct, usize) = match (avx512, product.m) {
            (true, 1) => strip_avx512::<1>,
            (true, 2) => strip_avx512::<2>,
            (true, 3) => strip_avx512::<3>,
            (true, 4) => strip_avx512::<4>,
            (false, 1) => strip_avx2::<1>,
            (false, 2) => strip_avx2::<2>,
            (false, 3) => strip_avx2::<3>,
            (false, 4) => strip_avx2::<4>,
            (_, rows) => unreachable!("few_rows: {rows} rows"),
        };
        let width = if avx512 { 32 } else { 16 };
        let done = product.n - product.n % width;
        for j in (0..done).step_by(width) {
            // SAFETY: the level was detected, the strip's columns exist, and `strip` was chosen for m rows.
            unsafe { strip(product, j) };
        }
        done
    }

    /// Columns j..j + 32 of C = A·B, for m = M rows.
    #[target_feature(enable = "avx512f")]
    unsafe fn strip_avx512<const M: usize>(product: &CheckedProduct, j: usize) {
        let CheckedProduct { k, a, b, c_stride, .. } = *product;
        let columns = &b.data[j * b.col_stride..];
        assert!(31 * b.col_stride + k <= columns.len());
        for pc in (0..k).step_by(KC) {
            let end = k.min(pc + KC);
            let mut acc = [[_mm512_setzero_ps(); 2]; M];
            let fours = end - (end - pc) % 4;
            for p in (pc..fours).step_by(4) {
                for half in 0..2 {
                    let from = columns.as_ptr().wrapping_add(16 * half * b.col_stride + p);
                    // SAFETY: p + 3 < k, so four elements from p on exist in each of the 32 columns, by the assertion.
                    let by_k = unsafe { transpose_avx512(from, b.col_stride) };
                    for (q, b) in by_k.into_iter().enumerate() {
                        for (i, acc) in acc.iter_mut().enumerate() {
                            // SAFETY: i < M = m and p + q < k, and A was checked against its slice.
                            let a = unsafe { *a.data.get_unchecked(i * a.row_stride + (p + q) * a.col_stride) };
                            acc[half] = _mm512_fmadd_ps(_mm512_set1_ps(a), b, acc[half]);
                        }
                    }
                }
            }
            for p in fours..end {
                let b: [f32; 32] = std::array::from_fn(|l| columns[l * b.col_stride + p]);
                for (i, acc) in acc.iter_mut().enumerate() {
                    let a = _mm512_set1_ps(a.data[i * a.row_stride + p * a.col_stride]);
                    for (half, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: halves 0 and 1 of 32 floats.
                        let b = unsafe { _mm512_loadu_ps(b.as_ptr().add(16 * half)) };
                        *acc = _mm512_fmadd_ps(a, b, *acc);
                    }
                }
            }
            for (i, acc) in acc.into_iter().enumerate() {
                for (half, mut sum) in acc.into_iter().enumerate() {
                    // SAFETY: row i < m of C has columns j..j + 32, borrowed by this product alone.
                    unsafe {
                        let c = product.c.add(i * c_stride + j + 16 * half);
                        if product.accumulate || pc > 0 {
                            sum = _mm512_add_ps(_mm512_loadu_ps(c), sum);
                        }
                        _mm512_storeu_ps(c, sum);
                    }
                }
            }
        }
    }

    /// Elements 0..4 of 16 columns, by k.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn transpose_avx512(from: *const f32, stride: usize) -> [__m512; 4] {
        // Quarter l of register r holds column 4·l + r, so that transposing the quarters puts columns in order.
        let mut quarters = [_mm512_setzero_ps(); 4];
        for (r, row) in quarters.iter_mut().enumerate() {
            let from = from.wrapping_add(r * stride);
            // SAFETY: the columns 0..16 hold four elements each, by this function's contract.
            unsafe {
                *row = _mm512_castps128_ps512(_mm_loadu_ps(from));
                *row = _mm512_insertf32x4::<1>(*row, _mm_loadu_ps(from.wrapping_add(4 * stride)));
                *row = _mm512_insertf32x4::<2>(*row, _mm_loadu_ps(from.wrapping_add(8 * stride)));
                *row = _mm512_insertf32x4::<3>(*row, _mm_loadu_ps(from.wrapping_add(12 * stride)));
            }
        }
        let [a, b, c, d] = quarters;
        let (ab_lo, ab_hi) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (cd_lo, cd_hi) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
        [
            _mm512_shuffle_ps::<0x44>(ab_lo, cd_lo),
            _mm512_shuffle_ps::<0xEE>(ab_lo, cd_lo),
            _mm512_shuffle_ps::<0x44>(ab_hi, cd_hi),
            _mm512_shuffle_ps::<0xEE>(ab_hi, cd_hi),
        ]
    }

    /// Columns j..j + 16 of C = A·B, for m = M rows.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn strip_avx2<const M: usize>(product: &CheckedProduct, j: usize) {
        let CheckedProduct { k, a, b, c_stride, .. } = *product;
        let columns = &b.data[j * b.col_stride..];
        assert!(15 * b.col_stride + k <= columns.len());
        for pc in (0..k).step_by(KC) {
            let end = k.min(pc + KC);
            let mut acc = [[_mm256_setzero_ps(); 2]; M];
            let fours = end - (end - pc) % 4;
            for p in (pc..fours).step_by(4) {
                for half in 0..2 {
                    let from = columns.as_ptr().wrapping_add(8 * half * b.col_stride + p);
                    // SAFETY: p + 3 < k, so four elements from p on exist in each of the 16 columns, by the assertion.
                    let by_k = unsafe { transpose_avx2(from, b.col_stride) };
                    for (q, b) in by_k.into_iter().enumerate() {
                        for (i, acc) in acc.iter_mut().enumerate() {
                            // SAFETY: i < M = m and p + q < k, and A was checked against its slice.
                            let a = unsafe { *a.data.get_unchecked(i * a.row_stride + (p + q) * a.col_stride) };
                            acc[half] = _mm256_fmadd_ps(_mm256_set1_ps(a), b, acc[half]);
                        }
                    }
                }
            }
            for p in fours..end {
                let b: [f32; 16] = std::array::from_fn(|l| columns[l * b.col_stride + p]);
                for (i, acc) in acc.iter_mut().enumerate() {
                    let a = _mm256_set1_ps(a.data[i * a.row_stride + p * a.col_stride]);
                    for (half, acc) in acc.iter_mut().enumerate() {
                        // SAFETY: halves 0 and 1 of 16 floats.
                        let b = unsafe { _mm256_loadu_ps(b.as_ptr().add(8 * half)) };
                        *acc = _mm256_fmadd_ps(a, b, *acc);
                    }
                }
            }
            for (i, acc) in acc.into_iter().enumerate() {
                for (half, mut sum) in acc.into_iter().enumerate() {
                    // SAFETY: row i < m of C has columns j..j + 16, borrowed by this product alone.
                    unsafe {
                        let c = product.c.add(i * c_stride + j + 8 * half);
                        if product.accumulate || pc > 0 {
                            sum = _mm256_add_ps(_mm256_loadu_ps(c), sum);
                        }
                        _mm256_storeu_ps(c, sum);
                    }
                }
            }
        }
    }

    /// Elements 0..4 of 8 columns, by k.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn transpose_avx2(from: *const f32, stride: usize) -> [__m256; 4] {
        // Half l of register r holds column 4·l + r, so that transposing the halves puts columns in order.
        let mut halves = [_mm256_setzero_ps(); 4];
        for (r, row) in halves.iter_mut().enumerate() {
            let from = from.wrapping_add(r * stride);
            // SAFETY: the columns 0..8 hold four elements each, by this function's contract.
            *row = unsafe { _mm256_loadu2_m128(from.wrapping_add(4 * stride), from) };
        }
        let [a, b, c, d] = halves;
        let (ab_lo, ab_hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
        let (cd_lo, cd_hi) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
        [
            _mm256_shuffle_ps::<0x44>(ab_lo, cd_lo),
            _mm256_shuffle_ps::<0xEE>(ab_lo, cd_lo),
            _mm256_shuffle_ps::<0x44>(ab_hi, cd_hi),
            _mm256_shuffle_ps::<0xEE>(ab_hi, cd_hi),
        ]
    }
}

//! Packing: copies a strided block of A or B into the order in which the microkernel reads it.
//!
//! ```text
//!   lanes (rows of A / columns of B)          panel
//!   ┌──────────── k ───────────┐
//!   │ a0 a1 a2 …               │              a0 b0 c0 d0 … │ a1 b1 c1 d1 … │ a2 b2 …
//!   │ b0 b1 b2 …               │   ──────►    └── width ──┘
//!   │ c0 c1 c2 …               │
//!   └──────────────────────────┘
//! ```

use crate::cpu::simd::Level;

/// A block of a matrix seen as `lanes` vectors of length `kc`: element (lane, p) is
/// data[lane * lane_stride + p * k_stride].
#[derive(Clone, Copy)]
pub struct Lanes<'a> {
    pub data: &'a [f32],
    pub lanes: usize,
    pub lane_stride: usize,
    pub kc: usize,
    pub k_stride: usize,
}

/// Writes panel[p * width + lane] for every p < kc, lane < width; lanes the source lacks become zero.
pub fn pack(level: Level, panel: &mut [f32], width: usize, source: Lanes) {
    let panel = &mut panel[..source.kc * width];
    if source.lane_stride == 1 {
        copy_rows(panel, width, source);
    } else {
        transpose(level, panel, width, source);
    }
    if source.lanes < width {
        panel.chunks_exact_mut(width).for_each(|row| row[source.lanes..].fill(0.0));
    }
}

/// Lanes are contiguous in the source: every k is one short copy.
fn copy_rows(panel: &mut [f32], width: usize, source: Lanes) {
    for (p, row) in panel.chunks_exact_mut(width).enumerate() {
        let from = p * source.k_stride;
        row[..source.lanes].copy_from_slice(&source.data[from..from + source.lanes]);
    }
}

/// Blocks of 4 lanes × 8 k are transposed in registers where k is contiguous; the rest goes element by element.
fn transpose(level: Level, panel: &mut [f32], width: usize, source: Lanes) {
    let Lanes { data, lanes, lane_stride, kc, k_stride } = source;
    #[allow(unused_mut, reason = "assigned on x86-64 only")]
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx2 && k_stride == 1 && lanes >= 4 {
        done = kc - kc % 8;
        for lane in (0..lanes).step_by(4) {
            // The last block starts early and writes some lanes twice, with the same values.
            let lane = lane.min(lanes - 4);
            for p in (0..done).step_by(8) {
                let from = &data[lane * lane_stride + p..];
                // SAFETY: a level of Avx2 or more means that the CPU has AVX.
                unsafe { transpose_4x8(from, lane_stride, &mut panel[p * width + lane..], width) };
            }
        }
    }
    for lane in 0..lanes {
        for p in done..kc {
            panel[p * width + lane] = data[lane * lane_stride + p * k_stride];
        }
    }
}

/// to[p * width + lane] = from[lane * stride + p] for lane < 4, p < 8.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx")]
fn transpose_4x8(from: &[f32], stride: usize, to: &mut [f32], width: usize) {
    use std::arch::x86_64::*;
    assert!(3 * stride + 8 <= from.len() && 7 * width + 4 <= to.len());
    let from = from.as_ptr();
    // SAFETY: the furthest load ends at 3 * stride + 8, within `from` by the assertion.
    let [a, b, c, d] = unsafe { [0, 1, 2, 3].map(|lane| _mm256_loadu_ps(from.add(lane * stride))) };
    // Each 128-bit half is a 4×4 transpose of its own: the low one of k 0..4, the high one of k 4..8.
    let (ab_lo, ab_hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    let (cd_lo, cd_hi) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    let columns = [
        _mm256_shuffle_ps::<0x44>(ab_lo, cd_lo),
        _mm256_shuffle_ps::<0xEE>(ab_lo, cd_lo),
        _mm256_shuffle_ps::<0x44>(ab_hi, cd_hi),
        _mm256_shuffle_ps::<0xEE>(ab_hi, cd_hi),
    ];
    for (p, column) in columns.into_iter().enumerate() {
        // SAFETY: the furthest store is 4 floats at 7 * width, within `to` by the assertion.
        unsafe {
            _mm_storeu_ps(to.as_mut_ptr().add(p * width), _mm256_castps256_ps128(column));
            _mm_storeu_ps(to.as_mut_ptr().add((p + 4) * width), _mm256_extractf128_ps::<1>(column));
        }
    }
}

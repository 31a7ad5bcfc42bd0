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
    let rows = panel.chunks_exact_mut(width).enumerate().map(|(p, row)| (&source.data[p * source.k_stride..], row));
    // Copies of a constant length become a few moves; with a variable one, each would be a call of memcpy.
    match source.lanes {
        32 => rows.for_each(|(from, row)| row[..32].copy_from_slice(&from[..32])),
        16 => rows.for_each(|(from, row)| row[..16].copy_from_slice(&from[..16])),
        12 => rows.for_each(|(from, row)| row[..12].copy_from_slice(&from[..12])),
        8 => rows.for_each(|(from, row)| row[..8].copy_from_slice(&from[..8])),
        6 => rows.for_each(|(from, row)| row[..6].copy_from_slice(&from[..6])),
        4 => rows.for_each(|(from, row)| row[..4].copy_from_slice(&from[..4])),
        lanes => rows.for_each(|(from, row)| row[..lanes].copy_from_slice(&from[..lanes])),
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
        // SAFETY: a level of Avx2 or more means that the CPU has AVX.
        unsafe { transpose_blocks(panel, width, source, done) };
    }
    for lane in 0..lanes {
        for p in done..kc {
            panel[p * width + lane] = data[lane * lane_stride + p * k_stride];
        }
    }
}

/// The first `kc` elements of all lanes; kc is a multiple of 8, and there are at least 4 lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn transpose_blocks(panel: &mut [f32], width: usize, source: Lanes, kc: usize) {
    let Lanes { data, lanes, lane_stride, .. } = source;
    assert!(kc.is_multiple_of(8) && 4 <= lanes && lanes <= width && kc * width <= panel.len());
    assert!((lanes - 1) * lane_stride + kc <= data.len());
    let (from, to) = (data.as_ptr(), panel.as_mut_ptr());
    for p in (0..kc).step_by(8) {
        for lane in (0..lanes).step_by(4) {
            // The last block starts early and writes some lanes twice, with the same values.
            let lane = lane.min(lanes - 4);
            // SAFETY: lane + 3 < lanes and p + 7 < kc, so by the assertions the block lies within data and panel.
            unsafe { transpose_4x8(from.add(lane * lane_stride + p), lane_stride, to.add(p * width + lane), width) };
        }
    }
}

/// to[p * width + lane] = from[lane * stride + p] for lane < 4, p < 8; all of them must be within bounds.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx")]
unsafe fn transpose_4x8(from: *const f32, stride: usize, to: *mut f32, width: usize) {
    use std::arch::x86_64::*;
    // SAFETY: 8 floats from each of 4 lanes, in bounds by this function's contract.
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
        // SAFETY: 4 floats at each of the 8 rows of the panel, in bounds by this function's contract.
        unsafe {
            _mm_storeu_ps(to.add(p * width), _mm256_castps256_ps128(column));
            _mm_storeu_ps(to.add((p + 4) * width), _mm256_extractf128_ps::<1>(column));
        }
    }
}

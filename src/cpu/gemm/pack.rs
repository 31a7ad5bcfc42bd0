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

/// Fills panels of `width` lanes each: element (lane, p) goes to panel lane / width, there to p * width + lane % width.
/// Lanes that the last panel has in excess of the source become zero.
pub fn pack(level: Level, panels: &mut [f32], width: usize, source: Lanes) {
    let Lanes { data, lanes, lane_stride, kc, .. } = source;
    let panels = &mut panels[..lanes.next_multiple_of(width) * kc];
    if lane_stride == 1 {
        match width {
            32 => copy_rows::<32>(panels, source),
            16 => copy_rows::<16>(panels, source),
            12 => copy_rows::<12>(panels, source),
            8 => copy_rows::<8>(panels, source),
            6 => copy_rows::<6>(panels, source),
            4 => copy_rows::<4>(panels, source),
            _ => unreachable!("no kernel has an MR or NR of {width}"),
        }
    } else {
        for (panel, lane) in panels.chunks_exact_mut(width * kc).zip((0..lanes).step_by(width)) {
            let part = Lanes { data: &data[lane * lane_stride..], lanes: width.min(lanes - lane), ..source };
            transpose(level, panel, width, part);
        }
    }
    if !lanes.is_multiple_of(width) {
        let last = &mut panels[lanes / width * width * kc..];
        last.chunks_exact_mut(width).for_each(|row| row[lanes % width..].fill(0.0));
    }
}

/// Lanes are contiguous in the source: every k is a copy, of constant length so that it takes a few moves.
fn copy_rows<const WIDTH: usize>(panels: &mut [f32], source: Lanes) {
    let Lanes { data, lanes, kc, k_stride, .. } = source;
    for (panel, lane) in panels.chunks_exact_mut(WIDTH * kc).zip((0..lanes).step_by(WIDTH)) {
        let valid = WIDTH.min(lanes - lane);
        for (p, row) in panel.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
            let from = &data[p * k_stride + lane..];
            match from.first_chunk::<WIDTH>() {
                Some(from) if valid == WIDTH => *row = *from,
                _ => row[..valid].copy_from_slice(&from[..valid]),
            }
        }
    }
}

/// Blocks of 4 lanes × 8 k are transposed in registers where k is contiguous; the rest goes element by element.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "only x86-64 has a vector transpose"))]
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

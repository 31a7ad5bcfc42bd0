//! The narrow formats: f16, bf16, tf32 and the 8-bit e4m3 and e5m2, to and from single precision.
//!
//! A conversion to fewer bits rounds once; overflow gives infinity (the largest finite value under `.satfinite`), and
//! every NaN becomes the canonical one. Values are bits in the low end of a `u32`.
//! (PTX ISA, "Alternate Floating-Point Data Formats", "cvt".)

use super::exact::{self, E4M3, E5M2, Format};
use super::{NAN_BFLOAT, NAN_HALF, NAN_SINGLE, Rounding};

/// `.f16` to `.f32`, exact. A NaN keeps its sign alone.
#[inline(always)]
pub fn half_to_single(half: u32) -> f32 {
    let sign = (half & 0x8000) << 16;
    let magnitude = half & 0x7fff;
    // Exponent and fraction move to their place in a single; the multiplication corrects the exponent's bias, and
    // normalises subnormal values.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000);
    let finite = scaled.to_bits() | sign;
    let special = if magnitude > 0x7c00 { NAN_SINGLE } else { 0x7f80_0000 };
    f32::from_bits(if magnitude >= 0x7c00 { special | sign } else { finite })
}

/// `.f32` to `.f16`, to nearest.
#[inline(always)]
pub fn single_to_half(x: f32) -> u32 {
    let bits = x.to_bits();
    let sign = bits >> 16 & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let rebased = magnitude.wrapping_sub(112 << 23);
    let normal = (rebased.wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13).min(0x7c00);
    // 0.5 has the last place of a subnormal half: the addition rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = sign | if magnitude < 0x3880_0000 { subnormal } else { normal };
    if magnitude > 0x7f80_0000 { NAN_HALF } else { finite }
}

/// `.bf16` to `.f32`, exact: the upper half of a single. A NaN keeps its bits.
#[inline(always)]
pub fn bfloat_to_single(bfloat: u32) -> f32 {
    f32::from_bits(bfloat << 16)
}

/// `.f32` to `.bf16`, to nearest.
#[inline(always)]
pub fn single_to_bfloat(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { NAN_BFLOAT } else { rounded }
}

/// `.f32` to `.f16` with a rounding direction.
#[inline(always)]
pub fn single_to_half_directed(x: f32, rounding: Rounding) -> u32 {
    let nearest = single_to_half(x);
    directed(x, nearest, half_to_single(nearest), rounding)
}

/// `.f32` to `.bf16` with a rounding direction.
#[inline(always)]
pub fn single_to_bfloat_directed(x: f32, rounding: Rounding) -> u32 {
    let nearest = single_to_bfloat(x);
    directed(x, nearest, bfloat_to_single(nearest), rounding)
}

/// The neighbour of `nearest` (whose value is `back`) on the side that the direction asks for.
#[inline(always)]
fn directed(x: f32, nearest: u32, back: f32, rounding: Rounding) -> u32 {
    let (beyond, outward) = match rounding {
        Rounding::Nearest => (false, false),
        Rounding::Zero => (back.abs() > x.abs(), false),
        Rounding::Down => (back > x, x < 0.0),
        Rounding::Up => (back < x, x > 0.0),
    };
    let step = if outward { 1u32 } else { u32::MAX };
    if beyond { nearest.wrapping_add(step) } else { nearest }
}

/// `.satfinite`: an infinite result becomes the largest finite value.
#[inline(always)]
pub fn clamp_finite(bits: u32, format: Format) -> u32 {
    let infinity = format.infinity as u32;
    if bits & 0x7fff == infinity { bits - 1 } else { bits }
}

/// How `cvt` rounds to tf32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TfRounding {
    /// `.rna`: to nearest, halfway cases away from zero.
    Away,
    Nearest,
    Zero,
}

/// `.f32` to `.tf32`: a single whose last 13 bits are zero.
#[inline(always)]
pub fn single_to_tf32(x: f32, rounding: TfRounding) -> u32 {
    let bits = x.to_bits();
    let added = match rounding {
        TfRounding::Away => 0x1000,
        TfRounding::Nearest => 0xfff + (bits >> 13 & 1),
        TfRounding::Zero => 0,
    };
    if x.is_nan() { NAN_SINGLE } else { bits.wrapping_add(added) & !0x1fff }
}

/// An 8-bit format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eight {
    E4m3,
    E5m2,
}

/// `.f32` to an 8-bit format, to nearest, `.satfinite`.
pub fn single_to_eight(x: f32, eight: Eight) -> u32 {
    let format = match eight {
        Eight::E4m3 => E4M3,
        Eight::E5m2 => E5M2,
    };
    if x.is_nan() {
        return 0x7f;
    }
    let largest = format.infinity as u32 - 1;
    let sign = x.to_bits() >> 24 & 0x80;
    if x.is_infinite() {
        return sign | largest;
    }
    let bits = exact::round(exact::decode(x.to_bits() as u64, exact::SINGLE), format, Rounding::Nearest) as u32;
    sign | (bits & 0x7f).min(largest)
}

/// An 8-bit format to `.f16`, exact.
pub fn eight_to_half(bits: u32, eight: Eight) -> u32 {
    match eight {
        Eight::E5m2 if bits & 0x7f > 0x7c => NAN_HALF,
        Eight::E5m2 => bits << 8,
        Eight::E4m3 if bits & 0x7f == 0x7f => NAN_HALF,
        // The half's exponent is biased by 8 more; both steps of the product are exact.
        Eight::E4m3 => single_to_half(half_to_single((bits & 0x80) << 8 | (bits & 0x7f) << 7) * 256.0),
    }
}

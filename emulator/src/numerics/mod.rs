//! Floating-point arithmetic on one value: what the card's units do, exactly where PTX specifies it.
//!
//! Everything here gives the same bits on every machine: only exactly rounded operations (+, -, *, /, sqrt, fused
//! multiply-add) and integers are used, never a platform's mathematical library.
//! (PTX ISA, "Floating-Point Instructions", "Half Precision Floating-Point Instructions", "cvt".)

pub mod approximate;
pub mod directed;
pub mod exact;
pub mod formats;
pub mod integers;
pub mod minmax;
#[cfg(test)]
pub mod oracle;
#[cfg(test)]
pub mod tests;

/// The NaNs that arithmetic returns (PTX ISA, "Floating-Point Instructions": results are canonical NaNs).
pub const NAN_HALF: u32 = 0x7fff;
pub const NAN_BFLOAT: u32 = 0x7fff;
pub const NAN_SINGLE: u32 = 0x7fff_ffff;
pub const NAN_DOUBLE: u64 = 0x7ff8_0000_0000_0000;

/// `.rn`, `.rz`, `.rm`, `.rp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest value, halfway cases to the even one.
    Nearest,
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

/// Any NaN becomes the canonical one. The choice is made among integers: the compiler may replace a chosen NaN by any
/// other as long as it is a floating-point value.
#[inline(always)]
pub fn canonical_single(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { NAN_SINGLE } else { bits })
}

/// Any NaN becomes the canonical one.
#[inline(always)]
pub fn canonical_double(x: f64) -> f64 {
    let bits = x.to_bits();
    f64::from_bits(if bits & !(1 << 63) > 0x7ff << 52 { NAN_DOUBLE } else { bits })
}

/// `.ftz`: subnormal values become zero of the same sign.
#[inline(always)]
pub fn flush_single(x: f32) -> f32 {
    let bits = x.to_bits();
    let kept = if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits };
    f32::from_bits(kept)
}

/// `.ftz` of a half: subnormal values become zero of the same sign.
#[inline(always)]
pub fn flush_half(bits: u32) -> u32 {
    if bits & 0x7c00 == 0 { bits & 0x8000 } else { bits }
}

/// `.ftz` of a bfloat.
#[inline(always)]
pub fn flush_bfloat(bits: u32) -> u32 {
    if bits & 0x7f80 == 0 { bits & 0x8000 } else { bits }
}

/// `.sat`: clamped to [0, 1]; NaN and -0 become +0.
#[inline(always)]
pub fn saturate_single(x: f32) -> f32 {
    let positive = if x > 0.0 { x } else { 0.0 };
    if positive < 1.0 { positive } else { 1.0 }
}

/// `.sat` of a double.
#[inline(always)]
pub fn saturate_double(x: f64) -> f64 {
    let positive = if x > 0.0 { x } else { 0.0 };
    if positive < 1.0 { positive } else { 1.0 }
}

/// `.relu`: negative values (and -0) become +0; NaN stays NaN.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x <= 0.0 { 0.0 } else { x }
}

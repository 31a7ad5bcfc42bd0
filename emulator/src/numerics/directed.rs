//! Add, multiply, fused multiply-add, divide and square root with a rounding direction.
//!
//! Single precision goes through double precision. A sum's error is known exactly (two-sum), and the sum is rounded
//! to odd: an inexact result gets an odd last bit, so that rounding it once more, to at least two bits less, gives
//! what rounding the exact value would. Products of singles are exact doubles. A quotient or root of singles that is
//! not itself a single differs from every single by more than a double's rounding error, so it needs no correction.
//! Double precision is exact arithmetic with one rounding (`exact`).
//! (PTX ISA, "Rounding Modifiers"; S. Boldo, G. Melquiond, "Emulation of FMA and correctly rounded sums: proved
//! algorithms using rounding to odd", 2008.)

use super::exact::{self, DOUBLE};
use super::{Rounding, canonical_double};

/// p + c exactly, rounded to odd.
#[inline(always)]
pub fn sum_to_odd(p: f64, c: f64) -> f64 {
    let sum = p + c;
    let second = sum - p;
    let error = (p - (sum - second)) + (c - second);
    // An infinite sum has a NaN as its error: both comparisons fail.
    let inexact = (error > 0.0) | (error < 0.0);
    let bits = sum.to_bits();
    let outward = (error > 0.0) == (sum > 0.0);
    let step = if outward { 1u64 } else { u64::MAX };
    let odd = if inexact & (bits & 1 == 0) { bits.wrapping_add(step) } else { bits };
    f64::from_bits(odd)
}

/// A double as a single, rounded to odd.
#[inline(always)]
pub fn narrow_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = nearest as f64;
    let bits = nearest.to_bits();
    let step = if x.abs() > back.abs() { 1u32 } else { u32::MAX };
    let inexact = (back < x) | (back > x);
    f32::from_bits(if inexact & (bits & 1 == 0) { bits.wrapping_add(step) } else { bits })
}

/// A double as a single.
#[inline(always)]
pub fn narrow(x: f64, rounding: Rounding) -> f32 {
    let nearest = x as f32;
    let back = nearest as f64;
    let bits = nearest.to_bits();
    let outward = |beyond: bool, out: bool| {
        let step = if out { 1u32 } else { u32::MAX };
        f32::from_bits(if beyond { bits.wrapping_add(step) } else { bits })
    };
    match rounding {
        Rounding::Nearest => nearest,
        Rounding::Zero => outward(back.abs() > x.abs(), false),
        Rounding::Down => outward(back > x, x < 0.0),
        Rounding::Up => outward(back < x, x > 0.0),
    }
}

/// a + b.
#[inline(always)]
pub fn add_single(a: f32, b: f32, rounding: Rounding) -> f32 {
    add_wide(a as f64, b as f64, rounding)
}

/// a · b + c.
#[inline(always)]
pub fn fma_single(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    add_wide(a as f64 * b as f64, c as f64, rounding)
}

#[inline(always)]
fn add_wide(p: f64, c: f64, rounding: Rounding) -> f32 {
    let sum = narrow(sum_to_odd(p, c), rounding);
    match rounding {
        // Opposite signs that cancel give -0.
        Rounding::Down if (sum == 0.0) & (p.is_sign_negative() | c.is_sign_negative()) & (p + c == 0.0) => -0.0,
        _ => sum,
    }
}

/// a · b.
#[inline(always)]
pub fn mul_single(a: f32, b: f32, rounding: Rounding) -> f32 {
    narrow(a as f64 * b as f64, rounding)
}

/// a / b.
#[inline(always)]
pub fn div_single(a: f32, b: f32, rounding: Rounding) -> f32 {
    narrow(a as f64 / b as f64, rounding)
}

/// The square root of a.
#[inline(always)]
pub fn sqrt_single(a: f32, rounding: Rounding) -> f32 {
    narrow((a as f64).sqrt(), rounding)
}

/// a · b + c for values whose product is exact in a double, rounded to odd: 24 bits, of which a half or bfloat keeps
/// at most 11, so that one more rounding gives the exact value's.
#[inline(always)]
pub fn fma_to_odd(a: f32, b: f32, c: f32) -> f32 {
    narrow_to_odd(sum_to_odd(a as f64 * b as f64, c as f64))
}

/// a + b.
pub fn add_double(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::Nearest || !(a.is_finite() && b.is_finite()) {
        return canonical_double(a + b);
    }
    let (a, b) = (value(a), value(b));
    rounded(exact::sum(a, b, rounding), rounding)
}

/// a · b.
pub fn mul_double(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::Nearest || !(a.is_finite() && b.is_finite()) {
        return canonical_double(a * b);
    }
    rounded(exact::product(value(a), value(b)), rounding)
}

/// a · b + c.
pub fn fma_double(a: f64, b: f64, c: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::Nearest || !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return canonical_double(a.mul_add(b, c));
    }
    rounded(exact::sum(exact::product(value(a), value(b)), value(c), rounding), rounding)
}

/// a / b.
pub fn div_double(a: f64, b: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::Nearest || !(a.is_finite() && b.is_finite()) || b == 0.0 {
        return canonical_double(a / b);
    }
    rounded(exact::quotient(value(a), value(b)), rounding)
}

/// The square root of a.
pub fn sqrt_double(a: f64, rounding: Rounding) -> f64 {
    if rounding == Rounding::Nearest || !a.is_finite() || a <= 0.0 {
        return canonical_double(a.sqrt());
    }
    rounded(exact::square_root(value(a)), rounding)
}

fn value(x: f64) -> exact::Exact {
    exact::decode(x.to_bits(), DOUBLE)
}

fn rounded(x: exact::Exact, rounding: Rounding) -> f64 {
    f64::from_bits(exact::round(x, DOUBLE, rounding))
}

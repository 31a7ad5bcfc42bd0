//! Minimum and maximum. -0 is less than +0; a NaN loses against a number unless `.NaN` lets it win; a NaN result is
//! canonical. `.xorsign.abs` compares magnitudes and gives the result the product's sign.
//! (PTX ISA, "Floating Point Instructions: min", "max".)

use super::{NAN_SINGLE, canonical_double};

/// `.NaN` and `.xorsign.abs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rules {
    pub nan: bool,
    pub xorsign: bool,
}

/// Orders as the values do, with -0 below +0.
#[inline(always)]
fn key(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// The smaller of a and b, or the larger.
#[inline(always)]
pub fn extreme_single(a: f32, b: f32, larger: bool, rules: Rules) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
    let (x, y) = if rules.xorsign { (a.abs(), b.abs()) } else { (a, b) };
    let first = if larger { key(x) > key(y) } else { key(x) < key(y) };
    let number = if y.is_nan() | (first & !x.is_nan()) { x } else { y };
    let nan = if rules.nan { x.is_nan() | y.is_nan() } else { number.is_nan() };
    let signed = if rules.xorsign { number.to_bits() | sign } else { number.to_bits() };
    f32::from_bits(if nan { NAN_SINGLE } else { signed })
}

/// `min.f64`, `max.f64`.
#[inline(always)]
pub fn extreme_double(a: f64, b: f64, larger: bool) -> f64 {
    let key = |x: f64| {
        let bits = x.to_bits() as i64;
        bits ^ ((bits >> 63) as u64 >> 1) as i64
    };
    let first = if larger { key(a) > key(b) } else { key(a) < key(b) };
    let number = if b.is_nan() | (first & !a.is_nan()) { a } else { b };
    canonical_double(number)
}

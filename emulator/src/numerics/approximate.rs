//! The `.approx` functions, within the error bounds that PTX gives, and the same bits everywhere.
//!
//! `ex2` and `lg2` are polynomials in single precision; `sin`, `cos` and `tanh` are polynomials in double precision,
//! rounded once; reciprocals and roots are correctly rounded.
//! (PTX ISA, "Floating Point Instructions: ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "div".)

use std::f64::consts::{FRAC_PI_2, LN_2, LOG2_E, TAU};

/// Adding and subtracting this rounds a small single to an integer.
const TO_INTEGER: f32 = 12_582_912.0; // 1.5 · 2^23

/// 2^x, within 2 units in the last place, subnormal results included.
///
/// x = n + f with an integer n and |f| ≤ 1/2; 2^f = 1 + f·q(f) by a minimax polynomial (relative error 2.6e-9). The
/// factor 2^n is applied in two steps, so that each is a normal number.
#[inline(always)]
pub fn ex2(x: f32) -> f32 {
    const Q: [f32; 6] =
        [std::f32::consts::LN_2, 0.240_226_53, 5.550_310_6e-2, 9.617_693e-3, 1.340_664_4e-3, 1.559_467_5e-4];
    let bounded = if x > 129.0 { 129.0 } else { x };
    let bounded = if bounded < -152.0 { -152.0 } else { bounded };
    let shifted = bounded + TO_INTEGER;
    let n = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits()) as i32;
    let f = bounded - (shifted - TO_INTEGER);
    let mut q = Q[5];
    for i in (0..5).rev() {
        q = q * f + Q[i];
    }
    let fraction = 1.0 + f * q;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let result = fraction * power(half) * power(n.wrapping_sub(half));
    if x.is_nan() { x } else { result }
}

/// The logarithm to base 2, within 2^-22.6 on (0.5, 2) and a relative 2^-22 elsewhere.
///
/// x = 2^e · m with m in [√½, √2); with s = (m-1)/(m+1), log2 m = s·p(s²) by a minimax polynomial.
#[inline(always)]
pub fn lg2(x: f32) -> f32 {
    const P: [f32; 4] = [2.885_39, 0.961_798_85, 0.576_714_06, 0.431_744_6];
    // Subnormal values are scaled to normal ones.
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 16_777_216.0 } else { x };
    let offset = if subnormal { -24.0 } else { 0.0 };
    const ROOT_HALF: u32 = 0x3f35_04f3;
    let above = scaled.to_bits().wrapping_sub(ROOT_HALF);
    let exponent = (above as i32 >> 23) as f32 + offset;
    let m = f32::from_bits((above & 0x007f_ffff) + ROOT_HALF);
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let p = ((P[3] * z + P[2]) * z + P[1]) * z + P[0];
    let result = exponent + s * p;
    // +inf and NaN stay; zeros give -inf and negative values NaN.
    let special = if x == 0.0 { f32::NEG_INFINITY } else { f32::NAN };
    let regular = if x == f32::INFINITY { x } else { result };
    if x > 0.0 { regular } else { special }
}

/// 1/x.
#[inline(always)]
pub fn rcp(x: f32) -> f32 {
    1.0 / x
}

/// 1/√x.
#[inline(always)]
pub fn rsqrt(x: f32) -> f32 {
    (1.0 / (x as f64).sqrt()) as f32
}

/// `div.approx`: a · (1/b), where 1/b is a flushed subnormal for |b| above 2^126: the result is 0, or NaN for an
/// infinite a.
#[inline(always)]
pub fn div(a: f32, b: f32) -> f32 {
    let tiny = f32::from_bits(b.to_bits() & 0x8000_0000);
    if b.abs() > f32::from_bits(253 << 23) { a * tiny } else { a / b }
}

/// sin x: the reduction is exact enough up to 2^20 periods, and bounded beyond.
#[inline(always)]
pub fn sin(x: f32) -> f32 {
    // A zero keeps its sign, which the reduction would lose.
    if x == 0.0 { x } else { circular(x, 0) }
}

/// cos x.
#[inline(always)]
pub fn cos(x: f32) -> f32 {
    circular(x, 1)
}

/// sin(x + quarters · π/2).
fn circular(x: f32, quarters: i64) -> f32 {
    // π/2 in two parts: the first has 33 bits, so that its multiples are exact.
    const FIRST: f64 = f64::from_bits(0x3ff9_21fb_5440_0000);
    const SECOND: f64 = 6.077_100_506_506_192e-11;
    let wide = x as f64;
    let near = if wide.abs() > 1_048_576.0 { wide % TAU } else { wide };
    let n = (near / FRAC_PI_2).round_ties_even();
    let r = (near - n * FIRST) - n * SECOND;
    let z = r * r;
    let (sine, cosine) = (r + r * z * series(z, &SINE), 1.0 + z * series(z, &COSINE));
    let quadrant = (n as i64 + quarters) & 3;
    let value = if quadrant & 1 == 0 { sine } else { cosine };
    (if quadrant & 2 == 0 { value } else { -value }) as f32
}

const SINE: [f64; 6] =
    [-1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0, -1.0 / 39_916_800.0, 1.0 / 6_227_020_800.0];
const COSINE: [f64; 7] = [
    -1.0 / 2.0,
    1.0 / 24.0,
    -1.0 / 720.0,
    1.0 / 40_320.0,
    -1.0 / 3_628_800.0,
    1.0 / 479_001_600.0,
    -1.0 / 87_178_291_200.0,
];
/// 1/k!
const EXPONENTIAL: [f64; 13] = [
    1.0,
    1.0,
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
    1.0 / 479_001_600.0,
];
const TANH: [f64; 4] = [-1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0];

/// The polynomial with these coefficients, lowest first.
#[inline(always)]
fn series<const N: usize>(x: f64, coefficients: &[f64; N]) -> f64 {
    let mut sum = coefficients[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum * x + coefficients[i];
    }
    sum
}

/// The hyperbolic tangent: a series near 0, else (e^2x - 1)/(e^2x + 1).
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let wide = x as f64;
    let bounded = if wide.abs() > 20.0 { 20f64.copysign(wide) } else { wide };
    let z = bounded * bounded;
    let near = bounded + bounded * z * series(z, &TANH);
    let exponent = 2.0 * bounded * LOG2_E;
    const TO_INTEGER: f64 = 6_755_399_441_055_744.0; // 1.5 · 2^52
    let shifted = exponent + TO_INTEGER;
    let n = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits());
    let f = exponent - (shifted - TO_INTEGER);
    let power = f64::from_bits(n.wrapping_add(1023) << 52) * series(f * LN_2, &EXPONENTIAL);
    let far = (power - 1.0) / (power + 1.0);
    let value = (if bounded.abs() < 0.015_625 { near } else { far }) as f32;
    // A zero keeps its sign.
    value.copysign(x)
}

/// `rcp.approx.ftz.f64`: the reciprocal of the value's upper 32 bits, rounded to its upper 32 bits.
pub fn rcp_upper(x: f64) -> f64 {
    upper(x, |value| 1.0 / value)
}

/// `rsqrt.approx.ftz.f64`, likewise.
pub fn rsqrt_upper(x: f64) -> f64 {
    upper(x, |value| 1.0 / value.sqrt())
}

fn upper(x: f64, f: impl Fn(f64) -> f64) -> f64 {
    const UPPER: u64 = 0xffff_ffff_0000_0000;
    let flush = |bits: u64| if bits >> 52 & 0x7ff == 0 { bits & 1 << 63 } else { bits };
    // A NaN whose payload lies in the lower half stays one.
    let quiet = if x.is_nan() { 1 << 51 } else { 0 };
    let result = f(f64::from_bits(flush((x.to_bits() | quiet) & UPPER)));
    // To the nearest multiple of 2^32 units in the last place; infinity has none to lose.
    let rounded = flush(result.to_bits()).wrapping_add(1 << 31) & UPPER;
    f64::from_bits(if result.is_nan() { 0x7fff_ffff_0000_0000 } else { rounded })
}

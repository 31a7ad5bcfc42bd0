//! Vector units: which one this machine has, and how code gets compiled for it.
//!
//! The crate is built for the baseline CPU, so plain loops would only use 128-bit registers. [`vectorize`] runs a
//! closure that was compiled once per [`Level`] and picks the widest one the CPU supports:
//!
//! ```text
//!   vectorize(#[inline(always)] || for y in ys { *y = exp(*y) })
//!       Level::Avx512    the closure, inlined into a function with 512-bit registers
//!       Level::Avx2      the same source, 256-bit
//!       Level::Portable  the same source, whatever the target's baseline offers
//! ```
//!
//! Everything here rounds the same at every level: no fused multiply-add.

use std::sync::OnceLock;

/// The vector units the crate distinguishes, from narrow to wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Any architecture, baseline features only.
    Portable,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
}

/// The widest level this CPU supports.
#[inline]
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match (avx2, avx512) {
        (true, true) => Level::Avx512,
        (true, false) => Level::Avx2,
        _ => Level::Portable,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Portable
}

/// Runs `f` compiled for the widest vector unit. The closure must carry `#[inline(always)]`, and so must the functions
/// with loops that it calls: code that is not inlined here keeps the baseline's instructions.
#[inline]
pub fn vectorize<R>(f: impl FnOnce() -> R) -> R {
    match level() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level()` is Avx512 only after detecting every feature `with_avx512` enables.
        Level::Avx512 => unsafe { with_avx512(f) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `level()` is Avx2 only after detecting every feature `with_avx2` enables.
        Level::Avx2 => unsafe { with_avx2(f) },
        _ => f(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn with_avx512<R>(f: impl FnOnce() -> R) -> R {
    f()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// What the row loops of this folder need of `f32` and `f64`.
pub trait Number: num_traits::Float + num_traits::NumAssign + std::iter::Sum + Send + Sync {
    /// eˣ, in f32 by a polynomial that the compiler can run on a whole vector register.
    fn exp_simd(self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn exp_simd(self) -> f32 {
        exp(self)
    }
}

impl Number for f64 {
    fn exp_simd(self) -> f64 {
        self.exp()
    }
}

/// e^x to about 1 ulp: x = n·ln2 + r with |r| <= ln2/2, a polynomial for e^r, then scaling by 2^n.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5·2^23 leaves the rounded integer in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    // ln2 in two parts; the first has 10 significant bits, so n·LN2_HI is exact.
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    // Outside this range the result is 0 or infinity; comparisons written so that NaN passes through.
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HI) - n * LN2_LO;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let e = (p * r) * r + r + 1.0;
    // 2^n in two factors, because n itself may lie outside the range of a normal exponent.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// 2^n for a normal result, -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every level the CPU has, by the wrappers that `vectorize` chooses from.
    fn at_every_level<R>(f: impl Fn() -> R) -> Vec<R> {
        #[allow(unused_mut, reason = "grows on x86-64 only")]
        let mut results = vec![f()];
        #[cfg(target_arch = "x86_64")]
        {
            if level() >= Level::Avx2 {
                // SAFETY: the level was detected.
                results.push(unsafe { with_avx2(&f) });
            }
            if level() >= Level::Avx512 {
                // SAFETY: the level was detected.
                results.push(unsafe { with_avx512(&f) });
            }
        }
        results
    }

    /// The distance in units of the last place of `want`, rounded to f32.
    fn ulps(got: f32, want: f64) -> f64 {
        let rounded = (want as f32).abs();
        let ulp = (f32::from_bits(rounded.to_bits() + 1) - rounded) as f64;
        (got as f64 - want).abs() / ulp
    }

    /// Applies `f` to a fine grid and asserts |error| <= `limit` ulp where the result is a normal number.
    fn accurate(range: std::ops::Range<f32>, limit: f64, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
        let steps = 400_000;
        let xs: Vec<f32> =
            (0..=steps).map(|i| range.start + (range.end - range.start) * i as f32 / steps as f32).collect();
        let results = at_every_level(|| xs.iter().map(|&x| f(x)).collect::<Vec<f32>>());
        for ys in &results {
            let worst =
                xs.iter().zip(ys).map(|(&x, &y)| (ulps(y, exact(x as f64)), x)).max_by(|a, b| a.0.total_cmp(&b.0));
            let (error, x) = worst.unwrap();
            println!("{range:?}: worst {error:.2} ulp at {x}");
            assert!(error <= limit, "{error} ulp at {x}");
            assert!(ys.iter().zip(&results[0]).all(|(a, b)| a.to_bits() == b.to_bits()), "levels differ");
        }
    }

    #[test]
    fn exp_is_accurate() {
        accurate(-87.3..88.72, 1.5, exp, f64::exp);
        accurate(-1e-3..1e-3, 1.0, exp, f64::exp);
        accurate(-103.0..-87.3, 1.5, exp, f64::exp);
    }

    #[test]
    fn limits() {
        let inf = f32::INFINITY;
        assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
        assert_eq!([-inf, -200.0, -104.5, 0.0, 89.0, 1e30, inf].map(exp), [0.0, 0.0, 0.0, 1.0, inf, inf, inf]);
        assert!(exp(-103.0) > 0.0, "no abrupt underflow");
    }
}

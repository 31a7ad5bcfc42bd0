//! The approximations against their error bounds, with the platform's functions in double precision as the truth.

use super::Random;
use crate::numerics::approximate;
use crate::numerics::oracle::F64;

/// The distance in units of the last place of `expected` (of the smallest subnormal at least).
fn ulps(found: f32, expected: f64) -> f64 {
    let scale = expected.abs().max(f32::MIN_POSITIVE as f64);
    let unit = (scale.log2().floor() - 23.0).exp2();
    (found as f64 - expected).abs() / unit
}

#[test]
fn ex2_is_within_two_units() {
    let mut worst = 0.0f64;
    let random = (0..200_000).scan(Random(8), |random, _| Some((random.draw() >> 11) as f64 / (1u64 << 53) as f64));
    let spread = random.map(|u| (u * 282.0 - 152.0) as f32);
    let ends = [-149.0f32, -149.5, -150.0, -126.0, -126.5, -125.99, 127.99999, 0.5, -0.5, 1e-30, -1e-38, 1e-45];
    for x in spread.chain(ends).chain((-149..128).map(|n| n as f32)) {
        let (found, expected) = (approximate::ex2(x), (x as f64).exp2());
        if expected < 2f64.powi(128) {
            worst = worst.max(ulps(found, expected));
        } else {
            assert!(found == f32::INFINITY || x < 128.0, "{x}");
        }
    }
    assert!(worst <= 2.0, "{worst} units");
    for n in -149..128 {
        assert_eq!(approximate::ex2(n as f32) as f64, 2f64.powi(n), "integers are exact");
    }
    let special = [
        (128.0, f32::INFINITY),
        (1e30, f32::INFINITY),
        (f32::INFINITY, f32::INFINITY),
        (f32::NEG_INFINITY, 0.0),
        (-1e30, 0.0),
        (-151.0, 0.0),
        (0.0, 1.0),
        (-0.0, 1.0),
    ];
    for (x, expected) in special {
        assert_eq!(approximate::ex2(x).to_bits(), expected.to_bits(), "2^{x}");
    }
    assert!(approximate::ex2(f32::NAN).is_nan());
}

#[test]
fn lg2_is_within_its_bounds() {
    let mut random = Random(9);
    let near = (0..100_000).map(|i| 0.5 + 1.5 * i as f32 / 100_000.0);
    let any: Vec<_> = (0..100_000).map(|_| f32::from_bits(random.draw() as u32 & 0x7f7f_ffff)).collect();
    for x in near.chain(any).chain([1e-45, 1e-40, f32::MIN_POSITIVE, f32::MAX]) {
        if x == 0.0 {
            continue;
        }
        let (found, expected) = (approximate::lg2(x) as f64, (x as f64).log2());
        let error = (found - expected).abs();
        let bound = if x > 0.5 && x < 2.0 { 2f64.powf(-22.6) } else { 2f64.powi(-22) * expected.abs() };
        assert!(error <= bound, "lg2({x}): {found}, {expected}");
    }
    for (n, x) in (-149..128).map(|n| (n, 2f64.powi(n) as f32)) {
        assert_eq!(approximate::lg2(x), n as f32, "powers of two are exact");
    }
    assert_eq!(approximate::lg2(0.0), f32::NEG_INFINITY);
    assert_eq!(approximate::lg2(-0.0), f32::NEG_INFINITY);
    assert_eq!(approximate::lg2(f32::INFINITY), f32::INFINITY);
    for x in [-1.0, -1e-45, f32::NEG_INFINITY, f32::NAN] {
        assert!(approximate::lg2(x).is_nan(), "{x}");
    }
}

#[test]
fn sine_cosine_and_tangent_are_within_their_bounds() {
    let mut random = Random(10);
    for i in 0..200_000 {
        let u = (random.draw() >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
        let range = [6.4, 200.0, 1e5, 2e6][i % 4];
        let x = (u * range) as f32;
        let wide = x as f64;
        assert!((approximate::sin(x) as f64 - wide.sin()).abs() < 2f64.powi(-22), "sin {x}");
        assert!((approximate::cos(x) as f64 - wide.cos()).abs() < 2f64.powi(-22), "cos {x}");
        let t = (u * [0.01, 0.1, 4.0, 60.0][i % 4]) as f32;
        assert!(ulps(approximate::tanh(t), (t as f64).tanh()) <= 1.0, "tanh {t}");
    }
    for x in [1e20f32, 3e38, -1e9] {
        assert!(approximate::sin(x).abs() <= 1.0 && approximate::cos(x).abs() <= 1.0);
    }
    for x in [0.0f32, -0.0, 1e-45, -1e-40] {
        assert_eq!(approximate::sin(x).to_bits(), x.to_bits());
        assert_eq!(approximate::tanh(x).to_bits(), x.to_bits());
        assert_eq!(approximate::cos(x), 1.0);
    }
    for x in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        assert!(approximate::sin(x).is_nan() && approximate::cos(x).is_nan());
    }
    assert_eq!(approximate::tanh(f32::INFINITY), 1.0);
    assert_eq!(approximate::tanh(f32::NEG_INFINITY), -1.0);
    assert!(approximate::tanh(f32::NAN).is_nan());
}

#[test]
fn gross_reciprocals() {
    let mut random = Random(11);
    for _ in 0..20_000 {
        let bits = random.bits(F64) & !F64.sign();
        let x = f64::from_bits(bits & 0xffff_ffff_0000_0000);
        let (reciprocal, root) = (approximate::rcp_upper(x), approximate::rsqrt_upper(x));
        assert_eq!((reciprocal.to_bits() | root.to_bits()) & 0xffff_ffff, 0, "the lower half is zero");
        if x.is_normal() && (1.0 / x).is_normal() {
            assert!((reciprocal * x - 1.0).abs() <= 2f64.powi(-20), "{x}");
            assert!((root * root * x - 1.0).abs() <= 2f64.powi(-19), "{x}");
            // The lower half of the operand does not count.
            assert_eq!(approximate::rcp_upper(f64::from_bits(x.to_bits() | 0xffff_ffff)), reciprocal);
        }
    }
    let special = [(0.0, f64::INFINITY), (-0.0, f64::NEG_INFINITY), (f64::INFINITY, 0.0), (-5e-324, f64::NEG_INFINITY)];
    for (x, expected) in special {
        assert_eq!(approximate::rcp_upper(x).to_bits(), expected.to_bits(), "1/{x}");
    }
    assert_eq!(approximate::rcp_upper(f64::NAN).to_bits(), 0x7fff_ffff_0000_0000);
    assert_eq!(approximate::rsqrt_upper(-1.0).to_bits(), 0x7fff_ffff_0000_0000);
    assert_eq!(approximate::rcp_upper(f64::MAX).to_bits(), 0, "a subnormal result is flushed");
}

#[test]
fn approximate_division_flushes_large_divisors() {
    assert_eq!(approximate::div(6.0, 3.0), 2.0);
    let large = 2f32.powi(126);
    assert_eq!(approximate::div(large, large), 1.0);
    assert_eq!(approximate::div(large, -large * 1.5).to_bits(), (-0.0f32).to_bits());
    assert!(approximate::div(f32::INFINITY, large * 1.5).is_nan());
    assert_eq!(approximate::div(1.0, f32::INFINITY).to_bits(), 0);
}

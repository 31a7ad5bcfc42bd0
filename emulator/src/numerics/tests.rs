//! The scalar arithmetic against exact integers, and the approximations against their error bounds.

use super::formats::{self, Eight, TfRounding};
use super::oracle::{BF16, Dyadic, E4M3, E5M2, F16, F32, F64, Layout};
use super::{NAN_SINGLE, Rounding, approximate, directed, exact, integers, minmax};

pub const ROUNDINGS: [Rounding; 4] = [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up];

/// A fixed sequence of bits (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Bits of a format: any pattern, or (in half of the cases) one with an exponent near that of 1, so that sums
    /// cancel and overlap.
    pub fn bits(&mut self, layout: Layout) -> u64 {
        let all = layout.sign() | (layout.sign() - 1);
        let any = self.next() & all;
        if self.next() & 1 == 0 {
            return any;
        }
        let fraction = any & ((1 << layout.fraction_bits) - 1);
        // Few bits make exact results and halfway cases.
        let fraction = if self.next() & 3 == 0 { fraction & !(all >> 12 & (1 << layout.fraction_bits) - 1) } else { fraction };
        let near = layout.one().wrapping_add((self.next() % 33).wrapping_sub(16) << layout.fraction_bits);
        (any & layout.sign()) | (near & (layout.infinity - 1) & !((1 << layout.fraction_bits) - 1)) | fraction
    }
}

/// Zeros, subnormal values, powers of two and their neighbours, the largest values, infinities and NaNs.
pub fn edges(layout: Layout) -> Vec<u64> {
    let one = layout.one();
    let normal = 1 << layout.fraction_bits;
    let half_fraction = normal >> 1;
    let magnitudes = [
        0,
        1,
        2,
        half_fraction,
        normal - 1,
        normal,
        normal + 1,
        2 * normal,
        one - normal,
        one - 1,
        one,
        one + 1,
        one + half_fraction,
        one + normal,
        one + normal + half_fraction,
        one + (layout.fraction_bits as u64) * normal,
        one + (layout.fraction_bits as u64 + 1) * normal + 1,
        layout.infinity - normal,
        layout.infinity - 1,
        layout.infinity,
        layout.infinity + 1,
        layout.infinity + half_fraction,
        layout.nan,
    ];
    magnitudes.iter().flat_map(|&m| [m, m | layout.sign()]).collect()
}

/// a + b, a · b, a · b + c, a / b and √a by exact integers; NaN results are canonical.
pub fn reference(operation: &str, layout: Layout, rounding: Rounding, bits: [u64; 3]) -> u64 {
    let [a, b, c] = bits;
    let sign = layout.sign();
    let infinite = |negative: bool| layout.infinity | if negative { sign } else { 0 };
    let negative = |x| layout.is_negative(x);
    if bits.iter().any(|&x| layout.is_nan(x)) {
        return layout.nan;
    }
    let is_zero = |x| layout.magnitude(x) == 0;
    match operation {
        "fma" => {
            let product_negative = negative(a) ^ negative(b);
            let product_infinite = layout.is_infinite(a) || layout.is_infinite(b);
            if product_infinite && (is_zero(a) || is_zero(b)) {
                return layout.nan;
            }
            if product_infinite || layout.is_infinite(c) {
                let clash = product_infinite && layout.is_infinite(c) && product_negative != negative(c);
                let sign = if product_infinite { product_negative } else { negative(c) };
                return if clash { layout.nan } else { infinite(sign) };
            }
            let sum = layout.value(a).mul(&layout.value(b)).add(&layout.value(c));
            if sum.is_zero() {
                let both = product_negative && negative(c);
                let opposite = product_negative != negative(c);
                return if both || opposite && rounding == Rounding::Down { sign } else { 0 };
            }
            layout.round_value(&sum, rounding)
        }
        "add" => reference("fma", layout, rounding, [a, layout.one(), b]),
        "sub" => reference("fma", layout, rounding, [a, layout.one(), b ^ sign]),
        // Adding a zero of the product's sign changes nothing.
        "mul" => reference("fma", layout, rounding, [a, b, (a ^ b) & sign]),
        "div" => {
            let result_sign = negative(a) ^ negative(b);
            let zero = if result_sign { sign } else { 0 };
            match (layout.is_infinite(a), layout.is_infinite(b), is_zero(a), is_zero(b)) {
                (true, true, ..) | (.., true, true) => layout.nan,
                (true, ..) | (.., true) => infinite(result_sign),
                (_, true, ..) | (_, _, true, _) => zero,
                _ => {
                    let (dividend, divisor) = (layout.value(a).abs(), layout.value(b).abs());
                    layout.round(result_sign, rounding, |x| x.mul(&divisor).compare(&dividend))
                }
            }
        }
        "rcp" => reference("div", layout, rounding, [layout.one(), a, 0]),
        "sqrt" if is_zero(a) => a,
        "sqrt" if negative(a) => layout.nan,
        "sqrt" if layout.is_infinite(a) => a,
        "sqrt" => {
            let square = layout.value(a);
            layout.round(false, rounding, |x| x.mul(x).compare(&square))
        }
        _ => panic!("no reference for {operation}"),
    }
}

/// Operand triples: edges against edges, and random ones.
pub fn triples(layout: Layout, count: usize, seed: u64) -> Vec<[u64; 3]> {
    let edges = edges(layout);
    let mut random = Random(seed);
    let mut pick = |i: u64| if i & 1 == 0 { random.bits(layout) } else { edges[random.next() as usize % edges.len()] };
    (0..count as u64).map(|i| [pick(i), pick(i / 2), pick(i / 4)]).collect()
}

#[test]
fn directed_single_precision_is_exact() {
    for [a, b, c] in triples(F32, 12_000, 1) {
        let [x, y, z] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
        for rounding in ROUNDINGS {
            let results = [
                ("add", directed::add_single(x, y, rounding)),
                ("mul", directed::mul_single(x, y, rounding)),
                ("fma", directed::fma_single(x, y, z, rounding)),
                ("div", directed::div_single(x, y, rounding)),
                ("sqrt", directed::sqrt_single(x, rounding)),
            ];
            for (operation, result) in results {
                let used = match operation {
                    "fma" => [a, b, c],
                    "sqrt" => [a, 0, 0],
                    _ => [a, b, 0],
                };
                let expected = reference(operation, F32, rounding, used);
                let found = if result.is_nan() { NAN_SINGLE } else { result.to_bits() } as u64;
                assert_eq!(found, expected, "{operation} {rounding:?} of {a:#x}, {b:#x}, {c:#x}");
            }
        }
    }
}

#[test]
fn directed_double_precision_is_exact() {
    for [a, b, c] in triples(F64, 2_000, 2) {
        let [x, y, z] = [a, b, c].map(f64::from_bits);
        for rounding in ROUNDINGS {
            let results = [
                ("add", directed::add_double(x, y, rounding)),
                ("mul", directed::mul_double(x, y, rounding)),
                ("fma", directed::fma_double(x, y, z, rounding)),
                ("div", directed::div_double(x, y, rounding)),
                ("sqrt", directed::sqrt_double(x, rounding)),
            ];
            for (operation, result) in results {
                let used = match operation {
                    "fma" => [a, b, c],
                    "sqrt" => [a, 0, 0],
                    _ => [a, b, 0],
                };
                let expected = reference(operation, F64, rounding, used);
                assert_eq!(result.to_bits(), expected, "{operation} {rounding:?} of {a:#x}, {b:#x}, {c:#x}");
            }
        }
    }
}

#[test]
fn exact_sums_near_cancellation() {
    // Operands that differ in the last places, and a small one beyond the others' last place.
    let one = F64.one();
    for c in [1, 2, 1 << 52, one - (53 << 52), one - (54 << 52), one - (106 << 52), one - (107 << 52), one - (120 << 52)] {
        for a in [one, one + 1, one - 1, one + (1 << 51)] {
            for sign in [0, F64.sign()] {
                for rounding in ROUNDINGS {
                    let found = directed::fma_double(
                        f64::from_bits(a),
                        f64::from_bits(one + 1),
                        f64::from_bits(c | sign),
                        rounding,
                    );
                    assert_eq!(found.to_bits(), reference("fma", F64, rounding, [a, one + 1, c | sign]));
                }
            }
        }
    }
}

#[test]
fn doubles_narrow_in_every_direction() {
    let mut random = Random(3);
    let mut values = edges(F64);
    for i in 0..4000 {
        let single = random.bits(F32) as u32;
        // A single's value and its neighbours among doubles, and halfway to the next single.
        let near = (f32::from_bits(single) as f64).to_bits();
        values.push([near, near.wrapping_add(1), near.wrapping_sub(1), near ^ 1 << 28, random.bits(F64)][i % 5]);
    }
    for bits in values {
        let x = f64::from_bits(bits);
        for rounding in ROUNDINGS {
            let found = directed::narrow(x, rounding);
            if x.is_nan() {
                assert!(found.is_nan());
                continue;
            }
            let expected = convert_reference(bits, F64, F32, rounding);
            assert_eq!(found.to_bits() as u64, expected, "{rounding:?} of {bits:#x}");
        }
    }
}

/// Between formats, NaN and infinity included.
pub fn convert_reference(bits: u64, from: Layout, to: Layout, rounding: Rounding) -> u64 {
    let sign = if from.is_negative(bits) { to.sign() } else { 0 };
    match () {
        _ if from.is_nan(bits) => to.nan,
        _ if from.is_infinite(bits) => to.infinity | sign,
        _ => to.round_value(&from.value(bits), rounding) | sign,
    }
}

/// Singles at, beside and between all values of a 16-bit format.
fn around(layout: Layout) -> impl Iterator<Item = u32> {
    (0..=0xffffu64).filter(move |&bits| layout.is_finite(bits)).flat_map(move |bits| {
        let cut = 23 - layout.fraction_bits;
        let at = match layout.exponent_bits {
            8 => (bits as u32) << 16,
            _ => half::f16::from_bits(bits as u16).to_f32().to_bits(),
        };
        // For subnormal halves the halfway point is elsewhere; the crate's conversion judges all of them.
        let between = at | 1 << (cut - 1);
        [at, at.wrapping_add(1), at.wrapping_sub(1), between, between + 1, between - 1]
    })
}

#[test]
fn all_halves_and_bfloats_convert() {
    for bits in 0..=0xffffu32 {
        let half = half::f16::from_bits(bits as u16);
        let bfloat = half::bf16::from_bits(bits as u16);
        let found = formats::half_to_single(bits);
        if half.is_nan() {
            assert_eq!(found.to_bits(), NAN_SINGLE);
        } else {
            assert_eq!(found.to_bits(), half.to_f32().to_bits(), "half {bits:#x}");
            assert_eq!(formats::single_to_half(found), bits);
        }
        assert_eq!(formats::bfloat_to_single(bits).to_bits(), bits << 16);
        let back = formats::single_to_bfloat(f32::from_bits(bits << 16));
        assert_eq!(back, if bfloat.is_nan() { 0x7fff } else { bits });
    }
    for bits in around(F16).chain(edges(F32).into_iter().map(|bits| bits as u32)) {
        let x = f32::from_bits(bits);
        let expected = if x.is_nan() { 0x7fff } else { half::f16::from_f32(x).to_bits() };
        assert_eq!(formats::single_to_half(x), expected as u32, "{bits:#x}");
    }
    for bits in around(BF16).chain(edges(F32).into_iter().map(|bits| bits as u32)) {
        let x = f32::from_bits(bits);
        let expected = if x.is_nan() { 0x7fff } else { half::bf16::from_f32(x).to_bits() };
        assert_eq!(formats::single_to_bfloat(x), expected as u32, "{bits:#x}");
    }
}

#[test]
fn narrow_formats_round_in_every_direction() {
    let mut random = Random(4);
    let mut values = edges(F32);
    // The range of halves: its ends, its subnormal values.
    for x in [65504.0f32, 65519.9, 65520.0, 65536.0, 6.1035156e-5, 6.09e-5, 5.96e-8, 2.98e-8, 2.9802322e-8, 1e-8] {
        values.extend([x.to_bits() as u64, (-x).to_bits() as u64]);
    }
    values.extend((0..3000).map(|_| random.bits(F32)));
    for bits in values {
        let x = f32::from_bits(bits as u32);
        for rounding in ROUNDINGS {
            let half = convert_reference(bits, F32, F16, rounding);
            let bfloat = convert_reference(bits, F32, BF16, rounding);
            assert_eq!(formats::single_to_half_directed(x, rounding) as u64, half, "{bits:#x} {rounding:?}");
            assert_eq!(formats::single_to_bfloat_directed(x, rounding) as u64, bfloat, "{bits:#x} {rounding:?}");
        }
    }
}

#[test]
fn tf32_keeps_ten_fraction_bits() {
    let mut random = Random(5);
    let values = edges(F32).into_iter().chain((0..5000).map(|_| random.bits(F32) & !0xff | 0x800));
    for bits in values {
        let x = f32::from_bits(bits as u32);
        if x.is_nan() {
            assert_eq!(formats::single_to_tf32(x, TfRounding::Away), NAN_SINGLE);
            continue;
        }
        let (low, cut) = (bits as u32 & !0x1fff, bits as u32 & 0x1fff);
        let even = low >> 13 & 1 == 0;
        let nearest = if cut > 0x1000 || cut == 0x1000 && !even { low + 0x2000 } else { low };
        let away = if cut >= 0x1000 { low + 0x2000 } else { low };
        assert_eq!(formats::single_to_tf32(x, TfRounding::Zero), low);
        assert_eq!(formats::single_to_tf32(x, TfRounding::Nearest), nearest);
        assert_eq!(formats::single_to_tf32(x, TfRounding::Away), away, "{bits:#x}");
    }
}

#[test]
fn eight_bit_formats() {
    for (eight, layout) in [(Eight::E4m3, E4M3), (Eight::E5m2, E5M2)] {
        for bits in 0..256u64 {
            let half = formats::eight_to_half(bits as u32, eight) as u64;
            let expected = convert_reference(bits, layout, F16, Rounding::Nearest);
            assert_eq!(half, expected, "{eight:?} {bits:#x}");
            if layout.is_finite(bits) {
                let single = formats::half_to_single(half as u32);
                assert_eq!(formats::single_to_eight(single, eight) as u64, bits);
            }
        }
        let mut random = Random(6);
        // Exponents near 1 cover the whole range of both formats.
        let near: Vec<u64> = (0..6000).map(|_| random.bits(F32)).collect();
        let halfway = near.iter().map(|bits| bits & !0x7_ffff);
        for bits in edges(F32).into_iter().chain(halfway).chain(near.iter().copied()) {
            let sign = bits >> 24 & 0x80;
            let found = formats::single_to_eight(f32::from_bits(bits as u32), eight) as u64;
            let expected = match () {
                _ if F32.is_nan(bits) => 0x7f,
                _ => {
                    let rounded = convert_reference(bits, F32, layout, Rounding::Nearest);
                    sign | (rounded & 0x7f).min(layout.infinity - 1)
                }
            };
            assert_eq!(found, expected, "{eight:?} of {bits:#x}");
        }
    }
    assert_eq!(formats::single_to_eight(448.0, Eight::E4m3), 0x7e);
    assert_eq!(formats::single_to_eight(1e9, Eight::E4m3), 0x7e);
    assert_eq!(formats::single_to_eight(-1e9, Eight::E5m2), 0xfb);
}

#[test]
fn integers_round_once() {
    let mut random = Random(7);
    let values = (0..64).flat_map(|i| [(1u64 << i) - 1, 1 << i, (1 << i) + 1]).collect::<Vec<_>>();
    let values = values.into_iter().chain((0..2000).map(|i| random.next() >> (i % 60)));
    for magnitude in values {
        for (format, layout) in [(exact::HALF, F16), (exact::BFLOAT, BF16), (exact::SINGLE, F32), (exact::DOUBLE, F64)] {
            for rounding in ROUNDINGS {
                for negative in [false, true] {
                    let value = Dyadic::integer(if negative { -(magnitude as i128) } else { magnitude as i128 });
                    let found = exact::from_integer(negative, magnitude, format, rounding);
                    assert_eq!(found, layout.round_value(&value, rounding), "{magnitude} {negative} {rounding:?}");
                }
            }
        }
    }
    assert_eq!(integers::Integer { bits: 64, signed: false }.largest(), u64::MAX as i128);
}

#[test]
fn minimum_and_maximum_rules() {
    let rules = |nan, xorsign| minmax::Rules { nan, xorsign };
    let nan = f32::from_bits(0xffc1_2345);
    let min = |a, b, r| minmax::extreme_single(a, b, false, r).to_bits();
    let max = |a, b, r| minmax::extreme_single(a, b, true, r).to_bits();
    assert_eq!(min(0.0, -0.0, rules(false, false)), (-0.0f32).to_bits());
    assert_eq!(max(-0.0, 0.0, rules(false, false)), 0);
    assert_eq!(min(nan, 3.0, rules(false, false)), 3f32.to_bits());
    assert_eq!(max(3.0, nan, rules(false, false)), 3f32.to_bits());
    assert_eq!(min(nan, nan, rules(false, false)), NAN_SINGLE);
    assert_eq!(max(3.0, nan, rules(true, false)), NAN_SINGLE);
    assert_eq!(min(-2.0, 3.0, rules(false, true)), (-2f32).to_bits());
    assert_eq!(max(-2.0, -3.0, rules(false, true)), 3f32.to_bits());
    assert_eq!(min(nan, 3.0, rules(false, true)), (-3f32).to_bits());
    assert_eq!(min(nan, -nan, rules(false, true)), NAN_SINGLE);
}

/// The distance in units of the last place of `expected` (of the smallest subnormal at least).
fn ulps(found: f32, expected: f64) -> f64 {
    let scale = expected.abs().max(f32::MIN_POSITIVE as f64);
    let unit = (scale.log2().floor() - 23.0).exp2();
    (found as f64 - expected).abs() / unit
}

#[test]
fn ex2_is_within_two_units() {
    let mut worst = 0.0f64;
    let random = (0..200_000).scan(Random(8), |random, _| Some((random.next() >> 11) as f64 / (1u64 << 53) as f64));
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
    let any: Vec<_> = (0..100_000).map(|_| f32::from_bits(random.next() as u32 & 0x7f7f_ffff)).collect();
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
        let u = (random.next() >> 11) as f64 / (1u64 << 53) as f64 - 0.5;
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

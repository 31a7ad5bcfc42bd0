//! The scalar arithmetic against exact integers, and the approximations against their error bounds.

mod approximations;
mod narrow;

use super::oracle::{F32, F64, FloatLayout};
use super::{NAN_SINGLE, Rounding, directed, exact, minmax};

pub const ROUNDINGS: [Rounding; 4] = [Rounding::Nearest, Rounding::Zero, Rounding::Down, Rounding::Up];

/// A fixed sequence of bits (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Bits of a format: any pattern, or (in half of the cases) one with an exponent near that of 1, so that sums
    /// cancel and overlap.
    pub fn bits(&mut self, layout: FloatLayout) -> u64 {
        let all = layout.sign() | (layout.sign() - 1);
        let any = self.draw() & all;
        if self.draw() & 1 == 0 {
            return any;
        }
        let fraction = any & ((1 << layout.fraction_bits) - 1);
        // Few bits make exact results and halfway cases.
        let fraction =
            if self.draw() & 3 == 0 { fraction & !((all >> 12) & ((1 << layout.fraction_bits) - 1)) } else { fraction };
        let near = layout.one().wrapping_add((self.draw() % 33).wrapping_sub(16) << layout.fraction_bits);
        (any & layout.sign()) | (near & (layout.infinity - 1) & !((1 << layout.fraction_bits) - 1)) | fraction
    }
}

/// Zeros, subnormal values, powers of two and their neighbours, the largest values, infinities and NaNs.
pub fn edges(layout: FloatLayout) -> Vec<u64> {
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
pub fn reference(operation: &str, layout: FloatLayout, rounding: Rounding, bits: [u64; 3]) -> u64 {
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
pub fn triples(layout: FloatLayout, count: usize, seed: u64) -> Vec<[u64; 3]> {
    let edges = edges(layout);
    let mut random = Random(seed);
    let mut pick = |i: u64| if i & 1 == 0 { random.bits(layout) } else { edges[random.draw() as usize % edges.len()] };
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
    for c in
        [1, 2, 1 << 52, one - (53 << 52), one - (54 << 52), one - (106 << 52), one - (107 << 52), one - (120 << 52)]
    {
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
fn exact_arithmetic_to_nearest_is_the_machine_s() {
    let one = F64.one();
    // A product halfway between doubles, and a term of either sign far below it.
    let tie = |c: f64| [one + 1, one + (1 << 51), c.to_bits()];
    let ties = [tie(0.0), tie(1e-200), tie(-1e-200), tie(5e-324)];
    for [a, b, c] in triples(F64, 4_000, 12).into_iter().chain(ties) {
        if [a, b, c].iter().any(|&x| !F64.is_finite(x)) || F64.magnitude(b) == 0 {
            continue;
        }
        let [x, y, z] = [a, b, c].map(|bits| exact::decode(bits, exact::DOUBLE));
        let [p, q, r] = [a, b, c].map(f64::from_bits);
        let nearest = Rounding::Nearest;
        for (found, expected) in [
            (exact::sum(x, y, nearest), p + q),
            (exact::product(x, y), p * q),
            (exact::sum(exact::product(x, y), z, nearest), p.mul_add(q, r)),
            (exact::quotient(x, y), p / q),
            (exact::square_root(exact::Exact { negative: false, ..x }), p.abs().sqrt()),
        ] {
            let bits = exact::round(found, exact::DOUBLE, nearest);
            assert_eq!(bits, expected.to_bits(), "{p:e}, {q:e}, {r:e}");
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
pub fn convert_reference(bits: u64, from: FloatLayout, to: FloatLayout, rounding: Rounding) -> u64 {
    let sign = if from.is_negative(bits) { to.sign() } else { 0 };
    match () {
        _ if from.is_nan(bits) => to.nan,
        _ if from.is_infinite(bits) => to.infinity | sign,
        _ => to.round_value(&from.value(bits), rounding) | sign,
    }
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

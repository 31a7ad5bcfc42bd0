//! The narrow formats and integers: every 16-bit value, and singles around them.

use super::{ROUNDINGS, Random, convert_reference, edges};
use crate::numerics::formats::{self, Eight, TfRounding};
use crate::numerics::oracle::{BF16, Dyadic, E4M3, E5M2, F16, F32, F64, FloatLayout};
use crate::numerics::{NAN_SINGLE, Rounding, exact, integers};

/// Singles at, beside and between all values of a 16-bit format.
fn around(layout: FloatLayout) -> impl Iterator<Item = u32> {
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
            assert_eq!(found.to_bits(), NAN_SINGLE | (bits & 0x8000) << 16);
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
    let values = values.into_iter().chain((0..2000).map(|i| random.draw() >> (i % 60)));
    for magnitude in values {
        for (format, layout) in [(exact::HALF, F16), (exact::BFLOAT, BF16), (exact::SINGLE, F32), (exact::DOUBLE, F64)]
        {
            for rounding in ROUNDINGS {
                for negative in [false, true] {
                    let value = Dyadic::integer(if negative { -(magnitude as i128) } else { magnitude as i128 });
                    let found = exact::from_integer(negative, magnitude, format, rounding);
                    assert_eq!(found, layout.round_value(&value, rounding), "{magnitude} {negative} {rounding:?}");
                }
            }
        }
    }
    assert_eq!(integers::IntegerType { bits: 64, signed: false }.largest(), u64::MAX as i128);
}

//! Every conversion against exact integers; and that no other is accepted.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use num_bigint::BigInt;

use super::{Machine, form, lower, rounding};
use crate::numerics::formats::{self, Eight};
use crate::numerics::oracle::{BF16, Dyadic, F16, F32, F64, FloatLayout};
use crate::numerics::tests::{Random, convert_reference, edges};

/// Pairs TARGET<SOURCE and their modifiers, as PTX ISA 9.0 has them up to sm_90.
const FORMS: &[(&str, &str)] = &[
    (
        "u8<u8 s8<s8 u16<u8 u16<u16 s16<u8 s16<s8 s16<s16 u32<u8 u32<u16 u32<u32 s32<u8 s32<s8 s32<u16 s32<s16 s32<s32 \
         u64<u8 u64<u16 u64<u32 u64<u64 s64<u8 s64<s8 s64<u16 s64<s16 s64<u32 s64<s32 s64<s64",
        "-",
    ),
    (
        "u8<s8 u8<u16 u8<s16 u8<u32 u8<s32 u8<u64 u8<s64 s8<u8 s8<u16 s8<s16 s8<u32 s8<s32 s8<u64 s8<s64 u16<s8 \
         u16<s16 u16<u32 u16<s32 u16<u64 u16<s64 s16<u16 s16<u32 s16<s32 s16<u64 s16<s64 u32<s8 u32<s16 u32<s32 \
         u32<u64 u32<s64 s32<u32 s32<u64 s32<s64 u64<s8 u64<s16 u64<s32 u64<s64 s64<u64 f64<f16",
        "- sat",
    ),
    (
        "u8<f16 u8<f64 s8<f16 s8<f64 u16<f16 u16<f64 s16<f16 s16<f64 u32<f16 u32<f64 s32<f16 s32<f64 u64<f16 u64<f64 \
         s64<f16 s64<f64",
        "rni rni.sat rzi rzi.sat rmi rmi.sat rpi rpi.sat",
    ),
    (
        "u8<f32 s8<f32 u16<f32 s16<f32 u32<f32 s32<f32 u64<f32 s64<f32",
        "rni rni.ftz rni.sat rni.ftz.sat rzi rzi.ftz rzi.sat rzi.ftz.sat rmi rmi.ftz rmi.sat rmi.ftz.sat rpi rpi.ftz \
         rpi.sat rpi.ftz.sat",
    ),
    ("u8<bf16 s8<bf16 u16<bf16 s16<bf16 u32<bf16 s32<bf16 u64<bf16 s64<bf16", "rni rzi rmi rpi"),
    (
        "f16<u8 f16<s8 f16<u16 f16<s16 f16<u32 f16<s32 f16<u64 f16<s64 f16<f64 f64<u8 f64<s8 f64<u16 f64<s16 f64<u32 \
         f64<s32 f64<u64 f64<s64",
        "rn rn.sat rz rz.sat rm rm.sat rp rp.sat",
    ),
    ("f16<f16 f64<f64", "- sat rni rni.sat rzi rzi.sat rmi rmi.sat rpi rpi.sat"),
    ("f64<bf16", "- rn rz rm rp"),
    ("f16<bf16 bf16<f16", "rn rz rm rp"),
    (
        "f16<f32",
        "rn rn.ftz rn.sat rn.relu rn.satfinite rn.ftz.sat rn.relu.satfinite rz rz.ftz rz.sat rz.relu rz.satfinite \
         rz.ftz.sat rz.relu.satfinite rm rm.ftz rm.sat rm.ftz.sat rp rp.ftz rp.sat rp.ftz.sat",
    ),
    ("bf16<u8 bf16<s8 bf16<u16 bf16<s16 bf16<u32 bf16<s32 bf16<u64 bf16<s64 bf16<f64", "rn rz rm rp"),
    ("bf16<bf16", "- rni rzi rmi rpi"),
    (
        "bf16<f32",
        "rn rn.ftz rn.relu rn.satfinite rn.relu.satfinite rz rz.ftz rz.relu rz.satfinite rz.relu.satfinite rm rm.ftz \
         rp rp.ftz",
    ),
    (
        "f32<u8 f32<s8 f32<u16 f32<s16 f32<u32 f32<s32 f32<u64 f32<s64 f32<f64",
        "rn rn.ftz rn.sat rn.ftz.sat rz rz.ftz rz.sat rz.ftz.sat rm rm.ftz rm.sat rm.ftz.sat rp rp.ftz rp.sat \
         rp.ftz.sat",
    ),
    ("f32<f16 f64<f32", "- ftz sat ftz.sat"),
    ("f32<bf16", "- ftz rn rn.ftz rz rz.ftz rm rm.ftz rp rp.ftz"),
    (
        "f32<f32",
        "- ftz sat ftz.sat rni rni.ftz rni.sat rni.ftz.sat rzi rzi.ftz rzi.sat rzi.ftz.sat rmi rmi.ftz rmi.sat \
         rmi.ftz.sat rpi rpi.ftz rpi.sat rpi.ftz.sat",
    ),
];

const TYPES: [&str; 12] = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64"];

fn width(ty: &str) -> u32 {
    ty.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().expect("a width")
}

fn register(width: u32, index: u32) -> String {
    let prefix = match width {
        8 => "%c",
        16 => "%h",
        32 => "%r",
        _ => "%d",
    };
    format!("{prefix}{index}")
}

fn float(ty: &str) -> Option<FloatLayout> {
    match ty {
        "f16" => Some(F16),
        "bf16" => Some(BF16),
        "f32" => Some(F32),
        "f64" => Some(F64),
        _ => None,
    }
}

/// Every form as target, source, modifiers.
fn all_forms() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut all = Vec::new();
    for &(pairs, modifiers) in FORMS {
        for pair in pairs.split_whitespace() {
            let (to, from) = pair.split_once('<').expect("a pair");
            all.extend(modifiers.split_whitespace().map(|modifiers| (to, from, modifiers)));
        }
    }
    all
}

#[test]
fn no_other_conversion_is_accepted() {
    let known: BTreeSet<_> = all_forms().iter().map(|(to, from, m)| form("cvt", m, &format!("{to}.{from}"))).collect();
    let roundings = ["", "rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"];
    let flags = ["ftz", "sat", "relu", "satfinite"];
    let mut accepted = BTreeSet::new();
    for to in TYPES {
        for from in TYPES {
            for rounding in roundings {
                for chosen in 0..16 {
                    let flags = flags.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1).map(|(_, &flag)| flag);
                    let words: Vec<_> = ["cvt", rounding].into_iter().chain(flags).chain([to, from]).collect();
                    let text = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(".");
                    match lower(&text, &[&register(width(to), 0), &register(width(from), 1)]) {
                        Ok(Some(_)) => drop(accepted.insert(text)),
                        Ok(None) => panic!("{text} is nobody's"),
                        Err(message) => assert!(!message.contains('\n')),
                    }
                }
            }
        }
    }
    assert_eq!(accepted, known);
}

/// Range of an integer type.
fn range(ty: &str) -> (i128, i128) {
    let bits = width(ty);
    if ty.starts_with('s') { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// An integer type's value of some bits.
fn integer(ty: &str, bits: u64) -> i128 {
    let all = (1i128 << width(ty)) - 1;
    let value = bits as i128 & all;
    if ty.starts_with('s') && value > range(ty).1 { value - all - 1 } else { value }
}

/// The integer that a number rounds to.
fn integral(value: &Dyadic, modifiers: &str) -> BigInt {
    let (floor, rest) = value.floor();
    let up = match modifiers.split('.').next() {
        Some("rni") => match rest {
            Some(Ordering::Greater) => true,
            Some(Ordering::Equal) => floor.bit(0),
            _ => false,
        },
        Some("rzi") => value.is_negative() && rest.is_some(),
        Some("rpi") => rest.is_some(),
        _ => false,
    };
    if up { floor + 1 } else { floor }
}

fn to_integer(to: &str, from: &str, layout: FloatLayout, modifiers: &str, bits: u64) -> u64 {
    let (smallest, largest) = range(to);
    let value = match () {
        _ if layout.is_nan(bits) && (from == "f64" || width(to) == 64) => return 1 << (width(to) - 1),
        _ if layout.is_nan(bits) => 0,
        _ if layout.is_infinite(bits) && layout.is_negative(bits) => smallest,
        _ if layout.is_infinite(bits) => largest,
        _ => {
            let value = integral(&layout.value(bits), modifiers);
            value.clamp(BigInt::from(smallest), BigInt::from(largest)).try_into().expect("in range")
        }
    };
    value as u64
}

/// The bits of the target type, not extended.
fn expected(to: &str, from: &str, modifiers: &str, bits: u64) -> u64 {
    let has = |name: &str| modifiers.split('.').any(|m| m == name);
    let flush = |ty: &str, bits: u64| if has("ftz") && ty == "f32" { F32.flush(bits) } else { bits };
    let mask = u64::MAX >> (64 - width(to));
    let bits = flush(from, bits);
    let rounding = rounding(modifiers);
    let Some(layout) = float(to) else {
        let Some(source) = float(from) else {
            let value = integer(from, bits);
            let (smallest, largest) = range(to);
            return (if has("sat") { value.clamp(smallest, largest) } else { value }) as u64 & mask;
        };
        return to_integer(to, from, source, modifiers, bits) & mask;
    };
    let result = match float(from) {
        None => layout.round_value(&Dyadic::integer(integer(from, bits)), rounding),
        Some(source) if to == from && source.is_finite(bits) && modifiers.contains("i") => {
            let sign = bits & source.sign();
            let whole = Dyadic { n: integral(&source.value(bits), modifiers), e: 0 };
            layout.round_value(&whole, rounding) | sign
        }
        Some(source) => convert_reference(bits, source, layout, rounding),
    };
    let result = flush(to, result);
    let (negative, nan) = (layout.is_negative(result), layout.is_nan(result));
    match () {
        _ if has("sat") && (nan || negative) => 0,
        _ if has("sat") => result.min(layout.one()),
        _ if has("relu") && negative && !nan => 0,
        _ if has("satfinite") && layout.is_infinite(result) => result - 1,
        _ => result,
    }
}

/// Bits of a source type worth trying.
fn inputs(ty: &str) -> Vec<u64> {
    let mut random = Random(77);
    let mask = u64::MAX >> (64 - width(ty));
    let mut all = match float(ty) {
        Some(layout) => {
            let mut all = edges(layout);
            // Around integers, the limits of integer types, and halfway.
            for x in [0.5, 1.5, 2.5, 0.49999, 126.5, 127.5, 128.0, 255.5, 256.0, 32767.5, 65535.5, 2147483647.5] {
                all.extend(
                    [x, -x].map(|x: f64| convert_reference(x.to_bits(), F64, layout, crate::numerics::Rounding::Zero)),
                );
            }
            for power in [7, 8, 15, 16, 31, 32, 63, 64] {
                for x in [2f64.powi(power), 2f64.powi(power) - 1.0] {
                    all.extend(
                        [x, -x].map(|x| convert_reference(x.to_bits(), F64, layout, crate::numerics::Rounding::Zero)),
                    );
                }
            }
            all.extend((0..60).map(|_| random.bits(layout)));
            all
        }
        None => (0..64)
            .flat_map(|i| [1u64 << i, (1 << i) - 1, (1 << i) + 1, u64::MAX << i, 0x1234_5678_9abc_def0 >> i])
            .chain((0..60).map(|i| random.draw() >> i))
            .collect(),
    };
    all.iter_mut().for_each(|bits| *bits &= mask);
    all.sort_unstable();
    all.dedup();
    all
}

/// The target's bits, extended to its register's width.
fn extended(to: &str, register: u32, bits: u64) -> u64 {
    let wide = if to.starts_with('s') { integer(to, bits) as u64 } else { bits };
    wide & (u64::MAX >> (64 - register))
}

/// Widths of registers that a type may have.
fn widths(ty: &str) -> Vec<u32> {
    let all = [8, 16, 32, 64];
    all.into_iter().filter(|&w| if ty == "bf16" { w == 16 } else { w >= width(ty) }).collect()
}

#[test]
fn every_conversion_computes_what_it_says() {
    for (to, from, modifiers) in all_forms() {
        let text = form("cvt", modifiers, &format!("{to}.{from}"));
        let inputs = inputs(from);
        let results: Vec<u64> = inputs.iter().map(|&bits| expected(to, from, modifiers, bits)).collect();
        for target in widths(to) {
            for source in widths(from) {
                let mut machine = Machine::new(&text, &register(target, 0), &[&register(source, 1)]);
                // What lies above the type's bits does not count.
                let above = if source > width(from) { u64::MAX << width(from) & u64::MAX >> (64 - source) } else { 0 };
                let rows: Vec<_> = inputs.iter().map(|&bits| [bits | above, 0, 0]).collect();
                for (i, found) in machine.run(&rows).into_iter().enumerate() {
                    let expected = extended(to, target, results[i]);
                    let bits = inputs[i];
                    assert_eq!(
                        found, expected,
                        "{text} of {bits:#x} in {source} to {target} bits: {found:#x} {expected:#x}"
                    );
                }
            }
        }
    }
}

#[test]
fn all_halves_and_bfloats() {
    let rows: Vec<_> = (0..=0xffffu64).map(|bits| [bits, 0, 0]).collect();
    for (from, layout) in [("f16", F16), ("bf16", BF16)] {
        let mut widen = Machine::new(&format!("cvt.f32.{from}"), "%r0", &["%h1"]);
        let mut narrow = Machine::new(&format!("cvt.rn.{from}.f32"), "%h0", &["%r1"]);
        let mut integer = Machine::new(&format!("cvt.rzi.s32.{from}"), "%r0", &["%h1"]);
        let singles = widen.run(&rows);
        let back = narrow.run(&singles.iter().map(|&bits| [bits, 0, 0]).collect::<Vec<_>>());
        let integers = integer.run(&rows);
        for bits in 0..=0xffffu64 {
            let i = bits as usize;
            let value = match from {
                "f16" => half::f16::from_bits(bits as u16).to_f32(),
                _ => half::bf16::from_bits(bits as u16).to_f32(),
            };
            let nan = value.is_nan();
            assert_eq!(singles[i], if nan { 0x7fff_ffff } else { value.to_bits() as u64 }, "{from} {bits:#x}");
            assert_eq!(back[i], if nan { layout.nan } else { bits });
            assert_eq!(integers[i] as u32, value as i32 as u32);
        }
    }
}

#[test]
fn pairs_hold_the_first_operand_above() {
    let inputs = inputs("f32");
    for (ty, to) in [("f16x2", "f16"), ("bf16x2", "bf16")] {
        for modifiers in ["rn", "rz", "rn.relu", "rz.relu", "rn.satfinite", "rz.satfinite", "rn.relu.satfinite"] {
            let text = form("cvt", modifiers, &format!("{ty}.f32"));
            let rows: Vec<_> = (0..inputs.len()).map(|i| [inputs[i], inputs[inputs.len() - 1 - i], 0]).collect();
            let found = Machine::new(&text, "%r0", &["%r1", "%r2"]).run(&rows);
            for (row, found) in rows.iter().zip(found) {
                let half = |bits| expected(to, "f32", modifiers, bits);
                assert_eq!(found, half(row[0]) << 16 | half(row[1]), "{text} of {row:x?}");
            }
        }
    }
}

#[test]
fn tf32_forms() {
    let rows = [1.0f32, -1.0, 1.0 + 2f32.powi(-11), 1.0 + 3.0 * 2f32.powi(-11), f32::MAX, -f32::MAX, f32::NAN, -0.0];
    let rows = rows.map(|x| [x.to_bits() as u64, 0, 0]);
    let one = 0x3f80_0000;
    let cases: [(&str, [u64; 8]); 6] = [
        ("rna", [one, 0xbf80_0000, one + 0x2000, one + 0x4000, 0x7f80_0000, 0xff80_0000, 0x7fff_ffff, 0x8000_0000]),
        (
            "rna.satfinite",
            [one, 0xbf80_0000, one + 0x2000, one + 0x4000, 0x7f7f_e000, 0xff7f_e000, 0x7fff_ffff, 0x8000_0000],
        ),
        ("rn", [one, 0xbf80_0000, one, one + 0x4000, 0x7f80_0000, 0xff80_0000, 0x7fff_ffff, 0x8000_0000]),
        ("rz", [one, 0xbf80_0000, one, one + 0x2000, 0x7f7f_e000, 0xff7f_e000, 0x7fff_ffff, 0x8000_0000]),
        ("rn.relu", [one, 0, one, one + 0x4000, 0x7f80_0000, 0, 0x7fff_ffff, 0]),
        ("rz.relu", [one, 0, one, one + 0x2000, 0x7f7f_e000, 0, 0x7fff_ffff, 0]),
    ];
    for (modifiers, expected) in cases {
        let text = form("cvt", modifiers, "tf32.f32");
        assert_eq!(Machine::new(&text, "%r0", &["%r1"]).run(&rows), expected, "{text}");
    }
}

#[test]
fn eight_bit_pairs() {
    let inputs = inputs("f32");
    let eight = |ty: &str| if ty == "e4m3x2" { Eight::E4m3 } else { Eight::E5m2 };
    for ty in ["e4m3x2", "e5m2x2"] {
        for relu in [false, true] {
            let positive = |x: f32| if relu && (x < 0.0 || x.to_bits() == 1 << 31) { 0.0 } else { x };
            let to_eight = |x: f32| formats::single_to_eight(positive(x), eight(ty)) as u64;
            let modifiers = if relu { "rn.satfinite.relu" } else { "rn.satfinite" };
            let rows: Vec<_> = (0..inputs.len()).map(|i| [inputs[i], inputs[inputs.len() - 1 - i], 0]).collect();
            let found = Machine::new(&form("cvt", modifiers, &format!("{ty}.f32")), "%h0", &["%r1", "%r2"]).run(&rows);
            for (row, found) in rows.iter().zip(found) {
                let part = |bits: u64| to_eight(f32::from_bits(bits as u32));
                assert_eq!(found, part(row[0]) << 8 | part(row[1]), "{ty} of {row:x?}");
            }
            let halves: Vec<_> = (0..=0xffffu64).map(|bits| [bits << 16 | bits ^ 0x8001, 0, 0]).collect();
            let found = Machine::new(&form("cvt", modifiers, &format!("{ty}.f16x2")), "%h0", &["%r1"]).run(&halves);
            for (row, found) in halves.iter().zip(found) {
                let part = |bits: u64| to_eight(half::f16::from_bits(bits as u16).to_f32());
                assert_eq!(found, part(row[0] >> 16) << 8 | part(row[0]), "{ty} of {row:x?}");
            }
            let modifiers = if relu { "rn.relu" } else { "rn" };
            let bytes: Vec<_> = (0..256u64).map(|bits| [bits << 8 | bits ^ 0x81, 0, 0]).collect();
            let found = Machine::new(&form("cvt", modifiers, &format!("f16x2.{ty}")), "%r0", &["%h1"]).run(&bytes);
            for (row, found) in bytes.iter().zip(found) {
                let part = |bits: u64| {
                    let half = formats::eight_to_half(bits as u32 & 0xff, eight(ty)) as u64;
                    if relu && half & 0x8000 != 0 { 0 } else { half }
                };
                assert_eq!(found, part(row[0] >> 8) << 16 | part(row[0]), "{ty} of {row:x?}");
            }
        }
    }
}

#[test]
fn packed_integers() {
    let values = [
        0i32,
        1,
        -1,
        7,
        8,
        -8,
        -9,
        127,
        128,
        -128,
        -129,
        255,
        256,
        32767,
        32768,
        -32769,
        65535,
        65536,
        i32::MAX,
        i32::MIN,
    ];
    let pairs: Vec<_> = values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).collect();
    for ty in ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"] {
        let bits: u32 = ty[1..].parse().expect("a width");
        let (text, sources) = match bits {
            16 => (format!("cvt.pack.sat.{ty}.s32"), &["%r1", "%r2"][..]),
            _ => (format!("cvt.pack.sat.{ty}.s32.b32"), &["%r1", "%r2", "%r3"][..]),
        };
        let c = 0x89ab_cdefu32;
        let rows: Vec<_> = pairs.iter().map(|&(a, b)| [a as u32 as u64, b as u32 as u64, c as u64]).collect();
        for (&(a, b), found) in pairs.iter().zip(Machine::new(&text, "%r0", sources).run(&rows)) {
            let part = |x: i32| {
                let (low, high) = if ty.starts_with('s') {
                    (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1)
                } else {
                    (0, (1i64 << bits) - 1)
                };
                (x as i64).clamp(low, high) as u32 & ((1u32 << bits) - 1)
            };
            let pair = part(a) << bits | part(b);
            let expected = if bits == 16 { pair } else { pair | c << (2 * bits) };
            assert_eq!(found, expected as u64, "{text} of {a}, {b}");
        }
    }
}

#[test]
fn modifiers_may_follow_the_types() {
    assert_eq!(lower("cvt.f64.bf16.rp", &["%d0", "%h1"]), lower("cvt.rp.f64.bf16", &["%d0", "%h1"]));
    assert!(matches!(lower("cvt.s32.rzi.f32", &["%r0", "%r1"]), Ok(Some(_))));
}

//! Every arithmetic form against exact integers, plain rules or error bounds; and that no other form is accepted.

use std::collections::BTreeSet;

use super::{Machine, form, lower, rounding};
use crate::numerics::oracle::{BF16, F16, F32, F64, FloatLayout};
use crate::numerics::tests::{edges, reference, triples};

const DIRECTED: &str = "rn rz rm rp";
const SINGLE_SUM: &str = "- ftz sat ftz.sat rn rn.ftz rn.sat rn.ftz.sat rz rz.ftz rz.sat rz.ftz.sat \
                          rm rm.ftz rm.sat rm.ftz.sat rp rp.ftz rp.sat rp.ftz.sat";
const SINGLE_FMA: &str = "rn rn.ftz rn.sat rn.ftz.sat rz rz.ftz rz.sat rz.ftz.sat \
                          rm rm.ftz rm.sat rm.ftz.sat rp rp.ftz rp.sat rp.ftz.sat";
const SINGLE_ROOT: &str = "rn rn.ftz rz rz.ftz rm rm.ftz rp rp.ftz approx approx.ftz";
const HALF_SUM: &str = "- ftz sat ftz.sat rn rn.ftz rn.sat rn.ftz.sat";
const MIN_MAX: &str = "- ftz NaN xorsign.abs ftz.NaN ftz.xorsign.abs NaN.xorsign.abs ftz.NaN.xorsign.abs";

/// Opcodes, types, modifiers: the forms of PTX ISA 9.0 up to sm_90.
const FORMS: &[(&str, &str, &str)] = &[
    ("add sub mul", "f32", SINGLE_SUM),
    ("add sub mul", "f64", "- rn rz rm rp"),
    ("add sub mul", "f16 f16x2", HALF_SUM),
    ("add sub mul", "bf16 bf16x2", "- rn"),
    ("fma mad", "f32", SINGLE_FMA),
    ("fma mad", "f64", DIRECTED),
    ("fma", "f16 f16x2", "rn rn.ftz rn.sat rn.relu rn.ftz.sat rn.ftz.relu"),
    ("fma", "bf16 bf16x2", "rn rn.relu"),
    ("div", "f32", "rn rn.ftz rz rz.ftz rm rm.ftz rp rp.ftz approx approx.ftz full full.ftz"),
    ("div sqrt", "f64", DIRECTED),
    ("neg abs", "f32 f16 f16x2", "- ftz"),
    ("neg abs", "f64 bf16 bf16x2", "-"),
    ("min max", "f32 f16 f16x2", MIN_MAX),
    ("min max", "bf16 bf16x2", "- NaN xorsign.abs NaN.xorsign.abs"),
    ("min max copysign", "f64", "-"),
    ("copysign", "f32", "-"),
    ("sqrt rcp", "f32", SINGLE_ROOT),
    ("rcp", "f64", "rn rz rm rp approx.ftz"),
    ("rsqrt", "f32 f64", "approx approx.ftz"),
    ("sin cos lg2 ex2", "f32", "approx approx.ftz"),
    ("ex2", "f16 f16x2", "approx"),
    ("ex2", "bf16 bf16x2", "approx.ftz"),
    ("tanh", "f32 f16 f16x2 bf16 bf16x2", "approx"),
];

const TYPES: [&str; 6] = ["f16", "f16x2", "bf16", "bf16x2", "f32", "f64"];

fn arity(opcode: &str) -> usize {
    match opcode {
        "fma" | "mad" => 3,
        "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => 2,
        _ => 1,
    }
}

fn layout(ty: &str) -> FloatLayout {
    match ty {
        "f16" | "f16x2" => F16,
        "bf16" | "bf16x2" => BF16,
        "f32" => F32,
        _ => F64,
    }
}

fn names(ty: &str, count: usize) -> Vec<String> {
    let prefix = match ty {
        "f16" | "bf16" => "%h",
        "f64" => "%d",
        _ => "%r",
    };
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

/// Every form as opcode, modifiers, type.
fn all_forms() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut all = Vec::new();
    for &(opcodes, types, modifiers) in FORMS {
        for opcode in opcodes.split_whitespace() {
            for ty in types.split_whitespace() {
                all.extend(modifiers.split_whitespace().map(|modifiers| (opcode, modifiers, ty)));
            }
        }
    }
    all
}

#[test]
fn no_other_form_is_accepted() {
    let known: BTreeSet<_> =
        all_forms().into_iter().map(|(opcode, modifiers, ty)| form(opcode, modifiers, ty)).collect();
    let roundings = ["", "rn", "rz", "rm", "rp", "rna", "rzi", "approx", "full"];
    let flags = ["ftz", "sat", "relu", "NaN", "xorsign", "abs", "oob"];
    let opcodes: BTreeSet<_> = all_forms().into_iter().map(|(opcode, ..)| opcode).collect();
    let mut accepted = BTreeSet::new();
    for opcode in opcodes {
        for ty in TYPES {
            for rounding in roundings {
                for chosen in 0..1 << flags.len() {
                    let flags = flags.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1).map(|(_, &flag)| flag);
                    let words: Vec<_> = [opcode, rounding].into_iter().chain(flags).chain([ty]).collect();
                    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
                    let text = words.join(".");
                    let operands = names(ty, arity(opcode) + 1);
                    let operands: Vec<_> = operands.iter().map(String::as_str).collect();
                    match lower(&text, &operands) {
                        Ok(Some(_)) => drop(accepted.insert(text)),
                        Ok(None) => panic!("{text} is nobody's"),
                        Err(message) => assert!(!message.contains('\n') && !message.is_empty()),
                    }
                }
            }
        }
    }
    assert_eq!(accepted, known);
}

/// What a result must be.
enum Expected {
    Bits(u64),
    /// A real number, to a relative and an absolute error.
    Near(f64, f64, f64),
}

fn to_f64(bits: u64, layout: FloatLayout) -> f64 {
    let sign = if layout.is_negative(bits) { -1.0 } else { 1.0 };
    match () {
        _ if layout == F64 => f64::from_bits(bits),
        _ if layout.is_nan(bits) => f64::NAN,
        _ if layout.is_infinite(bits) => sign * f64::INFINITY,
        _ => {
            let value = layout.value(layout.magnitude(bits));
            sign * value.n.to_string().parse::<f64>().expect("a number") * 2f64.powi(value.e as i32)
        }
    }
}

/// Relative and absolute error of an approximation (PTX ISA's tables; the 16-bit types to one rounding).
fn bound(opcode: &str, ty: &str) -> (f64, f64) {
    match (opcode, layout(ty)) {
        ("tanh", F16) => (0.0, 2f64.powf(-10.987)),
        ("tanh", BF16) => (0.0, 2f64.powi(-8)),
        ("ex2", F16) => (2f64.powf(-9.9), 0.0),
        ("ex2", BF16) => (2f64.powi(-7), 0.0),
        ("tanh", _) => (2f64.powi(-11), 0.0),
        ("sin" | "cos", _) => (0.0, 2f64.powf(-20.5)),
        ("lg2", _) => (2f64.powi(-22), 2f64.powf(-22.6)),
        ("rcp", F64) => (2f64.powi(-19), 0.0),
        ("rsqrt", F64) => (2f64.powi(-19), 0.0),
        _ => (2f64.powi(-22), 0.0),
    }
}

fn expected(opcode: &str, modifiers: &str, ty: &str, row: [u64; 3]) -> Expected {
    let layout = layout(ty);
    let has = |name: &str| modifiers.split('.').any(|m| m == name);
    let flushed = |bits: u64| if has("ftz") && layout != F64 { layout.flush(bits) } else { bits };
    let [a, b, c] = row.map(flushed);
    let sign = layout.sign();
    let bits = match opcode {
        "neg" => return Expected::Bits(a ^ sign),
        "abs" => return Expected::Bits(a & !sign),
        "copysign" => return Expected::Bits(b & !sign | a & sign),
        "min" | "max" => return Expected::Bits(extreme(opcode == "max", has("NaN"), has("xorsign"), layout, a, b)),
        _ if has("approx") || has("full") => return near(opcode, modifiers, ty, a, b),
        "mad" => reference("fma", layout, rounding(modifiers), [a, b, c]),
        _ => {
            let used = arity(opcode);
            let row = [a, if used > 1 { b } else { 0 }, if used > 2 { c } else { 0 }];
            reference(opcode, layout, rounding(modifiers), row)
        }
    };
    let bits = flushed(bits);
    let negative = layout.is_negative(bits);
    let nan = layout.is_nan(bits);
    Expected::Bits(match () {
        _ if has("sat") && (nan || negative) => 0,
        _ if has("sat") => bits.min(layout.one()),
        _ if has("relu") && negative && !nan => 0,
        _ => bits,
    })
}

fn extreme(larger: bool, nan_wins: bool, xorsign: bool, layout: FloatLayout, a: u64, b: u64) -> u64 {
    let (nan_a, nan_b) = (layout.is_nan(a), layout.is_nan(b));
    let sign = (a ^ b) & layout.sign();
    let (a, b) = if xorsign { (layout.magnitude(a), layout.magnitude(b)) } else { (a, b) };
    let number = match (nan_a, nan_b) {
        (true, true) => return layout.nan,
        (true, _) | (_, true) if nan_wins => return layout.nan,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let order = |x: u64| if layout.is_negative(x) { -(layout.magnitude(x) as i128) - 1 } else { x as i128 };
            if (order(a) < order(b)) == larger { b } else { a }
        }
    };
    if xorsign { number | sign } else { number }
}

fn near(opcode: &str, modifiers: &str, ty: &str, a: u64, b: u64) -> Expected {
    let (x, y) = (to_f64(a, layout(ty)), to_f64(b, layout(ty)));
    // The 64-bit approximations read the upper half, and flush.
    let upper = layout(ty) == F64 && modifiers.contains("ftz");
    let x = if upper && !x.is_nan() { f64::from_bits(F64.flush(a & !0xffff_ffff)) } else { x };
    let value = match opcode {
        "div" if modifiers.contains("approx") && y.abs() > 2f64.powi(126) => x * 0f64.copysign(y),
        "div" => x / y,
        "sqrt" => x.sqrt(),
        "rcp" => 1.0 / x,
        "rsqrt" => 1.0 / x.sqrt(),
        "sin" => x.sin(),
        "cos" => x.cos(),
        "lg2" => x.log2(),
        "ex2" => x.exp2(),
        _ => x.tanh(),
    };
    if upper && value.is_nan() {
        return Expected::Bits(0x7fff_ffff_0000_0000);
    }
    let value = if upper { f64::from_bits(F64.flush(value.to_bits())) } else { value };
    // Beyond a period of 2^20 the functions are only bounded.
    if matches!(opcode, "sin" | "cos") && x.is_finite() && x.abs() > 2f64.powi(30) {
        return Expected::Near(0.0, 0.0, 1.0);
    }
    let (relative, absolute) = bound(opcode, ty);
    Expected::Near(value, relative, absolute)
}

fn check(text: &str, row: [u64; 3], found: u64, expected: Expected, layout: FloatLayout, flush: bool) {
    match expected {
        Expected::Bits(bits) => assert_eq!(found, bits, "{text} of {row:x?}: found {found:#x}, expected {bits:#x}"),
        Expected::Near(value, relative, absolute) => {
            let result = to_f64(found, layout);
            let smallest = to_f64(1 << layout.fraction_bits, layout);
            // Where results are flushed, all of the subnormal range may be zero.
            let grain = if flush { smallest } else { to_f64(1, layout) };
            let largest = to_f64(layout.infinity - 1, layout);
            let fits = match () {
                _ if value.is_nan() => found == layout.nan,
                _ if value.is_infinite() => result == value,
                _ if result.is_infinite() => value.abs() > largest && value.signum() == result.signum(),
                _ => (result - value).abs() <= relative * value.abs() + absolute + grain,
            };
            assert!(fits, "{text} of {row:x?}: found {result:e}, expected {value:e}");
            let subnormal = found != 0 && layout.flush(found) != found;
            assert!(!(flush && subnormal), "{text} of {row:x?} is not flushed");
        }
    }
}

/// Few cases for doubles, whose exact integers are long.
fn rows(ty: &str, arity: usize) -> Vec<[u64; 3]> {
    let layout = layout(ty);
    let count = if ty == "f64" { 250 } else { 600 };
    let mut rows = triples(layout, count, 42);
    let edges = edges(layout);
    match arity {
        1 => rows.extend(edges.iter().map(|&a| [a, 0, 0])),
        2 if ty != "f64" => rows.extend(edges.iter().flat_map(|&a| edges.iter().map(move |&b| [a, b, 0]))),
        _ => {}
    }
    rows
}

#[test]
fn every_form_computes_what_it_says() {
    for (opcode, modifiers, ty) in all_forms() {
        let text = form(opcode, modifiers, ty);
        let operands = names(ty, arity(opcode) + 1);
        let operands: Vec<_> = operands.iter().map(String::as_str).collect();
        let mut machine = Machine::new(&text, operands[0], &operands[1..]);
        let rows = rows(ty, arity(opcode));
        let layout = layout(ty);
        let flush = modifiers.contains("ftz");
        let packed = ty.ends_with("x2");
        // In packed types each row stands with the next one in the upper half.
        let upper = |i: usize| rows[(i + 1) % rows.len()];
        let inputs: Vec<[u64; 3]> = (0..rows.len())
            .map(|i| if packed { std::array::from_fn(|k| rows[i][k] | upper(i)[k] << 16) } else { rows[i] })
            .collect();
        for (i, found) in machine.run(&inputs).into_iter().enumerate() {
            let low = if packed { found & 0xffff } else { found };
            check(&text, rows[i], low, expected(opcode, modifiers, ty, rows[i]), layout, flush);
            if packed {
                check(&text, upper(i), found >> 16, expected(opcode, modifiers, ty, upper(i)), layout, flush);
            }
        }
    }
}

#[test]
fn a_bfloat_fma_rounds_once() {
    // 1 + 2^-8 is halfway between bfloats; the product's last bits decide, far below a single's and a double's.
    let half_way = [0x3f80, 0x3f80, 0x3b80];
    let bits = |x: f32| (x.to_bits() >> 16) as u64;
    let mut machine = Machine::new("fma.rn.bf16", "%h0", &["%h1", "%h2", "%h3"]);
    assert_eq!(machine.run(&[half_way]), [0x3f80]);
    // (1 + 2^-7) · 2^-8 + 1 is above halfway, by 2^-15.
    assert_eq!(machine.run(&[[0x3f81, 0x3b80, 0x3f80]]), [0x3f81]);
    // 257/256 as a product, 2^60 and a term that a double would drop: 2^60·(1 + 2^-8) ± 2^-60.
    let (a, b) = (bits(1.0625 * 2f32.powi(30)), bits(2f32.powi(30)));
    for (c, expected) in [(bits(2f32.powi(-60)), 1.0625), (bits(-2f32.powi(-60)), 1.0625)] {
        assert_eq!(machine.run(&[[a, b, c]]), [bits(expected * 2f32.powi(60))]);
    }
    // 129 · 129 = 16641 = 2^14 · (1 + 2^-6 + 2^-14); with 2^-7·… a tie broken by a tiny term of either sign.
    let tie = 2f32.powi(-7) + 2f32.powi(-8);
    let (a, b) = (bits(1.5), bits(tie * 2f32.powi(1)));
    for c in [2f32.powi(-80), -2f32.powi(-80)] {
        let row = [a, b, bits(c)];
        assert_eq!(machine.run(&[row])[0], reference("fma", BF16, crate::numerics::Rounding::Nearest, row));
    }
}

#[test]
fn bfloat_ties_are_broken_by_terms_beyond_a_double() {
    // Every 9-bit product that lies halfway between two bfloats, plus or minus 2^-100 of it.
    let mut machine = Machine::new("fma.rn.bf16", "%h0", &["%h1", "%h2", "%h3"]);
    let mut rows = Vec::new();
    for a in 0x3f80..0x4000u64 {
        for b in (0x3f80..0x4000u64).step_by(3) {
            let product = (0x80 | a & 0x7f) * (0x80 | b & 0x7f);
            let width = 64 - product.leading_zeros();
            if product & ((1 << (width - 8)) - 1) == 1 << (width - 9) {
                rows.extend([[a, b, 0x0d80], [a, b, 0x8d80]]);
            }
        }
    }
    assert!(rows.len() > 100);
    for (row, found) in rows.iter().zip(machine.run(&rows)) {
        assert_eq!(found, reference("fma", BF16, crate::numerics::Rounding::Nearest, *row), "{row:x?}");
    }
}

#[test]
fn all_small_bfloat_products_round_once() {
    // Products below the smallest normal single, where the single itself is rounded: all pairs of significands, all
    // positions of the last place.
    let mut machine = Machine::new("mul.bf16", "%h0", &["%h1", "%h2"]);
    let mut rows = Vec::new();
    for a in 0x80..0x100u64 {
        for b in (0x80..0x100u64).step_by(7) {
            for exponent in (100..=136).step_by(4) {
                // Exponents add to about -126 … -140.
                rows.push([a & 0x7f | 1 << 7, b & 0x7f | (exponent - 20) << 7, 0]);
            }
        }
    }
    for (row, found) in rows.iter().zip(machine.run(&rows)) {
        let expected = reference("mul", BF16, crate::numerics::Rounding::Nearest, *row);
        assert_eq!(found, expected, "{row:x?}");
    }
}

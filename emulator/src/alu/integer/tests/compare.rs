//! Comparisons, against the comparison operators of the language on decoded values.

use super::*;
use Type::{B16, B32, B64, Bf16, Bf16x2, F16, F16x2, F32, F64, Pred, S16, S32, S64, U16, U32, U64};
use half::{bf16, f16};
use std::cmp::Ordering;

const ORDERED: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];
const UNSIGNED: [&str; 4] = ["lo", "ls", "hi", "hs"];
const UNORDERED: [&str; 8] = ["equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];

/// Whether a comparison holds for operands in this order; `None`: one is NaN.
fn holds(compare: &str, order: Option<Ordering>) -> bool {
    use Ordering::{Equal, Greater, Less};
    match compare {
        "num" => return order.is_some(),
        "nan" => return order.is_none(),
        _ => {}
    }
    let Some(order) = order else { return compare.ends_with('u') };
    match compare.trim_end_matches('u') {
        "eq" => order == Equal,
        "ne" => order != Equal,
        "lt" | "lo" => order == Less,
        "le" | "ls" => order != Greater,
        "gt" | "hi" => order == Greater,
        "ge" | "hs" => order != Less,
        other => panic!("{other}"),
    }
}

/// A value of a scalar type as a double; 64-bit integers are not for it.
fn float(ty: Type, bits: u64, flush: bool) -> f64 {
    let (value, smallest) = match ty {
        F16 => (f16::from_bits(bits as u16).to_f64(), f16::MIN_POSITIVE.to_f64()),
        Bf16 => (bf16::from_bits(bits as u16).to_f64(), 0.0),
        F32 => (f32::from_bits(bits as u32) as f64, f32::MIN_POSITIVE as f64),
        _ => (f64::from_bits(bits), 0.0),
    };
    if flush && value.abs() < smallest { 0.0 } else { value }
}

fn order(ty: Type, a: u64, b: u64, flush: bool) -> Option<Ordering> {
    match ty {
        F16 | Bf16 | F32 | F64 => float(ty, a, flush).partial_cmp(&float(ty, b, flush)),
        _ => Some(number(ty, a).cmp(&number(ty, b))),
    }
}

fn compares(ty: Type) -> Vec<&'static str> {
    match ty {
        B16 | B32 | B64 => vec!["eq", "ne"],
        S16 | S32 | S64 => ORDERED.to_vec(),
        U16 | U32 | U64 => [&ORDERED[..], &UNSIGNED].concat(),
        _ => [&ORDERED[..], &UNORDERED].concat(),
    }
}

fn flushes(ty: Type) -> &'static [bool] {
    if matches!(ty, F32 | F16 | F16x2) { &[false, true] } else { &[false] }
}

fn element(ty: Type) -> Type {
    match ty {
        F16x2 => F16,
        Bf16x2 => Bf16,
        _ => ty,
    }
}

/// The scalar or packed elements' comparisons, low half first.
fn answers(compare: &str, ty: Type, s: &[u64], flush: bool) -> [bool; 2] {
    let one = element(ty);
    let part = |x: u64, i: u32| if one == ty { x } else { x >> (16 * i) & 0xffff };
    [0, 1].map(|i| holds(compare, order(one, part(s[0], i), part(s[1], i), flush)))
}

/// The ways to write the third operand: not there, and, or, xor, each plain and negated.
fn combinations() -> Vec<(&'static str, bool)> {
    let mut all = vec![("", false)];
    for op in [".and", ".or", ".xor"] {
        all.extend([(op, false), (op, true)]);
    }
    all
}

fn combined(op: &str, t: bool, c: bool) -> bool {
    match op {
        ".and" => t && c,
        ".or" => t || c,
        ".xor" => t != c,
        _ => t,
    }
}

const SOURCES: [Type; 15] = [B16, B32, B64, S16, S32, S64, U16, U32, U64, F32, F64, F16, F16x2, Bf16, Bf16x2];

/// Operands and types of the sources, with the predicate where there is one.
fn sources(ty: Type, op: &str, negated: bool) -> (Vec<Operand>, Vec<Type>) {
    let (mut operands, mut types) = (names("s", 2), vec![ty, ty]);
    if !op.is_empty() {
        types.push(Pred);
        operands.push(if negated { Operand::Not("%s2".to_string()) } else { name("%s2") });
    }
    (operands, types)
}

/// c as the combination sees it.
fn condition(s: &[u64], negated: bool) -> bool {
    s.get(2).is_some_and(|&c| (c == 1) != negated)
}

#[test]
fn setp_of_every_comparison_type_and_combination() {
    let mut forms = 0;
    for ty in SOURCES {
        for compare in compares(ty) {
            for &flush in flushes(ty) {
                for (op, negated) in combinations() {
                    let form = format!("setp.{compare}{op}{}.{}", if flush { ".ftz" } else { "" }, type_name(ty));
                    check_setp(&form, compare, ty, flush, op, negated);
                    forms += 1;
                }
            }
        }
    }
    // 2 per b, 6 per s, 10 per u type; 14 per float type, and again with .ftz where there is one.
    assert_eq!(forms, 7 * (3 * 2 + 3 * 6 + 3 * 10 + 14 * 9));
}

fn check_setp(form: &str, compare: &'static str, ty: Type, flush: bool, op: &'static str, negated: bool) {
    let (list, types) = sources(ty, op, negated);
    let packed = element(ty) != ty;
    let expect = move |s: &[u64]| {
        let [low, high] = answers(compare, ty, s, flush);
        let c = condition(s, negated);
        let second = if packed { high } else { !low };
        vec![combined(op, low, c) as u64, combined(op, second, c) as u64]
    };
    let pair = [vec![Operand::Pair("%d0".to_string(), "%d1".to_string())], list.clone()].concat();
    check_warps(&with_operands(form, pair, &[Pred, Pred], &types, expect), 16);
    let single = [vec![name("%d0")], list].concat();
    check_warps(&with_operands(form, single, &[Pred], &types, move |s| expect(s)[..1].to_vec()), 4);
}

/// What `set` writes for "true", into a half where the sources are packed; `None` if there is no such form.
fn truth(to: Type, from: Type) -> Option<u64> {
    let half = matches!(from, F16 | Bf16);
    match (to, from) {
        (U32 | S32, F16x2 | Bf16x2) => Some(0xffff),
        (F16x2, F16x2) => Some(f16::ONE.to_bits() as u64),
        (Bf16x2, Bf16x2) => Some(bf16::ONE.to_bits() as u64),
        (_, F16x2 | Bf16x2) | (F16x2 | Bf16x2, _) => None,
        (U32 | S32, _) => Some(0xffff_ffff),
        (U16 | S16, _) if half => Some(0xffff),
        (F32, _) if !half => Some(1f32.to_bits() as u64),
        (F16, Bf16) => None,
        (F16, _) => Some(f16::ONE.to_bits() as u64),
        (Bf16, _) => Some(bf16::ONE.to_bits() as u64),
        _ => None,
    }
}

#[test]
fn set_of_every_comparison_and_pair_of_types() {
    let results = [U16, S16, U32, S32, U64, S64, F32, F64, F16, F16x2, Bf16, Bf16x2, B32];
    for from in SOURCES {
        for to in results {
            let types = format!("{}.{}", type_name(to), type_name(from));
            let Some(yes) = truth(to, from) else {
                refused::check_refused(&format!("set.eq.{types}"), &[to], &[from, from]);
                continue;
            };
            // Both the comparison and the combination are setp's, so the table is thinned here.
            for (i, compare) in compares(from).into_iter().enumerate() {
                let flush = to != Bf16 && flushes(from)[i % flushes(from).len()];
                let (op, negated) = combinations()[i % 7];
                let form = format!("set.{compare}{op}{}.{types}", if flush { ".ftz" } else { "" });
                let (list, from_types) = sources(from, op, negated);
                let list = [vec![name("%d0")], list].concat();
                check(&with_operands(&form, list, &[to], &from_types, move |s| {
                    let c = condition(s, negated);
                    let [low, high] = answers(compare, from, s, flush).map(|t| combined(op, t, c) as u64 * yes);
                    vec![if element(from) == from { low } else { low | high << 16 }]
                }));
            }
        }
    }
}

#[test]
fn testp_of_every_kind() {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    for ty in [F32, F64] {
        for kind in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
            check(&case(&format!("testp.{kind}.{}", type_name(ty)), Pred, &[ty], move |s| {
                let category =
                    if ty == F32 { f32::from_bits(s[0] as u32).classify() } else { f64::from_bits(s[0]).classify() };
                let holds = match kind {
                    "finite" => !matches!(category, Infinite | Nan),
                    "infinite" => category == Infinite,
                    "number" => category != Nan,
                    "notanumber" => category == Nan,
                    "normal" => matches!(category, Normal | Zero),
                    _ => category == Subnormal,
                };
                holds as u64
            }));
        }
    }
}

#[test]
fn destinations_may_be_left_out() {
    for (p, q, kept) in [("_", "%d0", false), ("%d0", "_", true)] {
        let mut operands = Operands::default();
        operands.push_scope();
        let from = declare(&mut operands, "s", &[S32, S32]);
        let to = declare(&mut operands, "d", &[Pred]);
        let mut list = vec![Operand::Pair(p.to_string(), q.to_string())];
        list.extend(names("s", 2));
        let op = Integer::lower(&instruction("setp.lt.s32", list), &mut operands).unwrap().unwrap();
        let mut registers = allocate(&operands);
        registers.r32[from[1].1.0 as usize] = [1; LANES];
        registers.r32[from[0].1.0 as usize][3] = 2;
        run(&op, &mut registers, Mask::MAX);
        let expected = if kept { !(1 << 3) } else { 1 << 3 };
        assert_eq!(registers.pred[to[0].1.0 as usize], expected, "{p}|{q}");
    }
}

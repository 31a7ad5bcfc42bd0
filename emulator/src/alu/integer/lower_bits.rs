//! Which bit forms there are. Everything that is not listed is an error.
//! (PTX ISA, "Logic and Shift Instructions", "Integer Arithmetic Instructions".)

use super::Integer;
use super::arithmetic::Unary;
use super::bits::{Bits2, Bits3, Count, Logic, Shift};
use super::form::{Form, Int, R1, R2, R3};
use super::lower_arithmetic::by_width;
use crate::ptx::ast::Operand;
use crate::ptx::ast::Type::{self, B16, B32, B64, Pred, U32};

pub fn lower(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    match (form.opcode(), modifiers) {
        ("and" | "or" | "xor", &[ty]) => logic(form, ty),
        ("not", &["pred"]) => predicate_move(form),
        ("not" | "cnot", &[ty @ ("b16" | "b32" | "b64")]) | ("brev", &[ty @ ("b32" | "b64")]) => unary(form, ty),
        ("shl" | "shr", &[ty]) => shift(form, ty),
        ("popc" | "clz", &[ty @ ("b32" | "b64")]) => count(form, ty),
        ("bfind", &[ty] | &["shiftamt", ty]) => find(form, ty),
        ("bfe", &[ty]) => extract(form, ty),
        ("bfi", &["b32"]) => Ok(Integer::Insert32(form.r4([B32, B32, B32, U32, U32])?)),
        ("bfi", &["b64"]) => Ok(Integer::Insert64(form.r4([B64, B64, B64, U32, U32])?)),
        ("lop3", &["b32"]) => lop3(form),
        ("lop3", &[op @ ("and" | "or"), "b32"]) => lop3_predicate(form, op == "and"),
        _ => only32(form, modifiers),
    }
}

/// `mov.pred` and `not.pred`; the source may itself be negated.
pub fn predicate_move(form: &mut Form) -> Result<Integer, String> {
    form.count(2)?;
    let (a, negated) = form.read_pred(1)?;
    let negated = negated != (form.opcode() == "not");
    Ok(Integer::PredicateMove { negated, r: R1 { d: form.write(Pred)?, a } })
}

fn logic(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let op = match form.opcode() {
        "and" => Logic::And,
        "or" => Logic::Or,
        _ => Logic::Xor,
    };
    match ty {
        "b16" => Ok(Integer::Logic32(op, form.r2([B16, B16, B16])?)),
        "b32" => Ok(Integer::Logic32(op, form.r2([B32, B32, B32])?)),
        "b64" => Ok(Integer::Logic64(op, form.r2([B64, B64, B64])?)),
        "pred" => {
            form.count(3)?;
            let (a, b) = (form.read_pred(1)?, form.read_pred(2)?);
            Ok(Integer::Predicates(op, [a.1, b.1], R2 { d: form.write(Pred)?, a: a.0, b: b.0 }))
        }
        _ => form.unknown(),
    }
}

fn unary(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let op = match form.opcode() {
        "not" => Unary::Not,
        "cnot" => Unary::Cnot,
        _ => Unary::Reverse,
    };
    let Some(ty) = Type::parse(ty) else { return form.unknown() };
    Ok(by_width(8 * ty.bytes() as u32, op, form.r1([ty, ty])?))
}

fn shift(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let op = match (form.opcode(), ty) {
        ("shl", "b16" | "b32" | "b64") => Shift::Left,
        ("shr", "b16" | "b32" | "b64" | "u16" | "u32" | "u64") => Shift::RightU,
        ("shr", "s16" | "s32" | "s64") => Shift::RightS,
        _ => return form.unknown(),
    };
    let Some(ty) = Type::parse(ty) else { return form.unknown() };
    let r = form.r2([ty, ty, U32])?;
    Ok(match ty.bytes() {
        2 => Integer::Shift16(op, r),
        4 => Integer::Shift32(op, r),
        _ => Integer::Shift64(op, r),
    })
}

fn count(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let op = if form.opcode() == "popc" { Count::Ones } else { Count::LeadingZeros };
    match ty {
        "b32" => Ok(Integer::Count32(op, form.r1([U32, B32])?)),
        _ => Ok(Integer::Count64(op, form.r1([U32, B64])?)),
    }
}

fn find(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let Some(Int { ty, bits: bits @ (32 | 64), signed }) = Int::parse(ty) else { return form.unknown() };
    let op = match (form.instruction.has("shiftamt"), signed) {
        (false, false) => Count::FindU,
        (false, true) => Count::FindS,
        (true, false) => Count::FindShiftU,
        (true, true) => Count::FindShiftS,
    };
    let r = form.r1([U32, ty])?;
    Ok(if bits == 32 { Integer::Count32(op, r) } else { Integer::Count64(op, r) })
}

fn extract(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let Some(Int { ty, bits: bits @ (32 | 64), signed }) = Int::parse(ty) else { return form.unknown() };
    let r = form.r3([ty, ty, U32, U32])?;
    Ok(match (bits, signed) {
        (32, true) => Integer::Bits3(Bits3::ExtractS, r),
        (32, false) => Integer::Bits3(Bits3::ExtractU, r),
        _ => Integer::Extract64 { signed, r },
    })
}

/// The truth table, an immediate.
fn table(form: &Form) -> Result<u8, String> {
    match form.operand(4)? {
        Operand::Int(value) if (0..256).contains(value) => Ok(*value as u8),
        other => Err(format!("found {other:?} as lop3's table, expected a number from 0 to 255")),
    }
}

fn lop3(form: &mut Form) -> Result<Integer, String> {
    form.count(5)?;
    let table = table(form)?;
    let [a, b, c] = [form.read(1, B32)?, form.read(2, B32)?, form.read(3, B32)?];
    let d = form.write(B32)?;
    Ok(Integer::Logic3 { table, r: R3 { d, a, b, c } })
}

fn lop3_predicate(form: &mut Form, and: bool) -> Result<Integer, String> {
    form.count(6)?;
    let table = table(form)?;
    let [a, b, c] = [form.read(1, B32)?, form.read(2, B32)?, form.read(3, B32)?];
    let (q, negated) = form.read_pred(5)?;
    let (d, Some(p)) = form.write_pair(B32, Pred)? else {
        return Err(format!("{}: found one destination, expected d|p", form.instruction.form()));
    };
    Ok(Integer::Logic3Predicate { table, and, r: R3 { d, a, b, c }, p, q, negated })
}

/// Forms with 32-bit operands alone.
fn only32(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let two = match (form.opcode(), modifiers) {
        ("bmsk", ["clamp", "b32"]) => Some(Bits2::MaskClamp),
        ("bmsk", ["wrap", "b32"]) => Some(Bits2::MaskWrap),
        ("szext", ["clamp", "s32"]) => Some(Bits2::ExtendClampS),
        ("szext", ["clamp", "u32"]) => Some(Bits2::ExtendClampU),
        ("szext", ["wrap", "s32"]) => Some(Bits2::ExtendWrapS),
        ("szext", ["wrap", "u32"]) => Some(Bits2::ExtendWrapU),
        _ => None,
    };
    if let Some(op) = two {
        return Ok(Integer::Bits2(op, form.r2([B32, B32, B32])?));
    }
    let op = match (form.opcode(), modifiers) {
        ("shf", ["l", "wrap", "b32"]) => Bits3::FunnelLeftWrap,
        ("shf", ["l", "clamp", "b32"]) => Bits3::FunnelLeftClamp,
        ("shf", ["r", "wrap", "b32"]) => Bits3::FunnelRightWrap,
        ("shf", ["r", "clamp", "b32"]) => Bits3::FunnelRightClamp,
        ("prmt", ["b32"]) => Bits3::Permute,
        ("prmt", ["b32", "f4e"]) => Bits3::PermuteForward4,
        ("prmt", ["b32", "b4e"]) => Bits3::PermuteBackward4,
        ("prmt", ["b32", "rc8"]) => Bits3::PermuteReplicate8,
        ("prmt", ["b32", "ecl"]) => Bits3::PermuteEdgeClampLeft,
        ("prmt", ["b32", "ecr"]) => Bits3::PermuteEdgeClampRight,
        ("prmt", ["b32", "rc16"]) => Bits3::PermuteReplicate16,
        ("fns", ["b32"]) => Bits3::FindNthSet,
        _ => return form.unknown(),
    };
    Ok(Integer::Bits3(op, form.r3([B32, B32, B32, B32])?))
}

//! Which comparisons there are. Everything that is not listed is an error.
//! (PTX ISA, "Comparison and Selection Instructions", "Half Precision Comparison Instructions", "testp".)

use super::Integer;
use super::bits::Logic;
use super::compare::{Combine, Comparison, FloatProperty, Relation, Test};
use super::form::{Form, R1};
use crate::ptx::ast::{Operand, Type};

/// What `CmpOp{.BoolOp}{.ftz}` says.
struct Parts<'a> {
    compare: &'a str,
    combine: Option<Logic>,
    flush: bool,
}

impl<'a> Parts<'a> {
    fn parse(modifiers: &[&'a str]) -> Option<Parts<'a>> {
        let (compare, rest) = modifiers.split_first()?;
        let (combine, rest) = match rest {
            ["and", rest @ ..] => (Some(Logic::And), rest),
            ["or", rest @ ..] => (Some(Logic::Or), rest),
            ["xor", rest @ ..] => (Some(Logic::Xor), rest),
            _ => (None, rest),
        };
        match rest {
            [] => Some(Parts { compare, combine, flush: false }),
            ["ftz"] => Some(Parts { compare, combine, flush: true }),
            _ => None,
        }
    }
}

/// A comparison as a test, whether its operands are swapped, and whether its answer is inverted.
fn test(parts: &Parts, ty: Type) -> Option<(Test, bool, bool)> {
    let flushable = matches!(ty, Type::F32 | Type::F16 | Type::F16x2);
    if parts.flush && !flushable {
        return None;
    }
    let float: fn(Relation) -> Test = match (ty, parts.flush) {
        (Type::F32, false) => Test::F32,
        (Type::F32, true) => Test::F32Flush,
        (Type::F64, _) => Test::F64,
        (Type::F16 | Type::F16x2, false) => Test::F16,
        (Type::F16 | Type::F16x2, true) => Test::F16Flush,
        (Type::Bf16 | Type::Bf16x2, _) => Test::Bf16,
        _ => return integer_test(parts.compare, ty),
    };
    let (relation, swapped, inverted) = match parts.compare {
        "eq" => (Relation::Equal, false, false),
        "ne" => (Relation::Differ, false, false),
        "lt" => (Relation::Less, false, false),
        "le" => (Relation::LessEqual, false, false),
        "gt" => (Relation::Less, true, false),
        "ge" => (Relation::LessEqual, true, false),
        "equ" => (Relation::Differ, false, true),
        "neu" => (Relation::Equal, false, true),
        "ltu" => (Relation::LessEqual, true, true),
        "leu" => (Relation::Less, true, true),
        "gtu" => (Relation::LessEqual, false, true),
        "geu" => (Relation::Less, false, true),
        "num" => (Relation::Unordered, false, true),
        "nan" => (Relation::Unordered, false, false),
        _ => return None,
    };
    Some((float(relation), swapped, inverted))
}

fn integer_test(compare: &str, ty: Type) -> Option<(Test, bool, bool)> {
    let (equal, less) = match ty {
        Type::B16 => (Test::Equal16, None),
        Type::S16 => (Test::Equal16, Some(Test::LessS16)),
        Type::U16 => (Test::Equal16, Some(Test::LessU16)),
        Type::B32 => (Test::Equal32, None),
        Type::S32 => (Test::Equal32, Some(Test::LessS32)),
        Type::U32 => (Test::Equal32, Some(Test::LessU32)),
        Type::B64 => (Test::Equal64, None),
        Type::S64 => (Test::Equal64, Some(Test::LessS64)),
        Type::U64 => (Test::Equal64, Some(Test::LessU64)),
        _ => return None,
    };
    let unsigned = matches!(ty, Type::U16 | Type::U32 | Type::U64);
    match compare {
        "eq" => return Some((equal, false, false)),
        "ne" => return Some((equal, false, true)),
        "lo" | "ls" | "hi" | "hs" if !unsigned => return None,
        _ => {}
    }
    let (swapped, inverted) = match compare {
        "lt" | "lo" => (false, false),
        "ge" | "hs" => (false, true),
        "gt" | "hi" => (true, false),
        "le" | "ls" => (true, true),
        _ => return None,
    };
    Some((less?, swapped, inverted))
}

fn packed(ty: Type) -> bool {
    matches!(ty, Type::F16x2 | Type::Bf16x2)
}

fn comparison(form: &mut Form, parts: &Parts, ty: Type) -> Result<Comparison, String> {
    let Some((test, swapped, inverted)) = test(parts, ty) else { return form.unknown() };
    form.count(3 + parts.combine.is_some() as usize)?;
    if matches!(ty, Type::F16 | Type::Bf16) || packed(ty) {
        // There are no immediates of these types.
        for index in [1, 2] {
            let operand = form.operand(index)?;
            if !matches!(operand, Operand::Name(_)) {
                return Err(format!("found {operand:?}, expected a register of type {ty:?}"));
            }
        }
    }
    let (a, b) = (form.read(1, ty)?, form.read(2, ty)?);
    let (a, b) = if swapped { (b, a) } else { (a, b) };
    let combine = match parts.combine {
        Some(op) => {
            let (c, negated) = form.read_pred(3)?;
            Some(Combine { op, c, negated })
        }
        None => None,
    };
    Ok(Comparison { test, inverted, packed: packed(ty), a, b, combine })
}

/// `setp.CmpOp{.BoolOp}{.ftz}.type`
pub fn setp(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let Some((ty, rest)) = modifiers.split_last() else { return form.unknown() };
    let (Some(ty), Some(parts)) = (Type::parse(ty), Parts::parse(rest)) else { return form.unknown() };
    let comparison = comparison(form, &parts, ty)?;
    let (p, q) = form.write_pair(Type::Pred, Type::Pred)?;
    Ok(Integer::Setp { comparison, p, q })
}

/// `set.CmpOp{.BoolOp}{.ftz}.dtype.stype`
pub fn set(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let [rest @ .., to, from] = modifiers else { return form.unknown() };
    let (Some(to), Some(from), Some(parts)) = (Type::parse(to), Type::parse(from), Parts::parse(rest)) else {
        return form.unknown();
    };
    let Some(yes) = truth(to, from) else { return form.unknown() };
    // Nothing about bf16 flushes, not even a bf16 result.
    if parts.flush && to == Type::Bf16 {
        return form.unknown();
    }
    let comparison = comparison(form, &parts, from)?;
    Ok(Integer::Set { comparison, d: form.write(to)?, yes })
}

/// What `set` writes for "true" (into each half for packed sources); `None` if the types do not go together.
fn truth(to: Type, from: Type) -> Option<u32> {
    let half = matches!(from, Type::F16 | Type::Bf16);
    match to {
        Type::U32 | Type::S32 if packed(from) => Some(0xffff),
        Type::F16x2 if from == Type::F16x2 => Some(0x3c00),
        Type::Bf16x2 if from == Type::Bf16x2 => Some(0x3f80),
        _ if packed(from) => None,
        Type::U32 | Type::S32 => Some(u32::MAX),
        Type::U16 | Type::S16 if half => Some(0xffff),
        Type::F32 if !half => Some(1.0f32.to_bits()),
        Type::F16 if from != Type::Bf16 => Some(0x3c00),
        Type::Bf16 => Some(0x3f80),
        _ => None,
    }
}

/// `testp.op.type`
pub fn testp(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let &[kind, ty] = modifiers else { return form.unknown() };
    let kind = match kind {
        "finite" => FloatProperty::Finite,
        "infinite" => FloatProperty::Infinite,
        "number" => FloatProperty::Number,
        "notanumber" => FloatProperty::NotANumber,
        "normal" => FloatProperty::Normal,
        "subnormal" => FloatProperty::Subnormal,
        _ => return form.unknown(),
    };
    let r: R1 = match ty {
        "f32" => form.r1([Type::Pred, Type::F32])?,
        "f64" => form.r1([Type::Pred, Type::F64])?,
        _ => return form.unknown(),
    };
    Ok(if ty == "f32" { Integer::Testp32(kind, r) } else { Integer::Testp64(kind, r) })
}

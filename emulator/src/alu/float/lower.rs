//! Which arithmetic forms exist: for each operation and type, its roundings and other modifiers.

use super::{Arithmetic, FloatType, Operation};
use crate::lower::operands::Operands;
use crate::numerics::Rounding;
use crate::numerics::minmax::Rules;
use crate::ptx::ast::{Instruction, Type};

/// The modifiers of an operation on a type.
struct Allowed {
    /// What may stand as rounding: a direction, `approx` or `full`.
    roundings: &'static [&'static str],
    /// One of them must.
    rounding_required: bool,
    flags: &'static [&'static str],
}

const ALL: &[&str] = &["rn", "rz", "rm", "rp"];
const ALL_OR_APPROX: &[&str] = &["rn", "rz", "rm", "rp", "approx"];

fn operation(opcode: &str) -> Option<Operation> {
    Some(match opcode {
        "add" => Operation::Add,
        "sub" => Operation::Sub,
        "mul" => Operation::Mul,
        "fma" | "mad" => Operation::Fma,
        "div" => Operation::Div,
        "neg" => Operation::Neg,
        "abs" => Operation::Abs,
        "min" => Operation::Min,
        "max" => Operation::Max,
        "copysign" => Operation::CopySign,
        "sqrt" => Operation::Sqrt,
        "rcp" => Operation::Rcp,
        "rsqrt" => Operation::Rsqrt,
        "sin" => Operation::Sin,
        "cos" => Operation::Cos,
        "lg2" => Operation::Lg2,
        "ex2" => Operation::Ex2,
        "tanh" => Operation::Tanh,
        _ => return None,
    })
}

/// The kind, and whether a register holds two.
fn kind(ty: Type) -> Option<(FloatType, bool)> {
    Some(match ty {
        Type::F16 => (FloatType::Half, false),
        Type::F16x2 => (FloatType::Half, true),
        Type::Bf16 => (FloatType::Bfloat, false),
        Type::Bf16x2 => (FloatType::Bfloat, true),
        Type::F32 => (FloatType::Single, false),
        Type::F64 => (FloatType::Double, false),
        _ => return None,
    })
}

pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Option<Arithmetic>, String> {
    let Some(operation) = operation(&instruction.opcode) else { return Ok(None) };
    let last = instruction.modifiers.last().map_or("", String::as_str);
    let ty = Type::parse(last);
    let Some((ty, (kind, packed))) = ty.and_then(|ty| Some((ty, kind(ty)?))) else {
        let integers_too = matches!(instruction.opcode.as_str(), "add" | "sub" | "mul" | "mad" | "div")
            || matches!(instruction.opcode.as_str(), "neg" | "abs" | "min" | "max");
        return if integers_too {
            Ok(None)
        } else {
            Err(format!("type .{last} is not known for {}", instruction.opcode))
        };
    };
    let allowed = allowed(operation, kind)
        .filter(|_| instruction.opcode != "mad" || matches!(kind, FloatType::Single | FloatType::Double))
        .ok_or_else(|| format!("type .{last} is not known for {}", instruction.opcode))?;
    let modifiers = &instruction.modifiers[..instruction.modifiers.len() - 1];
    let rounding = check(modifiers, &allowed)?;
    let has = |name: &str| modifiers.iter().any(|m| m == name);
    check_together(operation, kind, rounding, &has)?;
    let (to, from) = registers(instruction, operands, operation, ty)?;
    Ok(Some(Arithmetic {
        operation,
        kind,
        packed,
        rounding: match rounding {
            Some("rz") => Rounding::Zero,
            Some("rm") => Rounding::Down,
            Some("rp") => Rounding::Up,
            _ => Rounding::Nearest,
        },
        // `div.full` is accurate enough to be the correctly rounded quotient.
        approximate: rounding == Some("approx"),
        flush: has("ftz"),
        saturate: has("sat"),
        relu: has("relu"),
        rules: Rules { nan: has("NaN"), xorsign: has("xorsign") },
        to,
        from,
    }))
}

fn registers(
    instruction: &Instruction,
    operands: &mut Operands,
    operation: Operation,
    ty: Type,
) -> Result<(crate::program::Reg, [crate::program::Reg; 3]), String> {
    let arity = operation.arity();
    let [to, sources @ ..] = instruction.operands.as_slice() else {
        return Err(format!("found no operands, expected {}", arity + 1));
    };
    if sources.len() != arity {
        return Err(format!("found {} operands, expected {}", sources.len() + 1, arity + 1));
    }
    let first = operands.read(&sources[0], ty)?;
    let mut from = [first; 3];
    for (reg, source) in from.iter_mut().zip(sources).skip(1) {
        *reg = operands.read(source, ty)?;
    }
    Ok((operands.write(to, ty)?, from))
}

fn allowed(operation: Operation, kind: FloatType) -> Option<Allowed> {
    use FloatType::{Bfloat, Double, Half, Single};
    let form = |roundings, rounding_required, flags| Some(Allowed { roundings, rounding_required, flags });
    const APPROX: &[&str] = &["approx"];
    const MIN_MAX: &[&str] = &["ftz", "NaN", "xorsign", "abs"];
    match (operation, kind) {
        (Operation::Add | Operation::Sub | Operation::Mul, Single) => form(ALL, false, &["ftz", "sat"]),
        (Operation::Add | Operation::Sub | Operation::Mul, Double) => form(ALL, false, &[]),
        (Operation::Add | Operation::Sub | Operation::Mul, Half) => form(&["rn"], false, &["ftz", "sat"]),
        (Operation::Add | Operation::Sub | Operation::Mul, Bfloat) => form(&["rn"], false, &[]),
        (Operation::Fma, Single) => form(ALL, true, &["ftz", "sat"]),
        (Operation::Fma, Double) => form(ALL, true, &[]),
        (Operation::Fma, Half) => form(&["rn"], true, &["ftz", "sat", "relu"]),
        (Operation::Fma, Bfloat) => form(&["rn"], true, &["relu"]),
        (Operation::Div, Single) => form(&["rn", "rz", "rm", "rp", "approx", "full"], true, &["ftz"]),
        (Operation::Div, Double) => form(ALL, true, &[]),
        (Operation::Neg | Operation::Abs, Single | Half) => form(&[], false, &["ftz"]),
        (Operation::Neg | Operation::Abs, Double | Bfloat) => form(&[], false, &[]),
        (Operation::Min | Operation::Max, Single | Half) => form(&[], false, MIN_MAX),
        (Operation::Min | Operation::Max, Bfloat) => form(&[], false, &["NaN", "xorsign", "abs"]),
        (Operation::Min | Operation::Max, Double) => form(&[], false, &[]),
        (Operation::CopySign, Single | Double) => form(&[], false, &[]),
        (Operation::Sqrt | Operation::Rcp, Single) => form(ALL_OR_APPROX, true, &["ftz"]),
        (Operation::Sqrt, Double) => form(ALL, true, &[]),
        (Operation::Rcp, Double) => form(ALL_OR_APPROX, true, &["ftz"]),
        (Operation::Rsqrt, Single | Double) => form(APPROX, true, &["ftz"]),
        (Operation::Sin | Operation::Cos | Operation::Lg2 | Operation::Ex2, Single) => form(APPROX, true, &["ftz"]),
        (Operation::Ex2, Half) => form(APPROX, true, &[]),
        (Operation::Ex2, Bfloat) => form(APPROX, true, &["ftz"]),
        (Operation::Tanh, Single | Half | Bfloat) => form(APPROX, true, &[]),
        _ => None,
    }
}

/// Each modifier is known and stands once; returns the rounding.
fn check<'a>(modifiers: &'a [String], allowed: &Allowed) -> Result<Option<&'a str>, String> {
    let mut rounding = None;
    for (i, modifier) in modifiers.iter().enumerate() {
        let modifier = modifier.as_str();
        if modifiers[..i].iter().any(|m| m == modifier) {
            return Err(format!("modifier .{modifier} stands twice"));
        }
        if allowed.roundings.contains(&modifier) {
            if let Some(first) = rounding.replace(modifier) {
                return Err(format!("found roundings .{first} and .{modifier}, expected one"));
            }
        } else if !allowed.flags.contains(&modifier) {
            return Err(format!("modifier .{modifier} is not known for this operation and type"));
        }
    }
    if allowed.rounding_required && rounding.is_none() {
        return Err(format!("found no rounding, expected one of .{}", allowed.roundings.join(", .")));
    }
    Ok(rounding)
}

/// Modifiers that need or exclude one another.
fn check_together(
    operation: Operation,
    kind: FloatType,
    rounding: Option<&str>,
    has: &dyn Fn(&str) -> bool,
) -> Result<(), String> {
    let approximate = rounding == Some("approx");
    match (operation, kind) {
        (Operation::Fma, FloatType::Half) if has("sat") && has("relu") => {
            Err(".sat and .relu exclude one another".into())
        }
        (Operation::Min | Operation::Max, _) if has("xorsign") != has("abs") => {
            Err(".xorsign and .abs must stand together".into())
        }
        (Operation::Rcp, FloatType::Double) if approximate != has("ftz") => {
            Err("rcp.f64 has .approx and .ftz together or neither".into())
        }
        (Operation::Ex2, FloatType::Bfloat) if !has("ftz") => Err("ex2 of bf16 needs .ftz".into()),
        _ => Ok(()),
    }
}

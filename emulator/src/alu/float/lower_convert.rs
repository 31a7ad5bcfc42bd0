//! Which conversions exist, and which registers they take.
//!
//! Integer rounding belongs to float-to-integer conversions and to conversions within a type; floating-point rounding
//! to integer-to-float conversions and those that lose precision. (PTX ISA, "cvt", integer and floating-point notes.)

use super::FloatType;
use super::convert::{Bounds, Conversion, Convert, SizedRegister};
use crate::lower::operands::{Operands, class_of};
use crate::numerics::Rounding;
use crate::numerics::formats::{Eight, TfRounding};
use crate::numerics::integers::{IntegerType, Integral};
use crate::program::Class;
use crate::ptx::ast::{Instruction, Operand, Type};

/// Roundings and other modifiers of a `cvt`, each at most once.
struct ConversionModifiers<'a> {
    types: Vec<&'a str>,
    rounding: Option<&'a str>,
    ftz: bool,
    sat: bool,
    relu: bool,
    satfinite: bool,
    pack: bool,
}

const FLOAT_ROUNDINGS: &[&str] = &["rn", "rz", "rm", "rp"];
const INTEGER_ROUNDINGS: &[&str] = &["rni", "rzi", "rmi", "rpi"];

impl<'a> ConversionModifiers<'a> {
    fn parse(instruction: &'a Instruction) -> Result<ConversionModifiers<'a>, String> {
        let mut found = ConversionModifiers {
            types: Vec::new(),
            rounding: None,
            ftz: false,
            sat: false,
            relu: false,
            satfinite: false,
            pack: false,
        };
        for modifier in &instruction.modifiers {
            let flag = match modifier.as_str() {
                "ftz" => &mut found.ftz,
                "sat" => &mut found.sat,
                "relu" => &mut found.relu,
                "satfinite" => &mut found.satfinite,
                "pack" => &mut found.pack,
                "rn" | "rz" | "rm" | "rp" | "rna" | "rni" | "rzi" | "rmi" | "rpi" => {
                    if let Some(first) = found.rounding.replace(modifier) {
                        return Err(format!("found roundings .{first} and .{modifier}, expected one"));
                    }
                    continue;
                }
                "u2" | "s2" | "u4" | "s4" | "tf32" | "e4m3x2" | "e5m2x2" => {
                    found.types.push(modifier);
                    continue;
                }
                _ if Type::parse(modifier).is_some() => {
                    found.types.push(modifier);
                    continue;
                }
                _ => return Err(format!("modifier .{modifier} is not known for cvt")),
            };
            if std::mem::replace(flag, true) {
                return Err(format!("modifier .{modifier} stands twice"));
            }
        }
        Ok(found)
    }

    fn allow(&self, ftz: bool, sat: bool, relu: bool, satfinite: bool) -> Result<(), String> {
        let refuse = |found: bool, allowed: bool, name: &str| match found && !allowed {
            true => Err(format!("modifier .{name} does not apply to this conversion")),
            false => Ok(()),
        };
        refuse(self.ftz, ftz, "ftz")?;
        refuse(self.sat, sat, "sat")?;
        refuse(self.relu, relu, "relu")?;
        refuse(self.satfinite, satfinite, "satfinite")
    }

    /// The rounding, which must be one of `allowed`; with none allowed there must be none.
    fn rounding(&self, allowed: &[&str]) -> Result<&'a str, String> {
        match self.rounding {
            Some(rounding) if allowed.contains(&rounding) => Ok(rounding),
            Some(rounding) if allowed.is_empty() => Err(format!("found rounding .{rounding}, expected none")),
            Some(rounding) => Err(format!("found rounding .{rounding}, expected one of .{}", allowed.join(", ."))),
            None if allowed.is_empty() => Ok(""),
            None => Err(format!("found no rounding, expected one of .{}", allowed.join(", ."))),
        }
    }

    fn optional_rounding(&self, allowed: &[&str]) -> Result<Option<&'a str>, String> {
        self.rounding.map(|_| self.rounding(allowed)).transpose()
    }

    fn bounds(&self) -> Bounds {
        Bounds { flush: self.ftz, saturate: self.sat, relu: self.relu, finite: self.satfinite }
    }
}

fn direction(rounding: &str) -> Rounding {
    match rounding {
        "rz" => Rounding::Zero,
        "rm" => Rounding::Down,
        "rp" => Rounding::Up,
        _ => Rounding::Nearest,
    }
}

fn integral(rounding: &str) -> Integral {
    match rounding {
        "rzi" => Integral::Zero,
        "rmi" => Integral::Down,
        "rpi" => Integral::Up,
        _ => Integral::Nearest,
    }
}

fn integer(name: &str) -> Option<IntegerType> {
    let signed = match name.as_bytes().first()? {
        b's' => true,
        b'u' => false,
        _ => return None,
    };
    match name[1..].parse() {
        Ok(bits @ (8 | 16 | 32 | 64)) => Some(IntegerType { bits, signed }),
        _ => None,
    }
}

fn float(name: &str) -> Option<FloatType> {
    Some(match name {
        "f16" => FloatType::Half,
        "bf16" => FloatType::Bfloat,
        "f32" => FloatType::Single,
        "f64" => FloatType::Double,
        _ => return None,
    })
}

pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Convert, String> {
    let modifiers = ConversionModifiers::parse(instruction)?;
    if modifiers.pack {
        return pack(&modifiers, instruction, operands);
    }
    let &[to, from] = modifiers.types.as_slice() else {
        return Err(format!("found types .{}, expected two", modifiers.types.join(", .")));
    };
    if let Some(convert) = packed(&modifiers, to, from, instruction, operands)? {
        return Ok(convert);
    }
    let unknown = || format!("conversion from .{from} to .{to} is not known");
    let number = |name: &str| Type::parse(name).filter(|_| integer(name).is_some() || float(name).is_some());
    let (Some(to_type), Some(from_type)) = (number(to), number(from)) else { return Err(unknown()) };
    let [target, source] = sources(instruction)?;
    let (to_slot, register_bits) = destination(operands, target, to_type, to_type == Type::Bf16)?;
    let conversion = match (integer(to), integer(from), float(to), float(from)) {
        (Some(to), Some(from), ..) => integers(&modifiers, to, from, register_bits)?,
        (Some(to), _, _, Some(from)) => to_integer(&modifiers, to, from, register_bits)?,
        (_, Some(from), Some(to), _) => from_integer(&modifiers, to, from)?,
        (_, _, Some(to), Some(from)) => floats(&modifiers, to, from)?,
        _ => return Err(unknown()),
    };
    let a = origin(operands, source, from_type, from_type == Type::Bf16)?;
    Ok(Convert { conversion, to: to_slot, a, b: None, c: None })
}

fn integers(
    modifiers: &ConversionModifiers,
    to: IntegerType,
    from: IntegerType,
    register_bits: u32,
) -> Result<Conversion, String> {
    modifiers.rounding(&[])?;
    modifiers.allow(false, !to.holds(from), false, false)?;
    Ok(Conversion::Integers { from, to, saturate: modifiers.sat, register_bits })
}

fn to_integer(
    modifiers: &ConversionModifiers,
    to: IntegerType,
    from: FloatType,
    register_bits: u32,
) -> Result<Conversion, String> {
    let rounding = integral(modifiers.rounding(INTEGER_ROUNDINGS)?);
    // The result is clamped anyway, so `.sat` changes nothing.
    modifiers.allow(from == FloatType::Single, from != FloatType::Bfloat, false, false)?;
    Ok(Conversion::ToInteger { from, to, rounding, flush: modifiers.ftz, register_bits })
}

fn from_integer(modifiers: &ConversionModifiers, to: FloatType, from: IntegerType) -> Result<Conversion, String> {
    let rounding = direction(modifiers.rounding(FLOAT_ROUNDINGS)?);
    modifiers.allow(to == FloatType::Single, to != FloatType::Bfloat, false, false)?;
    Ok(Conversion::FromInteger { from, to, rounding, bounds: modifiers.bounds() })
}

fn floats(modifiers: &ConversionModifiers, to: FloatType, from: FloatType) -> Result<Conversion, String> {
    use FloatType::{Bfloat, Double, Half, Single};
    let flushable = to == Single || from == Single;
    let bounds = modifiers.bounds();
    if to == from {
        modifiers.allow(flushable, to != Bfloat, false, false)?;
        let rounding = modifiers.optional_rounding(INTEGER_ROUNDINGS)?.map(integral);
        return Ok(Conversion::Whole { kind: to, rounding, bounds });
    }
    let rounding = match (to, from) {
        (Single, Half) | (Double, Half | Single) => modifiers.rounding(&[])?,
        // Exact, but PTX lets a rounding stand here.
        (Single | Double, Bfloat) => modifiers.optional_rounding(FLOAT_ROUNDINGS)?.unwrap_or("rn"),
        (Half | Bfloat, Single) if modifiers.relu || modifiers.satfinite => modifiers.rounding(&["rn", "rz"])?,
        _ => modifiers.rounding(FLOAT_ROUNDINGS)?,
    };
    let bounded = matches!((to, from), (Half | Bfloat, Single)) && !modifiers.ftz && !modifiers.sat;
    modifiers.allow(flushable, to != Bfloat && from != Bfloat, bounded, bounded)?;
    Ok(Conversion::Floats { from, to, rounding: direction(rounding), bounds })
}

/// `tf32`, `f16x2`, `bf16x2` and the 8-bit pairs.
fn packed(
    modifiers: &ConversionModifiers,
    to: &str,
    from: &str,
    instruction: &Instruction,
    operands: &mut Operands,
) -> Result<Option<Convert>, String> {
    let eight = |name: &str| match name {
        "e4m3x2" => Some(Eight::E4m3),
        "e5m2x2" => Some(Eight::E5m2),
        _ => None,
    };
    let relu = modifiers.relu;
    let bounds = modifiers.bounds();
    let (conversion, to_type, from_type, count) = match (to, from) {
        ("tf32", "f32") => {
            let rounding = match modifiers.rounding(&["rna", "rn", "rz"])? {
                "rna" => TfRounding::Away,
                "rn" => TfRounding::Nearest,
                _ => TfRounding::Zero,
            };
            let away = rounding == TfRounding::Away;
            modifiers.allow(false, false, !away, away)?;
            (Conversion::Tf32 { rounding, bounds }, Type::B32, Type::F32, 1)
        }
        ("f16x2" | "bf16x2", "f32") => {
            let rounding = direction(modifiers.rounding(&["rn", "rz"])?);
            modifiers.allow(false, false, true, true)?;
            let (kind, ty) =
                if to == "f16x2" { (FloatType::Half, Type::F16x2) } else { (FloatType::Bfloat, Type::Bf16x2) };
            (Conversion::Pair { to: kind, rounding, bounds }, ty, Type::F32, 2)
        }
        ("e4m3x2" | "e5m2x2", "f32" | "f16x2") => {
            modifiers.rounding(&["rn"])?;
            modifiers.allow(false, false, true, true)?;
            if !modifiers.satfinite {
                return Err(format!("found no .satfinite, which a conversion to .{to} needs"));
            }
            let to = eight(to).unwrap_or(Eight::E4m3);
            match from {
                "f32" => (Conversion::Eights { to, relu }, Type::B16, Type::F32, 2),
                _ => (Conversion::EightsFromHalves { to, relu }, Type::B16, Type::F16x2, 1),
            }
        }
        ("f16x2", "e4m3x2" | "e5m2x2") => {
            modifiers.rounding(&["rn"])?;
            modifiers.allow(false, false, true, false)?;
            let from = eight(from).unwrap_or(Eight::E4m3);
            (Conversion::HalvesFromEights { from, relu }, Type::F16x2, Type::B16, 1)
        }
        _ => return Ok(None),
    };
    let wider = matches!(conversion, Conversion::Pair { to: FloatType::Half, .. });
    let (target, a, b) = match instruction.operands.as_slice() {
        [target, a] if count == 1 => (target, a, None),
        [target, a, b] if count == 2 => (target, a, Some(operands.read(b, from_type)?)),
        found => return Err(format!("found {} operands, expected {}", found.len(), count + 1)),
    };
    let (to, _) = destination(operands, target, to_type, !wider)?;
    let a = origin(operands, a, from_type, true)?;
    Ok(Some(Convert { conversion, to, a, b, c: None }))
}

/// `cvt.pack.sat.TYPE.s32 d, a, b`, and with `.b32` and c for types of 2, 4 and 8 bits.
fn pack(
    modifiers: &ConversionModifiers,
    instruction: &Instruction,
    operands: &mut Operands,
) -> Result<Convert, String> {
    modifiers.rounding(&[])?;
    modifiers.allow(false, true, false, false)?;
    if !modifiers.sat {
        return Err("found no .sat, which cvt.pack needs".to_string());
    }
    let (name, count) = match modifiers.types.as_slice() {
        &[name @ ("u16" | "s16"), "s32"] => (name, 3),
        &[name @ ("u2" | "s2" | "u4" | "s4" | "u8" | "s8"), "s32", "b32"] => (name, 4),
        types => return Err(format!("cvt.pack with types .{} is not known", types.join(", ."))),
    };
    if instruction.operands.len() != count {
        return Err(format!("found {} operands, expected {count}", instruction.operands.len()));
    }
    let bits = name[1..].parse().map_err(|_| format!("type .{name} is not known"))?;
    let conversion = Conversion::Pack { to: IntegerType { bits, signed: name.starts_with('s') } };
    let source = |operands: &mut Operands, index: usize, ty| operands.read(&instruction.operands[index], ty);
    let a = SizedRegister { reg: source(operands, 1, Type::S32)?, wide: false };
    let b = Some(source(operands, 2, Type::S32)?);
    let c = if count == 4 { Some(source(operands, 3, Type::B32)?) } else { None };
    let to = SizedRegister { reg: operands.write(&instruction.operands[0], Type::B32)?, wide: false };
    Ok(Convert { conversion, to, a, b, c })
}

fn sources(instruction: &Instruction) -> Result<[&Operand; 2], String> {
    match instruction.operands.as_slice() {
        [to, from] => Ok([to, from]),
        found => Err(format!("found {} operands, expected 2", found.len())),
    }
}

/// A destination as wide as the type, or wider unless `exact`, and its width in bits.
fn destination(
    operands: &mut Operands,
    operand: &Operand,
    ty: Type,
    exact: bool,
) -> Result<(SizedRegister, u32), String> {
    if let Some((found, reg)) = operands.register(operand)? {
        check_width(operand, found, ty, exact)?;
        return Ok((SizedRegister { reg, wide: class_of(found) == Class::R64 }, 8 * found.bytes() as u32));
    }
    let reg = operands.write(operand, ty)?;
    Ok((SizedRegister { reg, wide: class_of(ty) == Class::R64 }, 8 * ty.bytes() as u32))
}

/// A source as wide as the type, or wider unless `exact`; or a constant.
fn origin(operands: &mut Operands, operand: &Operand, ty: Type, exact: bool) -> Result<SizedRegister, String> {
    if let Operand::Name(_) = operand
        && let Some((found, reg)) = operands.register(operand)?
    {
        check_width(operand, found, ty, exact)?;
        return Ok(SizedRegister { reg, wide: class_of(found) == Class::R64 });
    }
    Ok(SizedRegister { reg: operands.read(operand, ty)?, wide: class_of(ty) == Class::R64 })
}

fn check_width(operand: &Operand, found: Type, ty: Type, exact: bool) -> Result<(), String> {
    let fits = if exact { found.bytes() == ty.bytes() } else { found.bytes() >= ty.bytes() };
    if fits && found != Type::Pred {
        return Ok(());
    }
    let name = if let Operand::Name(name) = operand { name } else { "the operand" };
    let wider = if exact { "" } else { " or wider" };
    Err(format!("{name} is a {found:?} register, expected {ty:?}{wider}"))
}

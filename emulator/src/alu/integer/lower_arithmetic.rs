//! Which arithmetic forms there are. Everything that is not listed is an error.
//! (PTX ISA, "Integer Arithmetic Instructions".)

use super::Integer;
use super::arithmetic::{Binary, Special2, Special3, Ternary, Unary};
use super::form::{Form, Int, R1};
use crate::ptx::ast::Type::B32;

pub fn lower(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    match (form.opcode(), modifiers) {
        ("abs" | "neg", &[ty]) => unary(form, ty),
        ("add" | "sub" | "div" | "rem" | "min" | "max", &[ty]) if Int::parse(ty).is_some() => binary(form, ty),
        ("mul", &["lo" | "hi", ty]) => binary(form, ty),
        ("mul", &["wide", ty]) => mul_wide(form, ty),
        ("mad", &["lo" | "hi", ty]) => ternary(form, ty),
        ("mad", &["wide", ty]) => mad_wide(form, ty),
        ("sad", &[ty]) => ternary(form, ty),
        _ => only32(form, modifiers),
    }
}

fn unary(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let op = if form.opcode() == "abs" { Unary::Abs } else { Unary::Neg };
    match Int::parse(ty) {
        Some(Int { ty, bits, signed: true }) => Ok(by_width(bits, op, form.r1([ty, ty])?)),
        _ => form.unknown(),
    }
}

/// A unary operation at a width.
pub fn by_width(bits: u32, op: Unary, r: R1) -> Integer {
    match bits {
        16 => Integer::Unary16(op, r),
        32 => Integer::Unary32(op, r),
        _ => Integer::Unary64(op, r),
    }
}

fn binary(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let Some(Int { ty, bits, signed }) = Int::parse(ty) else { return form.unknown() };
    let high = form.instruction.has("hi");
    let op = match (form.opcode(), signed) {
        ("add", _) => Binary::Add,
        ("sub", _) => Binary::Sub,
        ("mul", _) if !high => Binary::MulLow,
        ("mul", true) => Binary::MulHighS,
        ("mul", false) => Binary::MulHighU,
        ("div", true) => Binary::DivS,
        ("div", false) => Binary::DivU,
        ("rem", true) => Binary::RemS,
        ("rem", false) => Binary::RemU,
        ("min", true) => Binary::MinS,
        ("min", false) => Binary::MinU,
        ("max", true) => Binary::MaxS,
        ("max", false) => Binary::MaxU,
        _ => return form.unknown(),
    };
    let r = form.r2([ty, ty, ty])?;
    Ok(match (bits, op) {
        (16, Binary::MulHighS) => Integer::Special2(Special2::MulHigh16S, r),
        (16, Binary::MulHighU) => Integer::Special2(Special2::MulHigh16U, r),
        (16, _) => Integer::Binary16 { op, signed, r },
        (32, _) => Integer::Binary32(op, r),
        _ => Integer::Binary64(op, r),
    })
}

fn ternary(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let Some(Int { ty, bits, signed }) = Int::parse(ty) else { return form.unknown() };
    let high = form.instruction.has("hi");
    let op = match (form.opcode(), signed) {
        ("mad", _) if !high => Ternary::MadLow,
        ("mad", true) => Ternary::MadHighS,
        ("mad", false) => Ternary::MadHighU,
        ("sad", true) => Ternary::SadS,
        ("sad", false) => Ternary::SadU,
        _ => return form.unknown(),
    };
    let r = form.r3([ty, ty, ty, ty])?;
    Ok(match (bits, op) {
        (16, Ternary::MadHighS) => Integer::Special3(Special3::MadHigh16S, r),
        (16, Ternary::MadHighU) => Integer::Special3(Special3::MadHigh16U, r),
        (16, _) => Integer::Ternary16 { op, signed, r },
        (32, _) => Integer::Ternary32(op, r),
        _ => Integer::Ternary64(op, r),
    })
}

fn mul_wide(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let Some(int) = Int::parse(ty) else { return form.unknown() };
    let Some(wide) = int.wide() else { return form.unknown() };
    let r = form.r2([wide, int.ty, int.ty])?;
    Ok(match (int.bits, int.signed) {
        (16, true) => Integer::Special2(Special2::MulWide16S, r),
        (16, false) => Integer::Special2(Special2::MulWide16U, r),
        (_, signed) => Integer::MulWide { signed, r },
    })
}

fn mad_wide(form: &mut Form, ty: &str) -> Result<Integer, String> {
    let Some(int) = Int::parse(ty) else { return form.unknown() };
    let Some(wide) = int.wide() else { return form.unknown() };
    let r = form.r3([wide, int.ty, int.ty, wide])?;
    Ok(match (int.bits, int.signed) {
        (16, true) => Integer::Special3(Special3::MadWide16S, r),
        (16, false) => Integer::Special3(Special3::MadWide16U, r),
        (_, signed) => Integer::MadWide { signed, r },
    })
}

/// The forms that exist at 32 bits alone.
fn only32(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    if let Some(op) = two(form.opcode(), modifiers) {
        return Ok(Integer::Special2(op, form.r2([B32, B32, B32])?));
    }
    let Some(op) = three(form.opcode(), modifiers) else { return form.unknown() };
    Ok(Integer::Special3(op, form.r3([B32, B32, B32, B32])?))
}

fn two(opcode: &str, modifiers: &[&str]) -> Option<Special2> {
    // Compilers and headers write `.relu` on either side of the type.
    Some(match (opcode, modifiers) {
        ("add", ["sat", "s32"]) => Special2::AddSat,
        ("sub", ["sat", "s32"]) => Special2::SubSat,
        ("add", ["u16x2" | "s16x2"]) => Special2::AddX2,
        ("min", ["s16x2"]) => Special2::MinX2S,
        ("min", ["u16x2"]) => Special2::MinX2U,
        ("max", ["s16x2"]) => Special2::MaxX2S,
        ("max", ["u16x2"]) => Special2::MaxX2U,
        ("min", ["relu", "s32"] | ["s32", "relu"]) => Special2::MinRelu,
        ("max", ["relu", "s32"] | ["s32", "relu"]) => Special2::MaxRelu,
        ("min", ["relu", "s16x2"] | ["s16x2", "relu"]) => Special2::MinX2Relu,
        ("max", ["relu", "s16x2"] | ["s16x2", "relu"]) => Special2::MaxX2Relu,
        ("mul24", ["lo", "s32"]) => Special2::Mul24LowS,
        ("mul24", ["lo", "u32"]) => Special2::Mul24LowU,
        ("mul24", ["hi", "s32"]) => Special2::Mul24HighS,
        ("mul24", ["hi", "u32"]) => Special2::Mul24HighU,
        _ => return None,
    })
}

fn three(opcode: &str, modifiers: &[&str]) -> Option<Special3> {
    Some(match (opcode, modifiers) {
        ("mad", ["hi", "sat", "s32"]) => Special3::MadHighSat,
        ("mad24", ["lo", "s32"]) => Special3::Mad24LowS,
        ("mad24", ["lo", "u32"]) => Special3::Mad24LowU,
        ("mad24", ["hi", "s32"]) => Special3::Mad24HighS,
        ("mad24", ["hi", "u32"]) => Special3::Mad24HighU,
        ("mad24", ["hi", "sat", "s32"]) => Special3::Mad24HighSat,
        ("dp4a", ["s32", "s32"]) => Special3::Dp4aSS,
        ("dp4a", ["s32", "u32"]) => Special3::Dp4aSU,
        ("dp4a", ["u32", "s32"]) => Special3::Dp4aUS,
        ("dp4a", ["u32", "u32"]) => Special3::Dp4aUU,
        ("dp2a", ["lo", "s32", "s32"]) => Special3::Dp2aLowSS,
        ("dp2a", ["lo", "s32", "u32"]) => Special3::Dp2aLowSU,
        ("dp2a", ["lo", "u32", "s32"]) => Special3::Dp2aLowUS,
        ("dp2a", ["lo", "u32", "u32"]) => Special3::Dp2aLowUU,
        ("dp2a", ["hi", "s32", "s32"]) => Special3::Dp2aHighSS,
        ("dp2a", ["hi", "s32", "u32"]) => Special3::Dp2aHighSU,
        ("dp2a", ["hi", "u32", "s32"]) => Special3::Dp2aHighUS,
        ("dp2a", ["hi", "u32", "u32"]) => Special3::Dp2aHighUU,
        _ => return None,
    })
}

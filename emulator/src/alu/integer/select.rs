//! Selection, moves, and packing of several registers into one.
//!
//! An element of a pack lies above the ones before it: `mov.b64 d, {lo, hi}`.
//! (PTX ISA, "selp", "slct", "mov", "copysign".)

use super::Integer;
use super::arithmetic::Unary;
use super::compare::flush32;
use super::form::{Form, R1, R2, R3};
use super::lower_arithmetic::by_width;
use super::lower_bits::predicate_move;
use crate::alu::lanes::{map1, map2, mask1};
use crate::lower::operands::class_of;
use crate::program::{Access, Class, LANES, Lanes32, Lanes64, Mask, Reg, Registers, Visit};
use crate::ptx::ast::{Operand, Type};

/// How `slct` reads its third operand, of which it wants to know whether it is at least 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sign {
    S32,
    F32,
    F32Flush,
}

/// The lanes in which `slct` chooses a: c ≥ 0, which −0 is and NaN is not.
#[inline(always)]
pub fn chooses(sign: Sign, c: &Lanes32) -> Mask {
    match sign {
        Sign::S32 => mask1(c, |x| x as i32 >= 0),
        Sign::F32 => mask1(c, |x| f32::from_bits(x) >= 0.0),
        Sign::F32Flush => mask1(c, |x| f32::from_bits(flush32(x)) >= 0.0),
    }
}

/// Packing and unpacking that is rarer than halves of 32 and 64 bits: two or four bytes, four halves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PackedParts {
    pub whole: Reg,
    /// Whether `whole` is a 64-bit register.
    pub wide: bool,
    /// The first `count`, each of `bits` bits.
    pub parts: [Reg; 4],
    pub count: u32,
    pub bits: u32,
}

impl PackedParts {
    pub fn visit(&mut self, visit: Visit, packs: bool) {
        let class = if self.wide { Class::R64 } else { Class::R32 };
        if !packs {
            visit(Access::Read, class, &mut self.whole);
        }
        let access = if packs { Access::Read } else { Access::Write };
        self.parts.iter_mut().take(self.count as usize).for_each(|part| visit(access, Class::R32, part));
        if packs {
            visit(Access::Write, class, &mut self.whole);
        }
    }

    #[inline(always)]
    pub fn pack(&self, registers: &mut Registers, active: Mask) {
        let mut whole: Lanes64 = [0; LANES];
        for i in 0..(self.count as usize).min(4) {
            let part = registers.get32(self.parts[i]);
            let (shift, mask) = ((self.bits * i as u32) & 63, (1u64 << self.bits) - 1);
            whole = map2(&whole, part, |w, p| w | (p as u64 & mask) << shift);
        }
        if self.wide {
            registers.set64(self.whole, whole, active);
        } else {
            registers.set32(self.whole, map1(&whole, |w| w as u32), active);
        }
    }

    #[inline(always)]
    pub fn unpack(&self, registers: &mut Registers, active: Mask) {
        let whole: Lanes64 =
            if self.wide { *registers.get64(self.whole) } else { map1(registers.get32(self.whole), |x| x as u64) };
        for i in 0..(self.count as usize).min(4) {
            let (shift, mask) = ((self.bits * i as u32) & 63, (1u64 << self.bits) - 1);
            registers.set32(self.parts[i], map1(&whole, |w| (w >> shift & mask) as u32), active);
        }
    }
}

/// `mov.b32 {low, high}, a`, and with 64 bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    pub low: Reg,
    pub high: Reg,
    pub a: Reg,
}

impl Split {
    pub fn visit(&mut self, visit: Visit, class: Class) {
        visit(Access::Read, class, &mut self.a);
        visit(Access::Write, Class::R32, &mut self.low);
        visit(Access::Write, Class::R32, &mut self.high);
    }

    #[inline(always)]
    pub fn run16(&self, registers: &mut Registers, active: Mask) {
        let a = *registers.get32(self.a);
        registers.set32(self.low, map1(&a, |x| x & 0xffff), active);
        registers.set32(self.high, map1(&a, |x| x >> 16), active);
    }

    #[inline(always)]
    pub fn run32(&self, registers: &mut Registers, active: Mask) {
        let a = registers.get64(self.a);
        let (low, high) = (map1(a, |x| x as u32), map1(a, |x| (x >> 32) as u32));
        registers.set32(self.low, low, active);
        registers.set32(self.high, high, active);
    }
}

#[inline(always)]
pub fn join16(a: &Lanes32, b: &Lanes32) -> Lanes32 {
    map2(a, b, |x, y| x & 0xffff | y << 16)
}

#[inline(always)]
pub fn join32(a: &Lanes32, b: &Lanes32) -> Lanes64 {
    map2(a, b, |x, y| x as u64 | (y as u64) << 32)
}

/// b with a's sign.
#[inline(always)]
pub fn copysign32(a: &Lanes32, b: &Lanes32) -> Lanes32 {
    map2(a, b, |x, y| x & 1 << 31 | y & !(1 << 31))
}

#[inline(always)]
pub fn copysign64(a: &Lanes64, b: &Lanes64) -> Lanes64 {
    map2(a, b, |x, y| x & 1 << 63 | y & !(1 << 63))
}

/// The types that selections and moves have.
fn plain(ty: &str) -> Option<Type> {
    let ty = Type::parse(ty)?;
    let halves = matches!(ty, Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2);
    (matches!(ty.bytes(), 2 | 4 | 8) && !halves).then_some(ty)
}

pub fn selp(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let &[ty] = modifiers else { return form.unknown() };
    let Some(ty) = plain(ty) else { return form.unknown() };
    form.count(4)?;
    let (a, b) = (form.read(1, ty)?, form.read(2, ty)?);
    let (c, negated) = form.read_pred(3)?;
    let (a, b) = if negated { (b, a) } else { (a, b) };
    let r = R3 { d: form.write(ty)?, a, b, c };
    Ok(if ty.bytes() == 8 { Integer::Select64(r) } else { Integer::Select32(r) })
}

pub fn slct(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let (sign, ty) = match *modifiers {
        [ty, "s32"] => (Sign::S32, ty),
        [ty, "f32"] => (Sign::F32, ty),
        ["ftz", ty, "f32"] => (Sign::F32Flush, ty),
        _ => return form.unknown(),
    };
    let Some(ty) = plain(ty) else { return form.unknown() };
    let r = form.r3([ty, ty, ty, if sign == Sign::S32 { Type::S32 } else { Type::F32 }])?;
    Ok(if ty.bytes() == 8 { Integer::SelectSign64(sign, r) } else { Integer::SelectSign32(sign, r) })
}

pub fn copysign(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    match modifiers {
        ["f32"] => Ok(Integer::CopySign32(form.r2([Type::F32; 3])?)),
        ["f64"] => Ok(Integer::CopySign64(form.r2([Type::F64; 3])?)),
        _ => form.unknown(),
    }
}

pub fn mov(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let &[ty] = modifiers else { return form.unknown() };
    if ty == "pred" {
        return predicate_move(form);
    }
    let Some(ty) = plain(ty) else { return form.unknown() };
    form.count(2)?;
    match (form.operand(0)?.clone(), form.operand(1)?.clone()) {
        (Operand::Vector(parts), _) => unpack(form, ty, &parts),
        (_, Operand::Vector(parts)) => pack(form, ty, &parts),
        _ => {
            let r: R1 = form.r1([ty, ty])?;
            Ok(by_width(8 * ty.bytes() as u32, Unary::Move, r))
        }
    }
}

/// The type of each element of a vector that fills `ty`.
fn element(form: &Form, ty: Type, parts: &[Operand]) -> Result<Type, String> {
    match (ty, parts.len()) {
        (Type::B64, 2) => Ok(Type::B32),
        (Type::B64, 4) | (Type::B32, 2) => Ok(Type::B16),
        (Type::B32, 4) | (Type::B16, 2) => Ok(Type::B8),
        (_, count) => {
            Err(format!("{}: a vector of {count} elements is not a form that is known", form.instruction.form()))
        }
    }
}

/// Refuses wider registers as bytes, which other instructions allow.
fn check_byte(form: &mut Form, part: &Operand, element: Type) -> Result<(), String> {
    if element == Type::B8
        && *part != Operand::Name("_".to_string())
        && let Some((found, _)) = form.operands.register(part)?
        && found.bytes() != 1
    {
        return Err(format!("{part:?} is a {found:?} register, expected B8"));
    }
    Ok(())
}

fn pack(form: &mut Form, ty: Type, parts: &[Operand]) -> Result<Integer, String> {
    let element = element(form, ty, parts)?;
    let mut regs = Vec::new();
    for part in parts {
        check_byte(form, part, element)?;
        regs.push(form.operands.read(part, element)?);
    }
    let d = form.write(ty)?;
    Ok(match (ty, regs.as_slice()) {
        (Type::B64, &[a, b]) => Integer::Join32(R2 { d, a, b }),
        (Type::B32, &[a, b]) => Integer::Join16(R2 { d, a, b }),
        _ => Integer::Pack(group(d, ty, element, &regs)),
    })
}

fn unpack(form: &mut Form, ty: Type, parts: &[Operand]) -> Result<Integer, String> {
    let element = element(form, ty, parts)?;
    let a = form.read(1, ty)?;
    let mut regs = Vec::new();
    for part in parts {
        check_byte(form, part, element)?;
        regs.push(form.operands.write(part, element)?);
    }
    Ok(match (ty, regs.as_slice()) {
        (Type::B64, &[low, high]) => Integer::Split32(Split { low, high, a }),
        (Type::B32, &[low, high]) => Integer::Split16(Split { low, high, a }),
        _ => Integer::Unpack(group(a, ty, element, &regs)),
    })
}

fn group(whole: Reg, ty: Type, element: Type, regs: &[Reg]) -> PackedParts {
    let part = |i: usize| regs.get(i).copied().unwrap_or(whole);
    PackedParts {
        whole,
        wide: class_of(ty) == Class::R64,
        parts: [part(0), part(1), part(2), part(3)],
        count: regs.len() as u32,
        bits: 8 * element.bytes() as u32,
    }
}

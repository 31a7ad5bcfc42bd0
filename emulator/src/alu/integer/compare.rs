//! Comparisons: `setp`, `set`, `testp`.
//!
//! Every comparison is one of a few tests, with operands swapped or the answer inverted: a ≥ b is not a < b, and the
//! unordered float comparison `ltu` is not `ge`, so that NaN makes it true. `setp p|q` gives p = f(t, c) and
//! q = f(not t, c) with f and, or, xor. 16-bit floats are compared in f32, where they are exact.
//! (PTX ISA, "Comparison and Selection Instructions", "Half Precision Comparison Instructions", "testp".)

use super::arithmetic::s16;
use super::bits::{Logic, logic_mask};
use crate::alu::lanes::{mask1, mask2};
use crate::program::{Access, Class, LANES, Lanes32, Lanes64, Mask, Reg, Registers, Visit};

/// A relation of floats; false where an operand is NaN, but for the last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Relation {
    Equal,
    Less,
    LessEqual,
    /// Less or greater.
    Differ,
    /// An operand is NaN.
    Unordered,
}

/// What is tested, before inversion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Test {
    Equal16,
    LessS16,
    LessU16,
    Equal32,
    LessS32,
    LessU32,
    Equal64,
    LessS64,
    LessU64,
    F32(Relation),
    /// `.ftz`: subnormal operands count as zeros.
    F32Flush(Relation),
    F64(Relation),
    F16(Relation),
    F16Flush(Relation),
    Bf16(Relation),
}

impl Test {
    pub fn class(self) -> Class {
        match self {
            Test::Equal64 | Test::LessS64 | Test::LessU64 | Test::F64(_) => Class::R64,
            _ => Class::R32,
        }
    }
}

/// The third operand of `setp.CmpOp.BoolOp`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Combine {
    pub op: Logic,
    pub c: Reg,
    pub negated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    pub test: Test,
    pub inverted: bool,
    pub a: Reg,
    pub b: Reg,
    pub combine: Option<Combine>,
}

impl Comparison {
    pub fn visit(&mut self, visit: Visit) {
        visit(Access::Read, self.test.class(), &mut self.a);
        visit(Access::Read, self.test.class(), &mut self.b);
        if let Some(combine) = &mut self.combine {
            visit(Access::Read, Class::Pred, &mut combine.c);
        }
    }

    /// t, of the high halves of packed operands where `high`.
    #[inline(always)]
    pub fn holds(&self, registers: &Registers, high: bool) -> Mask {
        let mask = if self.test.class() == Class::R64 {
            test64(self.test, registers.get64(self.a), registers.get64(self.b))
        } else {
            test32(self.test, registers.get32(self.a), registers.get32(self.b), high)
        };
        if self.inverted { !mask } else { mask }
    }

    /// f(t, c)
    #[inline(always)]
    pub fn combined(&self, registers: &Registers, t: Mask) -> Mask {
        let Some(Combine { op, c, negated }) = self.combine else { return t };
        let c = registers.get_pred(c);
        logic_mask(op, t, if negated { !c } else { c })
    }
}

#[inline(always)]
fn relate<B: Copy, F: PartialOrd>(relation: Relation, a: &[B; LANES], b: &[B; LANES], value: impl Fn(B) -> F) -> Mask {
    match relation {
        Relation::Equal => mask2(a, b, |x, y| value(x) == value(y)),
        Relation::Less => mask2(a, b, |x, y| value(x) < value(y)),
        Relation::LessEqual => mask2(a, b, |x, y| value(x) <= value(y)),
        Relation::Differ => mask2(a, b, |x, y| value(x) < value(y) || value(x) > value(y)),
        Relation::Unordered => mask2(a, b, |x, y| value(x).partial_cmp(&value(y)).is_none()),
    }
}

/// A single's bits with a subnormal made zero.
#[inline(always)]
pub fn flush32(x: u32) -> u32 {
    if x & 0x7f80_0000 == 0 { x & 0x8000_0000 } else { x }
}

/// A half's value, up to a factor: its magnitude's bits as a number, which has the same order.
#[inline(always)]
fn order_f16(x: u32, flush: bool) -> f32 {
    let magnitude = x & 0x7fff;
    let magnitude = if flush && magnitude < 0x0400 { 0 } else { magnitude };
    let value = if magnitude > 0x7c00 { f32::NAN } else { magnitude as f32 };
    if x & 0x8000 != 0 { -value } else { value }
}

#[inline(always)]
fn test32(test: Test, a: &Lanes32, b: &Lanes32, high: bool) -> Mask {
    let half = |x: u32| if high { x >> 16 } else { x & 0xffff };
    match test {
        Test::Equal16 => mask2(a, b, |x, y| (x ^ y) & 0xffff == 0),
        Test::LessS16 => mask2(a, b, |x, y| (s16(x) as i32) < s16(y) as i32),
        Test::LessU16 => mask2(a, b, |x, y| x & 0xffff < y & 0xffff),
        Test::Equal32 => mask2(a, b, |x, y| x == y),
        Test::LessS32 => mask2(a, b, |x, y| (x as i32) < y as i32),
        Test::LessU32 => mask2(a, b, |x, y| x < y),
        Test::F32(relation) => relate(relation, a, b, f32::from_bits),
        Test::F32Flush(relation) => relate(relation, a, b, |x| f32::from_bits(flush32(x))),
        Test::F16(relation) => relate(relation, a, b, |x| order_f16(half(x), false)),
        Test::F16Flush(relation) => relate(relation, a, b, |x| order_f16(half(x), true)),
        Test::Bf16(relation) => relate(relation, a, b, |x| f32::from_bits(half(x) << 16)),
        // `test64` has these.
        Test::Equal64 | Test::LessS64 | Test::LessU64 | Test::F64(_) => 0,
    }
}

#[inline(always)]
fn test64(test: Test, a: &Lanes64, b: &Lanes64) -> Mask {
    match test {
        Test::Equal64 => mask2(a, b, |x, y| x == y),
        Test::LessS64 => mask2(a, b, |x, y| (x as i64) < y as i64),
        Test::LessU64 => mask2(a, b, |x, y| x < y),
        Test::F64(relation) => relate(relation, a, b, f64::from_bits),
        _ => 0,
    }
}

/// `testp`
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Finite,
    Infinite,
    Number,
    NotANumber,
    /// Zeros too.
    Normal,
    Subnormal,
}

#[inline(always)]
pub fn kind32(kind: Kind, a: &Lanes32) -> Mask {
    const INFINITY: u32 = 0x7f80_0000;
    const NORMAL: u32 = 0x0080_0000;
    let magnitude = |x: u32| x & 0x7fff_ffff;
    match kind {
        Kind::Finite => mask1(a, |x| magnitude(x) < INFINITY),
        Kind::Infinite => mask1(a, |x| magnitude(x) == INFINITY),
        Kind::Number => mask1(a, |x| magnitude(x) <= INFINITY),
        Kind::NotANumber => mask1(a, |x| magnitude(x) > INFINITY),
        Kind::Normal => mask1(a, |x| magnitude(x) == 0 || (NORMAL..INFINITY).contains(&magnitude(x))),
        Kind::Subnormal => mask1(a, |x| (1..NORMAL).contains(&magnitude(x))),
    }
}

#[inline(always)]
pub fn kind64(kind: Kind, a: &Lanes64) -> Mask {
    const INFINITY: u64 = 0x7ff0_0000_0000_0000;
    const NORMAL: u64 = 0x0010_0000_0000_0000;
    let magnitude = |x: u64| x & 0x7fff_ffff_ffff_ffff;
    match kind {
        Kind::Finite => mask1(a, |x| magnitude(x) < INFINITY),
        Kind::Infinite => mask1(a, |x| magnitude(x) == INFINITY),
        Kind::Number => mask1(a, |x| magnitude(x) <= INFINITY),
        Kind::NotANumber => mask1(a, |x| magnitude(x) > INFINITY),
        Kind::Normal => mask1(a, |x| magnitude(x) == 0 || (NORMAL..INFINITY).contains(&magnitude(x))),
        Kind::Subnormal => mask1(a, |x| (1..NORMAL).contains(&magnitude(x))),
    }
}

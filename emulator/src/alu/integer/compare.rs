//! Comparisons: `setp`, `set`, `testp`.
//!
//! Every comparison is one of a few tests, with operands swapped or the answer inverted: a ≥ b is not a < b, and the
//! unordered float comparison `ltu` is not `ge`, so that NaN makes it true. `setp p|q` gives p = f(t, c) and
//! q = f(not t, c) with f and, or, xor. 16-bit floats are compared in f32, where they are exact.
//! (PTX ISA, "Comparison and Selection Instructions", "Half Precision Comparison Instructions", "testp".)

use super::arithmetic::s16;
use super::bits::{Logic, logic_mask};
use crate::alu::lanes::{map1, mask1, mask2};
use crate::program::{Access, Class, Lanes32, Lanes64, Mask, Reg, Registers, Visit};

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
    /// Operands of two halves each.
    pub packed: bool,
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

    /// t and what the second destination takes for it: not t, or for packed operands the high half's answer.
    #[inline(always)]
    fn holds(&self, registers: &Registers) -> [Mask; 2] {
        let mut answers = [0; 2];
        // A loop, so that there is one copy of the code for both halves.
        for (half, answer) in answers.iter_mut().enumerate().take(1 + self.packed as usize) {
            let mask = if self.test.class() == Class::R64 {
                test64(self.test, registers.get64(self.a), registers.get64(self.b))
            } else {
                test32(self.test, registers.get32(self.a), registers.get32(self.b), 16 * half as u32)
            };
            *answer = if self.inverted { !mask } else { mask };
        }
        if !self.packed {
            answers[1] = !answers[0];
        }
        answers
    }

    /// f(t, c) for either destination.
    #[inline(always)]
    pub fn answers(&self, registers: &Registers) -> [Mask; 2] {
        let [first, second] = self.holds(registers);
        [self.combined(registers, first), self.combined(registers, second)]
    }

    #[inline(always)]
    fn combined(&self, registers: &Registers, t: Mask) -> Mask {
        let Some(Combine { op, c, negated }) = self.combine else { return t };
        let c = registers.get_pred(c);
        logic_mask(op, t, if negated { !c } else { c })
    }
}

/// The operands are singles' bits.
#[inline(always)]
fn relate32(relation: Relation, a: &Lanes32, b: &Lanes32) -> Mask {
    let f = f32::from_bits;
    match relation {
        Relation::Equal => mask2(a, b, |x, y| f(x) == f(y)),
        Relation::Less => mask2(a, b, |x, y| f(x) < f(y)),
        Relation::LessEqual => mask2(a, b, |x, y| f(x) <= f(y)),
        Relation::Differ => mask2(a, b, |x, y| f(x) < f(y) || f(x) > f(y)),
        Relation::Unordered => mask2(a, b, |x, y| f(x).is_nan() || f(y).is_nan()),
    }
}

#[inline(always)]
fn relate64(relation: Relation, a: &Lanes64, b: &Lanes64) -> Mask {
    let f = f64::from_bits;
    match relation {
        Relation::Equal => mask2(a, b, |x, y| f(x) == f(y)),
        Relation::Less => mask2(a, b, |x, y| f(x) < f(y)),
        Relation::LessEqual => mask2(a, b, |x, y| f(x) <= f(y)),
        Relation::Differ => mask2(a, b, |x, y| f(x) < f(y) || f(x) > f(y)),
        Relation::Unordered => mask2(a, b, |x, y| f(x).is_nan() || f(y).is_nan()),
    }
}

/// A single's bits with a subnormal made zero.
#[inline(always)]
pub fn flush32(x: u32) -> u32 {
    if x & 0x7f80_0000 == 0 { x & 0x8000_0000 } else { x }
}

/// A half's value, up to a factor, as a single's bits: its magnitude's bits as a number, which has the same order.
#[inline(always)]
fn order_f16(x: u32, flush: bool) -> u32 {
    let magnitude = x & 0x7fff;
    let magnitude = if flush && magnitude < 0x0400 { 0 } else { magnitude };
    let value = if magnitude > 0x7c00 { f32::NAN } else { magnitude as i32 as f32 };
    value.to_bits() | (x & 0x8000) << 16
}

/// `shift`: 16 for the high halves of packed operands, else 0.
#[inline(always)]
fn test32(test: Test, a: &Lanes32, b: &Lanes32, shift: u32) -> Mask {
    match test {
        Test::Equal16 => mask2(a, b, |x, y| (x ^ y) & 0xffff == 0),
        Test::LessS16 => mask2(a, b, |x, y| (s16(x) as i32) < s16(y) as i32),
        Test::LessU16 => mask2(a, b, |x, y| x & 0xffff < y & 0xffff),
        Test::Equal32 => mask2(a, b, |x, y| x == y),
        Test::LessS32 => mask2(a, b, |x, y| (x as i32) < y as i32),
        Test::LessU32 => mask2(a, b, |x, y| x < y),
        Test::F32(relation) => relate32(relation, a, b),
        _ => test_converted(test, a, b, shift),
    }
}

/// Comparisons of what is made single precision first.
#[inline(always)]
fn test_converted(test: Test, a: &Lanes32, b: &Lanes32, shift: u32) -> Mask {
    let (relation, a, b) = match test {
        Test::F32Flush(relation) => (relation, map1(a, flush32), map1(b, flush32)),
        Test::F16(relation) => {
            (relation, map1(a, |x| order_f16(x >> shift, false)), map1(b, |x| order_f16(x >> shift, false)))
        }
        Test::F16Flush(relation) => {
            (relation, map1(a, |x| order_f16(x >> shift, true)), map1(b, |x| order_f16(x >> shift, true)))
        }
        Test::Bf16(relation) => (relation, map1(a, |x| x >> shift << 16), map1(b, |x| x >> shift << 16)),
        // The callers have the others.
        _ => return 0,
    };
    relate32(relation, &a, &b)
}

#[inline(always)]
fn test64(test: Test, a: &Lanes64, b: &Lanes64) -> Mask {
    match test {
        Test::Equal64 => mask2(a, b, |x, y| x == y),
        Test::LessS64 => mask2(a, b, |x, y| (x as i64) < y as i64),
        Test::LessU64 => mask2(a, b, |x, y| x < y),
        Test::F64(relation) => relate64(relation, a, b),
        _ => 0,
    }
}

/// `testp`
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FloatProperty {
    Finite,
    Infinite,
    Number,
    NotANumber,
    /// Zeros too.
    Normal,
    Subnormal,
}

#[inline(always)]
pub fn property32(property: FloatProperty, a: &Lanes32) -> Mask {
    const INFINITY: u32 = 0x7f80_0000;
    const NORMAL: u32 = 0x0080_0000;
    let magnitude = |x: u32| x & 0x7fff_ffff;
    match property {
        FloatProperty::Finite => mask1(a, |x| magnitude(x) < INFINITY),
        FloatProperty::Infinite => mask1(a, |x| magnitude(x) == INFINITY),
        FloatProperty::Number => mask1(a, |x| magnitude(x) <= INFINITY),
        FloatProperty::NotANumber => mask1(a, |x| magnitude(x) > INFINITY),
        FloatProperty::Normal => mask1(a, |x| magnitude(x) == 0 || (NORMAL..INFINITY).contains(&magnitude(x))),
        FloatProperty::Subnormal => mask1(a, |x| (1..NORMAL).contains(&magnitude(x))),
    }
}

#[inline(always)]
pub fn property64(property: FloatProperty, a: &Lanes64) -> Mask {
    const INFINITY: u64 = 0x7ff0_0000_0000_0000;
    const NORMAL: u64 = 0x0010_0000_0000_0000;
    let magnitude = |x: u64| x & 0x7fff_ffff_ffff_ffff;
    match property {
        FloatProperty::Finite => mask1(a, |x| magnitude(x) < INFINITY),
        FloatProperty::Infinite => mask1(a, |x| magnitude(x) == INFINITY),
        FloatProperty::Number => mask1(a, |x| magnitude(x) <= INFINITY),
        FloatProperty::NotANumber => mask1(a, |x| magnitude(x) > INFINITY),
        FloatProperty::Normal => mask1(a, |x| magnitude(x) == 0 || (NORMAL..INFINITY).contains(&magnitude(x))),
        FloatProperty::Subnormal => mask1(a, |x| (1..NORMAL).contains(&magnitude(x))),
    }
}

//! Integers, bits, comparisons, selection, moves and predicates.
//!
//! Each variant of [`Integer`] is a shape (widths and number of operands) with an operation of that shape; the
//! `lower_…` files say which PTX forms there are, the others what the operations compute. A 16-bit value lies in a
//! 32-bit register; no result depends on what is above it there, and what is computed has zeros above it.
//! (PTX ISA, "Instruction Set"; every file names its sections.)

mod arithmetic;
mod bits;
mod carry;
mod compare;
mod execute;
mod form;
mod lower_arithmetic;
mod lower_bits;
mod lower_compare;
mod select;
#[cfg(test)]
mod tests;

use crate::alu::lanes::mask1;
use crate::lower::operands::Operands;
use crate::program::Class::{self, Pred, R32, R64};
use crate::program::{Access, Mask, Reg, Registers, Visit};
use crate::ptx::ast::Instruction;
use arithmetic::{Binary, Special2, Special3, Ternary, Unary};
use bits::{Bits2, Bits3, Count, Logic, Shift};
use carry::Flag;
use compare::{Comparison, FloatProperty};
use form::{Form, R1, R2, R3, R4};
use select::{PackedParts, Sign, Split};

#[derive(Debug, Clone, PartialEq)]
pub enum Integer {
    Unary16(Unary, R1),
    Unary32(Unary, R1),
    Unary64(Unary, R1),
    /// 32 and 64 bits to 32.
    Count32(Count, R1),
    Count64(Count, R1),
    Binary16 {
        op: Binary,
        signed: bool,
        r: R2,
    },
    Binary32(Binary, R2),
    Binary64(Binary, R2),
    /// What has only a 32-bit result.
    Special2(Special2, R2),
    MulWide {
        signed: bool,
        r: R2,
    },
    Ternary16 {
        op: Ternary,
        signed: bool,
        r: R3,
    },
    Ternary32(Ternary, R3),
    Ternary64(Ternary, R3),
    Special3(Special3, R3),
    MadWide {
        signed: bool,
        r: R3,
    },
    CarrySum {
        wide: bool,
        subtract: bool,
        flag: Flag,
        r: R2,
    },
    CarryMad {
        wide: bool,
        high: bool,
        signed: bool,
        flag: Flag,
        r: R3,
    },
    Logic32(Logic, R2),
    Logic64(Logic, R2),
    Shift16(Shift, R2),
    Shift32(Shift, R2),
    Shift64(Shift, R2),
    Bits2(Bits2, R2),
    Bits3(Bits3, R3),
    /// `bfe.64`
    Extract64 {
        signed: bool,
        r: R3,
    },
    /// `bfi`
    Insert32(R4),
    Insert64(R4),
    /// `lop3`
    Logic3 {
        table: u8,
        r: R3,
    },
    /// `lop3.and` and `lop3.or`: p = (d ≠ 0) op q.
    Logic3Predicate {
        table: u8,
        and: bool,
        r: R3,
        p: Reg,
        q: Reg,
        negated: bool,
    },
    /// The flags negate a and b.
    Predicates(Logic, [bool; 2], R2),
    PredicateMove {
        negated: bool,
        r: R1,
    },
    Setp {
        comparison: Comparison,
        p: Reg,
        q: Option<Reg>,
    },
    /// `yes` is what "true" writes, into a half if the operands are packed.
    Set {
        comparison: Comparison,
        d: Reg,
        yes: u32,
    },
    Testp32(FloatProperty, R1),
    Testp64(FloatProperty, R1),
    /// `selp`: c is the predicate.
    Select32(R3),
    Select64(R3),
    /// `slct`
    SelectSign32(Sign, R3),
    SelectSign64(Sign, R3),
    CopySign32(R2),
    CopySign64(R2),
    /// `mov.b32 d, {a, b}`
    Join16(R2),
    /// `mov.b64 d, {a, b}`
    Join32(R2),
    Split16(Split),
    Split32(Split),
    Pack(PackedParts),
    Unpack(PackedParts),
}

/// Whether the last modifier is a type of floating point: then another part has the form.
fn is_float(modifiers: &[&str]) -> bool {
    matches!(modifiers.last(), Some(&("f16" | "f16x2" | "bf16" | "bf16x2" | "f32" | "f32x2" | "f64")))
}

impl Integer {
    pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Option<Integer>, String> {
        let modifiers: Vec<&str> = instruction.modifiers.iter().map(String::as_str).collect();
        let form = &mut Form { instruction, operands };
        let lowered = match instruction.opcode.as_str() {
            "add" | "sub" | "mul" | "mad" | "div" | "abs" | "neg" | "min" | "max" if is_float(&modifiers) => {
                return Ok(None);
            }
            "add" | "sub" | "mad" if instruction.has("cc") => carry::lower(form, &modifiers),
            "addc" | "subc" | "madc" => carry::lower(form, &modifiers),
            "add" | "sub" | "mul" | "mad" | "mul24" | "mad24" | "sad" | "div" | "rem" | "abs" | "neg" | "min"
            | "max" | "dp4a" | "dp2a" => lower_arithmetic::lower(form, &modifiers),
            "popc" | "clz" | "bfind" | "fns" | "brev" | "bfe" | "bfi" | "bmsk" | "szext" | "and" | "or" | "xor"
            | "not" | "cnot" | "lop3" | "shf" | "shl" | "shr" | "prmt" => lower_bits::lower(form, &modifiers),
            "setp" => lower_compare::setp(form, &modifiers),
            "set" => lower_compare::set(form, &modifiers),
            "testp" => lower_compare::testp(form, &modifiers),
            "selp" => select::selp(form, &modifiers),
            "slct" => select::slct(form, &modifiers),
            "copysign" => select::copysign(form, &modifiers),
            "mov" => select::mov(form, &modifiers),
            _ => return Ok(None),
        };
        lowered.map(Some)
    }

    pub fn visit(&mut self, visit: Visit) {
        use Integer::*;
        match self {
            Unary16(_, r) | Unary32(_, r) | Count32(_, r) => r.visit(visit, [R32, R32]),
            Unary64(_, r) => r.visit(visit, [R64, R64]),
            Count64(_, r) => r.visit(visit, [R32, R64]),
            Binary16 { r, .. } | Binary32(_, r) | Special2(_, r) => r.visit(visit, [R32; 3]),
            Logic32(_, r) | Shift16(_, r) | Shift32(_, r) | Bits2(_, r) => r.visit(visit, [R32; 3]),
            CopySign32(r) | Join16(r) => r.visit(visit, [R32; 3]),
            Binary64(_, r) | Logic64(_, r) | CopySign64(r) => r.visit(visit, [R64; 3]),
            MulWide { r, .. } | Join32(r) => r.visit(visit, [R64, R32, R32]),
            Shift64(_, r) => r.visit(visit, [R64, R64, R32]),
            Ternary16 { r, .. } | Ternary32(_, r) | Special3(_, r) => r.visit(visit, [R32; 4]),
            Bits3(_, r) | Logic3 { r, .. } | SelectSign32(_, r) => r.visit(visit, [R32; 4]),
            Ternary64(_, r) => r.visit(visit, [R64; 4]),
            MadWide { r, .. } => r.visit(visit, [R64, R32, R32, R64]),
            Extract64 { r, .. } => r.visit(visit, [R64, R64, R32, R32]),
            Select32(r) => r.visit(visit, [R32, R32, R32, Pred]),
            Select64(r) => r.visit(visit, [R64, R64, R64, Pred]),
            SelectSign64(_, r) => r.visit(visit, [R64, R64, R64, R32]),
            Insert32(r) => r.visit(visit, [R32; 5]),
            Insert64(r) => r.visit(visit, [R64, R64, R64, R32, R32]),
            Testp32(_, r) => r.visit(visit, [Pred, R32]),
            Testp64(_, r) => r.visit(visit, [Pred, R64]),
            Split16(split) => split.visit(visit, R32),
            Split32(split) => split.visit(visit, R64),
            Pack(parts) => parts.visit(visit, true),
            Unpack(parts) => parts.visit(visit, false),
            _ => self.visit_flags(visit),
        }
    }

    /// The shapes with predicates or the carry flag.
    fn visit_flags(&mut self, visit: Visit) {
        match self {
            Integer::CarrySum { wide, flag, r, .. } => {
                flag.visit_read(visit);
                r.visit(visit, [if *wide { R64 } else { R32 }; 3]);
                flag.visit_write(visit);
            }
            Integer::CarryMad { wide, flag, r, .. } => {
                flag.visit_read(visit);
                r.visit(visit, [if *wide { R64 } else { R32 }; 4]);
                flag.visit_write(visit);
            }
            Integer::Logic3Predicate { r, p, q, .. } => {
                visit(Access::Read, Pred, q);
                r.visit(visit, [R32; 4]);
                visit(Access::Write, Pred, p);
            }
            Integer::Predicates(_, _, r) => r.visit(visit, [Pred; 3]),
            Integer::PredicateMove { r, .. } => r.visit(visit, [Pred; 2]),
            Integer::Setp { comparison, p, q } => {
                comparison.visit(visit);
                visit(Access::Write, Pred, p);
                q.iter_mut().for_each(|q| visit(Access::Write, Pred, q));
            }
            Integer::Set { comparison, d, .. } => {
                comparison.visit(visit);
                visit(Access::Write, R32, d);
            }
            _ => {}
        }
    }

    /// A selection needs its condition and, in each lane, only the operand it chooses.
    pub fn initialised(&self, registers: &Registers, initialised: &dyn Fn(Class, Reg) -> Mask) -> Option<Mask> {
        let known = |class, reg| initialised(class, reg);
        let (class, r, condition, chosen) = match self {
            Integer::Select32(r) => (R32, r, Pred, registers.get_pred(r.c)),
            Integer::Select64(r) => (R64, r, Pred, registers.get_pred(r.c)),
            Integer::SelectSign32(sign, r) => (R32, r, R32, select::chooses(*sign, registers.get32(r.c))),
            Integer::SelectSign64(sign, r) => (R64, r, R32, select::chooses(*sign, registers.get32(r.c))),
            Integer::Predicates(op, negated, r) => {
                let value = |reg, negated| registers.get_pred(reg) ^ if negated { Mask::MAX } else { 0 };
                let (a, b) = (value(r.a, negated[0]), value(r.b, negated[1]));
                return Some(decided(*op, (known(Pred, r.a), a, !a), (known(Pred, r.b), b, !b)));
            }
            Integer::Logic32(op, r) => {
                let side = |reg| {
                    let value = registers.get32(reg);
                    (known(R32, reg), mask1(value, |x| x == u32::MAX), mask1(value, |x| x == 0))
                };
                return Some(decided(*op, side(r.a), side(r.b)));
            }
            Integer::Logic64(op, r) => {
                let side = |reg| {
                    let value = registers.get64(reg);
                    (known(R64, reg), mask1(value, |x| x == u64::MAX), mask1(value, |x| x == 0))
                };
                return Some(decided(*op, side(r.a), side(r.b)));
            }
            Integer::Setp { comparison, .. } => {
                let class = comparison.test.class();
                let compared = known(class, comparison.a) & known(class, comparison.b);
                let combine = comparison.combine?;
                let c = registers.get_pred(combine.c) ^ if combine.negated { Mask::MAX } else { 0 };
                return Some(decided(combine.op, (compared, 0, 0), (known(Pred, combine.c), c, !c)));
            }
            _ => return None,
        };
        let operand = known(class, r.a) & chosen | known(class, r.b) & !chosen;
        Some(operand & known(condition, r.c))
    }
}

/// Where `a op b` is initialised: where both are, and where one is and decides alone (a false operand of `and`, a true
/// one of `or`). An operand is given by the lanes where it is initialised, all ones, and all zeros.
fn decided(op: Logic, a: (Mask, Mask, Mask), b: (Mask, Mask, Mask)) -> Mask {
    let alone = match op {
        Logic::And => a.0 & a.2 | b.0 & b.2,
        Logic::Or => a.0 & a.1 | b.0 & b.1,
        Logic::Xor => 0,
    };
    a.0 & b.0 | alone
}

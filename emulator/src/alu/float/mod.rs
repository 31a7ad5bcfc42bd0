//! Floating-point arithmetic of every width, and all conversions (`cvt`).
//!
//! Instructions are keyed on opcode, modifiers and types; modifiers may stand in any order, none twice, and a form
//! that PTX does not have is an error. What needs `sm_100` is not known here.
//! (PTX ISA, "Floating-Point Instructions", "Half Precision Floating-Point Instructions", "cvt", "cvt.pack".)

mod convert;
mod double;
mod half;
mod lower;
mod lower_convert;
mod single;
#[cfg(test)]
mod tests;

pub use convert::Convert;

use crate::lower::operands::Operands;
use crate::numerics::Rounding;
use crate::numerics::minmax::Rules;
use crate::program::{Access, Class, Mask, Reg, Registers, Visit};
use crate::ptx::ast::Instruction;

#[derive(Debug, Clone, PartialEq)]
pub enum Float {
    Arithmetic(Arithmetic),
    Convert(Convert),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Add,
    Sub,
    Mul,
    /// `fma`, and `mad`, which is the same.
    Fma,
    Div,
    Neg,
    Abs,
    Min,
    Max,
    /// The first operand's sign on the second.
    CopySign,
    Sqrt,
    Rcp,
    Rsqrt,
    Sin,
    Cos,
    Lg2,
    Ex2,
    Tanh,
}

impl Operation {
    /// How many sources it has.
    pub fn arity(self) -> usize {
        match self {
            Operation::Fma => 3,
            Operation::Add | Operation::Sub | Operation::Mul | Operation::Div => 2,
            Operation::Min | Operation::Max | Operation::CopySign => 2,
            _ => 1,
        }
    }
}

/// The type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FloatType {
    Half,
    Bfloat,
    Single,
    Double,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arithmetic {
    pub operation: Operation,
    pub kind: FloatType,
    /// Two halves or bfloats in each register.
    pub packed: bool,
    pub rounding: Rounding,
    /// `.approx`, `.full`.
    pub approximate: bool,
    /// Subnormal operands and results become zero.
    pub flush: bool,
    pub saturate: bool,
    pub relu: bool,
    /// `.NaN` and `.xorsign.abs` of a minimum or maximum.
    pub rules: Rules,
    pub to: Reg,
    /// As many as the operation has; the rest repeat the first.
    pub from: [Reg; 3],
}

impl Float {
    /// Lowers one instruction. `Ok(None)`: it is none of these.
    pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Option<Float>, String> {
        if instruction.opcode == "cvt" {
            return lower_convert::lower(instruction, operands).map(|convert| Some(Float::Convert(convert)));
        }
        Ok(lower::lower(instruction, operands)?.map(Float::Arithmetic))
    }

    pub fn visit(&mut self, visit: Visit) {
        match self {
            Float::Arithmetic(op) => {
                let class = if op.kind == FloatType::Double { Class::R64 } else { Class::R32 };
                let (used, rest) = op.from.split_at_mut(op.operation.arity());
                used.iter_mut().for_each(|reg| visit(Access::Read, class, reg));
                rest.fill(used[0]); // renumbered like the first
                visit(Access::Write, class, &mut op.to);
            }
            Float::Convert(op) => op.visit(visit),
        }
    }

    #[inline(always)]
    pub fn execute(&self, registers: &mut Registers, active: Mask) {
        match self {
            Float::Arithmetic(op) => match op.kind {
                FloatType::Single => op.single(registers, active),
                FloatType::Double => op.double(registers, active),
                FloatType::Half | FloatType::Bfloat => op.half(registers, active),
            },
            Float::Convert(op) => op.execute(registers, active),
        }
    }
}

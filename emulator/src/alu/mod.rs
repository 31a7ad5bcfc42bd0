//! Arithmetic on lanes: every instruction whose result in a lane depends on that lane's operands alone.
//!
//! `integer` has integers, bits, comparisons, selection, moves and predicates; `float` has floating point of every
//! width and all conversions. Each lowers its own forms, keyed on opcode, modifiers and types, and runs them.

pub mod float;
pub mod integer;
pub mod lanes;

use crate::lower::operands::Operands;
use crate::program::{Class, Mask, Reg, Registers, Visit};
use crate::ptx::ast::Instruction;

#[derive(Debug, Clone, PartialEq)]
pub enum Alu {
    Integer(integer::Integer),
    Float(float::Float),
}

impl Alu {
    /// Lowers one instruction. `Ok(None)`: the opcode is none of these. `Err`: it is, but the form is unknown or an
    /// operand does not fit; one line, to which the caller adds instruction and place.
    pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Option<Alu>, String> {
        if let Some(op) = integer::Integer::lower(instruction, operands)? {
            return Ok(Some(Alu::Integer(op)));
        }
        Ok(float::Float::lower(instruction, operands)?.map(Alu::Float))
    }

    pub fn visit(&mut self, visit: Visit) {
        match self {
            Alu::Integer(op) => op.visit(visit),
            Alu::Float(op) => op.visit(visit),
        }
    }

    /// The lanes in which the result is initialised, where that is more than "all operands are" (a selection needs
    /// only what it selects); `None` means the plain rule. `initialised` gives the lanes in which a register is.
    pub fn initialised(&self, registers: &Registers, initialised: &dyn Fn(Class, Reg) -> Mask) -> Option<Mask> {
        match self {
            Alu::Integer(op) => op.initialised(registers, initialised),
            Alu::Float(_) => None,
        }
    }
}

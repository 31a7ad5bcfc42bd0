//! Instructions that look across the lanes of a warp: shuffles, votes, matches, reductions and `mma.sync`.
//!
//! `.sync` instructions wait for the lanes of a membermask; the interpreter gathers them and then runs the instruction
//! once with exactly the lanes that take part (`active`). Results are written in those lanes alone.
//! (PTX ISA, "Data Movement and Conversion Instructions: shfl.sync", "Parallel Synchronization and Communication
//! Instructions", "Warp Level Matrix Instructions".)

mod matrix;
mod mma;
mod shuffle;
mod vote;

pub use matrix::{matrix_fragment, matrix_rows};
pub use mma::{Mma, MmaForm};
pub use shuffle::{Mode as ShuffleMode, Shuffle};
pub use vote::{Collective, Elect, Match, Reduce, ReduceOp, Vote, VoteKind};

use crate::lower::operands::Operands;
use crate::program::{Class, Mask, Reg, Registers, Visit};
use crate::ptx::ast::{Instruction, Operand, Type};

#[derive(Debug, Clone, PartialEq)]
pub enum WarpOp {
    Shuffle(Shuffle),
    /// `vote`, `match`, `redux`, `activemask`, `elect`: every lane's result depends on all lanes' operands.
    Collective(Collective),
    Mma(Mma),
}

/// Which lanes have to be together before the instruction runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Members {
    /// No others: `activemask`.
    Nobody,
    /// Those of this membermask register (each lane holds the mask).
    Register(Reg),
    /// The whole warp: `mma.sync`.
    All,
}

impl WarpOp {
    /// Lowers one instruction. `Ok(None)`: the opcode is none of these.
    pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Option<WarpOp>, String> {
        Ok(Some(match instruction.opcode.as_str() {
            "shfl" => WarpOp::Shuffle(Shuffle::lower(instruction, operands)?),
            "vote" | "match" | "redux" | "activemask" | "elect" => {
                WarpOp::Collective(Collective::lower(instruction, operands)?)
            }
            "mma" => WarpOp::Mma(Mma::lower(instruction, operands)?),
            _ => return Ok(None),
        }))
    }

    pub fn visit(&mut self, visit: Visit) {
        match self {
            WarpOp::Shuffle(op) => op.visit(visit),
            WarpOp::Collective(op) => op.visit(visit),
            WarpOp::Mma(op) => op.visit(visit),
        }
    }

    pub fn members(&self) -> Members {
        match self {
            WarpOp::Shuffle(op) => Members::Register(op.members),
            WarpOp::Collective(op) => op.members(),
            WarpOp::Mma(_) => Members::All,
        }
    }

    /// Runs with exactly the lanes that take part.
    #[inline(always)]
    pub fn execute(&self, registers: &mut Registers, active: Mask) {
        match self {
            WarpOp::Shuffle(op) => op.execute(registers, active),
            WarpOp::Collective(op) => op.execute(registers, active),
            WarpOp::Mma(op) => op.execute(registers, active),
        }
    }

    /// A shuffle's first lane that reads from a lane outside `active`, and the lane it reads: what it gets is undefined
    /// on a card, and here is its own value. Asked before `execute`.
    pub fn invalid_source(&self, registers: &Registers, active: Mask) -> Option<(usize, usize)> {
        match self {
            WarpOp::Shuffle(op) => op.invalid_source(registers, active),
            WarpOp::Collective(_) | WarpOp::Mma(_) => None,
        }
    }

    /// Where the results are initialised, if some operand is not: (class, register, lanes) of each result.
    /// Asked before `execute`, for the operands decide; lanes outside `active` have no meaning.
    pub fn initialised(
        &self,
        registers: &Registers,
        active: Mask,
        initialised: &dyn Fn(Class, Reg) -> Mask,
    ) -> Vec<(Class, Reg, Mask)> {
        match self {
            WarpOp::Shuffle(op) => op.initialised(registers, active, initialised),
            WarpOp::Collective(op) => op.initialised(active, initialised),
            WarpOp::Mma(op) => op.initialised(initialised),
        }
    }
}

/// The instruction's modifiers, as a `match` wants them.
fn modifiers(instruction: &Instruction) -> Vec<&str> {
    instruction.modifiers.iter().map(String::as_str).collect()
}

fn unknown_form(instruction: &Instruction) -> String {
    format!("{} is not a known form of {}", instruction.form(), instruction.opcode)
}

/// Exactly `N` operands.
fn exactly<const N: usize>(instruction: &Instruction) -> Result<&[Operand; N], String> {
    let found = instruction.operands.len();
    instruction.operands.as_slice().try_into().map_err(|_| format!("found {found} operands, expected {N}"))
}

/// A destination `d` or `d|p`: the predicate is `None` where there is none.
fn write_pair(operands: &mut Operands, operand: &Operand, ty: Type) -> Result<(Reg, Option<Reg>), String> {
    match operand {
        Operand::Pair(value, pred) => {
            let value = operands.write(&Operand::Name(value.clone()), ty)?;
            let pred = operands.write(&Operand::Name(pred.clone()), Type::Pred)?;
            Ok((value, Some(pred)))
        }
        _ => Ok((operands.write(operand, ty)?, None)),
    }
}

#[cfg(test)]
mod tests;

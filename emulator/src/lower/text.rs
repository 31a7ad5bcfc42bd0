//! Instructions as PTX writes them, for diagnoses.

use crate::fault::shown;
use crate::ptx::ast::{Instruction, Operand};

/// The whole instruction, guard first.
pub fn instruction(instruction: &Instruction) -> String {
    let guard = match &instruction.guard {
        Some(guard) => format!("@{}{} ", if guard.negated { "!" } else { "" }, guard.predicate),
        None => String::new(),
    };
    let space = if instruction.operands.is_empty() { "" } else { " " };
    let text = format!("{guard}{}{space}{};", instruction.form(), list(&instruction.operands));
    shown(&text)
}

pub fn operand(operand: &Operand) -> String {
    match operand {
        Operand::Name(name) => name.clone(),
        Operand::Not(name) => format!("!{name}"),
        Operand::Pair(a, b) => format!("{a}|{b}"),
        Operand::Int(value) => value.to_string(),
        Operand::F32(bits) => format!("0f{bits:08X}"),
        Operand::F64(bits) => format!("0d{bits:016X}"),
        Operand::Address { base: Some(base), offset: 0 } => format!("[{base}]"),
        Operand::Address { base: Some(base), offset } => format!("[{base}{offset:+}]"),
        Operand::Address { base: None, offset } => format!("[{offset}]"),
        Operand::Vector(elements) => format!("{{{}}}", list(elements)),
        Operand::List(elements) => format!("({})", list(elements)),
    }
}

fn list(operands: &[Operand]) -> String {
    operands.iter().map(operand).collect::<Vec<_>>().join(", ")
}

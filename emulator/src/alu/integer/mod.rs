//! placeholder
use crate::lower::operands::Operands;
use crate::program::{Class, Mask, Reg, Registers, Visit};
use crate::ptx::ast::Instruction;

#[derive(Debug, Clone, PartialEq)]
pub enum Integer {}

impl Integer {
    pub fn lower(_instruction: &Instruction, _operands: &mut Operands) -> Result<Option<Integer>, String> {
        Ok(None)
    }
    pub fn visit(&mut self, _visit: Visit) {}
    #[inline(always)]
    pub fn execute(&self, _registers: &mut Registers, _active: Mask) {}
    pub fn initialised(&self, _registers: &Registers, _initialised: &dyn Fn(Class, Reg) -> Mask) -> Option<Mask> {
        None
    }
}

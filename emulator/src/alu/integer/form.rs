//! Reading one instruction: its operands as registers, and errors that name what was found.

use crate::lower::operands::Operands;
use crate::program::{Access, Class, Reg, Visit};
use crate::ptx::ast::{Instruction, Operand, Type};

/// A destination and one source.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct R1 {
    pub d: Reg,
    pub a: Reg,
}

/// A destination and two sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct R2 {
    pub d: Reg,
    pub a: Reg,
    pub b: Reg,
}

/// A destination and three sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct R3 {
    pub d: Reg,
    pub a: Reg,
    pub b: Reg,
    pub c: Reg,
}

/// A destination and four sources.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct R4 {
    pub d: Reg,
    pub a: Reg,
    pub b: Reg,
    pub c: Reg,
    pub e: Reg,
}

impl R1 {
    /// `classes`: of destination and source.
    pub fn visit(&mut self, visit: Visit, classes: [Class; 2]) {
        visit(Access::Read, classes[1], &mut self.a);
        visit(Access::Write, classes[0], &mut self.d);
    }
}

impl R2 {
    pub fn visit(&mut self, visit: Visit, classes: [Class; 3]) {
        visit(Access::Read, classes[1], &mut self.a);
        visit(Access::Read, classes[2], &mut self.b);
        visit(Access::Write, classes[0], &mut self.d);
    }
}

impl R3 {
    pub fn visit(&mut self, visit: Visit, classes: [Class; 4]) {
        visit(Access::Read, classes[1], &mut self.a);
        visit(Access::Read, classes[2], &mut self.b);
        visit(Access::Read, classes[3], &mut self.c);
        visit(Access::Write, classes[0], &mut self.d);
    }
}

impl R4 {
    pub fn visit(&mut self, visit: Visit, classes: [Class; 5]) {
        visit(Access::Read, classes[1], &mut self.a);
        visit(Access::Read, classes[2], &mut self.b);
        visit(Access::Read, classes[3], &mut self.c);
        visit(Access::Read, classes[4], &mut self.e);
        visit(Access::Write, classes[0], &mut self.d);
    }
}

/// An instruction while it is lowered.
pub struct Form<'a> {
    pub instruction: &'a Instruction,
    pub operands: &'a mut Operands,
}

impl Form<'_> {
    pub fn opcode(&self) -> &str {
        &self.instruction.opcode
    }

    pub fn unknown<T>(&self) -> Result<T, String> {
        Err(format!("{} is not a form of {} that is known", self.instruction.form(), self.opcode()))
    }

    /// Checks the number of operands, destination included.
    pub fn count(&self, expected: usize) -> Result<(), String> {
        let found = self.instruction.operands.len();
        if found == expected {
            return Ok(());
        }
        Err(format!("{}: found {found} operands, expected {expected}", self.instruction.form()))
    }

    pub fn operand(&self, index: usize) -> Result<&Operand, String> {
        let found = self.instruction.operands.len();
        let form = || format!("{}: found {found} operands, expected at least {}", self.instruction.form(), index + 1);
        self.instruction.operands.get(index).ok_or_else(form)
    }

    pub fn read(&mut self, index: usize, ty: Type) -> Result<Reg, String> {
        let operand = self.operand(index)?.clone();
        self.operands.read(&operand, ty)
    }

    pub fn read_pred(&mut self, index: usize) -> Result<(Reg, bool), String> {
        let operand = self.operand(index)?.clone();
        self.operands.read_pred(&operand)
    }

    /// The destination, operand 0.
    pub fn write(&mut self, ty: Type) -> Result<Reg, String> {
        let operand = self.operand(0)?.clone();
        self.operands.write(&operand, ty)
    }

    /// The destinations of `p` or `p|q`.
    pub fn write_pair(&mut self, p: Type, q: Type) -> Result<(Reg, Option<Reg>), String> {
        match self.operand(0)?.clone() {
            Operand::Pair(first, second) => {
                let first = self.operands.write(&Operand::Name(first), p)?;
                Ok((first, Some(self.operands.write(&Operand::Name(second), q)?)))
            }
            single => Ok((self.operands.write(&single, p)?, None)),
        }
    }

    /// The types are destination's, then sources'.
    pub fn r1(&mut self, types: [Type; 2]) -> Result<R1, String> {
        self.count(2)?;
        Ok(R1 { a: self.read(1, types[1])?, d: self.write(types[0])? })
    }

    pub fn r2(&mut self, types: [Type; 3]) -> Result<R2, String> {
        self.count(3)?;
        Ok(R2 { a: self.read(1, types[1])?, b: self.read(2, types[2])?, d: self.write(types[0])? })
    }

    pub fn r3(&mut self, types: [Type; 4]) -> Result<R3, String> {
        self.count(4)?;
        let [a, b, c] = [self.read(1, types[1])?, self.read(2, types[2])?, self.read(3, types[3])?];
        Ok(R3 { a, b, c, d: self.write(types[0])? })
    }

    pub fn r4(&mut self, types: [Type; 5]) -> Result<R4, String> {
        self.count(5)?;
        let [a, b] = [self.read(1, types[1])?, self.read(2, types[2])?];
        let [c, e] = [self.read(3, types[3])?, self.read(4, types[4])?];
        Ok(R4 { a, b, c, e, d: self.write(types[0])? })
    }
}

/// An integer type of 16, 32 or 64 bits with a sign rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Int {
    pub ty: Type,
    pub bits: u32,
    pub signed: bool,
}

impl Int {
    pub fn parse(text: &str) -> Option<Int> {
        let ty = Type::parse(text)?;
        let signed = matches!(ty, Type::S16 | Type::S32 | Type::S64);
        let known = signed || matches!(ty, Type::U16 | Type::U32 | Type::U64);
        known.then_some(Int { ty, bits: 8 * ty.bytes() as u32, signed })
    }

    /// The type of twice the width, that of a wide product; `None` for 64 bits.
    pub fn wide(self) -> Option<Type> {
        match self.ty {
            Type::S16 => Some(Type::S32),
            Type::U16 => Some(Type::U32),
            Type::S32 => Some(Type::S64),
            Type::U32 => Some(Type::U64),
            _ => None,
        }
    }
}

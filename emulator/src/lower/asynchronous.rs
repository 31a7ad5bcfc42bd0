//! `cp.async`, `ldmatrix`, `stmatrix`. (PTX ISA, "cp.async", "cp.async.wait_group / cp.async.wait_all", "ldmatrix",
//! "stmatrix".)

use crate::lower::kernel::{Lowering, Part};
use crate::lower::operands::class_of;
use crate::lower::problem::{Outcome, invalid, unsupported};
use crate::lower::text;
use crate::program::{Op, Reg};
use crate::ptx::ast::{Instruction, Operand, Space, Type};

impl Lowering<'_> {
    pub fn copy_async(&mut self, instruction: &Instruction) -> Outcome<()> {
        let modifiers: Vec<&str> = instruction.modifiers.iter().map(String::as_str).collect();
        match (&modifiers[..], &instruction.operands[..]) {
            (["async", "commit_group"], []) => self.emit(Op::CopyAsyncCommit),
            (["async", "wait_all"], []) => self.emit(Op::CopyAsyncWait { pending: None }),
            (["async", "wait_group"], [Operand::Int(pending)]) => match u32::try_from(*pending) {
                Ok(pending) => self.emit(Op::CopyAsyncWait { pending: Some(pending) }),
                Err(_) => return invalid(format!("{pending} groups, expected 0 or more")),
            },
            (["async", level @ ("ca" | "cg"), "shared" | "shared::cta", "global", rest @ ..], operands) => {
                return self.copy(level, rest, operands);
            }
            _ => return unsupported("this form of cp is not known"),
        }
        Ok(())
    }

    /// `[shared], [global], size {, source size | , ignore} {, policy}`
    fn copy(&mut self, level: &str, rest: &[&str], operands: &[Operand]) -> Outcome<()> {
        let prefetch = |modifier: &&str| matches!(*modifier, "L2::64B" | "L2::128B" | "L2::256B");
        let policy = rest.contains(&"L2::cache_hint");
        let prefetches = rest.iter().filter(|modifier| prefetch(modifier)).count();
        if prefetches > 1 || rest.len() != prefetches + policy as usize {
            return unsupported(format!("modifiers .{} are not known here", rest.join(".")));
        }
        let (operands, hint) = match operands.split_last() {
            Some((last, front)) if policy && operands.len() >= 4 => (front, Some(last)),
            _ if policy => return invalid("expected a cache policy as last operand"),
            _ => (operands, None),
        };
        if let Some(hint) = hint {
            self.operands.read(hint, Type::B64)?;
        }
        let (shared, global, size, source) = match operands {
            [shared, global, size] => (shared, global, size, None),
            [shared, global, size, source] => (shared, global, size, Some(source)),
            _ => return invalid(format!("found {} operands, expected 3 or 4", operands.len())),
        };
        let bytes = match (level, size) {
            ("ca", Operand::Int(bytes @ (4 | 8 | 16))) | ("cg", Operand::Int(bytes @ 16)) => *bytes as u32,
            _ => return invalid(format!("copies {} bytes, expected 16 (.ca: 4, 8 or 16)", text::operand(size))),
        };
        let (shared, _) = self.address(shared, Space::Shared, bytes as usize)?;
        let (global, _) = self.address(global, Space::Global, bytes as usize)?;
        let source_bytes = match source {
            Some(source) => self.source_bytes(source, bytes)?,
            None => None,
        };
        self.emit(Op::CopyAsync { shared, global, bytes, source_bytes });
        Ok(())
    }

    /// How many bytes come from memory: a number, a register, or none where a predicate says to ignore the source.
    fn source_bytes(&mut self, source: &Operand, bytes: u32) -> Outcome<Option<Reg>> {
        match source {
            Operand::Int(value) if *value == bytes as i64 => return Ok(None),
            Operand::Int(value) if !(0..bytes as i64).contains(value) => {
                return invalid(format!("source size {value}, expected 0 to {bytes}"));
            }
            _ => {}
        }
        let predicate = match self.operands.register(source)? {
            Some((Type::Pred, reg)) => Some(reg),
            _ => None,
        };
        let Some(predicate) = predicate else { return Ok(Some(self.operands.read(source, Type::U32)?)) };
        let size = self.operands.scratch(class_of(Type::B32));
        let parts = [
            Part::Register(Type::B32, size),
            Part::Number(0),
            Part::Number(bytes as i64),
            Part::Register(Type::Pred, predicate),
        ];
        self.unguarded("selp.b32", &parts)?;
        Ok(Some(size))
    }

    pub fn load_matrix(&mut self, instruction: &Instruction) -> Outcome<()> {
        let (count, transposed) = matrix_form(instruction)?;
        let [to, address] = &instruction.operands[..] else { return invalid("expected two operands") };
        let (address, _) = self.address(address, Space::Shared, 16)?;
        let mut registers = Vec::new();
        for element in matrix_registers(to, count)? {
            registers.push(self.operands.write(element, Type::B32)?);
        }
        self.emit(Op::LoadMatrix { address, to: registers, transposed });
        Ok(())
    }

    pub fn store_matrix(&mut self, instruction: &Instruction) -> Outcome<()> {
        let (count, transposed) = matrix_form(instruction)?;
        let [address, from] = &instruction.operands[..] else { return invalid("expected two operands") };
        let (address, _) = self.address(address, Space::Shared, 16)?;
        let mut registers = Vec::new();
        for element in matrix_registers(from, count)? {
            registers.push(self.operands.read(element, Type::B32)?);
        }
        self.emit(Op::StoreMatrix { address, from: registers, transposed });
        Ok(())
    }
}

/// `sync.aligned.m8n8.x4.trans.shared.b16`: how many matrices, and whether they are transposed.
fn matrix_form(instruction: &Instruction) -> Outcome<(usize, bool)> {
    let modifiers: Vec<&str> = instruction.modifiers.iter().map(String::as_str).collect();
    let (count, transposed) = match modifiers[..] {
        ["sync", "aligned", "m8n8", count, "shared" | "shared::cta", "b16"] => (count, false),
        ["sync", "aligned", "m8n8", count, "trans", "shared" | "shared::cta", "b16"] => (count, true),
        _ => return unsupported("this form is not known: expected .sync.aligned.m8n8.xN{.trans}.shared.b16"),
    };
    match count {
        "x1" => Ok((1, transposed)),
        "x2" => Ok((2, transposed)),
        "x4" => Ok((4, transposed)),
        _ => invalid(format!(".{count}, expected .x1, .x2 or .x4")),
    }
}

fn matrix_registers(operand: &Operand, count: usize) -> Outcome<&[Operand]> {
    match operand {
        Operand::Vector(elements) if elements.len() == count => Ok(elements),
        Operand::Name(_) if count == 1 => Ok(std::slice::from_ref(operand)),
        _ => invalid(format!("found {}, expected {count} registers in braces", text::operand(operand))),
    }
}

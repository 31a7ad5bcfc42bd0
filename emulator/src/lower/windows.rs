//! Generic addresses: shared, local and parameter memory appear in windows of the 64-bit address range; global and
//! constant addresses are generic ones already. (PTX ISA, "cvta", "isspacep".)

use crate::lower::kernel::{Lowering, Part};
use crate::lower::problem::{Outcome, invalid, unsupported};
use crate::program::{LOCAL_WINDOW, Op, PARAM_WINDOW, SHARED_WINDOW};
use crate::ptx::ast::{Instruction, Space, Type};

fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Global | Space::Const | Space::Generic => 0,
    }
}

fn space_of(modifier: &str) -> Outcome<Space> {
    Ok(match modifier {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" => Space::Param,
        "shared::cluster" => return unsupported("clusters are not supported"),
        other => return invalid(format!("state space .{other} is not known")),
    })
}

impl Lowering<'_> {
    /// `cvta.SPACE.u64` (to generic), `cvta.to.SPACE.u64`.
    pub fn convert_address(&mut self, instruction: &Instruction) -> Outcome<()> {
        let modifiers: Vec<&str> = instruction.modifiers.iter().map(String::as_str).collect();
        let (to_space, space, ty) = match modifiers[..] {
            ["to", space, ty] => (true, space, ty),
            [space, ty] => (false, space, ty),
            _ => return invalid("expected cvta.SPACE.u64 or cvta.to.SPACE.u64"),
        };
        match ty {
            "u64" => {}
            "u32" => return unsupported("generic addresses have 64 bits: .u32 is not supported"),
            _ => return invalid(format!("type .{ty}, expected .u64")),
        }
        let window = window(space_of(space)?) as i64;
        let [to, from] = &instruction.operands[..] else { return invalid("expected two operands") };
        let to = Part::Register(Type::U64, self.operands.write(to, Type::U64)?);
        let from = Part::Register(Type::U64, self.operands.read(from, Type::U64)?);
        match window {
            0 => self.arithmetic("mov.u64", &[to, from]),
            _ => self.arithmetic("add.s64", &[to, from, Part::Number(if to_space { -window } else { window })]),
        }
    }

    /// `isspacep.SPACE p, address`.
    pub fn is_space(&mut self, instruction: &Instruction) -> Outcome<()> {
        let [space] = &instruction.modifiers[..] else { return invalid("expected isspacep.SPACE") };
        let space = match space.as_str() {
            // A block is its own cluster, so the cluster's shared memory is the block's.
            "shared::cluster" => Space::Shared,
            other => space_of(other)?,
        };
        let [to, from] = &instruction.operands[..] else { return invalid("expected two operands") };
        let from = self.operands.read(from, Type::U64)?;
        let to = self.operands.write(to, Type::Pred)?;
        self.emit(Op::IsSpace { space, to, from });
        Ok(())
    }
}

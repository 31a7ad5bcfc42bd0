//! Runs a program for one thread, to see what lowered code computes. It knows no checks and no other threads.

use std::collections::HashMap;

use cuda_emulator::alu::Alu;
use cuda_emulator::program::{
    Address, Class, LOCAL_WINDOW, Op, PARAM_WINDOW, Preset, Program, Reg, Registers, SHARED_WINDOW, Value,
};
use cuda_emulator::ptx::ast::Space;

#[derive(Default)]
pub struct Thread {
    pub registers: Registers,
    /// Bytes by space and address.
    pub memory: HashMap<(Space, u64), u8>,
    /// Format and argument addresses of each `vprintf`.
    pub printed: Vec<(u64, u64)>,
    pub steps: usize,
}

impl Thread {
    /// Runs `program` with the given parameter buffer.
    pub fn run(program: &Program, params: &[u8]) -> Thread {
        let mut thread = Thread::default();
        thread.registers.r32.resize(program.registers.r32 as usize, [0; 32]);
        thread.registers.r64.resize(program.registers.r64 as usize, [0; 32]);
        thread.registers.pred.resize(program.registers.pred as usize, 0);
        for &(class, reg, preset) in &program.presets {
            if let Preset::Bits(bits) = preset {
                thread.set(class, reg, bits);
            }
        }
        for (address, &byte) in params.iter().enumerate() {
            thread.memory.insert((Space::Param, address as u64), byte);
        }
        let mut pc = 0;
        while let Some(next) = thread.step(program, pc) {
            pc = next;
            thread.steps += 1;
            assert!(thread.steps < 100_000, "the program does not end");
        }
        thread
    }

    pub fn get(&self, class: Class, reg: Reg) -> u64 {
        match class {
            Class::R32 => self.registers.get32(reg)[0] as u64,
            Class::R64 => self.registers.get64(reg)[0],
            Class::Pred => (self.registers.get_pred(reg) & 1) as u64,
        }
    }

    fn set(&mut self, class: Class, reg: Reg, value: u64) {
        match class {
            Class::R32 => self.registers.r32[reg.0 as usize][0] = value as u32,
            Class::R64 => self.registers.r64[reg.0 as usize][0] = value,
            Class::Pred => self.registers.pred[reg.0 as usize] = (value & 1) as u32,
        }
    }

    /// A little-endian number in memory; bytes that were never written are an error.
    pub fn number(&self, space: Space, address: u64, bytes: u32) -> u64 {
        (0..bytes as u64).rev().fold(0, |number, offset| {
            let byte = self.memory.get(&(space, address + offset));
            number << 8 | *byte.unwrap_or_else(|| panic!("{space:?} {:#x} was never written", address + offset)) as u64
        })
    }

    fn place(&self, space: Space, address: &Address) -> (Space, u64) {
        let class = if address.wide { Class::R64 } else { Class::R32 };
        let at = self.get(class, address.base).wrapping_add(address.offset as u64);
        match space {
            Space::Generic if at >= PARAM_WINDOW => (Space::Param, at - PARAM_WINDOW),
            Space::Generic if at >= LOCAL_WINDOW => (Space::Local, at - LOCAL_WINDOW),
            Space::Generic if at >= SHARED_WINDOW => (Space::Shared, at - SHARED_WINDOW),
            Space::Generic | Space::Const => (Space::Global, at),
            _ => (space, at),
        }
    }

    fn load(&mut self, space: Space, value: Value, address: &Address, to: &[Reg]) {
        let (space, at) = self.place(space, address);
        let class = if value.wide { Class::R64 } else { Class::R32 };
        for (index, &reg) in to.iter().enumerate() {
            let number = self.number(space, at + index as u64 * value.bytes as u64, value.bytes);
            let shift = 64 - 8 * value.bytes;
            let signed = ((number << shift) as i64 >> shift) as u64;
            self.set(class, reg, if value.signed { signed } else { number });
        }
    }

    fn store(&mut self, space: Space, value: Value, address: &Address, from: &[Reg]) {
        let (space, at) = self.place(space, address);
        let class = if value.wide { Class::R64 } else { Class::R32 };
        for (index, &reg) in from.iter().enumerate() {
            let number = self.get(class, reg).to_le_bytes();
            for offset in 0..value.bytes as u64 {
                let address = at + index as u64 * value.bytes as u64 + offset;
                self.memory.insert((space, address), number[offset as usize]);
            }
        }
    }

    /// Runs one instruction: the next one's index, or none at the end.
    fn step(&mut self, program: &Program, pc: usize) -> Option<usize> {
        let instruction = &program.code[pc];
        if let Some(guard) = instruction.guard
            && (self.get(Class::Pred, guard.pred) == 1) == guard.negated
        {
            return Some(pc + 1);
        }
        match &instruction.op {
            Op::Alu(Alu::Integer(op)) => op.execute(&mut self.registers, 1),
            Op::Alu(Alu::Float(op)) => op.execute(&mut self.registers, 1),
            Op::Load { space, value, address, to, .. } => self.load(*space, *value, address, to),
            Op::Store { space, value, address, from, .. } => self.store(*space, *value, address, from),
            Op::Branch { target } => return Some(*target as usize),
            Op::BranchIndexed { index, targets } => {
                return Some(targets[self.get(Class::R32, *index) as usize] as usize);
            }
            Op::Exit => return None,
            Op::Printf { format, arguments, to } => {
                self.printed.push((self.get(Class::R64, *format), self.get(Class::R64, *arguments)));
                self.set(Class::R32, *to, 1);
            }
            Op::IsSpace { space, to, from } => {
                let address = Address { base: *from, wide: true, offset: 0 };
                let found = self.place(Space::Generic, &address).0;
                self.set(Class::Pred, *to, (found == *space) as u64);
            }
            Op::Nop | Op::Fence => {}
            other => panic!("{other:?} is not part of this interpreter"),
        }
        Some(pc + 1)
    }
}

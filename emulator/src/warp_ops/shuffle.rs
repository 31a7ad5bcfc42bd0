//! `shfl.sync`: each lane takes the value of another.
//!
//! With s = c[12:8] (the bits of the lane number that name its segment) and m = lane & s (the segment's first lane),
//! the bound is m | (c[4:0] & !s), and the source lane j is
//!
//! | mode   | j                      | in range  |
//! |--------|------------------------|-----------|
//! | `up`   | lane − b[4:0]          | j ≥ bound |
//! | `down` | lane + b[4:0]          | j ≤ bound |
//! | `bfly` | lane ^ b[4:0]          | j ≤ bound |
//! | `idx`  | m \| (b[4:0] & !s)     | j ≤ bound |
//!
//! Out of range, the lane keeps its own value and `p` is false. (PTX ISA, "shfl.sync".)
#![allow(clippy::needless_range_loop)] // Loops over lanes and elements go by number.

use super::{exactly, modifiers, unknown_form, write_pair};
use crate::lower::operands::Operands;
use crate::program::{Access, Class, LANES, Lanes32, Mask, Reg, Registers, Visit};
use crate::ptx::ast::{Instruction, Type};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Shuffle {
    pub mode: Mode,
    pub to: Reg,
    /// Whether the source lane was in range.
    pub in_range: Option<Reg>,
    pub a: Reg,
    /// Lane, distance or lane mask.
    pub b: Reg,
    /// Clamp value and segment mask.
    pub c: Reg,
    pub members: Reg,
}

impl Shuffle {
    pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Shuffle, String> {
        let mode = match modifiers(instruction)[..] {
            ["sync", "up", "b32"] => Mode::Up,
            ["sync", "down", "b32"] => Mode::Down,
            ["sync", "bfly", "b32"] => Mode::Butterfly,
            ["sync", "idx", "b32"] => Mode::Index,
            ["up" | "down" | "bfly" | "idx", "b32"] => {
                return Err("shfl without .sync does not exist from sm_70 on: use shfl.sync".to_string());
            }
            _ => return Err(unknown_form(instruction)),
        };
        let [d, a, b, c, members] = exactly::<5>(instruction)?;
        let a = operands.read(a, Type::B32)?;
        let b = operands.read(b, Type::B32)?;
        let c = operands.read(c, Type::B32)?;
        let members = operands.read(members, Type::B32)?;
        let (to, in_range) = write_pair(operands, d, Type::B32)?;
        Ok(Shuffle { mode, to, in_range, a, b, c, members })
    }

    pub fn visit(&mut self, visit: Visit) {
        for reg in [&mut self.a, &mut self.b, &mut self.c, &mut self.members] {
            visit(Access::Read, Class::R32, reg);
        }
        visit(Access::Write, Class::R32, &mut self.to);
        if let Some(pred) = &mut self.in_range {
            visit(Access::Write, Class::Pred, pred);
        }
    }

    /// Each lane's source lane, and the lanes for which it was in range.
    #[inline(always)]
    fn sources(&self, registers: &Registers) -> (Lanes32, Mask) {
        let (b, c) = (registers.get32(self.b), registers.get32(self.c));
        let (mut bound, mut j) = ([0; LANES], [0; LANES]);
        // One plain loop a mode, so that each becomes vector code.
        match self.mode {
            Mode::Up => {
                for lane in 0..LANES {
                    j[lane] = lane as i32 - (b[lane] & 31) as i32;
                }
            }
            Mode::Down => {
                for lane in 0..LANES {
                    j[lane] = lane as i32 + (b[lane] & 31) as i32;
                }
            }
            Mode::Butterfly => {
                for lane in 0..LANES {
                    j[lane] = lane as i32 ^ (b[lane] & 31) as i32;
                }
            }
            Mode::Index => {
                for lane in 0..LANES {
                    let segment = c[lane] >> 8 & 31;
                    j[lane] = (lane as u32 & segment | b[lane] & 31 & !segment) as i32;
                }
            }
        }
        for lane in 0..LANES {
            let segment = c[lane] >> 8 & 31;
            bound[lane] = (lane as u32 & segment | c[lane] & 31 & !segment) as i32;
        }
        let sign = if self.mode == Mode::Up { -1 } else { 1 };
        let (mut from, mut in_range) = ([0; LANES], 0);
        for lane in 0..LANES {
            let valid = (bound[lane] - j[lane]) * sign >= 0;
            in_range |= (valid as u32) << lane;
            from[lane] = if valid { j[lane] as u32 } else { lane as u32 };
        }
        (from, in_range)
    }

    #[inline(always)]
    pub fn execute(&self, registers: &mut Registers, active: Mask) {
        let (mut source, in_range) = self.sources(registers);
        for lane in 0..LANES {
            let present = active >> (source[lane] & 31) & 1 == 1;
            source[lane] = if present { source[lane] } else { lane as u32 };
        }
        let a = registers.get32(self.a);
        let mut value = [0; LANES];
        for lane in 0..LANES {
            value[lane] = a[source[lane] as usize % LANES];
        }
        registers.set32(self.to, value, active);
        if let Some(pred) = self.in_range {
            registers.set_pred(pred, in_range, active);
        }
    }

    pub fn invalid_source(&self, registers: &Registers, active: Mask) -> Option<(usize, usize)> {
        let (source, _) = self.sources(registers);
        (0..LANES)
            .map(|lane| (lane, source[lane] as usize % LANES))
            .find(|&(lane, from)| active >> lane & 1 == 1 && active >> from & 1 == 0)
    }

    /// A lane's value is initialised if it is at its source and the lane's own `b` and `c` are.
    pub fn initialised(
        &self,
        registers: &Registers,
        active: Mask,
        initialised: &dyn Fn(Class, Reg) -> Mask,
    ) -> Vec<(Class, Reg, Mask)> {
        let (source, _) = self.sources(registers);
        let steered = initialised(Class::R32, self.b) & initialised(Class::R32, self.c);
        let a = initialised(Class::R32, self.a) & active;
        let moved = (0..LANES).fold(0, |lanes, lane| lanes | (a >> (source[lane] as usize % LANES) & 1) << lane);
        let mut results = vec![(Class::R32, self.to, moved & steered)];
        results.extend(self.in_range.map(|pred| (Class::Pred, pred, steered)));
        results
    }
}

//! Registers that hold something never initialised, and where it came from.
//!
//! Reading such memory is no mistake yet: a lane may throw the value away. It becomes one when the value decides an
//! address or a branch, or is stored.

use std::collections::HashMap;

use crate::fault::Result;
use crate::memory::room;
use crate::program::{Access, Class, Files, Instruction, Mask, Program, Reg};

/// The lanes in which each register is initialised.
#[derive(Debug, Clone)]
pub struct Taint {
    r32: Vec<Mask>,
    r64: Vec<Mask>,
    pred: Vec<Mask>,
    /// Registers with a lane that is not initialised.
    dirty: usize,
    /// For registers that are not: where the value was read.
    origins: HashMap<(Class, Reg), Origin>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Origin {
    pub pc: u32,
    /// "global address 0x… in allocation 3"; empty for a register that was never written.
    pub place: String,
}

impl Taint {
    pub fn clean(files: Files) -> Result<Taint> {
        Ok(Taint {
            r32: room::filled(Mask::MAX, files.r32 as usize)?,
            r64: room::filled(Mask::MAX, files.r64 as usize)?,
            pred: room::filled(Mask::MAX, files.pred as usize)?,
            dirty: 0,
            origins: HashMap::new(),
        })
    }

    /// For a program with registers that may be read before they are written.
    pub fn of(program: &Program) -> Result<Option<Box<Taint>>> {
        if program.undefined.is_empty() {
            return Ok(None);
        }
        let mut taint = Taint::clean(program.registers)?;
        for &(class, reg) in &program.undefined {
            *taint.mask(class, reg) = 0;
            taint.dirty += 1;
        }
        Ok(Some(Box::new(taint)))
    }

    fn mask(&mut self, class: Class, reg: Reg) -> &mut Mask {
        match class {
            Class::R32 => &mut self.r32[reg.0 as usize],
            Class::R64 => &mut self.r64[reg.0 as usize],
            Class::Pred => &mut self.pred[reg.0 as usize],
        }
    }

    pub fn get(&self, class: Class, reg: Reg) -> Mask {
        match class {
            Class::R32 => self.r32[reg.0 as usize],
            Class::R64 => self.r64[reg.0 as usize],
            Class::Pred => self.pred[reg.0 as usize],
        }
    }

    /// The active lanes of a written register: initialised in `lanes`.
    pub fn set(&mut self, class: Class, reg: Reg, lanes: Mask, active: Mask, origin: Option<Origin>) {
        let mask = self.mask(class, reg);
        let before = *mask;
        *mask = (before & !active) | (lanes & active);
        let after = *mask;
        self.dirty = self.dirty + (after != Mask::MAX) as usize - (before != Mask::MAX) as usize;
        if let Some(origin) = origin {
            self.origins.insert((class, reg), origin);
        }
    }

    /// Whether every register is initialised in every lane.
    pub fn is_clean(&self) -> bool {
        self.dirty == 0
    }

    pub fn origin(&self, class: Class, reg: Reg) -> Option<&Origin> {
        self.origins.get(&(class, reg))
    }
}

/// The registers that an instruction reads and writes; the guard is not among the reads.
#[derive(Debug, Clone, Default)]
pub struct Uses {
    pub reads: Vec<(Class, Reg)>,
    pub writes: Vec<(Class, Reg)>,
}

impl Uses {
    pub fn of(instruction: &Instruction) -> Uses {
        let mut copy = Instruction { guard: None, ..instruction.clone() };
        let mut uses = Uses::default();
        copy.visit(&mut |access, class, reg| match access {
            Access::Read => uses.reads.push((class, *reg)),
            Access::Write => uses.writes.push((class, *reg)),
        });
        uses
    }
}

//! Register allocation: PTX names a fresh register for nearly every value; here values that never live at the same
//! time share one, so that a warp's registers stay in the cache.
//!
//! Linear scan over live ranges with holes (Wimmer and Mössenböck, "Optimized Interval Splitting in a Linear Scan
//! Register Allocator", without the splitting: there is no bound on the number of registers). Constants, and registers
//! that may be read before they are written, keep a register of their own for the whole program.

use crate::lower::liveness::{self, Numbering, Range};
use crate::program::{Access, Class, Files, Instruction, Preset, Reg};

pub struct RegisterAllocation {
    pub registers: Files,
    pub presets: Vec<(Class, Reg, Preset)>,
    pub undefined: Vec<(Class, Reg)>,
    pub live_registers: u32,
}

/// Renames the registers of `code`, whose branch targets are already instruction indices.
pub fn allocate(
    code: &mut [Instruction],
    counts: Files,
    presets: &[(Class, Reg, Preset)],
) -> Result<RegisterAllocation, String> {
    let numbering = Numbering(counts);
    let mut constant = vec![false; numbering.total()];
    presets.iter().for_each(|&(class, reg, _)| constant[numbering.number(class, reg)] = true);
    let used = uses(code, numbering, &constant)?;
    let live = liveness::analyse(code, numbering, &constant)?;

    let mut assigned = vec![Reg(u32::MAX); numbering.total()];
    let mut files = Files::default();
    let mut kept = Vec::new();
    for &(class, reg, preset) in presets {
        if used[numbering.number(class, reg)] {
            let slot = next(&mut files, class);
            assigned[numbering.number(class, reg)] = slot;
            kept.push((class, slot, preset));
        }
    }
    let mut undefined = Vec::new();
    for &v in &live.at_entry {
        let (class, _) = numbering.register(v);
        assigned[v] = next(&mut files, class);
        undefined.push((class, assigned[v]));
    }
    for class in [Class::R32, Class::R64, Class::Pred] {
        scan(class, numbering, &live.ranges, &mut assigned, &mut files);
    }
    for instruction in code.iter_mut() {
        instruction.visit(&mut |_, class, reg| *reg = assigned[numbering.number(class, *reg)]);
    }
    Ok(RegisterAllocation { registers: files, presets: kept, undefined, live_registers: live.pressure })
}

/// Which registers the code names at all. A write to a constant is an error.
fn uses(code: &mut [Instruction], numbering: Numbering, constant: &[bool]) -> Result<Vec<bool>, String> {
    let mut used = vec![false; numbering.total()];
    let mut fault = None;
    for (index, instruction) in code.iter_mut().enumerate() {
        instruction.visit(&mut |access, class, reg| {
            let v = numbering.number(class, *reg);
            used[v] = true;
            if access == Access::Write && constant[v] {
                fault = Some(format!("instruction {index} writes a constant"));
            }
        });
    }
    fault.map_or(Ok(used), Err)
}

fn next(files: &mut Files, class: Class) -> Reg {
    let count = match class {
        Class::R32 => &mut files.r32,
        Class::R64 => &mut files.r64,
        Class::Pred => &mut files.pred,
    };
    *count += 1;
    Reg(*count - 1)
}

/// A register of the result: the ranges that are taken, ascending.
struct Slot {
    reg: Reg,
    taken: Vec<Range>,
    /// Values come in the order of their first ranges; none that begins before this fits.
    busy_until: u32,
}

impl Slot {
    /// Whether none of `ranges` meets a taken one.
    fn fits(&mut self, ranges: &[Range]) -> bool {
        if ranges[0].0 < self.busy_until {
            return false;
        }
        if self.taken.last().is_none_or(|last| last.1 <= ranges[0].0) {
            return true;
        }
        for range in ranges {
            let after = self.taken.partition_point(|taken| taken.1 <= range.0);
            match self.taken.get(after) {
                Some(taken) if taken.0 <= ranges[0].0 => {
                    self.busy_until = taken.1;
                    return false;
                }
                Some(taken) if taken.0 < range.1 => return false,
                _ => {}
            }
        }
        true
    }

    fn take(&mut self, ranges: &[Range]) {
        for &range in ranges {
            let at = self.taken.partition_point(|taken| taken.0 < range.0);
            self.taken.insert(at, range);
        }
    }
}

fn scan(class: Class, numbering: Numbering, ranges: &[Vec<Range>], assigned: &mut [Reg], files: &mut Files) {
    let mut order: Vec<usize> = (0..numbering.total())
        .filter(|&v| numbering.register(v).0 == class && assigned[v].0 == u32::MAX && !ranges[v].is_empty())
        .collect();
    order.sort_by_key(|&v| (ranges[v][0].0, v));
    let mut slots: Vec<Slot> = Vec::new();
    for v in order {
        let found = slots.iter_mut().position(|slot| slot.fits(&ranges[v]));
        let at = found.unwrap_or_else(|| {
            slots.push(Slot { reg: next(files, class), taken: Vec::new(), busy_until: 0 });
            slots.len() - 1
        });
        let slot = &mut slots[at];
        slot.take(&ranges[v]);
        assigned[v] = slot.reg;
    }
}

//! A warp's registers: three files of values, one value for each lane.

/// Lanes in a warp.
pub const LANES: usize = 32;
/// One 32-bit value a lane. Narrower types (8 and 16 bits) live here too, zero-extended.
pub type Lanes32 = [u32; LANES];
/// One 64-bit value a lane.
pub type Lanes64 = [u64; LANES];
/// One bit a lane: bit i belongs to lane i. Predicates, and sets of lanes.
pub type Mask = u32;

/// Which register file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// 8, 16 and 32 bits: `Registers::r32`.
    R32,
    /// 64 bits: `Registers::r64`.
    R64,
    /// Predicates: `Registers::pred`.
    Pred,
}

/// A register's index in its file; the instruction says which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// A warp's registers.
#[derive(Debug, Clone, Default)]
pub struct Registers {
    pub r32: Vec<Lanes32>,
    pub r64: Vec<Lanes64>,
    pub pred: Vec<Mask>,
}

impl Registers {
    /// Writes the active lanes of a 32-bit register and leaves the others.
    #[inline(always)]
    pub fn set32(&mut self, d: Reg, value: Lanes32, active: Mask) {
        let target = &mut self.r32[d.0 as usize];
        if active == Mask::MAX {
            *target = value;
        } else {
            blend(target, &value, active);
        }
    }

    /// Writes the active lanes of a 64-bit register and leaves the others.
    #[inline(always)]
    pub fn set64(&mut self, d: Reg, value: Lanes64, active: Mask) {
        let target = &mut self.r64[d.0 as usize];
        if active == Mask::MAX {
            *target = value;
        } else {
            blend(target, &value, active);
        }
    }

    /// Writes the active lanes of a predicate and leaves the others.
    #[inline(always)]
    pub fn set_pred(&mut self, d: Reg, value: Mask, active: Mask) {
        let target = &mut self.pred[d.0 as usize];
        *target = (*target & !active) | (value & active);
    }

    #[inline(always)]
    pub fn get32(&self, r: Reg) -> &Lanes32 {
        &self.r32[r.0 as usize]
    }

    #[inline(always)]
    pub fn get64(&self, r: Reg) -> &Lanes64 {
        &self.r64[r.0 as usize]
    }

    #[inline(always)]
    pub fn get_pred(&self, r: Reg) -> Mask {
        self.pred[r.0 as usize]
    }
}

/// Copies the active lanes. Kept out of line: it would otherwise be compiled into every arithmetic instruction.
#[inline(never)]
fn blend<T: Copy>(target: &mut [T; LANES], value: &[T; LANES], active: Mask) {
    *target = crate::alu::lanes::select(active, value, target);
}

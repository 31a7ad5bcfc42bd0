//! Extended-precision arithmetic: sums that read or write the carry flag, a predicate of its own for each thread.
//!
//! A difference is the sum a + !b + 1, as on the hardware: after it the flag is set where there was no borrow, and `subc`
//! takes one more away where the flag is clear. The ISA leaves this open as long as differences are followed by
//! differences; nvcc's 128-bit division follows `subc.cc` by `addc` and relies on it.
//! `madc` adds c and the flag to the product's low or high half.
//! (PTX ISA, "Extended-Precision Integer Arithmetic Instructions".)

use super::Integer;
use super::arithmetic::high64;
use super::form::{Form, Int, R2, R3};
use crate::alu::lanes::{bits, map1, map2, map3};
use crate::program::{Access, Class, Lanes32, Lanes64, Mask, Reg, Registers, Visit};

/// The flag, and what an instruction does with it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flag {
    pub reg: Reg,
    pub reads: bool,
    pub writes: bool,
}

impl Flag {
    pub fn visit_read(&mut self, visit: Visit) {
        if self.reads {
            visit(Access::Read, Class::Pred, &mut self.reg);
        }
    }

    pub fn visit_write(&mut self, visit: Visit) {
        if self.writes {
            visit(Access::Write, Class::Pred, &mut self.reg);
        }
    }

    /// The flag going in, 0 or 1 in each lane: what a sum adds and, where `subtract`, a difference takes away.
    #[inline(always)]
    fn input(&self, registers: &Registers, subtract: bool) -> Lanes32 {
        let flag = registers.get_pred(self.reg);
        bits(if !self.reads {
            0
        } else if subtract {
            !flag
        } else {
            flag
        })
    }

    /// `carries`: 0 or 1 in each lane; borrows where `subtract`.
    #[inline(always)]
    fn output(&self, registers: &mut Registers, carries: &Lanes32, subtract: bool, active: Mask) {
        if self.writes {
            let mut mask = 0;
            for (lane, carry) in carries.iter().enumerate() {
                mask |= carry << lane;
            }
            registers.set_pred(self.reg, if subtract { !mask } else { mask }, active);
        }
    }
}

/// d = a + b + flag, or a − b − (1 − flag).
#[inline(always)]
pub fn sum32(subtract: bool, flag: &Flag, r: &R2, registers: &mut Registers, active: Mask) {
    let carry = flag.input(registers, subtract);
    let (a, b) = (registers.get32(r.a), registers.get32(r.b));
    // In 64 bits bit 32 is the carry, and the borrow of a difference too.
    let wide: Lanes64 = if subtract {
        map3(a, b, &carry, |x, y, c| (x as u64).wrapping_sub(y as u64).wrapping_sub(c as u64))
    } else {
        map3(a, b, &carry, |x, y, c| x as u64 + y as u64 + c as u64)
    };
    finish32(&wide, flag, r.d, subtract, registers, active);
}

/// d = low or high half of a·b, + c + flag.
#[inline(always)]
pub fn mad32(high: bool, signed: bool, flag: &Flag, r: &R3, registers: &mut Registers, active: Mask) {
    let carry = flag.input(registers, false);
    let (a, b, c) = (registers.get32(r.a), registers.get32(r.b), registers.get32(r.c));
    let product: Lanes32 = match (high, signed) {
        (false, _) => map2(a, b, u32::wrapping_mul),
        (true, true) => map2(a, b, |x, y| ((x as i32 as i64 * y as i32 as i64) >> 32) as u32),
        (true, false) => map2(a, b, |x, y| ((x as u64 * y as u64) >> 32) as u32),
    };
    let wide: Lanes64 = map3(&product, c, &carry, |p, z, c| p as u64 + z as u64 + c as u64);
    finish32(&wide, flag, r.d, false, registers, active);
}

#[inline(always)]
fn finish32(wide: &Lanes64, flag: &Flag, d: Reg, subtract: bool, registers: &mut Registers, active: Mask) {
    registers.set32(d, map1(wide, |x| x as u32), active);
    flag.output(registers, &map1(wide, |x| (x >> 32) as u32 & 1), subtract, active);
}

/// x + y + carry, and the carry out.
#[inline(always)]
fn add64(x: u64, y: u64, carry: u32) -> (u64, u32) {
    let (sum, first) = x.overflowing_add(y);
    let (sum, second) = sum.overflowing_add(carry as u64);
    (sum, (first | second) as u32)
}

/// x − (y + borrow), and the borrow out.
#[inline(always)]
fn sub64(x: u64, y: u64, borrow: u32) -> (u64, u32) {
    let (difference, first) = x.overflowing_sub(y);
    let (difference, second) = difference.overflowing_sub(borrow as u64);
    (difference, (first | second) as u32)
}

#[inline(always)]
pub fn sum64(subtract: bool, flag: &Flag, r: &R2, registers: &mut Registers, active: Mask) {
    let carry = flag.input(registers, subtract);
    let (a, b) = (registers.get64(r.a), registers.get64(r.b));
    let both = if subtract { map3(a, b, &carry, sub64) } else { map3(a, b, &carry, add64) };
    finish64(&both, flag, r.d, subtract, registers, active);
}

#[inline(always)]
pub fn mad64(high: bool, signed: bool, flag: &Flag, r: &R3, registers: &mut Registers, active: Mask) {
    let carry = flag.input(registers, false);
    let (a, b, c) = (registers.get64(r.a), registers.get64(r.b), registers.get64(r.c));
    let product: Lanes64 = if high { map2(a, b, |x, y| high64(x, y, signed)) } else { map2(a, b, u64::wrapping_mul) };
    let both = map3(&product, c, &carry, add64);
    finish64(&both, flag, r.d, false, registers, active);
}

#[inline(always)]
fn finish64(both: &[(u64, u32); 32], flag: &Flag, d: Reg, subtract: bool, registers: &mut Registers, active: Mask) {
    registers.set64(d, map1(both, |(sum, _)| sum), active);
    flag.output(registers, &map1(both, |(_, carry)| carry), subtract, active);
}

/// `add.cc`, `addc`, `sub.cc`, `subc`, `mad….cc`, `madc…`.
pub fn lower(form: &mut Form, modifiers: &[&str]) -> Result<Integer, String> {
    let (half, writes, ty) = match modifiers {
        [half @ ("lo" | "hi"), "cc", ty] => (Some(*half), true, *ty),
        [half @ ("lo" | "hi"), ty] => (Some(*half), false, *ty),
        ["cc", ty] => (None, true, *ty),
        [ty] => (None, false, *ty),
        _ => return form.unknown(),
    };
    let Some(Int { ty, bits: bits @ (32 | 64), signed }) = Int::parse(ty) else { return form.unknown() };
    let reads = matches!(form.opcode(), "addc" | "subc" | "madc");
    let flag = Flag { reg: form.operands.carry(), reads, writes };
    match (form.opcode(), half) {
        ("add" | "addc" | "sub" | "subc", None) => {
            let subtract = form.opcode().starts_with("sub");
            let r = form.r2([ty, ty, ty])?;
            Ok(Integer::CarrySum { wide: bits == 64, subtract, flag, r })
        }
        ("mad" | "madc", Some(half)) => {
            let r = form.r3([ty, ty, ty, ty])?;
            Ok(Integer::CarryMad { wide: bits == 64, high: half == "hi", signed, flag, r })
        }
        _ => form.unknown(),
    }
}

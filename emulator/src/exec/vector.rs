//! Arithmetic on lanes with the machine's vector instructions, chosen when the program runs.
//!
//! Each function is compiled twice. Without AVX2 and FMA the results are the same bits, but `mul_add` is a call of libm,
//! fifteen times slower.

use crate::alu::float::Float;
use crate::alu::integer::Integer;
use crate::program::{Mask, Registers};
use crate::warp_ops::WarpOp;

/// The functions that run arithmetic on this machine.
#[derive(Clone, Copy)]
pub struct Vector {
    /// Whether AVX2, FMA and the bit instructions were found; only `Vector::detect` sets it.
    fast: bool,
}

impl Vector {
    pub fn detect() -> Vector {
        #[cfg(target_arch = "x86_64")]
        let fast = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("popcnt");
        #[cfg(not(target_arch = "x86_64"))]
        let fast = false;
        Vector { fast }
    }

    #[inline(always)]
    pub fn integer(self, op: &Integer, registers: &mut Registers, active: Mask) {
        #[cfg(target_arch = "x86_64")]
        if self.fast {
            // SAFETY: `fast` is true only where `detect` found every feature that the function is compiled for.
            return unsafe { integer_avx2(op, registers, active) };
        }
        integer_plain(op, registers, active)
    }

    #[inline(always)]
    pub fn float(self, op: &Float, registers: &mut Registers, active: Mask) {
        #[cfg(target_arch = "x86_64")]
        if self.fast {
            // SAFETY: `fast` is true only where `detect` found every feature that the function is compiled for.
            return unsafe { float_avx2(op, registers, active) };
        }
        float_plain(op, registers, active)
    }

    #[inline(always)]
    pub fn warp(self, op: &WarpOp, registers: &mut Registers, active: Mask) {
        #[cfg(target_arch = "x86_64")]
        if self.fast {
            // SAFETY: `fast` is true only where `detect` found every feature that the function is compiled for.
            return unsafe { warp_avx2(op, registers, active) };
        }
        warp_plain(op, registers, active)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn integer_avx2(op: &Integer, registers: &mut Registers, active: Mask) {
    op.execute(registers, active)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn float_avx2(op: &Float, registers: &mut Registers, active: Mask) {
    op.execute(registers, active)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn warp_avx2(op: &WarpOp, registers: &mut Registers, active: Mask) {
    op.execute(registers, active)
}

#[inline(never)]
fn integer_plain(op: &Integer, registers: &mut Registers, active: Mask) {
    op.execute(registers, active)
}

#[inline(never)]
fn float_plain(op: &Float, registers: &mut Registers, active: Mask) {
    op.execute(registers, active)
}

#[inline(never)]
fn warp_plain(op: &WarpOp, registers: &mut Registers, active: Mask) {
    op.execute(registers, active)
}

//! `f16`, `f16x2`, `bf16`, `bf16x2`: each half is widened to a single, computed, and rounded once.
//!
//! Sums and products in single precision and then in 11 or 8 bits round as one rounding would: a single has at least
//! twice the bits and two more (S. A. Figueroa, "When is double rounding innocuous?", 1995), and below the smallest
//! normal a sum is exact. A fused multiply-add is rounded to odd first.

use super::{Arithmetic, FloatType, Operation};
use crate::alu::lanes::{map1, map2, map3};
use crate::numerics::{self, approximate, directed, formats, minmax};
use crate::program::{LANES, Lanes32, Mask, Registers};

type Singles = [f32; LANES];

impl Arithmetic {
    #[inline(always)]
    pub fn half(&self, registers: &mut Registers, active: Mask) {
        let mut result = [0; LANES];
        for shift in if self.packed { 0..2 } else { 0..1 } {
            let shift = 16 * shift;
            let half = match self.operation {
                Operation::Neg => map1(&self.part(registers, 0, shift), |a| a ^ 0x8000),
                Operation::Abs => map1(&self.part(registers, 0, shift), |a| a & 0x7fff),
                _ => self.narrow(&self.half_result(registers, shift)),
            };
            result = map2(&result, &half, |whole, half| whole | half << shift);
        }
        registers.set32(self.to, result, active);
    }

    /// Source `index`'s half at `shift`, flushed if asked.
    #[inline(always)]
    fn part(&self, registers: &Registers, index: usize, shift: u32) -> Lanes32 {
        let lanes = map1(registers.get32(self.from[index]), |a| a >> shift & 0xffff);
        self.flushed(lanes)
    }

    #[inline(always)]
    fn flushed(&self, lanes: Lanes32) -> Lanes32 {
        match self.kind {
            _ if !self.flush => lanes,
            FloatType::Half => map1(&lanes, numerics::flush_half),
            _ => map1(&lanes, numerics::flush_bfloat),
        }
    }

    #[inline(always)]
    fn widen(&self, registers: &Registers, index: usize, shift: u32) -> Singles {
        let lanes = self.part(registers, index, shift);
        match self.kind {
            FloatType::Half => map1(&lanes, formats::half_to_single),
            _ => map1(&lanes, formats::bfloat_to_single),
        }
    }

    #[inline(always)]
    fn narrow(&self, lanes: &Singles) -> Lanes32 {
        let lanes = if self.saturate { map1(lanes, numerics::saturate_single) } else { *lanes };
        let lanes = if self.relu { map1(&lanes, numerics::relu) } else { lanes };
        self.flushed(match self.kind {
            FloatType::Half => map1(&lanes, formats::single_to_half),
            _ => map1(&lanes, formats::single_to_bfloat),
        })
    }

    #[inline(always)]
    fn half_result(&self, registers: &Registers, shift: u32) -> Singles {
        let a = self.widen(registers, 0, shift);
        let second = || self.widen(registers, 1, shift);
        match self.operation {
            Operation::Add => map2(&a, &second(), |a, b| a + b),
            Operation::Sub => map2(&a, &second(), |a, b| a - b),
            Operation::Mul => map2(&a, &second(), |a, b| a * b),
            Operation::Fma => map3(&a, &second(), &self.widen(registers, 2, shift), directed::fma_to_odd),
            Operation::Min => map2(&a, &second(), |a, b| minmax::extreme_single(a, b, false, self.rules)),
            Operation::Max => map2(&a, &second(), |a, b| minmax::extreme_single(a, b, true, self.rules)),
            Operation::Ex2 => map1(&a, approximate::ex2),
            Operation::Tanh => rare_tanh(&a),
            _ => a,
        }
    }
}

#[inline(never)]
fn rare_tanh(a: &Singles) -> Singles {
    map1(a, approximate::tanh)
}

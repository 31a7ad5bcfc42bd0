//! Single precision, 32 lanes at a time: operands are flushed if asked, each operation is one plain loop, results are
//! flushed, saturated and made canonical.

use super::{Arithmetic, Operation};
use crate::alu::lanes::{map1, map2, map3};
use crate::numerics::{Rounding, approximate, canonical_single, directed, flush_single, minmax, saturate_single};
use crate::program::{LANES, Mask, Reg, Registers};

type Singles = [f32; LANES];

impl Arithmetic {
    #[inline(always)]
    pub fn single(&self, registers: &mut Registers, active: Mask) {
        let result = match self.operation {
            Operation::Neg => map1(&self.source(registers, 0), |a| -a),
            Operation::Abs => map1(&self.source(registers, 0), f32::abs),
            Operation::CopySign => {
                map2(&self.source(registers, 0), &self.source(registers, 1), |sign, value| value.copysign(sign))
            }
            _ => self.finish(self.compute(registers)),
        };
        registers.set32(self.to, map1(&result, f32::to_bits), active);
    }

    #[inline(always)]
    fn source(&self, registers: &Registers, index: usize) -> Singles {
        let lanes = singles(registers, self.from[index]);
        if self.flush { map1(&lanes, flush_single) } else { lanes }
    }

    #[inline(always)]
    fn finish(&self, lanes: Singles) -> Singles {
        let lanes = map1(&lanes, canonical_single);
        let lanes = if self.flush { map1(&lanes, flush_single) } else { lanes };
        if self.saturate { map1(&lanes, saturate_single) } else { lanes }
    }

    #[inline(always)]
    fn compute(&self, registers: &Registers) -> Singles {
        let a = self.source(registers, 0);
        let second = || self.source(registers, 1);
        match self.operation {
            Operation::Add => self.two(&a, &second(), |a, b| a + b, directed::add_single),
            Operation::Sub => self.two(&a, &second(), |a, b| a - b, |a, b, r| directed::add_single(a, -b, r)),
            Operation::Mul => self.two(&a, &second(), |a, b| a * b, directed::mul_single),
            Operation::Fma => self.fma(&a, &second(), &self.source(registers, 2)),
            Operation::Min => map2(&a, &second(), |a, b| minmax::extreme_single(a, b, false, self.rules)),
            Operation::Max => map2(&a, &second(), |a, b| minmax::extreme_single(a, b, true, self.rules)),
            Operation::Ex2 => map1(&a, approximate::ex2),
            Operation::Lg2 => map1(&a, approximate::lg2),
            Operation::Rcp if self.rounding == Rounding::Nearest => map1(&a, approximate::rcp),
            Operation::Sqrt if self.rounding == Rounding::Nearest => map1(&a, f32::sqrt),
            Operation::Rsqrt => map1(&a, approximate::rsqrt),
            Operation::Div if self.approximate => map2(&a, &second(), approximate::div),
            Operation::Div => self.two(&a, &second(), |a, b| a / b, directed::div_single),
            _ => rare(self, &a),
        }
    }

    /// The choice of a rounding stays outside the loops.
    #[inline(always)]
    fn two(
        &self,
        a: &Singles,
        b: &Singles,
        nearest: impl Fn(f32, f32) -> f32,
        directed: impl Fn(f32, f32, Rounding) -> f32,
    ) -> Singles {
        match self.rounding {
            Rounding::Nearest => map2(a, b, nearest),
            Rounding::Zero => map2(a, b, |a, b| directed(a, b, Rounding::Zero)),
            Rounding::Down => map2(a, b, |a, b| directed(a, b, Rounding::Down)),
            Rounding::Up => map2(a, b, |a, b| directed(a, b, Rounding::Up)),
        }
    }

    #[inline(always)]
    fn fma(&self, a: &Singles, b: &Singles, c: &Singles) -> Singles {
        match self.rounding {
            Rounding::Nearest => map3(a, b, c, f32::mul_add),
            Rounding::Zero => map3(a, b, c, |a, b, c| directed::fma_single(a, b, c, Rounding::Zero)),
            Rounding::Down => map3(a, b, c, |a, b, c| directed::fma_single(a, b, c, Rounding::Down)),
            Rounding::Up => map3(a, b, c, |a, b, c| directed::fma_single(a, b, c, Rounding::Up)),
        }
    }
}

/// What kernels seldom use: an ordinary function.
#[inline(never)]
fn rare(op: &Arithmetic, a: &Singles) -> Singles {
    match op.operation {
        Operation::Sqrt => map1(a, |a| directed::sqrt_single(a, op.rounding)),
        Operation::Rcp => map1(a, |a| directed::div_single(1.0, a, op.rounding)),
        Operation::Sin => map1(a, approximate::sin),
        Operation::Cos => map1(a, approximate::cos),
        Operation::Tanh => map1(a, approximate::tanh),
        _ => *a,
    }
}

#[inline(always)]
pub fn singles(registers: &Registers, reg: Reg) -> Singles {
    map1(registers.get32(reg), f32::from_bits)
}

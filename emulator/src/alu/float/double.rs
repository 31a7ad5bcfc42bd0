//! Double precision, 32 lanes at a time.

use super::{Arithmetic, Operation};
use crate::alu::lanes::{map1, map2, map3};
use crate::numerics::{Rounding, approximate, canonical_double, directed, minmax};
use crate::program::{Lanes64, Mask, Registers};

impl Arithmetic {
    #[inline(always)]
    pub fn double(&self, registers: &mut Registers, active: Mask) {
        let [a, b, c] = self.from.map(|reg| registers.get64(reg));
        let result = match (self.operation, self.rounding) {
            // These three move bits, NaNs included.
            (Operation::Neg, _) => map1(a, |a| a ^ 1 << 63),
            (Operation::Abs, _) => map1(a, |a| a & !(1 << 63)),
            (Operation::CopySign, _) => map2(a, b, |sign, value| value & !(1 << 63) | sign & 1 << 63),
            (Operation::Min, _) => two(a, b, |a, b| minmax::extreme_double(a, b, false)),
            (Operation::Max, _) => two(a, b, |a, b| minmax::extreme_double(a, b, true)),
            (Operation::Add, Rounding::Nearest) => two(a, b, |a, b| canonical_double(a + b)),
            (Operation::Sub, Rounding::Nearest) => two(a, b, |a, b| canonical_double(a - b)),
            (Operation::Mul, Rounding::Nearest) => two(a, b, |a, b| canonical_double(a * b)),
            (Operation::Fma, Rounding::Nearest) => three(a, b, c, |a, b, c| canonical_double(a.mul_add(b, c))),
            _ => rare(self, a, b, c),
        };
        registers.set64(self.to, result, active);
    }
}

/// Directed roundings and functions: an ordinary function.
#[inline(never)]
fn rare(op: &Arithmetic, a: &Lanes64, b: &Lanes64, c: &Lanes64) -> Lanes64 {
    let rounding = op.rounding;
    match op.operation {
        Operation::Add => two(a, b, |a, b| directed::add_double(a, b, rounding)),
        Operation::Sub => two(a, b, |a, b| directed::add_double(a, -b, rounding)),
        Operation::Mul => two(a, b, |a, b| directed::mul_double(a, b, rounding)),
        Operation::Fma => three(a, b, c, |a, b, c| directed::fma_double(a, b, c, rounding)),
        Operation::Div => two(a, b, |a, b| directed::div_double(a, b, rounding)),
        Operation::Sqrt => one(a, |a| directed::sqrt_double(a, rounding)),
        Operation::Rcp if op.approximate => one(a, approximate::rcp_upper),
        Operation::Rcp => one(a, |a| directed::div_double(1.0, a, rounding)),
        Operation::Rsqrt if op.flush => one(a, approximate::rsqrt_upper),
        Operation::Rsqrt => one(a, |a| canonical_double(1.0 / a.sqrt())),
        _ => *a,
    }
}

#[inline(always)]
fn one(a: &Lanes64, f: impl Fn(f64) -> f64) -> Lanes64 {
    map1(a, |a| f(f64::from_bits(a)).to_bits())
}

#[inline(always)]
fn two(a: &Lanes64, b: &Lanes64, f: impl Fn(f64, f64) -> f64) -> Lanes64 {
    map2(a, b, |a, b| f(f64::from_bits(a), f64::from_bits(b)).to_bits())
}

#[inline(always)]
fn three(a: &Lanes64, b: &Lanes64, c: &Lanes64, f: impl Fn(f64, f64, f64) -> f64) -> Lanes64 {
    map3(a, b, c, |a, b, c| f(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c)).to_bits())
}

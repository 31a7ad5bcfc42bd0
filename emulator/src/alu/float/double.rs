//! Double precision, 32 lanes at a time.

use super::{Arithmetic, Operation};
use crate::alu::lanes::{map1, map2, map3};
use crate::numerics::{Rounding, approximate, canonical_double, directed, minmax};
use crate::program::{LANES, Mask, Registers};

type Doubles = [f64; LANES];

impl Arithmetic {
    #[inline(always)]
    pub fn double(&self, registers: &mut Registers, active: Mask) {
        let [a, b, c] = self.from.map(|reg| map1(registers.get64(reg), f64::from_bits));
        let result = match (self.operation, self.rounding) {
            (Operation::Neg, _) => map1(&a, |a| -a),
            (Operation::Abs, _) => map1(&a, f64::abs),
            (Operation::CopySign, _) => map2(&a, &b, |sign, value| value.copysign(sign)),
            (Operation::Min, _) => map2(&a, &b, |a, b| minmax::extreme_double(a, b, false)),
            (Operation::Max, _) => map2(&a, &b, |a, b| minmax::extreme_double(a, b, true)),
            (Operation::Add, Rounding::Nearest) => map1(&map2(&a, &b, |a, b| a + b), canonical_double),
            (Operation::Sub, Rounding::Nearest) => map1(&map2(&a, &b, |a, b| a - b), canonical_double),
            (Operation::Mul, Rounding::Nearest) => map1(&map2(&a, &b, |a, b| a * b), canonical_double),
            (Operation::Fma, Rounding::Nearest) => map1(&map3(&a, &b, &c, f64::mul_add), canonical_double),
            _ => rare(self, &a, &b, &c),
        };
        registers.set64(self.to, map1(&result, f64::to_bits), active);
    }
}

/// Directed roundings and functions: an ordinary function.
#[inline(never)]
fn rare(op: &Arithmetic, a: &Doubles, b: &Doubles, c: &Doubles) -> Doubles {
    let rounding = op.rounding;
    match op.operation {
        Operation::Add => map2(a, b, |a, b| directed::add_double(a, b, rounding)),
        Operation::Sub => map2(a, b, |a, b| directed::add_double(a, -b, rounding)),
        Operation::Mul => map2(a, b, |a, b| directed::mul_double(a, b, rounding)),
        Operation::Fma => map3(a, b, c, |a, b, c| directed::fma_double(a, b, c, rounding)),
        Operation::Div => map2(a, b, |a, b| directed::div_double(a, b, rounding)),
        Operation::Sqrt => map1(a, |a| directed::sqrt_double(a, rounding)),
        Operation::Rcp if op.approximate => map1(a, approximate::rcp_upper),
        Operation::Rcp => map1(a, |a| directed::div_double(1.0, a, rounding)),
        Operation::Rsqrt if op.flush => map1(a, approximate::rsqrt_upper),
        Operation::Rsqrt => map1(a, |a| canonical_double(1.0 / a.sqrt())),
        _ => *a,
    }
}

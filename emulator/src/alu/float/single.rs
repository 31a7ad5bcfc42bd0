//! Single precision, 32 lanes at a time: each operation is one plain loop, compiled with and without flushing, that
//! also makes NaN results canonical.

use super::{Arithmetic, Operation};
use crate::alu::lanes::{map1, map2, map3};
use crate::numerics::{Rounding, approximate, canonical_single, directed, flush_single, minmax, saturate_single};
use crate::program::{Lanes32, Mask, Registers};

impl Arithmetic {
    #[inline(always)]
    pub fn single(&self, registers: &mut Registers, active: Mask) {
        let [a, b, c] = self.from.map(|reg| registers.get32(reg));
        let result = if self.flush { self.compute::<true>(a, b, c) } else { self.compute::<false>(a, b, c) };
        let result = if self.saturate { one::<false>(&result, saturate_single) } else { result };
        registers.set32(self.to, result, active);
    }

    #[inline(always)]
    fn compute<const FLUSH: bool>(&self, a: &Lanes32, b: &Lanes32, c: &Lanes32) -> Lanes32 {
        let rules = self.rules;
        match self.operation {
            Operation::Add => self.two::<FLUSH>(a, b, |a, b| a + b, directed::add_single),
            Operation::Sub => self.two::<FLUSH>(a, b, |a, b| a - b, |a, b, r| directed::add_single(a, -b, r)),
            Operation::Mul => self.two::<FLUSH>(a, b, |a, b| a * b, directed::mul_single),
            Operation::Fma => self.fma::<FLUSH>(a, b, c),
            Operation::Div if self.approximate => two::<FLUSH>(a, b, approximate::div),
            Operation::Div => self.two::<FLUSH>(a, b, |a, b| a / b, directed::div_single),
            // These three move bits, NaNs included.
            Operation::Neg => map1(a, |a| flushed::<FLUSH>(a).to_bits() ^ 0x8000_0000),
            Operation::Abs => map1(a, |a| flushed::<FLUSH>(a).to_bits() & 0x7fff_ffff),
            Operation::CopySign => map2(a, b, |sign, value| value & 0x7fff_ffff | sign & 0x8000_0000),
            Operation::Min => two::<FLUSH>(a, b, |a, b| minmax::extreme_single(a, b, false, rules)),
            Operation::Max => two::<FLUSH>(a, b, |a, b| minmax::extreme_single(a, b, true, rules)),
            Operation::Ex2 => one::<FLUSH>(a, approximate::ex2),
            Operation::Lg2 => one::<FLUSH>(a, approximate::lg2),
            Operation::Rsqrt => one::<FLUSH>(a, approximate::rsqrt),
            Operation::Rcp if self.rounding == Rounding::Nearest => one::<FLUSH>(a, approximate::rcp),
            Operation::Sqrt if self.rounding == Rounding::Nearest => one::<FLUSH>(a, f32::sqrt),
            _ => rare::<FLUSH>(self, a),
        }
    }

    /// The choice of a rounding stays outside the loops.
    #[inline(always)]
    fn two<const FLUSH: bool>(
        &self,
        a: &Lanes32,
        b: &Lanes32,
        nearest: impl Fn(f32, f32) -> f32,
        directed: impl Fn(f32, f32, Rounding) -> f32,
    ) -> Lanes32 {
        match self.rounding {
            Rounding::Nearest => two::<FLUSH>(a, b, nearest),
            Rounding::Zero => two::<FLUSH>(a, b, |a, b| directed(a, b, Rounding::Zero)),
            Rounding::Down => two::<FLUSH>(a, b, |a, b| directed(a, b, Rounding::Down)),
            Rounding::Up => two::<FLUSH>(a, b, |a, b| directed(a, b, Rounding::Up)),
        }
    }

    #[inline(always)]
    fn fma<const FLUSH: bool>(&self, a: &Lanes32, b: &Lanes32, c: &Lanes32) -> Lanes32 {
        match self.rounding {
            Rounding::Nearest => three::<FLUSH>(a, b, c, f32::mul_add),
            Rounding::Zero => three::<FLUSH>(a, b, c, |a, b, c| directed::fma_single(a, b, c, Rounding::Zero)),
            Rounding::Down => three::<FLUSH>(a, b, c, |a, b, c| directed::fma_single(a, b, c, Rounding::Down)),
            Rounding::Up => three::<FLUSH>(a, b, c, |a, b, c| directed::fma_single(a, b, c, Rounding::Up)),
        }
    }
}

/// What kernels seldom use: an ordinary function.
#[inline(never)]
fn rare<const FLUSH: bool>(op: &Arithmetic, a: &Lanes32) -> Lanes32 {
    match op.operation {
        Operation::Sqrt => one::<FLUSH>(a, |a| directed::sqrt_single(a, op.rounding)),
        Operation::Rcp => one::<FLUSH>(a, |a| directed::div_single(1.0, a, op.rounding)),
        Operation::Sin => one::<FLUSH>(a, approximate::sin),
        Operation::Cos => one::<FLUSH>(a, approximate::cos),
        Operation::Tanh => one::<FLUSH>(a, approximate::tanh),
        _ => *a,
    }
}

/// A lane's value, flushed if asked.
#[inline(always)]
fn flushed<const FLUSH: bool>(bits: u32) -> f32 {
    let value = f32::from_bits(bits);
    if FLUSH { flush_single(value) } else { value }
}

/// A result's bits.
#[inline(always)]
fn finished<const FLUSH: bool>(value: f32) -> u32 {
    flushed::<FLUSH>(canonical_single(value).to_bits()).to_bits()
}

#[inline(always)]
fn one<const FLUSH: bool>(a: &Lanes32, f: impl Fn(f32) -> f32) -> Lanes32 {
    map1(a, |a| finished::<FLUSH>(f(flushed::<FLUSH>(a))))
}

#[inline(always)]
fn two<const FLUSH: bool>(a: &Lanes32, b: &Lanes32, f: impl Fn(f32, f32) -> f32) -> Lanes32 {
    map2(a, b, |a, b| finished::<FLUSH>(f(flushed::<FLUSH>(a), flushed::<FLUSH>(b))))
}

#[inline(always)]
fn three<const FLUSH: bool>(a: &Lanes32, b: &Lanes32, c: &Lanes32, f: impl Fn(f32, f32, f32) -> f32) -> Lanes32 {
    map3(a, b, c, |a, b, c| finished::<FLUSH>(f(flushed::<FLUSH>(a), flushed::<FLUSH>(b), flushed::<FLUSH>(c))))
}

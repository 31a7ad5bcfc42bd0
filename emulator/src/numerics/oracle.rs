//! What tests compare with: numbers as big integers times powers of two, and rounding by bisection over bit patterns.
//! It shares no code with the arithmetic under test.

use std::cmp::Ordering;

use num_bigint::{BigInt, Sign};

use super::Rounding;

/// n · 2^e.
#[derive(Debug, Clone)]
pub struct Dyadic {
    pub n: BigInt,
    pub e: i64,
}

/// A format by its exponent and fraction bits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FloatLayout {
    pub exponent_bits: u32,
    pub fraction_bits: u32,
    /// The first magnitude that is not finite.
    pub infinity: u64,
    pub nan: u64,
}

pub const F16: FloatLayout = FloatLayout { exponent_bits: 5, fraction_bits: 10, infinity: 0x7c00, nan: 0x7fff };
pub const BF16: FloatLayout = FloatLayout { exponent_bits: 8, fraction_bits: 7, infinity: 0x7f80, nan: 0x7fff };
pub const F32: FloatLayout =
    FloatLayout { exponent_bits: 8, fraction_bits: 23, infinity: 0x7f80_0000, nan: 0x7fff_ffff };
pub const F64: FloatLayout =
    FloatLayout { exponent_bits: 11, fraction_bits: 52, infinity: 0x7ff << 52, nan: 0x7ff8_0000_0000_0000 };
pub const E4M3: FloatLayout = FloatLayout { exponent_bits: 4, fraction_bits: 3, infinity: 0x7f, nan: 0x7f };
pub const E5M2: FloatLayout = FloatLayout { exponent_bits: 5, fraction_bits: 2, infinity: 0x7c, nan: 0x7f };

impl FloatLayout {
    pub fn sign(self) -> u64 {
        1 << (self.exponent_bits + self.fraction_bits)
    }

    pub fn magnitude(self, bits: u64) -> u64 {
        bits & (self.sign() - 1)
    }

    pub fn is_nan(self, bits: u64) -> bool {
        self.magnitude(bits) > self.infinity || self.infinity == self.nan && self.magnitude(bits) == self.nan
    }

    pub fn is_infinite(self, bits: u64) -> bool {
        self.infinity != self.nan && self.magnitude(bits) == self.infinity
    }

    pub fn is_finite(self, bits: u64) -> bool {
        self.magnitude(bits) < self.infinity
    }

    pub fn is_negative(self, bits: u64) -> bool {
        bits & self.sign() != 0
    }

    pub fn flush(self, bits: u64) -> u64 {
        if self.magnitude(bits) >> self.fraction_bits == 0 { bits & self.sign() } else { bits }
    }

    /// The bits of 1.
    pub fn one(self) -> u64 {
        ((1 << (self.exponent_bits - 1)) - 1) << self.fraction_bits
    }

    /// The value; that of `infinity` is the first power of two that is too large.
    pub fn value(self, bits: u64) -> Dyadic {
        let magnitude = self.magnitude(bits);
        let exponent = (magnitude >> self.fraction_bits) as i64;
        let fraction = magnitude & ((1 << self.fraction_bits) - 1);
        let bias = (1i64 << (self.exponent_bits - 1)) - 1;
        let (n, e) = match exponent {
            0 => (fraction, 1 - bias),
            _ => (fraction | 1 << self.fraction_bits, exponent - bias),
        };
        let n = if self.is_negative(bits) { -BigInt::from(n) } else { BigInt::from(n) };
        Dyadic { n, e: e - self.fraction_bits as i64 }
    }

    /// Rounds the positive number that `compare` compares candidates with.
    pub fn round(self, negative: bool, rounding: Rounding, compare: impl Fn(&Dyadic) -> Ordering) -> u64 {
        let (mut low, mut high) = (0, self.infinity);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if compare(&self.value(middle)) == Ordering::Greater { high = middle } else { low = middle }
        }
        let sign = if negative { self.sign() } else { 0 };
        let below = self.value(low);
        if compare(&below) == Ordering::Equal {
            return sign | low;
        }
        let up = match rounding {
            Rounding::Zero => false,
            Rounding::Down => negative,
            Rounding::Up => !negative,
            Rounding::Nearest => {
                let mut middle = below.add(&self.value(low + 1));
                middle.e -= 1;
                match compare(&middle) {
                    Ordering::Less => true,
                    Ordering::Equal => low & 1 == 1,
                    Ordering::Greater => false,
                }
            }
        };
        sign | if up { low + 1 } else { low }
    }

    /// Rounds a number; zero is +0.
    pub fn round_value(self, value: &Dyadic, rounding: Rounding) -> u64 {
        let target = value.abs();
        self.round(value.is_negative(), rounding, |candidate| candidate.compare(&target))
    }
}

impl Dyadic {
    pub fn integer(n: i128) -> Dyadic {
        Dyadic { n: BigInt::from(n), e: 0 }
    }

    pub fn is_negative(&self) -> bool {
        self.n.sign() == Sign::Minus
    }

    pub fn is_zero(&self) -> bool {
        self.n.sign() == Sign::NoSign
    }

    pub fn abs(&self) -> Dyadic {
        Dyadic { n: BigInt::from(self.n.magnitude().clone()), e: self.e }
    }

    fn aligned(&self, other: &Dyadic) -> (BigInt, BigInt, i64) {
        let e = self.e.min(other.e);
        (&self.n << (self.e - e) as u64, &other.n << (other.e - e) as u64, e)
    }

    pub fn add(&self, other: &Dyadic) -> Dyadic {
        let (a, b, e) = self.aligned(other);
        Dyadic { n: a + b, e }
    }

    pub fn mul(&self, other: &Dyadic) -> Dyadic {
        Dyadic { n: &self.n * &other.n, e: self.e + other.e }
    }

    pub fn compare(&self, other: &Dyadic) -> Ordering {
        let (a, b, _) = self.aligned(other);
        a.cmp(&b)
    }

    /// The largest integer that is not above it, and whether it is less by nothing, less than, exactly or more than
    /// one half.
    pub fn floor(&self) -> (BigInt, Option<Ordering>) {
        if self.e >= 0 {
            return (&self.n << self.e as u64, None);
        }
        let shift = (-self.e) as u64;
        // BigInt shifts round towards minus infinity.
        let floor: BigInt = &self.n >> shift;
        let rest: BigInt = &self.n - (&floor << shift);
        if rest.sign() == Sign::NoSign {
            return (floor, None);
        }
        let half = BigInt::from(1) << (shift - 1);
        (floor, Some(rest.cmp(&half)))
    }
}

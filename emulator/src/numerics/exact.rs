//! Exact arithmetic followed by one rounding, for any format and direction: the slow path of double precision.
//!
//! A finite value is (-1)^negative · significand · 2^exponent with an integer significand of up to 127 bits; a sticky
//! bit stands for a remainder strictly between 0 and 1 in units of the last place. Rounding keeps `precision` bits
//! (fewer below the smallest normal) and decides by the bits cut off. (IEEE 754-2019, clause 4.3.)

use super::Rounding;

/// A binary format with a sign, a biased exponent and a hidden leading bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Format {
    /// Bits of the significand, the hidden one included.
    pub precision: u32,
    pub bias: i32,
    /// The sign bit's position.
    pub sign: u32,
    /// The first magnitude that is not finite.
    pub infinity: u64,
}

pub const HALF: Format = Format { precision: 11, bias: 15, sign: 15, infinity: 0x7c00 };
pub const BFLOAT: Format = Format { precision: 8, bias: 127, sign: 15, infinity: 0x7f80 };
pub const SINGLE: Format = Format { precision: 24, bias: 127, sign: 31, infinity: 0x7f80_0000 };
pub const DOUBLE: Format = Format { precision: 53, bias: 1023, sign: 63, infinity: 0x7ff0_0000_0000_0000 };
/// The 8-bit formats. E4M3 has no infinity: 0x7f is its NaN.
pub const E4M3: Format = Format { precision: 4, bias: 7, sign: 7, infinity: 0x7f };
pub const E5M2: Format = Format { precision: 3, bias: 15, sign: 7, infinity: 0x7c };

/// A finite value; see the top of the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exact {
    pub negative: bool,
    pub significand: u128,
    pub exponent: i32,
    pub sticky: bool,
}

impl Exact {
    fn length(&self) -> i32 {
        128 - self.significand.leading_zeros() as i32
    }

    /// The exponent of the leading bit, plus one.
    fn top(&self) -> i32 {
        self.exponent + self.length()
    }
}

/// The value of bits that are finite in `format`.
pub fn decode(bits: u64, format: Format) -> Exact {
    let fraction_bits = format.precision - 1;
    let magnitude = bits & ((1 << format.sign) - 1);
    let biased = (magnitude >> fraction_bits) as i32;
    let fraction = magnitude & ((1 << fraction_bits) - 1);
    let hidden = if biased == 0 { 0 } else { 1 << fraction_bits };
    Exact {
        negative: bits >> format.sign & 1 == 1,
        significand: (fraction | hidden) as u128,
        exponent: biased.max(1) - format.bias - fraction_bits as i32,
        sticky: false,
    }
}

/// The bits of `value` rounded to `format`. A sticky value has more bits than the format keeps.
pub fn round(value: Exact, format: Format, rounding: Rounding) -> u64 {
    let sign = (value.negative as u64) << format.sign;
    if value.significand == 0 {
        return sign;
    }
    let smallest = 1 - format.bias;
    let leading = (value.top() - 1).max(smallest);
    let cut = leading - (format.precision as i32 - 1) - value.exponent;
    let (kept, half, rest) = split(value.significand, cut);
    let up = match rounding {
        Rounding::Nearest => half && (rest || value.sticky || kept & 1 == 1),
        Rounding::Zero => false,
        Rounding::Down => value.negative && (half || rest || value.sticky),
        Rounding::Up => !value.negative && (half || rest || value.sticky),
    };
    // A carry out of the significand moves into the exponent, which is what it should do.
    let biased = (leading - smallest) as u64;
    let magnitude = if biased > 4096 { u64::MAX } else { (biased << (format.precision - 1)) + kept + up as u64 };
    if magnitude < format.infinity {
        return sign | magnitude;
    }
    let away = match rounding {
        Rounding::Nearest => true,
        Rounding::Zero => false,
        Rounding::Down => value.negative,
        Rounding::Up => !value.negative,
    };
    sign | if away { format.infinity } else { format.infinity - 1 }
}

/// `significand` without its last `cut` bits, the first of them, and whether any other is set.
fn split(significand: u128, cut: i32) -> (u64, bool, bool) {
    match cut {
        ..=0 => ((significand << -cut) as u64, false, false),
        1..=127 => {
            let half = significand >> (cut - 1) & 1 == 1;
            let rest = significand & ((1 << (cut - 1)) - 1) != 0;
            ((significand >> cut) as u64, half, rest)
        }
        128 => (0, significand >> 127 == 1, significand << 1 != 0),
        _ => (0, false, significand != 0),
    }
}

/// a · b.
pub fn product(a: Exact, b: Exact) -> Exact {
    Exact {
        negative: a.negative ^ b.negative,
        significand: a.significand * b.significand,
        exponent: a.exponent + b.exponent,
        sticky: false,
    }
}

/// a + b, neither sticky, of at most 106 bits. An exact zero from opposite signs is -0 only when rounding down.
pub fn sum(a: Exact, b: Exact, rounding: Rounding) -> Exact {
    let zero_sign = if a.negative == b.negative { a.negative } else { rounding == Rounding::Down };
    match (a.significand == 0, b.significand == 0) {
        (true, true) => return Exact { negative: zero_sign, ..a },
        (true, false) => return b,
        (false, true) => return a,
        (false, false) => {}
    }
    let (large, small) = if a.top() >= b.top() { (a, b) } else { (b, a) };
    // The leading bit moves to position 126: 21 or more bits below hold what the smaller operand adds.
    let shift = 127 - large.length();
    let exponent = large.exponent - shift;
    let first = large.significand << shift;
    let (second, sticky) = match small.exponent - exponent {
        left @ 0.. => (small.significand << left, false),
        right => {
            let (kept, half, rest) = split_wide(small.significand, -right);
            (kept, half || rest)
        }
    };
    if large.negative == small.negative {
        return Exact { negative: large.negative, significand: first + second, exponent, sticky };
    }
    if first < second {
        return Exact { negative: small.negative, significand: second - first, exponent, sticky };
    }
    // What the sticky bit stands for is taken away: one less, and a remainder again.
    let significand = first - second - sticky as u128;
    let negative = if significand == 0 { zero_sign } else { large.negative };
    Exact { negative, significand, exponent, sticky }
}

fn split_wide(significand: u128, cut: i32) -> (u128, bool, bool) {
    if cut > 127 {
        return (0, false, significand != 0);
    }
    (significand >> cut, false, significand & ((1 << cut) - 1) != 0)
}

/// a / b with b not zero: a quotient of 66 bits or more.
pub fn quotient(a: Exact, b: Exact) -> Exact {
    let negative = a.negative ^ b.negative;
    if a.significand == 0 {
        return Exact { negative, ..a };
    }
    let shift = 120 - a.length();
    let dividend = a.significand << shift;
    Exact {
        negative,
        significand: dividend / b.significand,
        exponent: a.exponent - shift - b.exponent,
        sticky: !dividend.is_multiple_of(b.significand),
    }
}

/// The square root of a value that is not negative: 60 bits.
pub fn square_root(a: Exact) -> Exact {
    if a.significand == 0 {
        return a;
    }
    let shift = 120 - a.length();
    let shift = shift - (a.exponent - shift).rem_euclid(2);
    let square = a.significand << shift;
    let root = square.isqrt();
    Exact { negative: false, significand: root, exponent: (a.exponent - shift) / 2, sticky: root * root != square }
}

/// The bits of an integer, given by sign and magnitude, rounded to `format`.
pub fn from_integer(negative: bool, magnitude: u64, format: Format, rounding: Rounding) -> u64 {
    let negative = negative && magnitude != 0;
    round(Exact { negative, significand: magnitude as u128, exponent: 0, sticky: false }, format, rounding)
}

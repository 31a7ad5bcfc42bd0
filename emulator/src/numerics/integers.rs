//! Between floating point and integers.
//!
//! A float becomes an integer by rounding to an integral value and clamping to the integer's range. A NaN becomes 0
//! if the source is not `.f64` and the target is narrower than 64 bits, else only the target's top bit is set.
//! (PTX ISA, "cvt", integer notes.)

/// An integer type of 2 to 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerType {
    pub bits: u32,
    pub signed: bool,
}

impl IntegerType {
    pub fn smallest(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    pub fn largest(self) -> i128 {
        if self.signed { (1 << (self.bits - 1)) - 1 } else { (1 << self.bits) - 1 }
    }

    /// Whether every value of `other` is one of this type.
    pub fn holds(self, other: IntegerType) -> bool {
        self.smallest() <= other.smallest() && other.largest() <= self.largest()
    }

    /// The value of the low bits, extended to 64.
    #[inline(always)]
    pub fn extend(self, value: u64) -> u64 {
        let unused = 64 - self.bits;
        let top = value << unused;
        if self.signed { ((top as i64) >> unused) as u64 } else { top >> unused }
    }

    /// The value of the low bits, extended to 32, for types of at most 32 bits.
    #[inline(always)]
    pub fn extend_narrow(self, value: u32) -> u32 {
        let unused = 32 - self.bits;
        let top = value << unused;
        if self.signed { ((top as i32) >> unused) as u32 } else { top >> unused }
    }

    /// `value` (extended from type `from`) clamped to this type.
    pub fn clamp(self, value: u64, from: IntegerType) -> u64 {
        let wide = if from.signed { value as i64 as i128 } else { value as i128 };
        wide.clamp(self.smallest(), self.largest()) as u64
    }
}

/// `.rni`, `.rzi`, `.rmi`, `.rpi`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integral {
    /// To the nearest integer, halfway cases to the even one.
    Nearest,
    Zero,
    Down,
    Up,
}

impl Integral {
    #[inline(always)]
    pub fn round_single(self, x: f32) -> f32 {
        match self {
            Integral::Nearest => x.round_ties_even(),
            Integral::Zero => x.trunc(),
            Integral::Down => x.floor(),
            Integral::Up => x.ceil(),
        }
    }

    #[inline(always)]
    pub fn round_double(self, x: f64) -> f64 {
        match self {
            Integral::Nearest => x.round_ties_even(),
            Integral::Zero => x.trunc(),
            Integral::Down => x.floor(),
            Integral::Up => x.ceil(),
        }
    }
}

/// An integral single as an integer of at most 32 bits, extended to 32.
#[inline(always)]
pub fn from_single(x: f32, to: IntegerType) -> u32 {
    let (smallest, largest) = (to.smallest() as i64, to.largest() as i64);
    if to.signed { (x as i32).clamp(smallest as i32, largest as i32) as u32 } else { (x as u32).min(largest as u32) }
}

/// An integral double as an integer, extended to 64 bits. `double`: the source type is `.f64`.
#[inline(always)]
pub fn from_double(x: f64, to: IntegerType, double: bool) -> u64 {
    if x.is_nan() {
        return if double || to.bits == 64 { to.extend(1 << (to.bits - 1)) } else { 0 };
    }
    if to.signed {
        (x as i64).clamp(to.smallest() as i64, to.largest() as i64) as u64
    } else {
        (x as u64).min(to.largest() as u64)
    }
}

//! Conversions, 32 lanes at a time.
//!
//! Halves and bfloats are widened to singles, which is exact; a double that becomes a half or bfloat is rounded to odd
//! as a single first, so that one rounding remains. Registers may be wider than the type: sources give their low bits;
//! signed integers are sign-extended to the register's width, everything else is zero-extended.
//! (PTX ISA, "cvt", "cvt.pack", "Operand Size Exceeding Instruction-Type Size".)

use super::FloatType;
use crate::alu::lanes::{map1, map2, map3};
use crate::numerics::exact::{self, BFLOAT, DOUBLE, Format, HALF, SINGLE};
use crate::numerics::formats::{self, Eight, TfRounding};
use crate::numerics::integers::{self, IntegerType, Integral};
use crate::numerics::{
    Rounding, canonical_double, canonical_single, directed, flush_single, relu, saturate_double, saturate_single,
};
use crate::program::{Access, Class, LANES, Lanes32, Lanes64, Mask, Reg, Registers, Visit};

type Singles = [f32; LANES];
type Doubles = [f64; LANES];

/// A register and its file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizedRegister {
    pub reg: Reg,
    pub wide: bool,
}

/// What is done to a floating-point result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    pub flush: bool,
    pub saturate: bool,
    pub relu: bool,
    /// `.satfinite`
    pub finite: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Conversion {
    /// Between integers; `register_bits` is the width of the destination register.
    Integers {
        from: IntegerType,
        to: IntegerType,
        saturate: bool,
        register_bits: u32,
    },
    ToInteger {
        from: FloatType,
        to: IntegerType,
        rounding: Integral,
        flush: bool,
        register_bits: u32,
    },
    FromInteger {
        from: IntegerType,
        to: FloatType,
        rounding: Rounding,
        bounds: Bounds,
    },
    Floats {
        from: FloatType,
        to: FloatType,
        rounding: Rounding,
        bounds: Bounds,
    },
    /// Within a type, to an integral value or (without a rounding) only bounded.
    Whole {
        kind: FloatType,
        rounding: Option<Integral>,
        bounds: Bounds,
    },
    Tf32 {
        rounding: TfRounding,
        bounds: Bounds,
    },
    /// `f16x2`, `bf16x2` from two singles, the first in the upper half.
    Pair {
        to: FloatType,
        rounding: Rounding,
        bounds: Bounds,
    },
    /// `e4m3x2`, `e5m2x2` from two singles.
    Eights {
        to: Eight,
        relu: bool,
    },
    /// … and from `f16x2`.
    EightsFromHalves {
        to: Eight,
        relu: bool,
    },
    /// `f16x2` from them.
    HalvesFromEights {
        from: Eight,
        relu: bool,
    },
    /// `cvt.pack.sat`: two `.s32`, clamped, below the low bits of `c` if there is one.
    Pack {
        to: IntegerType,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Convert {
    pub conversion: Conversion,
    pub to: SizedRegister,
    pub a: SizedRegister,
    /// Second and third sources, in 32-bit registers.
    pub b: Option<Reg>,
    pub c: Option<Reg>,
}

impl Convert {
    pub fn visit(&mut self, visit: Visit) {
        let class = |slot: &SizedRegister| if slot.wide { Class::R64 } else { Class::R32 };
        visit(Access::Read, class(&self.a), &mut self.a.reg);
        for reg in self.b.iter_mut().chain(&mut self.c) {
            visit(Access::Read, Class::R32, reg);
        }
        visit(Access::Write, class(&self.to), &mut self.to.reg);
    }

    #[inline(always)]
    pub fn execute(&self, registers: &mut Registers, active: Mask) {
        match self.conversion {
            Conversion::Integers { from, to, saturate: false, register_bits } if !self.a.wide && !self.to.wide => {
                let mask = u32::MAX >> (32 - register_bits);
                let value = map1(registers.get32(self.a.reg), |a| to.extend_narrow(from.extend_narrow(a)) & mask);
                registers.set32(self.to.reg, value, active);
            }
            Conversion::Integers { from, to, saturate, register_bits } => {
                let source = map1(&self.load64(registers), |a| from.extend(a));
                let value = if saturate { clamp(&source, from, to) } else { map1(&source, |a| to.extend(a)) };
                self.store_integer(registers, value, register_bits, active);
            }
            Conversion::ToInteger { from: FloatType::Double, to, rounding, register_bits, .. } => {
                let source = map1(&self.load64(registers), f64::from_bits);
                let value = to_integer_wide(&source, to, rounding, true);
                self.store_integer(registers, value, register_bits, active);
            }
            Conversion::ToInteger { from, to, rounding, flush, register_bits } => {
                let source = self.singles(registers, from, flush);
                self.singles_to_integers(registers, &source, to, rounding, register_bits, active);
            }
            Conversion::FromInteger { from, to, rounding, bounds } => {
                self.convert_integers(registers, from, to, rounding, bounds, active);
            }
            Conversion::Floats { from: FloatType::Double, to, rounding, bounds } => {
                let source = map1(&self.load64(registers), f64::from_bits);
                self.store32(registers, narrow_double(&source, to, rounding, bounds), active);
            }
            Conversion::Floats { from, to, rounding, bounds } => {
                let source = self.singles(registers, from, bounds.flush);
                self.store_single(registers, &source, to, rounding, bounds, active);
            }
            Conversion::Whole { kind: FloatType::Double, rounding, bounds } => {
                let source = map1(&self.load64(registers), f64::from_bits);
                self.store_double(registers, &integral_double(&source, rounding), bounds, active);
            }
            Conversion::Whole { kind, rounding, bounds } => {
                let source = self.singles(registers, kind, bounds.flush);
                let value = integral_single(&source, rounding);
                self.store_single(registers, &value, kind, Rounding::Nearest, bounds, active);
            }
            Conversion::Pair { to, rounding, bounds } => {
                let upper = narrow_single(&self.singles(registers, FloatType::Single, false), to, rounding, bounds);
                let second = map1(registers.get32(self.b.unwrap_or(self.a.reg)), f32::from_bits);
                let lower = narrow_single(&second, to, rounding, bounds);
                self.store32(registers, map2(&upper, &lower, |upper, lower| upper << 16 | lower), active);
            }
            Conversion::Tf32 { rounding: TfRounding::Away, bounds } if bounds == Bounds::default() => {
                let source = self.singles(registers, FloatType::Single, false);
                let value = map1(&source, |a| formats::single_to_tf32(a, TfRounding::Away));
                self.store32(registers, value, active);
            }
            _ => self.rare(registers, active),
        }
    }

    /// What kernels seldom use: an ordinary function.
    #[inline(never)]
    fn rare(&self, registers: &mut Registers, active: Mask) {
        let a = self.load32(registers);
        let b = *registers.get32(self.b.unwrap_or(self.a.reg));
        let positive = |x: u32, on: bool| if on { relu(f32::from_bits(x)) } else { f32::from_bits(x) };
        let value = match self.conversion {
            Conversion::Tf32 { rounding, bounds } => map1(&a, |a| {
                let bits = formats::single_to_tf32(positive(a, bounds.relu), rounding);
                let infinite = bounds.finite && bits & 0x7fff_ffff == 0x7f80_0000;
                if infinite { bits - 0x2000 } else { bits }
            }),
            Conversion::Eights { to, relu } => map2(&a, &b, |a, b| {
                let eight = |x| formats::single_to_eight(positive(x, relu), to);
                eight(a) << 8 | eight(b)
            }),
            Conversion::EightsFromHalves { to, relu } => map1(&a, |a| {
                let eight = |half| {
                    formats::single_to_eight(positive(formats::half_to_single(half & 0xffff).to_bits(), relu), to)
                };
                eight(a >> 16) << 8 | eight(a)
            }),
            Conversion::HalvesFromEights { from, relu } => map1(&a, |a| {
                let half = |bits| {
                    let half = formats::eight_to_half(bits & 0xff, from);
                    let nan = half & 0x7fff > 0x7c00;
                    if relu && !nan && half & 0x8000 != 0 { 0 } else { half }
                };
                half(a >> 8) << 16 | half(a)
            }),
            Conversion::Pack { to } => {
                let c = self.c.map_or([0; LANES], |c| *registers.get32(c));
                map3(&a, &b, &c, |a, b, c| pack(a, b, c, to))
            }
            _ => a,
        };
        self.store32(registers, value, active);
    }

    #[inline(always)]
    fn load32(&self, registers: &Registers) -> Lanes32 {
        if self.a.wide { map1(registers.get64(self.a.reg), |a| a as u32) } else { *registers.get32(self.a.reg) }
    }

    #[inline(always)]
    fn load64(&self, registers: &Registers) -> Lanes64 {
        if self.a.wide { *registers.get64(self.a.reg) } else { map1(registers.get32(self.a.reg), |a| a as u64) }
    }

    /// The source, of any type but double, as singles.
    #[inline(always)]
    fn singles(&self, registers: &Registers, from: FloatType, flush: bool) -> Singles {
        let bits = self.load32(registers);
        match from {
            FloatType::Half => map1(&bits, |a| formats::half_to_single(a & 0xffff)),
            FloatType::Bfloat => map1(&bits, |a| formats::bfloat_to_single(a & 0xffff)),
            _ if flush => map1(&bits, |a| flush_single(f32::from_bits(a))),
            _ => map1(&bits, f32::from_bits),
        }
    }

    #[inline(always)]
    fn store32(&self, registers: &mut Registers, value: Lanes32, active: Mask) {
        if self.to.wide {
            registers.set64(self.to.reg, map1(&value, |a| a as u64), active);
        } else {
            registers.set32(self.to.reg, value, active);
        }
    }

    /// Integers, extended to 64 bits, cut to the register's width.
    #[inline(always)]
    fn store_integer(&self, registers: &mut Registers, value: Lanes64, register_bits: u32, active: Mask) {
        if self.to.wide {
            registers.set64(self.to.reg, value, active);
        } else {
            let mask = u32::MAX >> (32 - register_bits);
            registers.set32(self.to.reg, map1(&value, |a| a as u32 & mask), active);
        }
    }

    #[inline(always)]
    fn store_single(
        &self,
        registers: &mut Registers,
        value: &Singles,
        to: FloatType,
        rounding: Rounding,
        bounds: Bounds,
        active: Mask,
    ) {
        match to {
            FloatType::Double => self.store_double(registers, &map1(value, |a| a as f64), bounds, active),
            _ => self.store32(registers, narrow_single(value, to, rounding, bounds), active),
        }
    }

    #[inline(always)]
    fn store_double(&self, registers: &mut Registers, value: &Doubles, bounds: Bounds, active: Mask) {
        let value = map1(value, canonical_double);
        let value = if bounds.saturate { map1(&value, saturate_double) } else { value };
        registers.set64(self.to.reg, map1(&value, f64::to_bits), active);
    }

    #[inline(always)]
    fn singles_to_integers(
        &self,
        registers: &mut Registers,
        source: &Singles,
        to: IntegerType,
        rounding: Integral,
        register_bits: u32,
        active: Mask,
    ) {
        if to.bits == 64 || self.to.wide {
            let value = to_integer_wide(&map1(source, |a| a as f64), to, rounding, false);
            return self.store_integer(registers, value, register_bits, active);
        }
        let mask = u32::MAX >> (32 - register_bits);
        let value = match rounding {
            Integral::Nearest => map1(source, |a| Integral::Nearest.round_single(a)),
            // The conversion itself cuts off the fraction.
            Integral::Zero => *source,
            Integral::Down => map1(source, |a| Integral::Down.round_single(a)),
            Integral::Up => map1(source, |a| Integral::Up.round_single(a)),
        };
        let value = match (to.signed, to.bits) {
            (true, 32) => map1(&value, |a| a as i32 as u32),
            (false, 32) => map1(&value, |a| a as u32),
            _ => map1(&value, |a| integers::from_single(a, to) & mask),
        };
        registers.set32(self.to.reg, value, active);
    }

    #[inline(always)]
    fn convert_integers(
        &self,
        registers: &mut Registers,
        from: IntegerType,
        to: FloatType,
        rounding: Rounding,
        bounds: Bounds,
        active: Mask,
    ) {
        if from.bits == 64 {
            let value = from_long(&self.load64(registers), from, to, rounding, bounds);
            return self.store_integer(registers, value, 32, active);
        }
        let source = map1(&self.load32(registers), |a| from.extend_narrow(a));
        if to == FloatType::Single && rounding == Rounding::Nearest {
            let value = match from.signed {
                true => map1(&source, |a| a as i32 as f32),
                false => map1(&source, |a| a as f32),
            };
            return self.store32(registers, narrow_single(&value, to, rounding, bounds), active);
        }
        let value = match from.signed {
            true => map1(&source, |a| a as i32 as f64),
            false => map1(&source, |a| a as f64),
        };
        match to {
            FloatType::Double => self.store_double(registers, &value, bounds, active),
            _ => self.store32(registers, narrow_double(&value, to, rounding, bounds), active),
        }
    }
}

/// Singles as the bits of a single, half or bfloat.
#[inline(always)]
fn narrow_single(value: &Singles, to: FloatType, rounding: Rounding, bounds: Bounds) -> Lanes32 {
    let value = if bounds.saturate { map1(value, saturate_single) } else { *value };
    let value = if bounds.relu { map1(&value, relu) } else { value };
    let (bits, format) = match (to, rounding) {
        (FloatType::Half, Rounding::Nearest) => (map1(&value, formats::single_to_half), HALF),
        (FloatType::Half, _) => (map1(&value, |a| formats::single_to_half_directed(a, rounding)), HALF),
        (FloatType::Bfloat, Rounding::Nearest) => (map1(&value, formats::single_to_bfloat), BFLOAT),
        (FloatType::Bfloat, _) => (map1(&value, |a| formats::single_to_bfloat_directed(a, rounding)), BFLOAT),
        _ => {
            let value = map1(&value, canonical_single);
            let value = if bounds.flush { map1(&value, flush_single) } else { value };
            return map1(&value, f32::to_bits);
        }
    };
    if bounds.finite { map1(&bits, |a| formats::clamp_finite(a, format)) } else { bits }
}

/// Doubles as the bits of a single, half or bfloat.
#[inline(always)]
fn narrow_double(value: &Doubles, to: FloatType, rounding: Rounding, bounds: Bounds) -> Lanes32 {
    let single = match (to, rounding) {
        (FloatType::Single, Rounding::Nearest) => map1(value, |a| a as f32),
        (FloatType::Single, _) => map1(value, |a| directed::narrow(a, rounding)),
        _ => map1(value, directed::narrow_to_odd),
    };
    narrow_single(&single, to, rounding, bounds)
}

#[inline(never)]
fn integral_double(value: &Doubles, rounding: Option<Integral>) -> Doubles {
    rounding.map_or(*value, |rounding| map1(value, |a| rounding.round_double(a)))
}

#[inline(always)]
fn integral_single(value: &Singles, rounding: Option<Integral>) -> Singles {
    match rounding {
        None => *value,
        Some(Integral::Nearest) => map1(value, |a| Integral::Nearest.round_single(a)),
        Some(Integral::Zero) => map1(value, |a| Integral::Zero.round_single(a)),
        Some(Integral::Down) => map1(value, |a| Integral::Down.round_single(a)),
        Some(Integral::Up) => map1(value, |a| Integral::Up.round_single(a)),
    }
}

#[inline(never)]
fn to_integer_wide(value: &Doubles, to: IntegerType, rounding: Integral, double: bool) -> Lanes64 {
    map1(value, |a| integers::from_double(rounding.round_double(a), to, double))
}

#[inline(never)]
fn clamp(value: &Lanes64, from: IntegerType, to: IntegerType) -> Lanes64 {
    map1(value, |a| to.clamp(a, from))
}

/// 64-bit integers as the bits of any type.
#[inline(never)]
fn from_long(value: &Lanes64, from: IntegerType, to: FloatType, rounding: Rounding, bounds: Bounds) -> Lanes64 {
    let format: Format = match to {
        FloatType::Half => HALF,
        FloatType::Bfloat => BFLOAT,
        FloatType::Single => SINGLE,
        FloatType::Double => DOUBLE,
    };
    map1(value, |a| {
        let negative = from.signed && (a as i64) < 0;
        if bounds.saturate {
            let one = exact::from_integer(false, 1, format, Rounding::Nearest);
            return if a == 0 || negative { 0 } else { one };
        }
        let magnitude = if negative { a.wrapping_neg() } else { a };
        exact::from_integer(negative, magnitude, format, rounding)
    })
}

fn pack(a: u32, b: u32, c: u32, to: IntegerType) -> u32 {
    let clamp = |x: u32| (x as i32 as i64).clamp(to.smallest() as i64, to.largest() as i64) as u32;
    let low = u32::MAX >> (32 - to.bits);
    let pair = (clamp(a) & low) << to.bits | (clamp(b) & low);
    if to.bits == 16 { pair } else { c << (2 * to.bits) | pair }
}

//! Integer arithmetic: sums, products, quotients, minima, dot products.
//!
//! Results wrap. A quotient or remainder by zero, which PTX leaves open, is all ones; MIN / −1 = MIN, remainder 0.
//! 16-bit operations extend their operands to 32 bits, work there and keep the low 16 bits.
//! (PTX ISA, "Integer Arithmetic Instructions".)

use crate::alu::lanes::{map1, map2, map3};
use crate::program::{Lanes32, Lanes64};

/// One operand, at every width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    Abs,
    Neg,
    Not,
    /// 1 where the operand is 0, else 0.
    Cnot,
    Reverse,
    Move,
}

/// Two operands, at every width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Binary {
    Add,
    Sub,
    MulLow,
    MulHighS,
    MulHighU,
    DivS,
    DivU,
    RemS,
    RemU,
    MinS,
    MinU,
    MaxS,
    MaxU,
}

/// Three operands, at every width: c + f(a, b).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ternary {
    MadLow,
    MadHighS,
    MadHighU,
    /// c + |a − b|
    SadS,
    SadU,
}

/// Two operands; only with a 32-bit result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Special2 {
    AddSat,
    SubSat,
    MulHigh16S,
    MulHigh16U,
    MulWide16S,
    MulWide16U,
    Mul24LowS,
    Mul24LowU,
    Mul24HighS,
    Mul24HighU,
    MinRelu,
    MaxRelu,
    /// `x2`: on each 16-bit half.
    AddX2,
    MinX2S,
    MinX2U,
    MaxX2S,
    MaxX2U,
    MinX2Relu,
    MaxX2Relu,
}

/// Three operands; only with a 32-bit result: c + f(a, b).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Special3 {
    MadHigh16S,
    MadHigh16U,
    MadWide16S,
    MadWide16U,
    MadHighSat,
    Mad24LowS,
    Mad24LowU,
    Mad24HighS,
    Mad24HighU,
    Mad24HighSat,
    /// Four products of bytes; the letters are the signs of a and b.
    Dp4aSS,
    Dp4aSU,
    Dp4aUS,
    Dp4aUU,
    /// Two products of a's halves with b's low (high) bytes.
    Dp2aLowSS,
    Dp2aLowSU,
    Dp2aLowUS,
    Dp2aLowUU,
    Dp2aHighSS,
    Dp2aHighSU,
    Dp2aHighUS,
    Dp2aHighUU,
}

/// Sign-extends the low 16 bits.
#[inline(always)]
pub fn s16(x: u32) -> u32 {
    x as i16 as i32 as u32
}

/// Extends 16-bit lanes to 32 bits.
#[inline(always)]
pub fn extend16(a: &Lanes32, signed: bool) -> Lanes32 {
    if signed { map1(a, s16) } else { map1(a, |x| x & 0xffff) }
}

#[inline(always)]
pub fn low16(a: Lanes32) -> Lanes32 {
    map1(&a, |x| x & 0xffff)
}

#[inline(always)]
pub fn unary32(op: Unary, a: &Lanes32) -> Lanes32 {
    match op {
        Unary::Abs => map1(a, |x| (x as i32).wrapping_abs() as u32),
        Unary::Neg => map1(a, u32::wrapping_neg),
        Unary::Not => map1(a, |x| !x),
        Unary::Cnot => map1(a, |x| (x == 0) as u32),
        Unary::Reverse => map1(a, u32::reverse_bits),
        Unary::Move => *a,
    }
}

#[inline(always)]
pub fn unary64(op: Unary, a: &Lanes64) -> Lanes64 {
    match op {
        Unary::Abs => map1(a, |x| (x as i64).wrapping_abs() as u64),
        Unary::Neg => map1(a, u64::wrapping_neg),
        Unary::Not => map1(a, |x| !x),
        Unary::Cnot => map1(a, |x| (x == 0) as u64),
        Unary::Reverse => map1(a, u64::reverse_bits),
        Unary::Move => *a,
    }
}

#[inline(always)]
fn high32s(x: u32, y: u32) -> u32 {
    ((x as i32 as i64 * y as i32 as i64) >> 32) as u32
}

#[inline(always)]
fn high32u(x: u32, y: u32) -> u32 {
    ((x as u64 * y as u64) >> 32) as u32
}

#[inline(always)]
pub fn high64(x: u64, y: u64, signed: bool) -> u64 {
    if signed { ((x as i64 as i128 * y as i64 as i128) >> 64) as u64 } else { ((x as u128 * y as u128) >> 64) as u64 }
}

#[inline(always)]
fn div_s32(x: u32, y: u32) -> u32 {
    if y == 0 { u32::MAX } else { (x as i32).wrapping_div(y as i32) as u32 }
}

#[inline(always)]
fn rem_s32(x: u32, y: u32) -> u32 {
    if y == 0 { u32::MAX } else { (x as i32).wrapping_rem(y as i32) as u32 }
}

#[inline(always)]
fn div_s64(x: u64, y: u64) -> u64 {
    if y == 0 { u64::MAX } else { (x as i64).wrapping_div(y as i64) as u64 }
}

#[inline(always)]
fn rem_s64(x: u64, y: u64) -> u64 {
    if y == 0 { u64::MAX } else { (x as i64).wrapping_rem(y as i64) as u64 }
}

#[inline(always)]
pub fn binary32(op: Binary, a: &Lanes32, b: &Lanes32) -> Lanes32 {
    match op {
        Binary::Add => map2(a, b, u32::wrapping_add),
        Binary::Sub => map2(a, b, u32::wrapping_sub),
        Binary::MulLow => map2(a, b, u32::wrapping_mul),
        Binary::MulHighS => map2(a, b, high32s),
        Binary::MulHighU => map2(a, b, high32u),
        Binary::DivS => map2(a, b, div_s32),
        Binary::DivU => map2(a, b, |x, y| x.checked_div(y).unwrap_or(u32::MAX)),
        Binary::RemS => map2(a, b, rem_s32),
        Binary::RemU => map2(a, b, |x, y| x.checked_rem(y).unwrap_or(u32::MAX)),
        Binary::MinS => map2(a, b, |x, y| (x as i32).min(y as i32) as u32),
        Binary::MinU => map2(a, b, |x, y| x.min(y)),
        Binary::MaxS => map2(a, b, |x, y| (x as i32).max(y as i32) as u32),
        Binary::MaxU => map2(a, b, |x, y| x.max(y)),
    }
}

#[inline(always)]
pub fn binary64(op: Binary, a: &Lanes64, b: &Lanes64) -> Lanes64 {
    match op {
        Binary::Add => map2(a, b, u64::wrapping_add),
        Binary::Sub => map2(a, b, u64::wrapping_sub),
        Binary::MulLow => map2(a, b, u64::wrapping_mul),
        Binary::MulHighS => map2(a, b, |x, y| high64(x, y, true)),
        Binary::MulHighU => map2(a, b, |x, y| high64(x, y, false)),
        Binary::DivS => map2(a, b, div_s64),
        Binary::DivU => map2(a, b, |x, y| x.checked_div(y).unwrap_or(u64::MAX)),
        Binary::RemS => map2(a, b, rem_s64),
        Binary::RemU => map2(a, b, |x, y| x.checked_rem(y).unwrap_or(u64::MAX)),
        Binary::MinS => map2(a, b, |x, y| (x as i64).min(y as i64) as u64),
        Binary::MinU => map2(a, b, |x, y| x.min(y)),
        Binary::MaxS => map2(a, b, |x, y| (x as i64).max(y as i64) as u64),
        Binary::MaxU => map2(a, b, |x, y| x.max(y)),
    }
}

#[inline(always)]
pub fn ternary32(op: Ternary, a: &Lanes32, b: &Lanes32, c: &Lanes32) -> Lanes32 {
    match op {
        Ternary::MadLow => map3(a, b, c, |x, y, z| x.wrapping_mul(y).wrapping_add(z)),
        Ternary::MadHighS => map3(a, b, c, |x, y, z| high32s(x, y).wrapping_add(z)),
        Ternary::MadHighU => map3(a, b, c, |x, y, z| high32u(x, y).wrapping_add(z)),
        Ternary::SadS => map3(a, b, c, |x, y, z| (x as i32).abs_diff(y as i32).wrapping_add(z)),
        Ternary::SadU => map3(a, b, c, |x, y, z| x.abs_diff(y).wrapping_add(z)),
    }
}

#[inline(always)]
pub fn ternary64(op: Ternary, a: &Lanes64, b: &Lanes64, c: &Lanes64) -> Lanes64 {
    match op {
        Ternary::MadLow => map3(a, b, c, |x, y, z| x.wrapping_mul(y).wrapping_add(z)),
        Ternary::MadHighS => map3(a, b, c, |x, y, z| high64(x, y, true).wrapping_add(z)),
        Ternary::MadHighU => map3(a, b, c, |x, y, z| high64(x, y, false).wrapping_add(z)),
        Ternary::SadS => map3(a, b, c, |x, y, z| (x as i64).abs_diff(y as i64).wrapping_add(z)),
        Ternary::SadU => map3(a, b, c, |x, y, z| x.abs_diff(y).wrapping_add(z)),
    }
}

/// `mul.wide`: the 64-bit product.
#[inline(always)]
pub fn mul_wide(signed: bool, a: &Lanes32, b: &Lanes32) -> Lanes64 {
    if signed {
        map2(a, b, |x, y| (x as i32 as i64 * y as i32 as i64) as u64)
    } else {
        map2(a, b, |x, y| x as u64 * y as u64)
    }
}

/// The 48-bit product of the operands' low 24 bits.
#[inline(always)]
fn mul24s(x: u32, y: u32) -> i64 {
    ((x << 8) as i32 >> 8) as i64 * ((y << 8) as i32 >> 8) as i64
}

#[inline(always)]
fn mul24u(x: u32, y: u32) -> u64 {
    (x & 0xff_ffff) as u64 * (y & 0xff_ffff) as u64
}

/// `f` on both 16-bit halves.
#[inline(always)]
fn halves(x: u32, y: u32, f: impl Fn(u32, u32) -> u32) -> u32 {
    f(x & 0xffff, y & 0xffff) & 0xffff | f(x >> 16, y >> 16) << 16
}

#[inline(always)]
fn min16s(x: u32, y: u32) -> u32 {
    (x as i16).min(y as i16) as u32
}

#[inline(always)]
fn max16s(x: u32, y: u32) -> u32 {
    (x as i16).max(y as i16) as u32
}

#[inline(always)]
pub fn special2(op: Special2, a: &Lanes32, b: &Lanes32) -> Lanes32 {
    match op {
        Special2::AddSat => map2(a, b, |x, y| (x as i32).saturating_add(y as i32) as u32),
        Special2::SubSat => map2(a, b, |x, y| (x as i32).saturating_sub(y as i32) as u32),
        Special2::MulHigh16S => map2(a, b, |x, y| s16(x).wrapping_mul(s16(y)) >> 16),
        Special2::MulHigh16U => map2(a, b, |x, y| (x & 0xffff).wrapping_mul(y & 0xffff) >> 16),
        Special2::MulWide16S => map2(a, b, |x, y| s16(x).wrapping_mul(s16(y))),
        Special2::MulWide16U => map2(a, b, |x, y| (x & 0xffff).wrapping_mul(y & 0xffff)),
        Special2::Mul24LowS => map2(a, b, |x, y| mul24s(x, y) as u32),
        Special2::Mul24LowU => map2(a, b, |x, y| mul24u(x, y) as u32),
        Special2::Mul24HighS => map2(a, b, |x, y| (mul24s(x, y) >> 16) as u32),
        Special2::Mul24HighU => map2(a, b, |x, y| (mul24u(x, y) >> 16) as u32),
        Special2::MinRelu => map2(a, b, |x, y| (x as i32).min(y as i32).max(0) as u32),
        Special2::MaxRelu => map2(a, b, |x, y| (x as i32).max(y as i32).max(0) as u32),
        Special2::AddX2 => map2(a, b, |x, y| halves(x, y, u32::wrapping_add)),
        Special2::MinX2S => map2(a, b, |x, y| halves(x, y, min16s)),
        Special2::MinX2U => map2(a, b, |x, y| halves(x, y, |x, y| x.min(y))),
        Special2::MaxX2S => map2(a, b, |x, y| halves(x, y, max16s)),
        Special2::MaxX2U => map2(a, b, |x, y| halves(x, y, |x, y| x.max(y))),
        Special2::MinX2Relu => map2(a, b, |x, y| halves(x, y, |x, y| max16s(min16s(x, y), 0))),
        Special2::MaxX2Relu => map2(a, b, |x, y| halves(x, y, |x, y| max16s(max16s(x, y), 0))),
    }
}

#[inline(always)]
fn byte(x: u32, index: u32, signed: bool) -> i32 {
    let byte = (x >> (8 * index)) as u8;
    if signed { byte as i8 as i32 } else { byte as i32 }
}

#[inline(always)]
fn half(x: u32, index: u32, signed: bool) -> i32 {
    let half = (x >> (16 * index)) as u16;
    if signed { half as i16 as i32 } else { half as i32 }
}

#[inline(always)]
fn dp4a(a: &Lanes32, b: &Lanes32, c: &Lanes32, sa: bool, sb: bool) -> Lanes32 {
    map3(a, b, c, |x, y, z| {
        let product = |i| (byte(x, i, sa) * byte(y, i, sb)) as u32;
        z.wrapping_add(product(0)).wrapping_add(product(1)).wrapping_add(product(2)).wrapping_add(product(3))
    })
}

#[inline(always)]
fn dp2a(a: &Lanes32, b: &Lanes32, c: &Lanes32, first: u32, sa: bool, sb: bool) -> Lanes32 {
    map3(a, b, c, |x, y, z| {
        let product = |i| (half(x, i, sa) * byte(y, first + i, sb)) as u32;
        z.wrapping_add(product(0)).wrapping_add(product(1))
    })
}

#[inline(always)]
pub fn special3(op: Special3, a: &Lanes32, b: &Lanes32, c: &Lanes32) -> Lanes32 {
    let saturated = |x: u32, z: u32| (x as i32).saturating_add(z as i32) as u32;
    match op {
        Special3::MadHigh16S => low16(map3(a, b, c, |x, y, z| (s16(x).wrapping_mul(s16(y)) >> 16).wrapping_add(z))),
        Special3::MadHigh16U => {
            low16(map3(a, b, c, |x, y, z| ((x & 0xffff).wrapping_mul(y & 0xffff) >> 16).wrapping_add(z)))
        }
        Special3::MadWide16S => map3(a, b, c, |x, y, z| s16(x).wrapping_mul(s16(y)).wrapping_add(z)),
        Special3::MadWide16U => map3(a, b, c, |x, y, z| (x & 0xffff).wrapping_mul(y & 0xffff).wrapping_add(z)),
        Special3::MadHighSat => map3(a, b, c, |x, y, z| saturated(high32s(x, y), z)),
        Special3::Mad24LowS => map3(a, b, c, |x, y, z| (mul24s(x, y) as u32).wrapping_add(z)),
        Special3::Mad24LowU => map3(a, b, c, |x, y, z| (mul24u(x, y) as u32).wrapping_add(z)),
        Special3::Mad24HighS => map3(a, b, c, |x, y, z| ((mul24s(x, y) >> 16) as u32).wrapping_add(z)),
        Special3::Mad24HighU => map3(a, b, c, |x, y, z| ((mul24u(x, y) >> 16) as u32).wrapping_add(z)),
        Special3::Mad24HighSat => map3(a, b, c, |x, y, z| saturated((mul24s(x, y) >> 16) as u32, z)),
        Special3::Dp4aSS => dp4a(a, b, c, true, true),
        Special3::Dp4aSU => dp4a(a, b, c, true, false),
        Special3::Dp4aUS => dp4a(a, b, c, false, true),
        Special3::Dp4aUU => dp4a(a, b, c, false, false),
        Special3::Dp2aLowSS => dp2a(a, b, c, 0, true, true),
        Special3::Dp2aLowSU => dp2a(a, b, c, 0, true, false),
        Special3::Dp2aLowUS => dp2a(a, b, c, 0, false, true),
        Special3::Dp2aLowUU => dp2a(a, b, c, 0, false, false),
        Special3::Dp2aHighSS => dp2a(a, b, c, 2, true, true),
        Special3::Dp2aHighSU => dp2a(a, b, c, 2, true, false),
        Special3::Dp2aHighUS => dp2a(a, b, c, 2, false, true),
        Special3::Dp2aHighUU => dp2a(a, b, c, 2, false, false),
    }
}

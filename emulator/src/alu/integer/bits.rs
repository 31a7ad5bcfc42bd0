//! Bits: logic, shifts, counts, fields, byte permutation.
//!
//! A shift count is 32 bits wide whatever the type; counts beyond the width act as the width.
//! A field's position and length are the low 8 bits of their operands.
//! (PTX ISA, "Logic and Shift Instructions", and of the integer instructions popc … bmsk.)

use super::arithmetic::s16;
use crate::alu::lanes::{map1, map2, map3};
use crate::program::{LANES, Lanes32, Lanes64, Mask};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Logic {
    And,
    Or,
    Xor,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shift {
    Left,
    RightU,
    RightS,
}

/// One operand of 32 or 64 bits, a 32-bit result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Count {
    Ones,
    LeadingZeros,
    /// Position of the highest bit that is not the sign; all ones if there is none.
    FindU,
    FindS,
    /// The shift to the left that brings that bit to the top.
    FindShiftU,
    FindShiftS,
}

/// Two 32-bit operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bits2 {
    MaskClamp,
    MaskWrap,
    ExtendClampS,
    ExtendClampU,
    ExtendWrapS,
    ExtendWrapU,
}

/// Three 32-bit operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bits3 {
    ExtractS,
    ExtractU,
    FunnelLeftWrap,
    FunnelLeftClamp,
    FunnelRightWrap,
    FunnelRightClamp,
    Permute,
    PermuteForward4,
    PermuteBackward4,
    PermuteReplicate8,
    PermuteEdgeClampLeft,
    PermuteEdgeClampRight,
    PermuteReplicate16,
    FindNthSet,
}

#[inline(always)]
pub fn logic32(op: Logic, a: &Lanes32, b: &Lanes32) -> Lanes32 {
    match op {
        Logic::And => map2(a, b, |x, y| x & y),
        Logic::Or => map2(a, b, |x, y| x | y),
        Logic::Xor => map2(a, b, |x, y| x ^ y),
    }
}

#[inline(always)]
pub fn logic64(op: Logic, a: &Lanes64, b: &Lanes64) -> Lanes64 {
    match op {
        Logic::And => map2(a, b, |x, y| x & y),
        Logic::Or => map2(a, b, |x, y| x | y),
        Logic::Xor => map2(a, b, |x, y| x ^ y),
    }
}

#[inline(always)]
pub fn logic_mask(op: Logic, a: Mask, b: Mask) -> Mask {
    match op {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

#[inline(always)]
fn left32(x: u32, n: u32) -> u32 {
    if n < 32 { x << n } else { 0 }
}

#[inline(always)]
fn right32(x: u32, n: u32) -> u32 {
    if n < 32 { x >> n } else { 0 }
}

#[inline(always)]
fn left64(x: u64, n: u32) -> u64 {
    if n < 64 { x << n } else { 0 }
}

#[inline(always)]
fn right64(x: u64, n: u32) -> u64 {
    if n < 64 { x >> n } else { 0 }
}

#[inline(always)]
pub fn shift16(op: Shift, a: &Lanes32, n: &Lanes32) -> Lanes32 {
    match op {
        Shift::Left => map2(a, n, |x, n| left32(x, n) & 0xffff),
        Shift::RightU => map2(a, n, |x, n| right32(x & 0xffff, n)),
        Shift::RightS => map2(a, n, |x, n| (s16(x) as i32 >> n.min(15)) as u32 & 0xffff),
    }
}

#[inline(always)]
pub fn shift32(op: Shift, a: &Lanes32, n: &Lanes32) -> Lanes32 {
    match op {
        Shift::Left => map2(a, n, left32),
        Shift::RightU => map2(a, n, right32),
        Shift::RightS => map2(a, n, |x, n| (x as i32 >> n.min(31)) as u32),
    }
}

#[inline(always)]
pub fn shift64(op: Shift, a: &Lanes64, n: &Lanes32) -> Lanes64 {
    match op {
        Shift::Left => map2(a, n, left64),
        Shift::RightU => map2(a, n, right64),
        Shift::RightS => map2(a, n, |x, n| (x as i64 >> n.min(63)) as u64),
    }
}

/// `x` with its sign folded away: a negative number's complement.
#[inline(always)]
fn fold32(x: u32) -> u32 {
    x ^ (x as i32 >> 31) as u32
}

#[inline(always)]
fn fold64(x: u64) -> u64 {
    x ^ (x as i64 >> 63) as u64
}

/// All ones where every bit is zero.
#[inline(always)]
fn shift_to_top(zeros: u32, width: u32) -> u32 {
    if zeros == width { u32::MAX } else { zeros }
}

#[inline(always)]
pub fn count32(op: Count, a: &Lanes32) -> Lanes32 {
    match op {
        Count::Ones => map1(a, u32::count_ones),
        Count::LeadingZeros => map1(a, u32::leading_zeros),
        // 31 − 32 leading zeros is −1: all ones.
        Count::FindU => map1(a, |x| 31u32.wrapping_sub(x.leading_zeros())),
        Count::FindS => map1(a, |x| 31u32.wrapping_sub(fold32(x).leading_zeros())),
        Count::FindShiftU => map1(a, |x| shift_to_top(x.leading_zeros(), 32)),
        Count::FindShiftS => map1(a, |x| shift_to_top(fold32(x).leading_zeros(), 32)),
    }
}

#[inline(always)]
pub fn count64(op: Count, a: &Lanes64) -> Lanes32 {
    match op {
        Count::Ones => map1(a, u64::count_ones),
        Count::LeadingZeros => map1(a, u64::leading_zeros),
        Count::FindU => map1(a, |x| 63u32.wrapping_sub(x.leading_zeros())),
        Count::FindS => map1(a, |x| 63u32.wrapping_sub(fold64(x).leading_zeros())),
        Count::FindShiftU => map1(a, |x| shift_to_top(x.leading_zeros(), 64)),
        Count::FindShiftS => map1(a, |x| shift_to_top(fold64(x).leading_zeros(), 64)),
    }
}

/// `bmsk` with counts below 32: ones from bit `position`, `length` of them, cut off at bit 31.
#[inline(always)]
fn ones(position: u32, length: u32) -> u32 {
    (((1u64 << length) - 1) << position) as u32
}

#[inline(always)]
fn mask_clamp(position: u32, length: u32) -> u32 {
    if position < 32 { ones(position, length.min(32)) } else { 0 }
}

/// `szext` of a value of `n` bits, n below 32.
#[inline(always)]
fn extend(x: u32, n: u32, signed: bool) -> u32 {
    let unused = 32 - n;
    let top = left32(x, unused);
    if signed { (top as i32 >> unused.min(31)) as u32 } else { top >> unused.min(31) }
}

#[inline(always)]
pub fn bits2(op: Bits2, a: &Lanes32, b: &Lanes32) -> Lanes32 {
    let clamped = |x: u32, n: u32, signed: bool| if n < 32 { extend(x, n, signed) } else { x };
    match op {
        Bits2::MaskClamp => map2(a, b, mask_clamp),
        Bits2::MaskWrap => map2(a, b, |x, y| ones(x & 31, y & 31)),
        Bits2::ExtendClampS => map2(a, b, |x, n| clamped(x, n, true)),
        Bits2::ExtendClampU => map2(a, b, |x, n| clamped(x, n, false)),
        Bits2::ExtendWrapS => map2(a, b, |x, n| extend(x, n & 31, true)),
        Bits2::ExtendWrapU => map2(a, b, |x, n| extend(x, n & 31, false)),
    }
}

/// `bfe.32`: the field, above it its sign: the bit at its end, or at the operand's top if the field reaches beyond.
#[inline(always)]
fn extract32(x: u32, position: u32, length: u32, signed: bool) -> u32 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    // Extending to 64 bits first supplies the bits beyond the top.
    let (wide, position) = (if signed { x as i32 as i64 } else { x as i64 }, position.min(32));
    let unused = 64 - length.min(32);
    let field = (wide >> position) << unused;
    (if signed { field >> unused } else { (field as u64 >> unused) as i64 }) as u32
}

/// `bfe.64`
#[inline(always)]
pub fn extract64(signed: bool, a: &Lanes64, b: &Lanes32, c: &Lanes32) -> Lanes64 {
    map3(a, b, c, |x, position, length| {
        let (position, length) = (position & 0xff, length & 0xff);
        if length == 0 {
            return 0;
        }
        let unused = 64 - length.min(64);
        if signed {
            ((x as i64 >> position.min(63)) << unused >> unused) as u64
        } else {
            right64(x, position) << unused >> unused
        }
    })
}

/// `bfi`: b with a's low bits put in at a position, as many as the length says.
#[inline(always)]
pub fn insert_field32(a: &Lanes32, b: &Lanes32, position: &Lanes32, length: &Lanes32) -> Lanes32 {
    let mut result = [0; LANES];
    for lane in 0..LANES {
        let (position, length) = (position[lane] & 0xff, length[lane] & 0xff);
        let low_ones = if length < 32 { left32(1, length) - 1 } else { u32::MAX };
        let field = left32(low_ones, position);
        result[lane] = b[lane] & !field | left32(a[lane], position) & field;
    }
    result
}

#[inline(always)]
pub fn insert_field64(a: &Lanes64, b: &Lanes64, position: &Lanes32, length: &Lanes32) -> Lanes64 {
    let mut result = [0; LANES];
    for lane in 0..LANES {
        let (position, length) = (position[lane] & 0xff, length[lane] & 0xff);
        let low_ones = if length < 64 { left64(1, length) - 1 } else { u64::MAX };
        let field = left64(low_ones, position);
        result[lane] = b[lane] & !field | left64(a[lane], position) & field;
    }
    result
}

/// a in the low, b in the high word.
#[inline(always)]
fn pair(a: u32, b: u32) -> u64 {
    (b as u64) << 32 | a as u64
}

/// `prmt`: byte i of the result is byte `selectors[i] & 7` of b:a, or eight copies of its sign where bit 3 is set.
#[inline(always)]
fn permute(a: u32, b: u32, selectors: u32) -> u32 {
    let mut result = 0;
    for i in 0..4 {
        let selector = selectors >> (4 * i);
        let word = if selector & 4 != 0 { b } else { a };
        // The byte at the top of the word, then down to its place: with copies of its sign, or alone.
        let top = word << (24 - 8 * (selector & 3));
        let byte = if selector & 8 != 0 { (top as i32 >> 31) as u32 } else { top >> 24 };
        result |= (byte & 0xff) << (8 * i);
    }
    result
}

/// The selectors of a `prmt` mode for c = 0, 1, 2, 3.
#[inline(always)]
fn permute_mode(a: &Lanes32, b: &Lanes32, c: &Lanes32, selectors: [u32; 4]) -> Lanes32 {
    map3(a, b, c, |x, y, z| permute(x, y, selectors[(z & 3) as usize]))
}

/// `fns`: the position of the n-th set bit from `base`, upwards for n > 0, downwards for n < 0; all ones if none.
#[inline(always)]
fn find_nth_set(mask: u32, base: u32, n: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if n == 0 {
        return if mask >> base & 1 == 1 { base } else { u32::MAX };
    }
    let mut left = n.unsigned_abs();
    let mut position = base as i32;
    while (0..32).contains(&position) {
        left -= mask >> position & 1;
        if left == 0 {
            return position as u32;
        }
        position += n.signum();
    }
    u32::MAX
}

#[inline(always)]
pub fn bits3(op: Bits3, a: &Lanes32, b: &Lanes32, c: &Lanes32) -> Lanes32 {
    match op {
        Bits3::ExtractS => map3(a, b, c, |x, y, z| extract32(x, y, z, true)),
        Bits3::ExtractU => map3(a, b, c, |x, y, z| extract32(x, y, z, false)),
        Bits3::FunnelLeftWrap => map3(a, b, c, |x, y, n| (pair(x, y) << (n & 31) >> 32) as u32),
        Bits3::FunnelLeftClamp => map3(a, b, c, |x, y, n| (pair(x, y) << n.min(32) >> 32) as u32),
        Bits3::FunnelRightWrap => map3(a, b, c, |x, y, n| (pair(x, y) >> (n & 31)) as u32),
        Bits3::FunnelRightClamp => map3(a, b, c, |x, y, n| (pair(x, y) >> n.min(32)) as u32),
        Bits3::Permute => map3(a, b, c, permute),
        Bits3::PermuteForward4 => permute_mode(a, b, c, [0x3210, 0x4321, 0x5432, 0x6543]),
        Bits3::PermuteBackward4 => permute_mode(a, b, c, [0x5670, 0x6701, 0x7012, 0x0123]),
        Bits3::PermuteReplicate8 => permute_mode(a, b, c, [0x0000, 0x1111, 0x2222, 0x3333]),
        Bits3::PermuteEdgeClampLeft => permute_mode(a, b, c, [0x3210, 0x3211, 0x3222, 0x3333]),
        Bits3::PermuteEdgeClampRight => permute_mode(a, b, c, [0x0000, 0x1110, 0x2210, 0x3210]),
        Bits3::PermuteReplicate16 => permute_mode(a, b, c, [0x1010, 0x3232, 0x1010, 0x3232]),
        Bits3::FindNthSet => map3(a, b, c, |mask, base, n| find_nth_set(mask, base, n as i32)),
    }
}

/// `one` where `by` has ones, else `zero`.
#[inline(always)]
fn pick(by: u32, one: u32, zero: u32) -> u32 {
    zero ^ (by & (one ^ zero))
}

/// `lop3`: bit (a b c) of `table` for each bit position.
#[inline(always)]
pub fn logic3(table: u8, a: &Lanes32, b: &Lanes32, c: &Lanes32) -> Lanes32 {
    // Row i of the table as a word of equal bits; then a tree of selections, by c, b and a.
    let mut row = [0u32; 8];
    for (i, row) in row.iter_mut().enumerate() {
        *row = ((table >> i & 1) as u32).wrapping_neg();
    }
    let mut result = [0; LANES];
    for lane in 0..LANES {
        let (x, y, z) = (a[lane], b[lane], c[lane]);
        let low = pick(y, pick(z, row[3], row[2]), pick(z, row[1], row[0]));
        let high = pick(y, pick(z, row[7], row[6]), pick(z, row[5], row[4]));
        result[lane] = pick(x, high, low);
    }
    result
}

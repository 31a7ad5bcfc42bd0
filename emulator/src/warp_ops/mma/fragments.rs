//! Which lane holds which element of a matrix in `mma.sync`, as numbers ready to multiply.
//!
//! Lane 4g+t is lane t of group g. A register of A or B has S elements, lowest bits first: one tf32, two 16-bit or four
//! 8-bit ones. In m16n8kK, element s of register r in that lane is, with S·4 numbers of k to a register,
//!
//! - of A (row-major): row g + 8·(r mod 2), k = 4S·⌊r/2⌋ + S·t + s;
//! - of B (column-major): k = 4S·r + S·t + s, column g;
//! - of C and D: row g + 8·⌊r/2⌋, column 2t + r mod 2; with f16 accumulators row g + 8r, column 2t + s.
//!
//! (PTX ISA, "Matrix Fragments for mma.m16n8k4", "…k8", "…k16", "…k32".)
#![allow(clippy::needless_range_loop)] // Loops over lanes and elements go by number.

use crate::program::{LANES, Lanes32};

/// One element of each lane's register.
pub type Plane = [f32; LANES];

/// C or D, with the even columns before the odd ones, as registers have them.
pub type Accumulators<T> = [[T; 8]; 16];

/// The columns in the order of `Accumulators`.
pub const COLUMNS: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// 16-bit elements; exact.
#[inline(always)]
pub fn halves<const BF16: bool>(register: &Lanes32) -> [Plane; 2] {
    let mut planes = [[0.0; LANES]; 2];
    for lane in 0..LANES {
        planes[0][lane] = widen::<BF16>(register[lane] & 0xffff);
        planes[1][lane] = widen::<BF16>(register[lane] >> 16);
    }
    planes
}

#[inline(always)]
fn widen<const BF16: bool>(bits: u32) -> f32 {
    if BF16 {
        return f32::from_bits(bits << 16);
    }
    // Exponent and fraction moved into place are the value times 2^-112, subnormals included.
    let scaled = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
}

/// tf32 elements: the low 13 bits do not count.
#[inline(always)]
pub fn tf32(register: &Lanes32) -> [Plane; 1] {
    let mut plane = [0.0; LANES];
    for lane in 0..LANES {
        plane[lane] = f32::from_bits(register[lane] & 0xffff_e000);
    }
    [plane]
}

/// 8-bit integers.
#[inline(always)]
pub fn bytes(register: &Lanes32, signed: bool) -> [Plane; 4] {
    let mut planes = [[0.0; LANES]; 4];
    for s in 0..4 {
        for lane in 0..LANES {
            let byte = (register[lane] >> (8 * s)) as u8;
            planes[s][lane] = if signed { byte as i8 as f32 } else { byte as f32 };
        }
    }
    planes
}

/// C of 32-bit elements.
#[inline(always)]
pub fn c_words(registers: [&Lanes32; 4]) -> Accumulators<u32> {
    let mut c = [[0; 8]; 16];
    for i in 0..16 {
        for t in 0..4 {
            c[i][t] = registers[i / 8 * 2][i % 8 * 4 + t];
            c[i][4 + t] = registers[i / 8 * 2 + 1][i % 8 * 4 + t];
        }
    }
    c
}

/// The reverse of `c_words`.
#[inline(always)]
pub fn d_words(d: &Accumulators<u32>) -> [Lanes32; 4] {
    let mut registers = [[0; LANES]; 4];
    for i in 0..16 {
        for t in 0..4 {
            registers[i / 8 * 2][i % 8 * 4 + t] = d[i][t];
            registers[i / 8 * 2 + 1][i % 8 * 4 + t] = d[i][4 + t];
        }
    }
    registers
}

/// C of f16 elements.
#[inline(always)]
pub fn c_halves(registers: [&Lanes32; 2]) -> Accumulators<f32> {
    let planes = [halves::<false>(registers[0]), halves::<false>(registers[1])];
    let mut c = [[0.0; 8]; 16];
    for i in 0..16 {
        for t in 0..4 {
            c[i][t] = planes[i / 8][0][i % 8 * 4 + t];
            c[i][4 + t] = planes[i / 8][1][i % 8 * 4 + t];
        }
    }
    c
}

/// The reverse of `c_halves`.
#[inline(always)]
pub fn d_halves(d: &Accumulators<f32>) -> [Lanes32; 2] {
    let mut registers = [[0; LANES]; 2];
    for i in 0..16 {
        for t in 0..4 {
            registers[i / 8][i % 8 * 4 + t] = narrow(d[i][t]) | narrow(d[i][4 + t]) << 16;
        }
    }
    registers
}

/// The nearest f16, ties to even; NaN is the canonical one.
#[inline(always)]
fn narrow(value: f32) -> u32 {
    let bits = value.to_bits() & 0x7fff_ffff;
    let sign = value.to_bits() >> 16 & 0x8000;
    // The exponent's bias changes by 112; adding just under half a unit, and the odd bit, rounds.
    let normal = bits.wrapping_sub(112 << 23).wrapping_add(0xfff + (bits >> 13 & 1)) >> 13;
    // At 0.5 an f32's unit is the f16 subnormals': the addition rounds.
    let subnormal = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if bits < 113 << 23 { subnormal } else { normal };
    let ordered = if bits >= 65520f32.to_bits() { 0x7c00 } else { finite };
    if value.is_nan() { 0x7fff } else { ordered | sign }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn narrowing_rounds_like_the_reference() {
        let check = |bits: u32| {
            let value = f32::from_bits(bits);
            let expected = if value.is_nan() { 0x7fff } else { f16::from_f32(value).to_bits() as u32 };
            assert_eq!(narrow(value), expected, "{value} ({bits:#x})");
        };
        // Every f16, the midpoints between neighbours, and one f32 beside each.
        for half in 0..=u16::MAX {
            let exact = f16::from_bits(half).to_f32().to_bits();
            for base in [exact, exact.wrapping_add(1 << 12), exact.wrapping_add(1 << 22)] {
                (-1i32..=1).for_each(|step| check(base.wrapping_add_signed(step)));
            }
        }
        for half in 0..1024u16 {
            let middle = (f16::from_bits(half).to_f32() + f16::from_bits(half + 1).to_f32()) / 2.0;
            (-1i32..=1).for_each(|step| check(middle.to_bits().wrapping_add_signed(step)));
        }
        (0..=u32::MAX).step_by(65_521).for_each(check);
    }
}

//! `mma.sync`: the warp multiplies a row-major A by a column-major B and adds C.
//!
//! D[i][j] = C[i][j] + Σ_k A[i][k]·B[k][j], 16×8 (8×8 with `.f64`). Which lane holds which element is in `fragments`.
//!
//! Numerics: products are exact; the sum starts with C and takes k in order, with one rounding to nearest (ties to even)
//! to f32 a step; f16 accumulators are rounded once more at the end. tf32 operands are f32 whose low 13 bits are
//! ignored. A NaN result is the canonical one. A card groups and truncates the terms in a way the ISA leaves open, so
//! its results differ in the last bits. Integer sums are exact, then wrap, or clamp with `.satfinite`.
//! (PTX ISA, "mma", "Matrix Fragments for mma".)
#![allow(clippy::needless_range_loop)] // Loops over lanes and elements go by number.

mod fragments;

use fragments::{Accumulators, COLUMNS, Plane};

use super::{exactly, modifiers, unknown_form};
use crate::lower::operands::Operands;
use crate::program::{Access, Class, LANES, Mask, Reg, Registers, Visit};
use crate::ptx::ast::{Instruction, Operand, Type};

/// Shape and types; always row.col.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MmaForm {
    /// m16n8k8 and m16n8k16 of f16 or bf16; accumulators f32, or f16 with `half_accumulators`.
    Half { k: u32, bf16: bool, half_accumulators: bool },
    /// m16n8k4 and m16n8k8 of tf32, accumulators f32.
    Tf32 { k: u32 },
    /// m16n8k16 and m16n8k32 of 8-bit integers, accumulators s32.
    Integer { k: u32, a_signed: bool, b_signed: bool, saturate: bool },
    /// m8n8k4 of f64.
    Double,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Mma {
    pub form: MmaForm,
    /// Only the first `form.registers()` of each are meant.
    a: [Reg; 4],
    b: [Reg; 2],
    c: [Reg; 4],
    d: [Reg; 4],
}

impl MmaForm {
    fn parse(modifiers: &[&str]) -> Option<MmaForm> {
        let ["sync", "aligned", shape, "row", "col", rest @ ..] = modifiers else { return None };
        Some(match (*shape, rest) {
            ("m16n8k8" | "m16n8k16", ["f32", a @ ("f16" | "bf16"), b, "f32"]) if a == b => {
                MmaForm::Half { k: depth(shape)?, bf16: *a == "bf16", half_accumulators: false }
            }
            ("m16n8k8" | "m16n8k16", ["f16", "f16", "f16", "f16"]) => {
                MmaForm::Half { k: depth(shape)?, bf16: false, half_accumulators: true }
            }
            ("m16n8k4" | "m16n8k8", ["f32", "tf32", "tf32", "f32"]) => MmaForm::Tf32 { k: depth(shape)? },
            ("m16n8k16" | "m16n8k32", ["satfinite", "s32", a @ ("s8" | "u8"), b @ ("s8" | "u8"), "s32"]) => {
                MmaForm::Integer { k: depth(shape)?, a_signed: *a == "s8", b_signed: *b == "s8", saturate: true }
            }
            ("m16n8k16" | "m16n8k32", ["s32", a @ ("s8" | "u8"), b @ ("s8" | "u8"), "s32"]) => {
                MmaForm::Integer { k: depth(shape)?, a_signed: *a == "s8", b_signed: *b == "s8", saturate: false }
            }
            ("m8n8k4", ["f64", "f64", "f64", "f64"] | ["rn", "f64", "f64", "f64", "f64"]) => MmaForm::Double,
            _ => return None,
        })
    }

    /// m, n and k.
    pub fn shape(self) -> (u32, u32, u32) {
        match self {
            MmaForm::Half { k, .. } | MmaForm::Tf32 { k } | MmaForm::Integer { k, .. } => (16, 8, k),
            MmaForm::Double => (8, 8, 4),
        }
    }

    /// Operations of the whole warp: a multiplication and an addition for each product.
    pub fn flops(self) -> u64 {
        let (m, n, k) = self.shape();
        2 * (m * n * k) as u64
    }

    /// Registers of A, of B, and of C and D.
    fn registers(self) -> (usize, usize, usize) {
        match self {
            MmaForm::Half { k, half_accumulators, .. } => {
                (k as usize / 4, k as usize / 8, if half_accumulators { 2 } else { 4 })
            }
            MmaForm::Tf32 { k } => (k as usize / 2, k as usize / 4, 4),
            MmaForm::Integer { k, .. } => (k as usize / 8, k as usize / 16, 4),
            MmaForm::Double => (1, 1, 2),
        }
    }

    /// The registers' file, and the types of A and B, and of C and D.
    fn types(self) -> (Class, Type, Type) {
        match self {
            MmaForm::Half { half_accumulators: true, .. } => (Class::R32, Type::B32, Type::B32),
            MmaForm::Half { .. } | MmaForm::Tf32 { .. } => (Class::R32, Type::B32, Type::F32),
            MmaForm::Integer { .. } => (Class::R32, Type::B32, Type::S32),
            MmaForm::Double => (Class::R64, Type::F64, Type::F64),
        }
    }
}

/// The k of `m16n8kK`.
fn depth(shape: &str) -> Option<u32> {
    shape.rsplit_once('k')?.1.parse().ok()
}

impl Mma {
    pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Mma, String> {
        let form = MmaForm::parse(&modifiers(instruction)).ok_or_else(|| unknown_form(instruction))?;
        let (a_count, b_count, c_count) = form.registers();
        let (_, ab, cd) = form.types();
        let [d, a, b, c] = exactly::<4>(instruction)?;
        Ok(Mma {
            form,
            a: registers("a", a, a_count, |element| operands.read(element, ab))?,
            b: registers("b", b, b_count, |element| operands.read(element, ab))?,
            c: registers("c", c, c_count, |element| operands.read(element, cd))?,
            d: registers("d", d, c_count, |element| operands.write(element, cd))?,
        })
    }

    pub fn visit(&mut self, visit: Visit) {
        let (a, b, c) = self.form.registers();
        let (class, ..) = self.form.types();
        for reg in self.a[..a].iter_mut().chain(&mut self.b[..b]).chain(&mut self.c[..c]) {
            visit(Access::Read, class, reg);
        }
        for reg in &mut self.d[..c] {
            visit(Access::Write, class, reg);
        }
    }

    #[inline(always)]
    pub fn execute(&self, registers: &mut Registers, active: Mask) {
        // Plain loops from here on: `array::map` and its like are not inlined into code built for AVX2.
        // The number is that of B's registers, and of pairs of A's.
        match self.form {
            MmaForm::Half { k: 16, bf16: true, .. } => self.halves::<2, true>(registers, active),
            MmaForm::Half { k: 16, .. } => self.halves::<2, false>(registers, active),
            MmaForm::Half { bf16: true, .. } => self.halves::<1, true>(registers, active),
            MmaForm::Half { .. } => self.halves::<1, false>(registers, active),
            MmaForm::Tf32 { k: 8 } => self.tf32::<2>(registers, active),
            MmaForm::Tf32 { .. } => self.tf32::<1>(registers, active),
            MmaForm::Integer { k: 32, .. } => self.integers::<2>(registers, active),
            MmaForm::Integer { .. } => self.integers::<1>(registers, active),
            MmaForm::Double => self.doubles(registers, active),
        }
    }

    #[inline(always)]
    fn halves<const PAIRS: usize, const BF16: bool>(&self, registers: &mut Registers, active: Mask) {
        let mut a = [[[[0.0; LANES]; 2]; 2]; PAIRS];
        let mut b = [[[0.0; LANES]; 2]; PAIRS];
        for pair in 0..PAIRS {
            a[pair][0] = fragments::halves::<BF16>(registers.get32(self.a[2 * pair]));
            a[pair][1] = fragments::halves::<BF16>(registers.get32(self.a[2 * pair + 1]));
            b[pair] = fragments::halves::<BF16>(registers.get32(self.b[pair]));
        }
        if matches!(self.form, MmaForm::Half { half_accumulators: true, .. }) {
            let mut sums = fragments::c_halves([registers.get32(self.c[0]), registers.get32(self.c[1])]);
            multiply(&a, &b, &mut sums);
            let d = fragments::d_halves(&sums);
            registers.set32(self.d[0], d[0], active);
            registers.set32(self.d[1], d[1], active);
        } else {
            self.singles(&a, &b, registers, active);
        }
    }

    #[inline(always)]
    fn tf32<const PAIRS: usize>(&self, registers: &mut Registers, active: Mask) {
        let mut a = [[[[0.0; LANES]; 1]; 2]; PAIRS];
        let mut b = [[[0.0; LANES]; 1]; PAIRS];
        for pair in 0..PAIRS {
            a[pair][0] = fragments::tf32(registers.get32(self.a[2 * pair]));
            a[pair][1] = fragments::tf32(registers.get32(self.a[2 * pair + 1]));
            b[pair] = fragments::tf32(registers.get32(self.b[pair]));
        }
        self.singles(&a, &b, registers, active);
    }

    /// With f32 accumulators.
    #[inline(always)]
    fn singles<const PAIRS: usize, const S: usize>(
        &self,
        a: &[[[Plane; S]; 2]; PAIRS],
        b: &[[Plane; S]; PAIRS],
        registers: &mut Registers,
        active: Mask,
    ) {
        let c = self.c_words(registers);
        let mut sums = [[0.0; 8]; 16];
        for i in 0..16 {
            for j in 0..8 {
                sums[i][j] = f32::from_bits(c[i][j]);
            }
        }
        multiply(a, b, &mut sums);
        let mut d = c;
        for i in 0..16 {
            for j in 0..8 {
                let sum = sums[i][j];
                d[i][j] = if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() };
            }
        }
        self.set_words(&d, registers, active);
    }

    #[inline(always)]
    fn integers<const PAIRS: usize>(&self, registers: &mut Registers, active: Mask) {
        let MmaForm::Integer { a_signed, b_signed, saturate, .. } = self.form else { return };
        let mut a = [[[[0.0; LANES]; 4]; 2]; PAIRS];
        let mut b = [[[0.0; LANES]; 4]; PAIRS];
        for pair in 0..PAIRS {
            a[pair][0] = fragments::bytes(registers.get32(self.a[2 * pair]), a_signed);
            a[pair][1] = fragments::bytes(registers.get32(self.a[2 * pair + 1]), a_signed);
            b[pair] = fragments::bytes(registers.get32(self.b[pair]), b_signed);
        }
        // At most 32·255·255 in magnitude, below 2^24: every step is exact.
        let mut sums = [[0.0; 8]; 16];
        multiply(&a, &b, &mut sums);
        let c = self.c_words(registers);
        let mut d = c;
        for i in 0..16 {
            for j in 0..8 {
                let (c, sum) = (c[i][j] as i32, sums[i][j] as i32);
                d[i][j] = if saturate { c.saturating_add(sum) } else { c.wrapping_add(sum) } as u32;
            }
        }
        self.set_words(&d, registers, active);
    }

    #[inline(always)]
    fn c_words(&self, registers: &Registers) -> Accumulators<u32> {
        let [c0, c1, c2, c3] = self.c;
        fragments::c_words([registers.get32(c0), registers.get32(c1), registers.get32(c2), registers.get32(c3)])
    }

    #[inline(always)]
    fn set_words(&self, d: &Accumulators<u32>, registers: &mut Registers, active: Mask) {
        let d = fragments::d_words(d);
        for r in 0..4 {
            registers.set32(self.d[r], d[r], active);
        }
    }

    #[inline(always)]
    fn doubles(&self, registers: &mut Registers, active: Mask) {
        let (a, b) = (*registers.get64(self.a[0]), *registers.get64(self.b[0]));
        let mut d = [*registers.get64(self.c[0]), *registers.get64(self.c[1])];
        for lane in 0..LANES {
            for r in 0..2 {
                let (i, j) = (lane / 4, lane % 4 * 2 + r);
                let mut sum = f64::from_bits(d[r][lane]);
                for k in 0..4 {
                    sum = f64::from_bits(a[4 * i + k]).mul_add(f64::from_bits(b[4 * j + k]), sum);
                }
                d[r][lane] = if sum.is_nan() { 0x7fff_ffff_ffff_ffff } else { sum.to_bits() };
            }
        }
        for r in 0..2 {
            registers.set64(self.d[r], d[r], active);
        }
    }

    /// `D[i][j]` is initialised if row i of A, column j of B and `C[i][j]` are.
    pub fn initialised(&self, initialised: &dyn Fn(Class, Reg) -> Mask) -> Vec<(Class, Reg, Mask)> {
        let (a_count, b_count, c_count) = self.form.registers();
        let (class, ..) = self.form.types();
        let all = |registers: &mut dyn Iterator<Item = &Reg>| {
            groups(registers.fold(Mask::MAX, |lanes, &reg| lanes & initialised(class, reg)))
        };
        // Register r of A belongs to row g, and to row g+8 if r is odd; every register of B to column g.
        let rows = [0, 1].map(|half| all(&mut self.a[..a_count].iter().skip(half).step_by(2)));
        let columns = all(&mut self.b[..b_count].iter());
        let pairs = matches!(self.form, MmaForm::Half { half_accumulators: true, .. });
        (0..c_count)
            .map(|r| {
                let half = if pairs { r } else { r / 2 };
                let known = (0..32).fold(0, |lanes, lane| {
                    let (group, column) = (lane / 4, lane % 4 * 2);
                    let column_known = match pairs {
                        true => columns >> column & 3 == 3,
                        false => columns >> (column + r as u32 % 2) & 1 == 1,
                    };
                    lanes | ((rows[half] >> group & 1 == 1 && column_known) as Mask) << lane
                });
                (class, self.d[r], known & initialised(class, self.c[r]))
            })
            .collect()
    }
}

/// The registers `{…}` of an operand, or the one register without braces; the array's rest repeats the first.
fn registers<const N: usize>(
    name: &str,
    operand: &Operand,
    count: usize,
    mut lower: impl FnMut(&Operand) -> Result<Reg, String>,
) -> Result<[Reg; N], String> {
    let elements = match operand {
        Operand::Vector(elements) => elements.as_slice(),
        single => std::slice::from_ref(single),
    };
    if elements.len() != count {
        return Err(format!("found {} registers as {name}, expected {count}", elements.len()));
    }
    let first = lower(&elements[0])?;
    let mut all = [first; N];
    for (reg, element) in all.iter_mut().zip(elements).skip(1) {
        *reg = lower(element)?;
    }
    Ok(all)
}

/// Bit g: all four lanes of group g are set.
fn groups(lanes: Mask) -> u32 {
    (0..8).fold(0, |set, g| set | ((lanes >> (4 * g) & 15 == 15) as u32) << g)
}

/// C += A·B, k in order; eight rows at a time stay in vector registers.
#[inline(always)]
fn multiply<const PAIRS: usize, const S: usize>(
    a: &[[[Plane; S]; 2]; PAIRS],
    b: &[[Plane; S]; PAIRS],
    c: &mut Accumulators<f32>,
) {
    for half in 0..2 {
        let mut sums = [[0.0; 8]; 8];
        sums.copy_from_slice(&c[8 * half..8 * half + 8]);
        for pair in 0..PAIRS {
            for t in 0..4 {
                for s in 0..S {
                    let mut row = [0.0; 8];
                    for j in 0..8 {
                        row[j] = b[pair][s][4 * COLUMNS[j] + t];
                    }
                    for i in 0..8 {
                        let x = a[pair][half][s][4 * i + t];
                        for j in 0..8 {
                            sums[i][j] = x.mul_add(row[j], sums[i][j]);
                        }
                    }
                }
            }
        }
        c[8 * half..8 * half + 8].copy_from_slice(&sums);
    }
}

#[cfg(test)]
mod tests;

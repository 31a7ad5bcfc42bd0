//! Every form against a plain product, with the lane maps written as the ISA writes them: element by element.

use super::*;
use crate::program::LANES;
use crate::warp_ops::WarpOp;
use crate::warp_ops::tests::{Random, lowered};

/// Lanes of A, B and C in elements: (row, column) of a lane's i-th element.
type Map = fn(lane: usize, i: usize) -> (usize, usize);

/// A form for the tests: its maps, its elements' width in bits, and how a number is written as an element.
struct Case {
    form: &'static str,
    shape: (usize, usize, usize),
    a: Map,
    b: Map,
    c: Map,
    bits: usize,
    c_bits: usize,
    element: fn(f64) -> u64,
    c_element: fn(f64) -> u64,
    value: fn(u64) -> f64,
    /// Bound on an operand's magnitude in the exact tests.
    limit: i32,
    /// Unit roundoff of the sum; 0 for integers.
    epsilon: f64,
}

fn bf16(x: f64) -> u64 {
    half::bf16::from_f64(x).to_bits() as u64
}

fn f16(x: f64) -> u64 {
    half::f16::from_f64(x).to_bits() as u64
}

fn single(x: f64) -> u64 {
    (x as f32).to_bits() as u64
}

fn integer(x: f64) -> u64 {
    x as i32 as u32 as u64
}

fn single_value(bits: u64) -> f64 {
    f32::from_bits(bits as u32) as f64
}

fn c_map(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane >> 2 } else { (lane >> 2) + 8 }, lane % 4 * 2 + (i & 1))
}

fn a_k16(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 2 || (4..6).contains(&i) { lane >> 2 } else { (lane >> 2) + 8 };
    (row, lane % 4 * 2 + (i & 1) + if i >= 4 { 8 } else { 0 })
}

fn b_k16(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 2 + (i & 1) + if i >= 2 { 8 } else { 0 }, lane >> 2)
}

fn a_k8(lane: usize, i: usize) -> (usize, usize) {
    (if i < 2 { lane >> 2 } else { (lane >> 2) + 8 }, lane % 4 * 2 + (i & 1))
}

fn b_k8(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 2 + i, lane >> 2)
}

fn a_tf32(lane: usize, i: usize) -> (usize, usize) {
    let row = if i == 0 || i == 2 { lane >> 2 } else { (lane >> 2) + 8 };
    (row, lane % 4 + if i >= 2 { 4 } else { 0 })
}

fn b_tf32(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 + if i == 1 { 4 } else { 0 }, lane >> 2)
}

fn a_s8_k16(lane: usize, i: usize) -> (usize, usize) {
    (if i < 4 { lane >> 2 } else { (lane >> 2) + 8 }, lane % 4 * 4 + (i & 3))
}

fn b_s8_k16(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 4 + i, lane >> 2)
}

fn a_s8_k32(lane: usize, i: usize) -> (usize, usize) {
    let row = if i < 4 || (8..12).contains(&i) { lane >> 2 } else { (lane >> 2) + 8 };
    (row, lane % 4 * 4 + (i & 3) + if i >= 8 { 16 } else { 0 })
}

fn b_s8_k32(lane: usize, i: usize) -> (usize, usize) {
    (lane % 4 * 4 + (i & 3) + if i >= 4 { 16 } else { 0 }, lane >> 2)
}

fn a_f64(lane: usize, _: usize) -> (usize, usize) {
    (lane >> 2, lane % 4)
}

fn b_f64(lane: usize, _: usize) -> (usize, usize) {
    (lane % 4, lane >> 2)
}

fn c_f64(lane: usize, i: usize) -> (usize, usize) {
    (lane >> 2, lane % 4 * 2 + (i & 1))
}

fn cases() -> Vec<Case> {
    let half = |form, k, element: fn(f64) -> u64, half_accumulators: bool| Case {
        form,
        shape: (16, 8, k),
        a: if k == 16 { a_k16 } else { a_k8 },
        b: if k == 16 { b_k16 } else { b_k8 },
        c: c_map,
        bits: 16,
        c_bits: if half_accumulators { 16 } else { 32 },
        element,
        c_element: if half_accumulators { f16 } else { single },
        value: if half_accumulators { |bits| half::f16::from_bits(bits as u16).to_f64() } else { single_value },
        limit: 11,
        epsilon: if half_accumulators { 2f64.powi(-11) } else { 2f64.powi(-24) },
    };
    let tf32 = |form, k| Case {
        form,
        shape: (16, 8, k),
        a: a_tf32,
        b: b_tf32,
        c: c_map,
        bits: 32,
        c_bits: 32,
        element: single,
        c_element: single,
        value: single_value,
        limit: 1000,
        epsilon: 2f64.powi(-24),
    };
    let bytes = |form, k, limit| Case {
        form,
        shape: (16, 8, k),
        a: if k == 16 { a_s8_k16 } else { a_s8_k32 },
        b: if k == 16 { b_s8_k16 } else { b_s8_k32 },
        c: c_map,
        bits: 8,
        c_bits: 32,
        element: |x| x as i32 as u8 as u64,
        c_element: integer,
        value: |bits| bits as u32 as i32 as f64,
        limit,
        epsilon: 0.0,
    };
    vec![
        half("m16n8k16.row.col.f32.bf16.bf16.f32", 16, bf16, false),
        half("m16n8k16.row.col.f32.f16.f16.f32", 16, f16, false),
        half("m16n8k16.row.col.f16.f16.f16.f16", 16, f16, true),
        half("m16n8k8.row.col.f32.bf16.bf16.f32", 8, bf16, false),
        half("m16n8k8.row.col.f32.f16.f16.f32", 8, f16, false),
        half("m16n8k8.row.col.f16.f16.f16.f16", 8, f16, true),
        tf32("m16n8k8.row.col.f32.tf32.tf32.f32", 8),
        tf32("m16n8k4.row.col.f32.tf32.tf32.f32", 4),
        bytes("m16n8k16.row.col.s32.s8.s8.s32", 16, 127),
        bytes("m16n8k32.row.col.s32.s8.s8.s32", 32, 127),
        bytes("m16n8k32.row.col.satfinite.s32.s8.s8.s32", 32, 127),
        Case {
            form: "m8n8k4.row.col.f64.f64.f64.f64",
            shape: (8, 8, 4),
            a: a_f64,
            b: b_f64,
            c: c_f64,
            bits: 64,
            c_bits: 64,
            element: f64::to_bits,
            c_element: f64::to_bits,
            value: f64::from_bits,
            limit: 1 << 20,
            epsilon: 2f64.powi(-53),
        },
    ]
}

/// A matrix as `[row][column]`.
type Matrix = Vec<Vec<f64>>;

fn matrix(rows: usize, columns: usize, mut element: impl FnMut(usize, usize) -> f64) -> Matrix {
    (0..rows).map(|i| (0..columns).map(|j| element(i, j)).collect()).collect()
}

fn set(registers: &mut Registers, class: Class, reg: Reg, lane: usize, bits: u64) {
    match class {
        Class::R64 => registers.r64[reg.0 as usize][lane] |= bits,
        _ => registers.r32[reg.0 as usize][lane] |= bits as u32,
    }
}

fn get(registers: &Registers, class: Class, reg: Reg, lane: usize) -> u64 {
    if class == Class::R64 { registers.get64(reg)[lane] } else { registers.get32(reg)[lane] as u64 }
}

impl Case {
    fn lower(&self) -> (Mma, Registers) {
        let form = MmaForm::parse(&["sync", "aligned"].into_iter().chain(self.form.split('.')).collect::<Vec<_>>());
        let (a, b, c) = form.unwrap_or_else(|| panic!("{} is known", self.form)).registers();
        let (ab, cd) = match (self.bits, self.c_bits) {
            (64, _) => ("%fd", "%fd"),
            (_, 16) | (8, _) => ("%r", "%r"),
            _ => ("%r", "%f"),
        };
        let vector = |prefix: &str, first: usize, count: usize| {
            format!("{{{}}}", (first..first + count).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>().join(", "))
        };
        let texts = [vector(cd, 0, c), vector(ab, 10, a), vector(ab, 20, b), vector(cd, 30, c)];
        let (op, _, registers) =
            lowered(&format!("mma.sync.aligned.{}", self.form), &texts.each_ref().map(String::as_str));
        let WarpOp::Mma(mma) = op else { panic!("{op:?}") };
        (mma, registers)
    }

    /// Writes the matrices into the lanes, runs, and reads D.
    fn run(&self, a: &Matrix, b: &Matrix, c: &Matrix) -> Matrix {
        let (mma, mut registers) = self.lower();
        let (class, ..) = mma.form.types();
        let (m, n, k) = self.shape;
        let width = if class == Class::R64 { 64 } else { 32 };
        let mut fill = |matrix: &Matrix, regs: &[Reg], map: Map, bits: usize, element: fn(f64) -> u64, count: usize| {
            let per_register = width / bits;
            for lane in 0..LANES {
                for i in 0..count / LANES {
                    let (row, column) = map(lane, i);
                    let shifted = element(matrix[row][column]) << (i % per_register * bits);
                    set(&mut registers, class, regs[i / per_register], lane, shifted);
                }
            }
        };
        fill(a, &mma.a, self.a, self.bits, self.element, m * k);
        fill(b, &mma.b, self.b, self.bits, self.element, k * n);
        fill(c, &mma.c, self.c, self.c_bits, self.c_element, m * n);
        mma.execute(&mut registers, Mask::MAX);
        let mut d = matrix(m, n, |_, _| f64::NAN);
        let per_register = width / self.c_bits;
        for lane in 0..LANES {
            for i in 0..m * n / LANES {
                let (row, column) = (self.c)(lane, i);
                let bits = get(&registers, class, mma.d[i / per_register], lane) >> (i % per_register * self.c_bits);
                d[row][column] = (self.value)(bits & (u64::MAX >> (64 - self.c_bits)));
            }
        }
        d
    }
}

fn product(a: &Matrix, b: &Matrix, c: &Matrix) -> Matrix {
    matrix(c.len(), c[0].len(), |i, j| c[i][j] + (0..b.len()).map(|k| a[i][k] * b[k][j]).sum::<f64>())
}

#[test]
fn selecting_matrices_find_every_element() {
    for case in cases() {
        let (m, n, k) = case.shape;
        let zero = matrix(m, n, |_, _| 0.0);
        // Each column of B picks a column of A, whose elements are all different (modulo what a byte can hold).
        let number = |i: usize, j: usize, columns: usize| ((i * columns + j) as i32 % 251 - 125) as f64;
        for shift in 0..k {
            let a = matrix(m, k, |i, j| number(i, j, k));
            let pick = matrix(k, n, |i, j| ((j + shift) % k == i) as u8 as f64);
            assert_eq!(case.run(&a, &pick, &zero), product(&a, &pick, &zero), "{}: A, shift {shift}", case.form);
            let b = matrix(k, n, |i, j| number(i, j, n));
            let pick = matrix(m, k, |i, j| ((i + shift) % k == j) as u8 as f64);
            assert_eq!(case.run(&pick, &b, &zero), product(&pick, &b, &zero), "{}: B, shift {shift}", case.form);
        }
        let c = matrix(m, n, |i, j| (i * n + j) as f64);
        let (a, b) = (matrix(m, k, |_, _| 0.0), matrix(k, n, |_, _| 0.0));
        assert_eq!(case.run(&a, &b, &c), c, "{}: C", case.form);
    }
}

#[test]
fn small_integers_are_exact() {
    let mut random = Random(3);
    for case in cases() {
        let (m, n, k) = case.shape;
        let mut number = |limit: i32| (random.next() as i32 % (limit + 1)) as f64;
        for _ in 0..20 {
            let a = matrix(m, k, |_, _| number(case.limit));
            let b = matrix(k, n, |_, _| number(case.limit));
            let c = matrix(m, n, |_, _| number(100));
            assert_eq!(case.run(&a, &b, &c), product(&a, &b, &c), "{}", case.form);
        }
    }
}

#[test]
fn sums_stay_within_the_rounding_of_k_steps() {
    let mut random = Random(5);
    for case in cases().into_iter().filter(|case| case.epsilon > 0.0) {
        let (m, n, k) = case.shape;
        // Operands of few bits, so that they are exact in every type.
        let mut number = || (random.next() % 129) as f64 / 64.0 - 1.0;
        let a = matrix(m, k, |_, _| number());
        let b = matrix(k, n, |_, _| number());
        let c = matrix(m, n, |_, _| (case.value)((case.c_element)(number() / 3.0)));
        let d = case.run(&a, &b, &c);
        let exact = product(&a, &b, &c);
        for i in 0..m {
            for j in 0..n {
                let size = c[i][j].abs() + (0..k).map(|k| (a[i][k] * b[k][j]).abs()).sum::<f64>();
                let error = (d[i][j] - exact[i][j]).abs();
                assert!(error <= (k + 1) as f64 * case.epsilon * size, "{}: [{i}][{j}] off by {error}", case.form);
            }
        }
    }
}

#[test]
fn sums_go_up_in_k_with_one_rounding_a_step() {
    let case = &cases()[0];
    let (m, n, k) = case.shape;
    // 2^24 swallows a one that follows it; ones that come first add up.
    let row = |first: usize| matrix(m, k, move |_, j| if j == first { 4096.0 } else { 1.0 });
    let b = |first: usize| matrix(k, n, move |i, _| if i == first { 4096.0 } else { 1.0 });
    let zero = matrix(m, n, |_, _| 0.0);
    assert_eq!(case.run(&row(0), &b(0), &zero)[0][0], 2f64.powi(24));
    assert_eq!(case.run(&row(15), &b(15), &zero)[0][0], 2f64.powi(24) + 16.0, "15 rounded to even at the last step");
}

#[test]
fn nan_and_infinity_stay_in_their_row_and_column() {
    for case in cases().into_iter().filter(|case| case.epsilon > 0.0) {
        let (m, n, k) = case.shape;
        let a = matrix(m, k, |i, j| if (i, j) == (3, 1) { f64::NAN } else { 1.0 });
        let b = matrix(k, n, |i, j| if (i, j) == (2, 5) { f64::INFINITY } else { 1.0 });
        let d = case.run(&a, &b, &matrix(m, n, |_, _| 0.0));
        for (i, row) in d.iter().enumerate() {
            for (j, &value) in row.iter().enumerate() {
                let expected = match (i, j) {
                    (3, _) => f64::NAN,
                    (_, 5) => f64::INFINITY,
                    _ => k as f64,
                };
                assert!(value == expected || value.is_nan() && expected.is_nan(), "{} [{i}][{j}] {value}", case.form);
            }
        }
        let b = matrix(k, n, |i, _| if i == 0 { f64::INFINITY } else { 0.0 });
        let d = case.run(&matrix(m, k, |_, _| 0.0), &b, &matrix(m, n, |_, _| 0.0));
        assert!(d.iter().flatten().all(|value| value.is_nan()), "{}: 0·∞", case.form);
    }
}

#[test]
fn every_half_is_widened_exactly() {
    let (mma, mut registers) = cases()[4].lower();
    // Element 0 of B in lane 0 is 1: D[i][0] is A[i][0].
    registers.r32[mma.b[0].0 as usize][0] = 0x3c00;
    for bits in 0..=u16::MAX {
        registers.r32[mma.a[0].0 as usize][0] = bits as u32;
        mma.execute(&mut registers, Mask::MAX);
        let found = f32::from_bits(registers.get32(mma.d[0])[0]);
        let expected = half::f16::from_bits(bits).to_f32();
        assert!(found == expected || found.to_bits() == 0x7fff_ffff && expected.is_nan(), "{bits:#x}: {found}");
    }
}

#[test]
fn tf32_ignores_the_low_bits() {
    let (mma, mut registers) = cases()[6].lower();
    registers.r32[mma.a[0].0 as usize][0] = 1f32.to_bits() | 0x1fff;
    registers.r32[mma.b[0].0 as usize][0] = 3f32.to_bits() | 0x1fff;
    mma.execute(&mut registers, Mask::MAX);
    assert_eq!(f32::from_bits(registers.get32(mma.d[0])[0]), 3.0);
}

#[test]
fn integer_sums_wrap_or_clamp() {
    for (form, at_top) in [("satfinite.s32.u8.u8.s32", i32::MAX), ("s32.u8.u8.s32", i32::MIN + 999)] {
        let form = format!("mma.sync.aligned.m16n8k32.row.col.{form}");
        let texts = ["{%r0,%r1,%r2,%r3}", "{%r4,%r5,%r6,%r7}", "{%r8,%r9}", "{%r10,%r11,%r12,%r13}"];
        let (op, _, mut registers) = lowered(&form, &texts);
        let WarpOp::Mma(mma) = op else { panic!("{op:?}") };
        registers.r32[mma.a[0].0 as usize][0] = 250;
        registers.r32[mma.b[0].0 as usize][0] = 4;
        registers.r32[mma.c[0].0 as usize][0] = i32::MAX as u32;
        mma.execute(&mut registers, Mask::MAX);
        assert_eq!(registers.get32(mma.d[0])[0] as i32, at_top, "{form}");
    }
}

#[test]
fn results_are_initialised_where_row_column_and_accumulator_are() {
    for case in cases() {
        let (mma, _) = case.lower();
        let (class, ..) = mma.form.types();
        let (a_count, b_count, c_count) = mma.form.registers();
        let (m, n, k) = case.shape;
        let width = if class == Class::R64 { 64 } else { 32 };
        let mut random = Random(9);
        for _ in 0..60 {
            // One lane of one register of one operand is not initialised.
            let lane = random.next() as usize % LANES;
            let pick = random.next() as usize % (a_count + b_count + c_count);
            let all = mma.a[..a_count].iter().chain(&mma.b[..b_count]).chain(&mma.c[..c_count]);
            let bad = *all.clone().nth(pick).unwrap();
            let results = mma.initialised(&|found, reg| {
                assert_eq!(found, class);
                if reg == bad { !(1 << lane) } else { Mask::MAX }
            });
            // The elements that it holds, and what they reach.
            let holds = |regs: &[Reg], map: Map, bits: usize, count: usize| -> Vec<(usize, usize)> {
                let of_register = |i: &usize| regs[i / (width / bits)] == bad;
                (0..count / LANES).filter(of_register).map(|i| map(lane, i)).collect()
            };
            let rows = holds(&mma.a[..a_count], case.a, case.bits, m * k);
            let columns = holds(&mma.b[..b_count], case.b, case.bits, k * n);
            let places = holds(&mma.c[..c_count], case.c, case.c_bits, m * n);
            for (r, &(found_class, reg, lanes)) in results.iter().enumerate() {
                assert_eq!((found_class, reg), (class, mma.d[r]));
                for lane in 0..LANES {
                    let per_register = width / case.c_bits;
                    let known = (r * per_register..(r + 1) * per_register).all(|i| {
                        let (row, column) = (case.c)(lane, i);
                        !rows.iter().any(|place| place.0 == row)
                            && !columns.iter().any(|place| place.1 == column)
                            && !places.contains(&(row, column))
                    });
                    // A register is known or not as a whole: a 16-bit accumulator spoils its neighbour.
                    assert_eq!(lanes >> lane & 1 == 1, known, "{}: D register {r}, lane {lane}", case.form);
                }
            }
        }
    }
}

#[test]
fn inactive_lanes_keep_their_results() {
    let (mma, mut registers) = cases()[0].lower();
    registers.r32[mma.d[0].0 as usize] = [5; LANES];
    mma.execute(&mut registers, 0xffff_fffe);
    assert_eq!((registers.get32(mma.d[0])[0], registers.get32(mma.d[0])[1]), (5, 0));
}

#[test]
fn work_of_a_warp() {
    assert_eq!(MmaForm::Half { k: 16, bf16: true, half_accumulators: false }.flops(), 4096);
    assert_eq!(MmaForm::Double.flops(), 512);
}

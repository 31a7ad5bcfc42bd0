//! `kernels/rms_norm.cu`.

use crate::common::*;
use crate::rows::{Odd, Rows, abs, plus, rows, within_rounding};
use half::bf16;
use handgrad::gpu::kernels::rms_norm::{Backward, Forward, Residual, backward, forward, forward_residual};
use handgrad::gpu::{GpuFloat, LaunchError, View};
use handgrad::ops;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

const EPS: f32 = 1e-5;

/// y, rstd and, with a residual, h.
struct Found<E> {
    h: Vec<E>,
    y: Vec<E>,
    rstd: Vec<f32>,
}

fn run_forward<E: GpuFloat>(x: &[E], residual: Option<&[E]>, gain: &[E], rows: usize, odd: Odd) -> Found<E> {
    let (gpu, cols) = (gpu(), gain.len());
    let (x, gain) = (Input::new(gpu, x, odd.offset(0)), Input::new(gpu, gain, odd.offset(1)));
    let mut y = Guarded::<E>::at(gpu, rows * cols, odd.offset(2));
    let mut rstd = Guarded::<f32>::at(gpu, rows, 1);
    let mut h = Guarded::<E>::at(gpu, rows * cols, odd.offset(3));
    let operands = Forward { x: x.view(), gain: gain.view(), y: y.view_mut(), rstd: rstd.view_mut() };
    match residual {
        Some(residual) => {
            let residual = Input::new(gpu, residual, odd.offset(4));
            let residual = Residual { residual: residual.view(), h: h.view_mut() };
            forward_residual(gpu, operands, residual, rows, cols, EPS).unwrap();
        }
        None => forward(gpu, operands, rows, cols, EPS).unwrap(),
    }
    Found { h: h.download(), y: y.download(), rstd: rstd.download() }
}

/// 1/√(mean(x²) + ε) of each row.
fn rstd_of(x: &[f64], cols: usize) -> Vec<f64> {
    let of_row = |x: &[f64]| 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / cols as f64 + EPS as f64).sqrt();
    x.chunks(cols).map(of_row).collect()
}

fn check_forward<E: GpuFloat>(Rows { rows, cols, odd }: Rows, rng: &mut ChaCha8Rng) {
    let (x, residual, gain) = (normal::<E>(rng, rows * cols), normal::<E>(rng, rows * cols), normal::<E>(rng, cols));
    let check = |label: &str, h: &[E], found: &Found<E>| {
        let inputs = [tensor(h, &[rows, cols]), tensor(&gain, &[cols])];
        let y = reference(&inputs, &[], |tape, v| Ok(vec![ops::rms_norm(tape, &v[0], &v[1], EPS as f64)?]));
        let terms: Vec<f64> = y.outputs[0].iter().map(|y| y.abs()).collect();
        within_rounding(&format!("y {label}"), &found.y, &y.outputs[0], &terms);
        let rstd = rstd_of(&to_f64(h), cols);
        within_rounding(&format!("rstd {label}"), &found.rstd, &rstd, &rstd);
    };
    check("alone", &x, &run_forward(&x, None, &gain, rows, odd));

    let found = run_forward(&x, Some(&residual), &gain, rows, odd);
    let sums = to_f32(&x).into_iter().zip(to_f32(&residual)).map(|(x, residual)| rounded::<E>(x + residual));
    assert_eq!(to_f32(&found.h), sums.collect::<Vec<f32>>(), "h is the rounded sum");
    check("of the sum", &found.h, &found);

    let again = run_forward(&x, Some(&residual), &gain, rows, odd);
    same_bits("h", &found.h, &again.h);
    same_bits("y", &found.y, &again.y);
    same_bits("rstd", &found.rstd, &again.rstd);
}

#[test]
fn forward_against_f64() {
    property("rms_norm forward f32", 25, rows(1024, 8192, 5), check_forward::<f32>);
    property("rms_norm forward bf16", 25, rows(1024, 8192, 5), check_forward::<bf16>);
}

/// The operands of a backward pass.
struct Case<E> {
    x: Vec<E>,
    gain: Vec<E>,
    rstd: Vec<f32>,
    d_y: Vec<E>,
    d_h: Option<Vec<E>>,
    /// What the gain's gradient is added to.
    before: Option<Vec<f32>>,
}

impl<E: GpuFloat> Case<E> {
    fn run(&self, odd: Odd) -> (Vec<E>, Vec<f32>) {
        let (gpu, rows, cols) = (gpu(), self.rstd.len(), self.gain.len());
        let (x, gain) = (Input::new(gpu, &self.x, odd.offset(0)), Input::new(gpu, &self.gain, odd.offset(1)));
        let (rstd, d_y) = (Input::new(gpu, &self.rstd, 1), Input::new(gpu, &self.d_y, odd.offset(2)));
        let d_h = self.d_h.as_ref().map(|d_h| Input::new(gpu, d_h, odd.offset(3)));
        let mut d_x = Guarded::<E>::at(gpu, rows * cols, odd.offset(4));
        let before = self.before.clone().unwrap_or_else(|| poison(cols));
        let mut d_gain = Guarded::holding(gpu, &before, 1);
        let operands = Backward {
            x: x.view(),
            gain: gain.view(),
            rstd: rstd.view(),
            d_y: d_y.view(),
            d_h: d_h.as_ref().map(Input::view),
            d_x: d_x.view_mut(),
            d_gain: d_gain.view_mut(),
        };
        backward(gpu, operands, rows, cols, self.before.is_some()).unwrap();
        (d_x.download(), d_gain.download())
    }
}

/// Of d_x and d_gain, the sums of the absolute values that are added up.
fn terms<E: GpuFloat>(case: &Case<E>) -> (Vec<f64>, Vec<f64>) {
    let (x, gain, d_y, cols) = (abs(&case.x), abs(&case.gain), abs(&case.d_y), case.gain.len());
    let (mut d_x, mut d_gain) = (vec![], vec![0.0; cols]);
    for (row, &rstd) in to_f64(&case.rstd).iter().enumerate() {
        let at = |c: usize| row * cols + c;
        let inner: f64 = (0..cols).map(|c| gain[c] * d_y[at(c)] * x[at(c)]).sum();
        let along_x = rstd.powi(3) * inner / cols as f64;
        d_x.extend((0..cols).map(|c| rstd * gain[c] * d_y[at(c)] + along_x * x[at(c)]));
        (0..cols).for_each(|c| d_gain[c] += rstd * x[at(c)] * d_y[at(c)]);
    }
    (plus(d_x, case.d_h.as_ref().map(|d_h| abs(d_h))), plus(d_gain, case.before.as_ref().map(|before| abs(before))))
}

fn check_backward<E: GpuFloat>((shape, residual, accumulate): (Rows, bool, bool), rng: &mut ChaCha8Rng) {
    let Rows { rows, cols, odd } = shape;
    let (x, gain, d_y) = (normal::<E>(rng, rows * cols), normal::<E>(rng, cols), normal::<E>(rng, rows * cols));
    let rstd = rstd_of(&to_f64(&x), cols).into_iter().map(|r| r as f32).collect();
    let d_h = residual.then(|| normal::<E>(rng, rows * cols));
    let before = accumulate.then(|| normal::<f32>(rng, cols));
    let case = Case { x, gain, rstd, d_y, d_h, before };

    let shape = [rows, cols];
    let inputs = [tensor(&case.x, &shape), tensor(&case.gain, &[cols])];
    let expected = reference(&inputs, &[tensor(&case.d_y, &shape)], |tape, v| {
        Ok(vec![ops::rms_norm(tape, &v[0], &v[1], EPS as f64)?])
    });
    let [d_x, d_gain] = <[Vec<f64>; 2]>::try_from(expected.gradients).unwrap();
    let d_x = plus(d_x, case.d_h.as_ref().map(|d_h| to_f64(d_h)));
    let d_gain = plus(d_gain, case.before.as_ref().map(|before| to_f64(before)));

    let (found, again, terms) = (case.run(odd), case.run(odd), terms(&case));
    within_rounding("d_x", &found.0, &d_x, &terms.0);
    within_rounding("d_gain", &found.1, &d_gain, &terms.1);
    same_bits("d_x", &found.0, &again.0);
    same_bits("d_gain", &found.1, &again.1);
}

#[test]
fn backward_against_f64() {
    let cases = || (rows(1024, 8192, 5), any::<bool>(), any::<bool>());
    property("rms_norm backward f32", 30, cases(), check_backward::<f32>);
    property("rms_norm backward bf16", 30, cases(), check_backward::<bf16>);
}

#[test]
fn more_rows_than_a_short_grid_axis_has() {
    let rows = 65_535 + 9;
    let x: Vec<bf16> = (0..rows * 2).map(|i| bf16::from_f32((i % 200) as f32 + 1.0)).collect();
    let gain = [bf16::ONE, bf16::from_f32(2.0)];
    let found = run_forward(&x, None, &gain, rows, Odd::default());
    for row in [0, 1, 65_534, 65_535, rows - 1] {
        let x = [x[2 * row].to_f64(), x[2 * row + 1].to_f64()];
        let rstd = rstd_of(&x, 2)[0];
        let expected = [rstd * x[0], 2.0 * rstd * x[1]];
        within("y", &to_f64(&found.y[2 * row..][..2]), &expected, |_| 0.01);
    }
}

#[test]
fn precision_of_small_and_large_rows() {
    let run = |x: &[bf16]| to_f64(&run_forward(x, None, &vec![bf16::ONE; x.len()], 1, Odd::default()).y);
    let large = bf16::from_f32(3e18); // its square is close to the largest f32
    within("large", &run(&[large, -large]), &[1.0, -1.0], |_| 1e-6);
    // ε stands under the root: 1e-3 / √(1e-6 + 1e-5) = 0.30151
    within("small", &run(&[bf16::from_f32(1e-3); 4]), &[0.30151; 4], |_| 1e-3);
    within("zeros", &run(&[bf16::ZERO; 4]), &[0.0; 4], |_| 0.0);
}

#[test]
fn nan_stays_in_its_row() {
    let mut x = vec![1.0f32; 3 * 1100];
    x[1100 + 7] = f32::NAN;
    for cols in [1100, 110] {
        let found = run_forward(&x, None, &vec![1.0; cols], x.len() / cols, Odd::default());
        let broken = (1100 + 7) / cols;
        for (row, y) in found.y.chunks(cols).enumerate() {
            assert!(y.iter().all(|y| y.is_nan() == (row == broken)), "row {row} of {cols} columns");
        }
    }
}

#[test]
fn no_rows() {
    let case = |before| Case::<f32> { x: vec![], gain: vec![1.0; 5], rstd: vec![], d_y: vec![], d_h: None, before };
    assert!(run_forward::<f32>(&[], None, &[1.0; 5], 0, Odd::default()).y.is_empty());
    assert_eq!(case(None).run(Odd::default()).1, [0.0; 5]);
    assert_eq!(case(Some(vec![3.0; 5])).run(Odd::default()).1, [3.0; 5]);
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let x = gpu.upload(&[1.0f32; 12]).unwrap();
    let none = gpu.alloc::<f32>(0).unwrap();
    let (mut y, mut rstd) = (gpu.alloc::<f32>(12).unwrap(), gpu.alloc::<f32>(3).unwrap());
    let mut try_forward = |x: View<f32>, gain: View<f32>, rows, cols| {
        let operands = Forward { x, gain, y: y.view_mut(), rstd: rstd.view_mut() };
        forward(gpu, operands, rows, cols, EPS).unwrap_err()
    };
    let error = try_forward(x.view(), x.view(), 3, 5);
    assert_eq!(error, LaunchError::TooSmall { kernel: "rms_norm_forward", operand: "x", found: 12, expected: 15 });
    let error = try_forward(x.view(), x.range(0..3), 3, 4);
    assert!(matches!(error, LaunchError::TooSmall { operand: "gain", expected: 4, .. }), "{error}");
    let error = try_forward(none.view(), x.view(), 3, 4);
    assert!(matches!(error, LaunchError::Null { operand: "x", .. }), "{error}");
    let error = try_forward(x.view(), x.view(), 4, 3);
    assert!(matches!(error, LaunchError::TooSmall { operand: "rstd", expected: 4, .. }), "{error}");
    let error = try_forward(x.view(), x.view(), usize::MAX / 2, 3);
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
    let error = try_forward(x.view(), x.view(), 3, 0);
    assert!(matches!(error, LaunchError::Range { what: "cols", .. }), "{error}");
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<f32>::from_raw(x.view().address() + 2, 12) };
    let error = try_forward(odd, x.view(), 3, 4);
    assert!(matches!(error, LaunchError::Misaligned { operand: "x", expected: 4, .. }), "{error}");
}

#[test]
fn every_short_operand_is_named() {
    let gpu = gpu();
    let names = ["x", "gain", "rstd", "d_y", "d_h", "d_x", "d_gain"];
    for (short, name) in names.iter().enumerate() {
        let buffer = |i: usize, len: usize| gpu.zeros::<f32>(if i == short { len - 1 } else { len }).unwrap();
        let (x, gain, rstd, d_y, d_h) = (buffer(0, 12), buffer(1, 4), buffer(2, 3), buffer(3, 12), buffer(4, 12));
        let (mut d_x, mut d_gain) = (buffer(5, 12), buffer(6, 4));
        let operands = Backward {
            x: x.view(),
            gain: gain.view(),
            rstd: rstd.view(),
            d_y: d_y.view(),
            d_h: Some(d_h.view()),
            d_x: d_x.view_mut(),
            d_gain: d_gain.view_mut(),
        };
        let error = backward(gpu, operands, 3, 4, false).unwrap_err();
        assert!(matches!(error, LaunchError::TooSmall { operand, .. } if operand == *name), "{error}");
    }
}

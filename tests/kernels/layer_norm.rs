//! `kernels/layer_norm.cu`.

use crate::common::*;
use crate::rows::{Odd, Rows, abs, plus, rows, within_rounding};
use half::bf16;
use handgrad::gpu::kernels::layer_norm::{Backward, Forward, backward, forward};
use handgrad::gpu::{GpuFloat, LaunchError, View};
use handgrad::ops;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

const EPS: f32 = 1e-5;

/// y, mean, rstd.
type Found<E> = (Vec<E>, Vec<f32>, Vec<f32>);

fn run_forward<E: GpuFloat>(x: &[E], gain: &[E], bias: &[E], rows: usize, odd: Odd) -> Found<E> {
    let (gpu, cols) = (gpu(), gain.len());
    let (x, gain) = (Input::new(gpu, x, odd.offset(0)), Input::new(gpu, gain, odd.offset(1)));
    let (bias, mut y) = (Input::new(gpu, bias, odd.offset(2)), Guarded::<E>::at(gpu, rows * cols, odd.offset(3)));
    let (mut mean, mut rstd) = (Guarded::<f32>::at(gpu, rows, 1), Guarded::<f32>::at(gpu, rows, 1));
    let (y_view, mean_view, rstd_view) = (y.view_mut(), mean.view_mut(), rstd.view_mut());
    let operands =
        Forward { x: x.view(), gain: gain.view(), bias: bias.view(), y: y_view, mean: mean_view, rstd: rstd_view };
    forward(gpu, operands, rows, cols, EPS).unwrap();
    (y.download(), mean.download(), rstd.download())
}

/// Mean and 1/√(variance + ε) of each row.
fn statistics(x: &[f64], cols: usize) -> (Vec<f64>, Vec<f64>) {
    let of_row = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / cols as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
        (mean, 1.0 / (variance + EPS as f64).sqrt())
    };
    x.chunks(cols).map(of_row).unzip()
}

fn check_forward<E: GpuFloat>((Rows { rows, cols, odd }, mean): (Rows, f64), rng: &mut ChaCha8Rng) {
    let x: Vec<E> = to_f64(&normal::<E>(rng, rows * cols)).iter().map(|x| round(x + mean)).collect();
    let (gain, bias) = (normal::<E>(rng, cols), normal::<E>(rng, cols));
    let inputs = [tensor(&x, &[rows, cols]), tensor(&gain, &[cols]), tensor(&bias, &[cols])];
    let expected = reference(&inputs, &[], |tape, v| Ok(vec![ops::layer_norm(tape, &v[0], &v[1], &v[2], EPS as f64)?]));
    let found = run_forward(&x, &gain, &bias, rows, odd);
    let (mean, rstd) = statistics(&to_f64(&x), cols);
    let (x_abs, gain_abs, bias_abs) = (abs(&x), abs(&gain), abs(&bias));
    let normalized = |i: usize| rstd[i / cols] * (x_abs[i] + mean[i / cols].abs());
    let term = |i: usize| normalized(i) * gain_abs[i % cols] + bias_abs[i % cols];
    within_rounding("y", &found.0, &expected.outputs[0], &(0..x.len()).map(term).collect::<Vec<f64>>());
    let mean_terms: Vec<f64> = abs(&x).chunks(cols).map(|x| x.iter().sum::<f64>() / cols as f64).collect();
    within_rounding("mean", &found.1, &mean, &mean_terms);
    within("rstd", &to_f64(&found.2), &rstd, |i| 1e-5 * rstd[i]);
    let again = run_forward(&x, &gain, &bias, rows, odd);
    same_bits("y", &found.0, &again.0);
    same_bits("mean", &found.1, &again.1);
    same_bits("rstd", &found.2, &again.2);
}

#[test]
fn forward_against_f64() {
    let cases = || (rows(512, 4096, 4), prop_oneof![Just(0.0), Just(-3.0)]);
    property("layer_norm forward f32", 25, cases(), check_forward::<f32>);
    property("layer_norm forward bf16", 25, cases(), check_forward::<bf16>);
}

/// Mean 10,000 and deviation 1: E[x²] − E[x]² would keep nothing of the variance.
#[test]
fn a_large_mean_does_not_cancel() {
    property("layer_norm with a large mean", 6, edges(&[512, 1024]), |cols, rng| {
        let x: Vec<f32> = normal::<f32>(rng, 2 * cols).iter().map(|x| x + 1e4).collect();
        let (gain, bias) = (vec![1.0f32; cols], vec![0.0f32; cols]);
        let (y, _, rstd) = run_forward(&x, &gain, &bias, 2, Odd::default());
        let (mean, expected) = statistics(&to_f64(&x), cols);
        if cols >= 16 {
            within("rstd", &to_f64(&rstd), &expected, |i| 1e-4 * expected[i]);
            let y_of = |i: usize| (x[i] as f64 - mean[i / cols]) * expected[i / cols];
            let expected: Vec<f64> = (0..x.len()).map(y_of).collect();
            within("y", &to_f64(&y), &expected, |_| 8.0 * 1e4 * 2f64.powi(-24)); // the mean's rounding
        }
    });
}

/// The operands of a backward pass.
struct Case<E> {
    x: Vec<E>,
    gain: Vec<E>,
    mean: Vec<f32>,
    rstd: Vec<f32>,
    d_y: Vec<E>,
    /// What the gradients of gain and bias are added to.
    before: Option<[Vec<f32>; 2]>,
}

impl<E: GpuFloat> Case<E> {
    /// d_x, d_gain, d_bias
    fn run(&self, odd: Odd) -> (Vec<E>, Vec<f32>, Vec<f32>) {
        let (gpu, rows, cols) = (gpu(), self.rstd.len(), self.gain.len());
        let (x, gain) = (Input::new(gpu, &self.x, odd.offset(0)), Input::new(gpu, &self.gain, odd.offset(1)));
        let (mean, rstd) = (Input::new(gpu, &self.mean, 1), Input::new(gpu, &self.rstd, 1));
        let d_y = Input::new(gpu, &self.d_y, odd.offset(2));
        let mut d_x = Guarded::<E>::at(gpu, rows * cols, odd.offset(3));
        let [gain_before, bias_before] = self.before.clone().unwrap_or_else(|| [poison(cols), poison(cols)]);
        let mut d_gain = Guarded::holding(gpu, &gain_before, 1);
        let mut d_bias = Guarded::holding(gpu, &bias_before, 1);
        let operands = Backward {
            x: x.view(),
            gain: gain.view(),
            mean: mean.view(),
            rstd: rstd.view(),
            d_y: d_y.view(),
            d_x: d_x.view_mut(),
            d_gain: d_gain.view_mut(),
            d_bias: d_bias.view_mut(),
        };
        backward(gpu, operands, rows, cols, self.before.is_some()).unwrap();
        (d_x.download(), d_gain.download(), d_bias.download())
    }

    fn before(&self) -> [Vec<f32>; 2] {
        self.before.clone().unwrap_or_else(|| [vec![0.0; self.gain.len()], vec![0.0; self.gain.len()]])
    }
}

/// Of d_x, d_gain and d_bias, the sums of the absolute values that are added up; x̂ itself has the terms r x and r μ.
fn terms<E: GpuFloat>(case: &Case<E>) -> [Vec<f64>; 3] {
    let (x, gain, d_y, cols) = (abs(&case.x), abs(&case.gain), abs(&case.d_y), case.gain.len());
    let (mut d_x, mut d_gain, mut d_bias) = (vec![], vec![0.0; cols], vec![0.0; cols]);
    for (row, (&mean, &rstd)) in case.mean.iter().zip(&case.rstd).enumerate() {
        let at = |c: usize| row * cols + c;
        let x_hat: Vec<f64> = (0..cols).map(|c| rstd as f64 * (x[at(c)] + mean.abs() as f64)).collect();
        let w: Vec<f64> = (0..cols).map(|c| gain[c] * d_y[at(c)]).collect();
        let mean_w = w.iter().sum::<f64>() / cols as f64;
        let along = w.iter().zip(&x_hat).map(|(w, x_hat)| w * x_hat).sum::<f64>() / cols as f64;
        d_x.extend((0..cols).map(|c| rstd as f64 * (w[c] + mean_w + x_hat[c] * along)));
        for c in 0..cols {
            d_gain[c] += x_hat[c] * d_y[at(c)];
            d_bias[c] += d_y[at(c)];
        }
    }
    let [gain_before, bias_before] = case.before();
    [d_x, plus(d_gain, Some(abs(&gain_before))), plus(d_bias, Some(abs(&bias_before)))]
}

fn check_backward<E: GpuFloat>((Rows { rows, cols, odd }, accumulate): (Rows, bool), rng: &mut ChaCha8Rng) {
    let (x, gain, d_y) = (normal::<E>(rng, rows * cols), normal::<E>(rng, cols), normal::<E>(rng, rows * cols));
    let (mean, rstd) = statistics(&to_f64(&x), cols);
    let (mean, rstd) = (mean.iter().map(|&x| x as f32).collect(), rstd.iter().map(|&x| x as f32).collect());
    let before = accumulate.then(|| [normal::<f32>(rng, cols), normal::<f32>(rng, cols)]);
    let case = Case { x, gain, mean, rstd, d_y, before };

    let shape = [rows, cols];
    let inputs = [tensor(&case.x, &shape), tensor(&case.gain, &[cols]), tensor(&vec![E::zeroed(); cols], &[cols])];
    let expected = reference(&inputs, &[tensor(&case.d_y, &shape)], |tape, v| {
        Ok(vec![ops::layer_norm(tape, &v[0], &v[1], &v[2], EPS as f64)?])
    });
    let [d_x, d_gain, d_bias] = <[Vec<f64>; 3]>::try_from(expected.gradients).unwrap();
    let [gain_before, bias_before] = case.before();
    let (found, again, terms) = (case.run(odd), case.run(odd), terms(&case));
    within_rounding("d_x", &found.0, &d_x, &terms[0]);
    within_rounding("d_gain", &found.1, &plus(d_gain, Some(to_f64(&gain_before))), &terms[1]);
    within_rounding("d_bias", &found.2, &plus(d_bias, Some(to_f64(&bias_before))), &terms[2]);
    same_bits("d_x", &found.0, &again.0);
    same_bits("d_gain", &found.1, &again.1);
    same_bits("d_bias", &found.2, &again.2);
}

#[test]
fn backward_against_f64() {
    let cases = || (rows(512, 4096, 4), any::<bool>());
    property("layer_norm backward f32", 30, cases(), check_backward::<f32>);
    property("layer_norm backward bf16", 30, cases(), check_backward::<bf16>);
}

#[test]
fn no_rows() {
    let nothing = || (vec![], vec![1.0f32; 5], vec![], vec![], vec![]);
    let case = |before| {
        let (x, gain, mean, rstd, d_y) = nothing();
        Case::<f32> { x, gain, mean, rstd, d_y, before }
    };
    assert!(run_forward::<f32>(&[], &[1.0; 5], &[0.0; 5], 0, Odd::default()).0.is_empty());
    let (_, d_gain, d_bias) = case(None).run(Odd::default());
    assert_eq!((d_gain, d_bias), (vec![0.0; 5], vec![0.0; 5]));
    let (_, d_gain, d_bias) = case(Some([vec![3.0; 5], vec![4.0; 5]])).run(Odd::default());
    assert_eq!((d_gain, d_bias), (vec![3.0; 5], vec![4.0; 5]));
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let x = gpu.upload(&[1.0f32; 12]).unwrap();
    let (mut y, mut mean, mut rstd) =
        (gpu.alloc::<f32>(12).unwrap(), gpu.alloc::<f32>(3).unwrap(), gpu.alloc::<f32>(4).unwrap());
    let mut try_forward = |x: View<f32>, gain: View<f32>, bias: View<f32>, rows, cols| {
        let operands = Forward { x, gain, bias, y: y.view_mut(), mean: mean.view_mut(), rstd: rstd.view_mut() };
        forward(gpu, operands, rows, cols, EPS).unwrap_err()
    };
    let all = x.view();
    let error = try_forward(all, all, all, 3, 5);
    assert_eq!(error, LaunchError::TooSmall { kernel: "layer_norm_forward", operand: "x", found: 12, expected: 15 });
    for (operand, gain, bias) in [("gain", all.range(0..3), all), ("bias", all, all.range(0..3))] {
        let error = try_forward(all, gain, bias, 3, 4);
        assert!(matches!(error, LaunchError::TooSmall { operand: name, .. } if name == operand), "{error}");
    }
    let error = try_forward(all, all, all, 4, 3);
    assert!(matches!(error, LaunchError::TooSmall { operand: "mean", expected: 4, .. }), "{error}");
    let error = try_forward(all, all, all, 3, 0);
    assert!(matches!(error, LaunchError::Range { what: "cols", .. }), "{error}");
    let error = try_forward(all, all, all, usize::MAX / 2, 3);
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<f32>::from_raw(all.address() + 2, 12) };
    let error = try_forward(odd, all, all, 3, 4);
    assert!(matches!(error, LaunchError::Misaligned { operand: "x", expected: 4, .. }), "{error}");
}

#[test]
fn every_short_operand_is_named() {
    let gpu = gpu();
    let names = ["x", "gain", "mean", "rstd", "d_y", "d_x", "d_gain", "d_bias"];
    for (short, name) in names.iter().enumerate() {
        let buffer = |i: usize, len: usize| gpu.zeros::<f32>(if i == short { len - 1 } else { len }).unwrap();
        let (x, gain, mean, rstd, d_y) = (buffer(0, 12), buffer(1, 4), buffer(2, 3), buffer(3, 3), buffer(4, 12));
        let (mut d_x, mut d_gain, mut d_bias) = (buffer(5, 12), buffer(6, 4), buffer(7, 4));
        let operands = Backward {
            x: x.view(),
            gain: gain.view(),
            mean: mean.view(),
            rstd: rstd.view(),
            d_y: d_y.view(),
            d_x: d_x.view_mut(),
            d_gain: d_gain.view_mut(),
            d_bias: d_bias.view_mut(),
        };
        let error = backward(gpu, operands, 3, 4, false).unwrap_err();
        assert!(matches!(error, LaunchError::TooSmall { operand, .. } if operand == *name), "{error}");
    }
}

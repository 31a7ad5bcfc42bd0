//! `kernels/softmax.cu`.

use crate::common::*;
use crate::rows::{Rows, rows, within_rounding};
use half::bf16;
use handgrad::gpu::kernels::softmax::{backward, forward};
use handgrad::gpu::{GpuFloat, LaunchError, View};
use handgrad::ops;
use rand_chacha::ChaCha8Rng;

fn run_forward<E: GpuFloat>(x: &[E], Rows { rows, cols, odd }: Rows) -> Vec<E> {
    let x = Input::new(gpu(), x, odd.offset(0));
    let mut y = Guarded::<E>::at(gpu(), rows * cols, odd.offset(1));
    forward(gpu(), x.view(), &mut y.view_mut(), rows, cols).unwrap();
    y.download()
}

fn run_backward<E: GpuFloat>(y: &[E], d_y: &[E], Rows { rows, cols, odd }: Rows) -> Vec<E> {
    let (y, d_y) = (Input::new(gpu(), y, odd.offset(0)), Input::new(gpu(), d_y, odd.offset(1)));
    let mut d_x = Guarded::<E>::at(gpu(), rows * cols, odd.offset(2));
    backward(gpu(), y.view(), d_y.view(), &mut d_x.view_mut(), rows, cols).unwrap();
    d_x.download()
}

fn check_forward<E: GpuFloat>(shape: Rows, rng: &mut ChaCha8Rng) {
    let x: Vec<E> = to_f64(&normal::<E>(rng, shape.rows * shape.cols)).iter().map(|x| round(3.0 * x)).collect();
    let inputs = [tensor(&x, &[shape.rows, shape.cols])];
    let expected = reference(&inputs, &[], |tape, v| Ok(vec![ops::softmax(tape, &v[0])?]));
    let (found, expected) = (run_forward(&x, shape), &expected.outputs[0]);
    // The exponential multiplies what its argument was rounded by.
    let terms: Vec<f64> = expected.iter().map(|y| (1.0 - y.ln() / 24.0) * y).collect();
    within_rounding("y", &found, expected, &terms);
    for (row, y) in to_f64(&found).chunks(shape.cols).enumerate() {
        let unit = if E::SUFFIX == "bf16" { 2f64.powi(-9) } else { 1e-6 };
        within(&format!("sum of row {row}"), &[y.iter().sum()], &[1.0], |_| 2.0 * unit);
    }
    same_bits("y", &found, &run_forward(&x, shape));
}

fn check_backward<E: GpuFloat>(shape: Rows, rng: &mut ChaCha8Rng) {
    let Rows { rows, cols, .. } = shape;
    let (logits, d_y) = (normal::<f32>(rng, rows * cols), normal::<E>(rng, rows * cols));
    // The gradient is a function of the rounded y.
    let soft = |x: &[f32]| -> Vec<f64> {
        let powers: Vec<f64> = x.iter().map(|&x| (x as f64).exp()).collect();
        powers.iter().map(|power| power / powers.iter().sum::<f64>()).collect()
    };
    let y: Vec<E> = logits.chunks(cols).flat_map(soft).map(round).collect();
    let (mut expected, mut terms) = (vec![], vec![]);
    for (y, d_y) in to_f64(&y).chunks(cols).zip(to_f64(&d_y).chunks(cols)) {
        let inner: f64 = y.iter().zip(d_y).map(|(y, d_y)| y * d_y).sum();
        expected.extend(y.iter().zip(d_y).map(|(y, d_y)| y * (d_y - inner)));
        let inner: f64 = y.iter().zip(d_y).map(|(y, d_y)| y * d_y.abs()).sum();
        terms.extend(y.iter().zip(d_y).map(|(y, d_y)| y * (d_y.abs() + inner)));
    }
    let found = run_backward(&y, &d_y, shape);
    within_rounding("d_x", &found, &expected, &terms);
    same_bits("d_x", &found, &run_backward(&y, &d_y, shape));
}

#[test]
fn against_f64() {
    property("softmax forward f32", 20, rows(1024, 4096, 2), check_forward::<f32>);
    property("softmax forward bf16", 20, rows(1024, 4096, 2), check_forward::<bf16>);
    property("softmax backward f32", 20, rows(1024, 4096, 3), check_backward::<f32>);
    property("softmax backward bf16", 20, rows(1024, 4096, 3), check_backward::<bf16>);
}

/// handgrad's own gradient in f64 agrees with the formula above.
#[test]
fn through_the_tape() {
    let (x, d_y) = ([0.5f32, -1.0, 2.0, 0.0, 3.0, 3.0], [1.0f32, 2.0, -1.0, 0.5, 0.0, 1.0]);
    let shape = Rows { rows: 2, cols: 3, odd: Default::default() };
    let expected =
        reference(&[tensor(&x, &[2, 3])], &[tensor(&d_y, &[2, 3])], |tape, v| Ok(vec![ops::softmax(tape, &v[0])?]));
    let found = run_backward(&run_forward(&x, shape), &d_y, shape);
    within("d_x", &to_f64(&found), &expected.gradients[0], |_| 1e-6);
}

#[test]
fn rows_of_extremes() {
    const NONE: f32 = f32::NEG_INFINITY;
    for cols in [4, 1100] {
        let row = |head: [f32; 4], rest: f32| {
            let mut row = vec![rest; cols];
            row[..4].copy_from_slice(&head);
            row
        };
        let x = [
            row([NONE; 4], NONE),
            row([10000.0, 9999.0, NONE, NONE], NONE),
            row([-10000.0, -10001.0, NONE, NONE], NONE),
            row([0.0, f32::NAN, 0.0, 0.0], 0.0),
            row([0.0, f32::INFINITY, 0.0, 0.0], 0.0),
            row([-5e4, -5e4, NONE, NONE], NONE),
        ];
        let shape = Rows { rows: x.len(), cols, odd: Default::default() };
        let y = to_f64(&run_forward(&x.concat(), shape));
        let y = |row: usize| &y[row * cols..][..cols];
        assert!(y(0).iter().all(|&y| y == 0.0), "a row of −∞ gives {:?}", &y(0)[..4]);
        within("large", &y(1)[..4], &[0.731059, 0.268941, 0.0, 0.0], |_| 1e-6);
        within("small", &y(2)[..4], &[0.731059, 0.268941, 0.0, 0.0], |_| 1e-6);
        assert!(y(3).iter().chain(&y(4)[1..2]).all(|y| y.is_nan()), "NaN and ∞ show");
        within("very negative", &y(5)[..4], &[0.5, 0.5, 0.0, 0.0], |_| 0.0);
    }
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let (x, mut y) = (gpu.upload(&[1.0f32; 12]).unwrap(), gpu.alloc::<f32>(12).unwrap());
    forward(gpu, x.range(0..0), &mut y.view_mut(), 0, 4).unwrap(); // no rows: nothing to do
    let error = forward(gpu, x.view(), &mut y.view_mut(), 4, 4).unwrap_err();
    assert_eq!(error, LaunchError::TooSmall { kernel: "softmax_forward", operand: "x", found: 12, expected: 16 });
    let error = forward(gpu, x.view(), &mut y.range_mut(0..11), 3, 4).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "y", .. }), "{error}");
    let error = forward(gpu, x.view(), &mut y.view_mut(), 3, 0).unwrap_err();
    assert!(matches!(error, LaunchError::Range { what: "cols", .. }), "{error}");
    let error = forward(gpu, x.view(), &mut y.view_mut(), usize::MAX, 2).unwrap_err();
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
    for (operand, a, b) in [("y", 11, 12), ("d_y", 12, 11)] {
        let error = backward(gpu, x.range(0..a), x.range(0..b), &mut y.view_mut(), 3, 4).unwrap_err();
        assert!(matches!(error, LaunchError::TooSmall { operand: name, .. } if name == operand), "{error}");
    }
    let error = backward(gpu, x.view(), x.view(), &mut y.range_mut(1..12), 3, 4).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "d_x", .. }), "{error}");
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<f32>::from_raw(x.view().address() + 2, 12) };
    let error = forward(gpu, odd, &mut y.view_mut(), 3, 4).unwrap_err();
    assert!(matches!(error, LaunchError::Misaligned { operand: "x", expected: 4, .. }), "{error}");
}

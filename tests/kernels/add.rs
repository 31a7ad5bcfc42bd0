//! `kernels/add.cu`.

use crate::common::*;
use crate::elementwise::{Case, cases, check, judge, offsets};
use half::bf16;
use handgrad::gpu::kernels::add;
use handgrad::gpu::{Gpu, GpuFloat, LaunchError, View, ViewMut};
use handgrad::ops;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

fn same_shape<E: GpuFloat>((n, offsets): Case, rng: &mut ChaCha8Rng) {
    let (a, b) = (normal::<E>(rng, n), normal::<E>(rng, n));
    let expected: Vec<f64> = to_f64(&a).iter().zip(to_f64(&b)).map(|(a, b)| a + b).collect();
    let naive: Vec<f64> = to_f32(&a).iter().zip(to_f32(&b)).map(|(a, b)| rounded::<E>(a + b) as f64).collect();
    check("add", [&a, &b], offsets, (&expected, &naive, 2.0), |gpu, [a, b], y| add::forward(gpu, a, b, y, n));
    let mut both = Guarded::holding(gpu(), &a, offsets[0]);
    let b = Input::new(gpu(), &b, offsets[1]);
    add::forward_in_place(gpu(), &mut both.view_mut(), b.view(), n).unwrap();
    judge("add in place", &both.download(), &expected, &naive, 2.0, 1.0);
}

type Repeated = (usize, usize, [usize; 4], bool);

fn repeated_cases() -> impl Strategy<Value = Repeated> {
    let cols = prop_oneof![edges(&[32, 128, 256]), (1usize..70).prop_map(|c| 8 * c)];
    (edges(&[8, 32, 64, 128]), cols, offsets(), any::<bool>())
}

fn repeated<E: GpuFloat>((rows, cols, offsets, accumulate): Repeated, rng: &mut ChaCha8Rng) {
    let gpu = gpu();
    let (a, b, d_y) = (normal::<E>(rng, rows * cols), normal::<E>(rng, cols), normal::<E>(rng, rows * cols));
    let shape = [rows, cols];
    let f64s = reference(&[tensor(&a, &shape), tensor(&b, &[cols])], &[tensor(&d_y, &shape)], |tape, vars| {
        Ok(vec![ops::add(tape, &vars[0], &vars[1])?])
    });
    let (a32, b32) = (to_f32(&a), to_f32(&b));
    let naive: Vec<f64> = a32.iter().enumerate().map(|(i, a)| rounded::<E>(a + b32[i % cols]) as f64).collect();
    let b = Input::new(gpu, &b, offsets[1]);
    let launch =
        |gpu: &Gpu, [a]: [View<E>; 1], y: &mut ViewMut<E>| add::repeated_forward(gpu, a, b.view(), y, rows, cols);
    check("repeated add", [&a], offsets, (&f64s.outputs[0], &naive, 2.0), launch);
    let mut both = Guarded::holding(gpu, &a, offsets[0]);
    add::repeated_forward_in_place(gpu, &mut both.view_mut(), b.view(), rows, cols).unwrap();
    judge("repeated add in place", &both.download(), &f64s.outputs[0], &naive, 2.0, 1.0);
    d_b::<E>(&d_y, &f64s.gradients[1], (rows, cols, offsets, accumulate), rng);
}

/// Column sums: c·K·u·(|A||B|) with B = 1.
fn d_b<E: GpuFloat>(d_y: &[E], sums: &[f64], (rows, cols, offsets, accumulate): Repeated, rng: &mut ChaCha8Rng) {
    let (gpu, before) = (gpu(), normal::<f32>(rng, cols));
    let d_y_gpu = Input::new(gpu, d_y, offsets[2]);
    let run = || {
        let mut d_b =
            if accumulate { Guarded::holding(gpu, &before, offsets[3]) } else { Guarded::at(gpu, cols, offsets[3]) };
        add::repeated_backward(gpu, d_y_gpu.view(), &mut d_b.view_mut(), rows, cols, accumulate).unwrap();
        d_b.download()
    };
    let found = run();
    let mut magnitude = vec![0.0; cols];
    to_f64(d_y).iter().enumerate().for_each(|(i, d)| magnitude[i % cols] += d.abs());
    let start = |c: usize| if accumulate { before[c] as f64 } else { 0.0 };
    let expected: Vec<f64> = (0..cols).map(|c| start(c) + sums[c]).collect();
    // the longest chain of additions: a thread's rows, a column's threads, a warp's chunks, the warps
    let chunk_rows = rows.div_ceil(128).max(64);
    let terms = (chunk_rows.min(rows).div_ceil(8) + 8 + rows.div_ceil(chunk_rows).div_ceil(32) + 32) as f64;
    within("d_b", &to_f64(&found), &expected, |c| (terms + 1.0) * 2f64.powi(-24) * (magnitude[c] + start(c).abs()));
    same_bits("d_b", &found, &run());
}

#[test]
fn same_shape_against_f64() {
    property("add f32", 15, cases(), same_shape::<f32>);
    property("add bf16", 15, cases(), same_shape::<bf16>);
}

#[test]
fn repeated_against_f64() {
    property("repeated add f32", 20, repeated_cases(), repeated::<f32>);
    property("repeated add bf16", 20, repeated_cases(), repeated::<bf16>);
}

/// More rows than 128 chunks of 64, so that chunks get longer; and few rows of many columns, as position tables have.
#[test]
fn many_rows_and_many_columns() {
    let draws =
        (any::<bool>(), prop_oneof![Just((128 * 64 + 9, 3)), Just((128 * 64 + 1, 8)), Just((2, 32 * 1024 + 8))]);
    property("repeated add, d_b of many", 4, draws, |(accumulate, (rows, cols)), rng| {
        let d_y = normal::<bf16>(rng, rows * cols);
        let mut sums = vec![0.0; cols];
        to_f64(&d_y).iter().enumerate().for_each(|(i, d)| sums[i % cols] += d);
        d_b::<bf16>(&d_y, &sums, (rows, cols, [0; 4], accumulate), rng);
    });
}

/// Rows that would not fit on the grid's second axis.
#[test]
fn seventy_thousand_rows() {
    let (gpu, rows) = (gpu(), 70_000);
    let data: Vec<f32> = (0..rows).map(|i| i as f32).collect();
    let (a, b, mut y) = (gpu.upload(&data).unwrap(), gpu.upload(&[0.5f32]).unwrap(), Guarded::<f32>::new(gpu, rows));
    add::repeated_forward(gpu, a.view(), b.view(), &mut y.view_mut(), rows, 1).unwrap();
    assert!(y.download().iter().zip(&data).all(|(y, x)| *y == x + 0.5));
}

#[test]
fn no_rows_give_a_gradient_of_zero() {
    let (gpu, none) = (gpu(), gpu().alloc::<bf16>(0).unwrap());
    let mut d_b = Guarded::<f32>::new(gpu, 5);
    add::repeated_backward(gpu, none.view(), &mut d_b.view_mut(), 0, 5, false).unwrap();
    assert_eq!(d_b.download(), [0.0; 5]);
    let mut d_b = Guarded::holding(gpu, &[2.0f32; 5], 0);
    add::repeated_backward(gpu, none.view(), &mut d_b.view_mut(), 0, 5, true).unwrap();
    assert_eq!(d_b.download(), [2.0; 5]);
    let mut y = Guarded::<bf16>::new(gpu, 0);
    add::repeated_forward(gpu, none.view(), none.view(), &mut y.view_mut(), 0, 5).unwrap();
    add::repeated_forward(gpu, none.view(), none.view(), &mut y.view_mut(), 5, 0).unwrap();
    add::forward(gpu, none.view(), none.view(), &mut y.view_mut(), 0).unwrap();
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let x = gpu.upload(&[1.0f32; 8]).unwrap();
    let mut y = Guarded::<f32>::new(gpu, 8);
    let error = add::repeated_forward(gpu, x.view(), x.range(0..3), &mut y.view_mut(), 2, 4).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "b", found: 3, expected: 4, .. }), "{error}");
    let error = add::repeated_forward(gpu, x.view(), x.view(), &mut y.view_mut(), 1 << 40, 1 << 40).unwrap_err();
    assert!(matches!(error, LaunchError::Overflow { operand: "a", .. }), "{error}");
    let error = add::repeated_backward(gpu, x.view(), &mut y.view_mut(), 3, 3, false).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "d_y", found: 8, expected: 9, .. }), "{error}");
    let error = add::repeated_backward(gpu, x.view(), &mut y.view_mut().range_mut(0..3), 2, 4, false).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "d_b", found: 3, expected: 4, .. }), "{error}");
    let error = add::forward_in_place(gpu, &mut y.view_mut(), x.view(), 9).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { kernel: "add_forward", .. }), "{error}");
}

//! Kernels on rows and heads, element by element: each within half a unit of the type and some f32 roundings of the terms
//! that are added up, which the budget of `ops::check`, set by the largest element, does not see. And rows of extremes.

use crate::common::*;
use handgrad::gpu::grid::Teams;
use handgrad::gpu::grid::shared::{RMS_NORM_WARP_COLS, SOFTMAX_WARP_COLS};
use handgrad::launch::{Absent, F32, In, Into, int};
use handgrad::ops;
use handgrad::{DType, Tape, Tensor, Var};
use rand_chacha::ChaCha8Rng;

const EPS: f64 = 1e-5;
/// Rows for warps and for blocks, aligned and not; more rows than the teams of a grid that sums.
const SHAPES: [[usize; 2]; 8] = [[9, 33], [8, 64], [3, 520], [5, 1032], [2, 1025], [2, 4104], [2051, 8], [259, 1031]];

fn abs(x: &Tensor) -> Vec<f64> {
    get(x).iter().map(|x| x.abs()).collect()
}

/// Columns whose sizes differ by orders of magnitude, so that a bound by the largest element would hide the small ones.
fn uneven(rng: &mut ChaCha8Rng, [rows, cols]: [usize; 2], dtype: DType) -> Tensor {
    let data = normal(rng, rows * cols);
    let size = |i: usize| 4f64.powi((i % cols % 5) as i32 - 4);
    put(&data.iter().enumerate().map(|(i, x)| x * size(i)).collect::<Vec<f64>>(), &[rows, cols], dtype)
}

/// Mean and 1/√(variance + ε) of each row, the mean taken as 0 for RMSNorm.
fn statistics(x: &[f64], cols: usize, centred: bool) -> Vec<(f64, f64)> {
    let of_row = |x: &[f64]| {
        let mean = if centred { x.iter().sum::<f64>() / cols as f64 } else { 0.0 };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / cols as f64;
        (mean, 1.0 / (variance + EPS).sqrt())
    };
    x.chunks(cols).map(of_row).collect()
}

/// Of y, d_x, d_gain and d_bias, the sums of the absolute values that are added up.
fn norm_terms(x: &Tensor, gain: &Tensor, bias: Option<&Tensor>, d_y: &Tensor) -> [Vec<f64>; 4] {
    let (statistics, cols) = (statistics(&get(x), gain.len(), bias.is_some()), gain.len());
    let (x, gain, bias, d_y) = (abs(x), abs(gain), bias.map_or(vec![0.0; cols], abs), abs(d_y));
    let (mut y, mut d_x, mut d_gain, mut d_bias) = (vec![], vec![], vec![0.0; cols], vec![0.0; cols]);
    for (row, (mean, rstd)) in statistics.into_iter().enumerate() {
        let at = |c: usize| row * cols + c;
        let x_hat: Vec<f64> = (0..cols).map(|c| rstd * (x[at(c)] + mean.abs())).collect();
        let w: Vec<f64> = (0..cols).map(|c| gain[c] * d_y[at(c)]).collect();
        let mean_w = if mean == 0.0 { 0.0 } else { w.iter().sum::<f64>() / cols as f64 };
        let along = w.iter().zip(&x_hat).map(|(w, x_hat)| w * x_hat).sum::<f64>() / cols as f64;
        y.extend((0..cols).map(|c| x_hat[c] * gain[c] + bias[c]));
        d_x.extend((0..cols).map(|c| rstd * (w[c] + mean_w + x_hat[c] * along)));
        for c in 0..cols {
            d_gain[c] += x_hat[c] * d_y[at(c)];
            d_bias[c] += d_y[at(c)];
        }
    }
    [y, d_x, d_gain, d_bias]
}

fn check(label: &str, found: &[(Tensor, Vec<f64>)], terms: &[&Vec<f64>]) {
    for (i, ((found, expected), terms)) in found.iter().zip(terms).enumerate() {
        within_rounding(&format!("{label}, tensor {i}"), found, expected, terms);
    }
}

#[test]
fn norms_element_by_element() {
    let mut rng = rng();
    for (shape @ [rows, cols], dtype) in SHAPES.into_iter().flat_map(|shape| BOTH.map(|dtype| (shape, dtype))) {
        let (x, d_y) = (uneven(&mut rng, shape, dtype), draw(&mut rng, &shape, dtype));
        let (gain, bias) = (draw(&mut rng, &[cols], dtype), draw(&mut rng, &[cols], dtype));
        let label = format!("[{rows},{cols}] {dtype}");
        let rms = |t: &mut Tape, x: &[Var]| Ok(vec![ops::rms_norm(t, &x[0], &x[1], EPS)?]);
        let [y, gradients] = against_f64(&[&x, &gain], &[&d_y], &rms);
        let terms = norm_terms(&x, &gain, None, &d_y);
        check(&format!("rms_norm {label}"), &y, &[&terms[0]]);
        check(&format!("rms_norm backward {label}"), &gradients, &[&terms[1], &terms[2]]);

        let shifted: Vec<f64> = get(&x).iter().map(|x| x - 3.0).collect();
        let x = put(&shifted, &shape, dtype);
        let layer = |t: &mut Tape, x: &[Var]| Ok(vec![ops::layer_norm(t, &x[0], &x[1], &x[2], EPS)?]);
        let [y, gradients] = against_f64(&[&x, &gain, &bias], &[&d_y], &layer);
        let terms = norm_terms(&x, &gain, Some(&bias), &d_y);
        check(&format!("layer_norm {label}"), &y, &[&terms[0]]);
        check(&format!("layer_norm backward {label}"), &gradients, &[&terms[1], &terms[2], &terms[3]]);
    }
}

/// h is the rounded sum, bit for bit; y and the gradients are those of the norm of h, with d_h added.
#[test]
fn the_sum_with_a_residual() {
    let mut rng = rng();
    for (shape @ [rows, cols], dtype) in SHAPES.into_iter().flat_map(|shape| BOTH.map(|dtype| (shape, dtype))) {
        let (x, residual) = (uneven(&mut rng, shape, dtype), draw(&mut rng, &shape, dtype));
        let gain = draw(&mut rng, &[cols], dtype);
        let both = forward(&[&x, &residual, &gain], &|t, x| {
            let (h, y) = ops::rms_norm_residual(t, &x[0], &x[1], &x[2], EPS)?;
            Ok(vec![h, y])
        });
        let sum = |(x, residual): (&f64, &f64)| f64::from(*x as f32 + *residual as f32);
        let sums: Vec<f64> = get(&x).iter().zip(&get(&residual)).map(sum).collect();
        assert_eq!(get(&both[0]), rounded(&sums, dtype), "h is the rounded sum");
        let alone = forward(&[&both[0], &gain], &|t, x| Ok(vec![ops::rms_norm(t, &x[0], &x[1], EPS)?]));
        let terms: Vec<f64> = get(&alone[0]).iter().map(|y| y.abs()).collect();
        let exact = forward(&[&exact(&both[0]), &exact(&gain)], &|t, x| Ok(vec![ops::rms_norm(t, &x[0], &x[1], EPS)?]));
        within_rounding(&format!("[{rows},{cols}]"), &both[1], &get(&exact[0]), &terms);
    }
}

#[test]
fn softmax_element_by_element() {
    let mut rng = rng();
    for (shape @ [rows, cols], dtype) in SHAPES.into_iter().flat_map(|shape| BOTH.map(|dtype| (shape, dtype))) {
        let wide: Vec<f64> = normal(&mut rng, rows * cols).iter().map(|x| 3.0 * x).collect();
        let (x, d_y) = (put(&wide, &shape, dtype), draw(&mut rng, &shape, dtype));
        let softmax = |t: &mut Tape, x: &[Var]| Ok(vec![ops::softmax(t, &x[0])?]);
        let (found, gradient) = both_ways(&[&x], &[&d_y], &softmax);
        let expected = get(&forward(&[&exact(&x)], &softmax)[0]);
        // The exponential multiplies what its argument was rounded by.
        let terms: Vec<f64> = expected.iter().map(|y| (1.0 - y.ln() / 24.0) * y).collect();
        within_rounding("softmax", &found[0], &expected, &terms);
        for (row, y) in get(&found[0]).chunks(cols).enumerate() {
            let rounding = if dtype == DType::Bf16 { 2f64.powi(-9) } else { 1e-6 };
            within(&format!("sum of row {row}"), &[y.iter().sum()], &[1.0], |_| 2.0 * rounding);
        }
        // The gradient is a function of the rounded y.
        let (mut expected, mut terms) = (vec![], vec![]);
        for (y, d_y) in get(&found[0]).chunks(cols).zip(get(&d_y).chunks(cols)) {
            let inner: f64 = y.iter().zip(d_y).map(|(y, d_y)| y * d_y).sum();
            expected.extend(y.iter().zip(d_y).map(|(y, d_y)| y * (d_y - inner)));
            let inner: f64 = y.iter().zip(d_y).map(|(y, d_y)| y * d_y.abs()).sum();
            terms.extend(y.iter().zip(d_y).map(|(y, d_y)| y * (d_y.abs() + inner)));
        }
        within_rounding("softmax backward", &gradient[0], &expected, &terms);
    }
}

/// |x| of both channels of the pair: what a rotation adds up.
fn pair_terms(x: &[f64]) -> Vec<f64> {
    x.chunks(2).flat_map(|pair| [pair[0].abs() + pair[1].abs(); 2]).collect()
}

#[test]
fn rotations_element_by_element() {
    let mut rng = rng();
    for ([b, t, h, d], start) in
        [([2, 9, 3, 64], 2), ([1, 17, 2, 128], 0), ([1, 5, 2, 130], 1), ([3, 4, 1, 6], 5), ([1, 300, 60, 8], 3)]
    {
        for dtype in BOTH {
            let table = ops::RopeTable::new(d, start + t, 10_000.0).unwrap();
            let rows = uneven(&mut rng, [b * t * h, d], dtype);
            let x = rows.reshape(&[b, t, h, d]).unwrap();
            let (gain, d_y) = (draw(&mut rng, &[d], dtype), draw(&mut rng, &[b, t, h, d], dtype));
            let rope = |tape: &mut Tape, x: &[Var]| Ok(vec![ops::rope(tape, &x[0], &table, start)?]);
            let [y, d_x] = against_f64(&[&x], &[&d_y], &rope);
            check("rope", &y, &[&pair_terms(&get(&x))]);
            check("rope backward", &d_x, &[&pair_terms(&get(&d_y))]);

            let both =
                |tape: &mut Tape, x: &[Var]| Ok(vec![ops::qk_norm_rope(tape, &x[0], &x[1], EPS, &table, start)?]);
            let [y, gradients] = against_f64(&[&x, &gain], &[&d_y], &both);
            let back = put(&pair_terms(&get(&d_y)), &[b * t * h, d], DType::F32);
            let [n, d_x, d_gain, _] = norm_terms(&rows, &gain, None, &back);
            check("qk_norm_rope", &y, &[&pair_terms(&n)]);
            check("qk_norm_rope backward", &gradients, &[&d_x, &d_gain]);
        }
    }
}

/// Norm first, then rotation: with a gain, the other order gives other values. And a rotation by 1000 and by 1.
#[test]
fn known_rotations() {
    let table = ops::RopeTable::new(2, 2, 10_000.0).unwrap();
    let (x, gain) = (put(&[3.0, 4.0], &[1, 1, 1, 2], DType::F32), put(&[1.0, 2.0], &[2], DType::F32));
    let y = forward(&[&x, &gain], &|t, x| Ok(vec![ops::qk_norm_rope(t, &x[0], &x[1], 0.0, &table, 1)?]));
    within("y", &get(&y[0]), &[-1.445570, 1.936576], |_| 2e-6);
    let table = ops::RopeTable::new(4, 1001, 1e6).unwrap(); // position 1000: pair 0 turns by 1000, pair 1 by 1
    let x = put(&[0.0, 0.0, 1.0, 0.0], &[1, 1, 1, 4], DType::F32);
    let y = forward(&[&x], &|t, x| Ok(vec![ops::rope(t, &x[0], &table, 1000)?]));
    within("y", &get(&y[0]), &[0.0, 0.0, 0.540302, 0.841471], |_| 1e-6);
}

/// Mean 10,000 and deviation 1: E[x²] − E[x]² would keep nothing of the variance.
#[test]
fn a_large_mean_does_not_cancel() {
    let mut rng = rng();
    for cols in [16, 511, 512, 513, 1023, 1024, 1025] {
        let x: Vec<f64> = normal(&mut rng, 2 * cols).iter().map(|x| x + 1e4).collect();
        let x = put(&x, &[2, cols], DType::F32);
        let (gain, bias) = (put(&vec![1.0; cols], &[cols], DType::F32), put(&vec![0.0; cols], &[cols], DType::F32));
        let y = forward(&[&x, &gain, &bias], &|t, x| Ok(vec![ops::layer_norm(t, &x[0], &x[1], &x[2], EPS)?]));
        let (x, statistics) = (get(&x), statistics(&get(&x), cols, true));
        let y_of = |i: usize| (x[i] - statistics[i / cols].0) * statistics[i / cols].1;
        let expected: Vec<f64> = (0..x.len()).map(y_of).collect();
        within("y", &get(&y[0]), &expected, |_| 8.0 * 1e4 * 2f64.powi(-24)); // the mean's rounding
    }
}

fn rms_norm(x: &[f64], cols: usize, dtype: DType) -> Vec<f64> {
    let (x, gain) = (put(x, &[x.len() / cols, cols], dtype), put(&vec![1.0; cols], &[cols], dtype));
    get(&forward(&[&x, &gain], &|t, x| Ok(vec![ops::rms_norm(t, &x[0], &x[1], EPS)?]))[0])
}

#[test]
fn precision_of_small_and_large_rows() {
    // The square of 3e18 is close to the largest f32.
    within("large", &rms_norm(&[3e18, -3e18], 2, DType::Bf16), &[1.0, -1.0], |_| 1e-6);
    // ε stands under the root: 1e-3 / √(1e-6 + 1e-5) = 0.30151
    within("small", &rms_norm(&[1e-3; 4], 4, DType::Bf16), &[0.30151; 4], |_| 1e-3);
    within("zeros", &rms_norm(&[0.0; 4], 4, DType::Bf16), &[0.0; 4], |_| 0.0);
}

#[test]
fn nan_stays_in_its_row() {
    let mut x = vec![1.0; 3 * 1100];
    x[1100 + 7] = f64::NAN;
    for cols in [1100, 110] {
        let broken = (1100 + 7) / cols;
        for (row, y) in rms_norm(&x, cols, DType::F32).chunks(cols).enumerate() {
            assert!(y.iter().all(|y| y.is_nan() == (row == broken)), "row {row} of {cols} columns");
        }
    }
}

#[test]
fn more_rows_than_a_short_grid_axis_has() {
    let rows = 65_535 + 9;
    let x: Vec<f64> = (0..rows * 2).map(|i| (i % 200) as f64 + 1.0).collect();
    let (y, x) = (rms_norm(&x, 2, DType::Bf16), rounded(&x, DType::Bf16));
    for row in [0, 1, 65_534, 65_535, rows - 1] {
        let x = &x[2 * row..][..2];
        let rstd = statistics(x, 2, false)[0].1;
        within("y", &y[2 * row..][..2], &[rstd * x[0], rstd * x[1]], |_| 0.01);
    }
}

#[test]
fn rows_of_extremes() {
    const NONE: f64 = f64::NEG_INFINITY;
    for cols in [4, 1100] {
        let row = |head: [f64; 4], rest: f64| [&head[..], &vec![rest; cols - 4]].concat();
        let x = [
            row([NONE; 4], NONE),
            row([10000.0, 9999.0, NONE, NONE], NONE),
            row([-10000.0, -10001.0, NONE, NONE], NONE),
            row([0.0, f64::NAN, 0.0, 0.0], 0.0),
            row([0.0, f64::INFINITY, 0.0, 0.0], 0.0),
            row([-5e4, -5e4, NONE, NONE], NONE),
        ];
        let x = put(&x.concat(), &[6, cols], DType::F32);
        let y = get(&forward(&[&x], &|t, x| Ok(vec![ops::softmax(t, &x[0])?]))[0]);
        let y = |row: usize| &y[row * cols..][..cols];
        assert!(y(0).iter().all(|&y| y == 0.0), "a row of −∞ gives {:?}", &y(0)[..4]);
        within("large", &y(1)[..4], &[0.731059, 0.268941, 0.0, 0.0], |_| 1e-6);
        within("small", &y(2)[..4], &[0.731059, 0.268941, 0.0, 0.0], |_| 1e-6);
        assert!(y(3).iter().chain(&y(4)[1..2]).all(|y| y.is_nan()), "NaN and ∞ show");
        within("very negative", &y(5)[..4], &[0.5, 0.5, 0.0, 0.0], |_| 0.0);
    }
}

/// No rows: the gradients of gain and bias are 0.
#[test]
fn no_rows() {
    for dtype in BOTH {
        let (x, gain) = (put(&[], &[0, 5], dtype), put(&[1.0; 5], &[5], dtype));
        let rms = |t: &mut Tape, x: &[Var]| Ok(vec![ops::rms_norm(t, &x[0], &x[1], EPS)?]);
        assert_eq!(get(&both_ways(&[&x, &gain], &[&x], &rms).1[1]), [0.0; 5]);
        let layer = |t: &mut Tape, x: &[Var]| Ok(vec![ops::layer_norm(t, &x[0], &x[1], &x[2], EPS)?]);
        let (_, gradients) = both_ways(&[&x, &gain, &gain], &[&x], &layer);
        assert_eq!((get(&gradients[1]), get(&gradients[2])), (vec![0.0; 5], vec![0.0; 5]));
        assert!(get(&forward(&[&x], &|t, x| Ok(vec![ops::softmax(t, &x[0])?]))[0]).is_empty());
        let (heads, gain) = (put(&[], &[2, 0, 3, 4], dtype), put(&[1.0; 4], &[4], dtype));
        let table = ops::RopeTable::new(4, 9, 10_000.0).unwrap();
        let both = |t: &mut Tape, x: &[Var]| Ok(vec![ops::qk_norm_rope(t, &x[0], &x[1], EPS, &table, 1)?]);
        assert_eq!(get(&both_ways(&[&heads, &gain], &[&heads], &both).1[1]), [0.0; 4]);
        let rope = |t: &mut Tape, x: &[Var]| Ok(vec![ops::rope(t, &x[0], &table, 1)?]);
        assert!(get(&both_ways(&[&heads], &[&heads], &rope).1[0]).is_empty());
    }
}

/// Kernels that write rows stay in their memory, and write all of it.
#[test]
fn rows_stay_in_their_memory() {
    let mut rng = rng();
    for (shape @ [rows, cols], dtype) in SHAPES.into_iter().flat_map(|shape| BOTH.map(|dtype| (shape, dtype))) {
        let (x, gain) = (draw(&mut rng, &shape, dtype), draw(&mut rng, &[cols], dtype));
        let grid = |warp_cols: usize| Teams::new(rows, cols, dtype.size(), warp_cols).grid();
        let (y, h, rstd) =
            (Guarded::new(&shape, dtype), Guarded::new(&shape, dtype), Guarded::new(&[rows], DType::F32));
        let tensors = [In(&x), In(&x), In(&gain), Into(&h.window), Into(&y.window), Into(&rstd.window)];
        let args = [&tensors[..], &[int(rows), int(cols), F32(EPS as f32)]].concat();
        gpu().launch("rms_norm_forward", &grid(RMS_NORM_WARP_COLS), &args).unwrap();
        let expected = forward(&[&x, &x, &gain], &|t, x| {
            let (h, y) = ops::rms_norm_residual(t, &x[0], &x[1], &x[2], f64::from(EPS as f32))?;
            Ok(vec![h, y])
        });
        assert_eq!((h.get(), y.get()), (get(&expected[0]), get(&expected[1])));
        assert!(rstd.get().iter().all(|r| r.is_finite()));

        let y = Guarded::new(&shape, dtype);
        let args = [In(&x), Into(&y.window), int(rows), int(cols)];
        gpu().launch("softmax_forward", &grid(SOFTMAX_WARP_COLS), &args).unwrap();
        assert_eq!(y.get(), get(&forward(&[&x], &|t, x| Ok(vec![ops::softmax(t, &x[0])?]))[0]));
        let (alone, rstd) = (Guarded::new(&shape, dtype), Guarded::new(&[rows], DType::F32));
        let tensors = [In(&x), Absent, In(&gain), Absent, Into(&alone.window), Into(&rstd.window)];
        let args = [&tensors[..], &[int(rows), int(cols), F32(EPS as f32)]].concat();
        gpu().launch("rms_norm_forward", &grid(RMS_NORM_WARP_COLS), &args).unwrap();
        assert!(alone.get().iter().chain(&rstd.get()).all(|x| x.is_finite()));
    }
}

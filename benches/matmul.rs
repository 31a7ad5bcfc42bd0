//! The f32 matrix product against the `matrixmultiply` crate, on one thread, in turn within one process.
//!
//!     cargo bench --bench matmul
//!
//! Machines are noisy, so what counts is the ratio: how many times as fast as the peer, as the median over pairs of runs.

use handgrad::cpu::gemm::{MatRef, gemm_serial};
use std::time::{Duration, Instant};

const PAIRS: usize = 15;
/// Long enough for the clock, short enough for both sides to meet the same weather.
const RUN: Duration = Duration::from_millis(20);

/// M, N, K and whether A or B is stored transposed: what a training step of `chapter8` computes, and some larger ones.
const SHAPES: [(usize, usize, usize, bool, bool); 10] = [
    (768, 128, 128, false, true),
    (768, 352, 128, false, true),
    (768, 128, 352, false, true),
    (768, 128, 128, false, false),
    (768, 352, 128, false, false),
    (128, 352, 768, true, false),
    (352, 128, 768, true, false),
    (64, 64, 32, false, true),
    (768, 768, 768, false, true),
    (1, 2048, 768, false, true),
];

fn main() {
    println!("{:>24}  {:>8}  {:>8}  {:>6}", "M x N x K", "GFLOP/s", "peer", "ratio");
    for (m, n, k, a_transposed, b_transposed) in SHAPES {
        let (a, b) = (vec![0.5; m * k], vec![0.25; k * n]);
        let mut c = vec![0.0; m * n];
        let (a_row, a_col) = if a_transposed { (1, m) } else { (k, 1) };
        let (b_row, b_col) = if b_transposed { (1, k) } else { (n, 1) };
        let mut pairs: Vec<(f64, f64)> = (0..PAIRS)
            .map(|_| {
                let ours = seconds(|| {
                    let a = MatRef { data: &a, row_stride: a_row, col_stride: a_col };
                    let b = MatRef { data: &b, row_stride: b_row, col_stride: b_col };
                    gemm_serial(m, n, k, a, b, &mut c, n, false);
                });
                let peer = seconds(|| peer(m, n, k, &a, (a_row, a_col), &b, (b_row, b_col), &mut c));
                (ours, peer)
            })
            .collect();
        pairs.sort_by(|x, y| (x.1 / x.0).total_cmp(&(y.1 / y.0)));
        let (ours, peer) = pairs[PAIRS / 2];
        let gflops = |seconds: f64| 2.0 * (m * n * k) as f64 / seconds / 1e9;
        let layout = format!("{}{}", if a_transposed { 'T' } else { 'N' }, if b_transposed { 'T' } else { 'N' });
        let shape = format!("{m} x {n} x {k} {layout}");
        println!("{shape:>24}  {:>8.1}  {:>8.1}  {:>6.2}", gflops(ours), gflops(peer), peer / ours);
    }
}

/// Seconds of one call, over as many as fill a run.
fn seconds(mut call: impl FnMut()) -> f64 {
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < RUN {
        call();
        calls += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(calls)
}

#[allow(clippy::too_many_arguments, reason = "the usual signature of a GEMM")]
fn peer(
    m: usize,
    n: usize,
    k: usize,
    a: &[f32],
    (a_row, a_col): (usize, usize),
    b: &[f32],
    (b_row, b_col): (usize, usize),
    c: &mut [f32],
) {
    let stride = |s: usize| s as isize;
    // SAFETY: a, b and c hold M·K, K·N and M·N numbers, and the strides are those of whole matrices of these sizes.
    unsafe {
        matrixmultiply::sgemm(
            m,
            k,
            n,
            1.0,
            a.as_ptr(),
            stride(a_row),
            stride(a_col),
            b.as_ptr(),
            stride(b_row),
            stride(b_col),
            0.0,
            c.as_mut_ptr(),
            stride(n),
            1,
        );
    }
}

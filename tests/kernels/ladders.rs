//! The teaching ladders, `kernels/matmul/` and `kernels/attention/`: every rung computes the same.

#[path = "../ladders/rungs.rs"]
mod rungs;

use crate::common::*;
use handgrad::ops::cases::plain;
use handgrad::ops::{self, Layout};
use handgrad::{DType, Tape, Tensor, Var};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rungs::{ATTENTION, AttentionRung, HEAD_DIM, MATMUL, MatmulRung, attention, matmul};

fn product(a: &Tensor, b: &Tensor) -> Vec<f64> {
    get(&forward(&[a, b], &|t, x| Ok(vec![ops::matmul(t, &x[0], &x[1], Layout::NN)?]))[0])
}

/// One rounding for each of K multiply-adds of a chain, and half a unit of a bf16 output.
fn check_matmul(rung: &MatmulRung, [m, n, k]: [usize; 3], rng: &mut ChaCha8Rng) {
    let (a, b) = (draw(rng, &[m, k], rung.dtype), draw(rng, &[k, n], rung.dtype));
    let run = || {
        let c = put(&vec![f64::NAN; m * n], &[m, n], rung.dtype);
        matmul(gpu(), rung, &a, &b, &c).unwrap();
        c
    };
    let found = run();
    same_bits(rung.kernel, &found, &run());
    let absolute = |x: &Tensor| Tensor::from_vec(get(x).iter().map(|x| x.abs()).collect(), x.shape()).unwrap();
    let (expected, sizes) = (product(&exact(&a), &exact(&b)), product(&absolute(&a), &absolute(&b)));
    let store = if rung.dtype == DType::Bf16 { 1.01 * unit(rung.dtype) } else { 0.0 };
    let sum = 1.01 * k as f64 * 2f64.powi(-24);
    within(rung.kernel, &get(&found), &expected, |i| sum * sizes[i] + store * expected[i].abs() + 1e-38);
}

#[test]
fn products() {
    let mut rng = rng();
    for rung in &MATMUL {
        for (m, n, k) in [
            (1, 1usize, 1usize),
            (7, 9, 3),
            (8, 8, 4),
            (9, 31, 5),
            (31, 33, 7),
            (33, 32, 33),
            (127, 129, 8),
            (128, 128, 32),
            (129, 127, 9),
            (3, 260, 36),
        ] {
            let [n, k] = if rung.dtype == DType::Bf16 { [n, k].map(|x| x.next_multiple_of(8)) } else { [n, k] };
            check_matmul(rung, [m, n, k], &mut rng);
        }
        for rest in (1..=4).filter(|_| rung.dtype == DType::F32) {
            check_matmul(rung, [3, 4 + rest, 9 - rest], &mut rng); // every rest of a vector of 4
        }
        let (m, n, k) = (rng.random_range(1..150), rng.random_range(1..18), rng.random_range(1..14));
        check_matmul(rung, [m, 8 * n, 8 * k], &mut rng);
    }
}

/// For each row of q the most that f32 may be wrong in one of its scores: each of D multiply-adds, the scaling and the
/// subtraction of the maximum round once.
fn score_errors(q: &[f64], k: &[f64], [_, tokens, heads, d]: [usize; 4]) -> Vec<f64> {
    let row = |n: usize| {
        let (first, i, h) = (n / heads / tokens * tokens, n / heads % tokens, n % heads);
        let key = |j: usize| &k[((first + j) * heads + h) * d..][..d];
        let size = |j: usize| q[n * d..][..d].iter().zip(key(j)).map(|(q, k)| (q * k).abs()).sum::<f64>();
        (0..=i).map(size).fold(0.0, f64::max) * (d + 8) as f64 * 2f64.powi(-24) / (d as f64).sqrt()
    };
    (0..q.len() / d).map(row).collect()
}

fn check_attention(rung: &AttentionRung, shape: [usize; 4], scale: f64, rng: &mut ChaCha8Rng) {
    let (name, len) = (rung.steps[0].kernel, shape.iter().product());
    let sharp: Vec<f64> = normal(rng, len).iter().map(|x| scale * x).collect();
    let x = [put(&sharp, &shape, rung.dtype), draw(rng, &shape, rung.dtype), draw(rng, &shape, rung.dtype)];
    let run = || {
        let out = put(&vec![f64::NAN; len], &shape, rung.dtype);
        attention(gpu(), rung, x.each_ref(), &out).unwrap();
        out
    };
    let found = run();
    same_bits(name, &found, &run());
    let causal = |t: &mut Tape, x: &[Var]| Ok(vec![ops::attention(t, &x[0], &x[1], &x[2], true)?]);
    let [q, k, v] = x.each_ref().map(exact);
    let expected = get(&forward(&[&q, &k, &v], &causal)[0]);
    if rung.dtype == DType::F32 {
        // Where scores are large, one f32 evaluation says little of another's error: a bound instead.
        let sizes = Tensor::from_vec(get(&v).iter().map(|x| x.abs()).collect(), &shape).unwrap();
        let mixed = get(&forward(&[&q, &k, &sizes], &causal)[0]);
        let (scores, sums) = (score_errors(&get(&q), &get(&k), shape), (2 * shape[1] + 20) as f64 * 2f64.powi(-24));
        within(name, &get(&found), &expected, |i| mixed[i] * (4.0 * scores[i / HEAD_DIM] + sums) + 1e-38);
    } else {
        let [q, k, v] = [q, k, v].map(|x| x.to_dtype(DType::F32).unwrap());
        let naive = forward(&[&q, &k, &v], &|t, x| Ok(vec![plain::attention(t, &x[0], &x[1], &x[2], true)?]));
        within_budget(name, &get(&found), &expected, &get(&naive[0]), 2.0);
    }
}

/// Scores near each other, and one above all others.
#[test]
fn attentions() {
    let mut rng = rng();
    for rung in &ATTENTION {
        for (i, (batch, tokens, heads)) in
            [(1, 1, 1), (2, 31, 2), (1, 32, 3), (1, 33, 1), (1, 63, 2), (2, 65, 1), (1, 128, 2), (1, 129, 1)]
                .into_iter()
                .enumerate()
        {
            check_attention(rung, [batch, tokens, heads, HEAD_DIM], [1.0, 30.0][i % 2], &mut rng);
            check_attention(rung, [batch, tokens, heads, HEAD_DIM], [30.0, 1.0][i % 2], &mut rng);
        }
    }
}

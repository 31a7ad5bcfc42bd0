//! The teaching ladders, `kernels/matmul/` and `kernels/attention/`: every rung computes the same.

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::ladder::{ATTENTION, AttentionRung, HEAD_DIM, MATMUL, MatmulRung, attention, matmul};
use handgrad::gpu::{GpuFloat, LaunchError, View};
use handgrad::ops;
use handgrad::ops::matmul::Layout;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

fn check_matmul<E: GpuFloat>(rung: &MatmulRung, [m, n, k]: [usize; 3], offsets: [usize; 3], rng: &mut ChaCha8Rng) {
    let (gpu, name) = (gpu(), rung.kernel.name);
    let (a, b) = (normal::<E>(rng, m * k), normal::<E>(rng, k * n));
    let product = |a: &[E], b: &[E]| {
        let operands = [tensor(a, &[m, k]), tensor(b, &[k, n])];
        let found = reference(&operands, &[], |tape, x| Ok(vec![ops::matmul(tape, &x[0], &x[1], Layout::NN)?]));
        found.outputs.into_iter().next().unwrap()
    };
    let expected = product(&a, &b);
    let (a_device, b_device) = (Input::new(gpu, &a, offsets[0]), Input::new(gpu, &b, offsets[1]));
    let run = || {
        let mut c = Guarded::<E>::at(gpu, m * n, offsets[2]);
        matmul(gpu, rung, a_device.view(), b_device.view(), &mut c.view_mut(), [m, n, k]).unwrap();
        c.download()
    };
    let found = run();
    same_bits(name, &found, &run());
    if E::SUFFIX == "f32" {
        // One rounding for each of k multiply-adds of a chain.
        let magnitudes = |x: &[E]| to_f64(x).into_iter().map(|x| round(x.abs())).collect::<Vec<E>>();
        let bound = product(&magnitudes(&a), &magnitudes(&b));
        let unit = 1.01 * k as f64 * 2f64.powi(-24);
        within(name, &to_f64(&found), &expected, |i| unit * bound[i] + 1e-38);
    } else {
        let (a, b) = (to_f32(&a), to_f32(&b));
        let sum = |i: usize| (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum::<f32>();
        let naive: Vec<f64> = (0..m * n).map(|i| rounded::<E>(sum(i)) as f64).collect();
        within_budget(name, &found, &expected, &naive, 2.0);
    }
}

#[test]
fn products_in_f32() {
    let lengths = || edges(&[8, 32, 128]);
    for rung in MATMUL.iter().filter(|rung| rung.dtype == "f32") {
        let shapes = (lengths(), lengths(), edges(&[4, 8, 32]), [0usize..3, 0usize..3, 0usize..3]);
        property(rung.kernel.name, 8, shapes, |(m, n, k, offsets), rng| {
            check_matmul::<f32>(rung, [m, n, k], offsets, rng);
        });
        property(rung.kernel.name, 2, (lengths(), 1usize..20, 1usize..20), |(m, n, k), rng| {
            check_matmul::<f32>(rung, [m, 4 * n, 4 * k], [0; 3], rng); // rows that begin at multiples of 16 bytes
            for rest in 1..=4 {
                check_matmul::<f32>(rung, [3, 4 + rest, 9 - rest], [0; 3], rng); // every rest of a vector of 4
            }
        });
    }
}

#[test]
fn products_in_bf16() {
    for rung in MATMUL.iter().filter(|rung| rung.dtype == "bf16") {
        let shapes = (edges(&[16, 64, 128]), edges(&[1, 4, 16]), edges(&[2, 4, 12]));
        property(rung.kernel.name, 10, shapes, |(m, n, k), rng| {
            check_matmul::<bf16>(rung, [m, 8 * n, 8 * k], [0; 3], rng);
        });
    }
}

/// Attention with every intermediate tensor rounded to the type: scores, probabilities, output.
fn naive_attention<E: GpuFloat>([q, k, v]: [Vec<f32>; 3], [batch, tokens, heads, d]: [usize; 4]) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    for row in 0..batch * tokens * heads {
        let (b, i, h) = (row / heads / tokens, row / heads % tokens, row % heads);
        let at = |token: usize| ((b * tokens + token) * heads + h) * d;
        let dot = |j: usize| (0..d).map(|c| q[at(i) + c] * k[at(j) + c]).sum::<f32>();
        let scores: Vec<f32> = (0..=i).map(|j| rounded::<E>(dot(j) / (d as f32).sqrt())).collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
        for c in 0..d {
            let mixed = |j: usize| rounded::<E>((scores[j] - max).exp() / sum) * v[at(j) + c];
            out[at(i) + c] = rounded::<E>((0..=i).map(mixed).sum()) as f64;
        }
    }
    out
}

fn check_attention<E: GpuFloat>(rung: &AttentionRung, shape: [usize; 4], scale: f64, rng: &mut ChaCha8Rng) {
    let (gpu, name, len) = (gpu(), rung.steps[0].kernel.name, shape.iter().product());
    let scaled: Vec<E> = to_f64(&normal::<E>(rng, len)).into_iter().map(|x| round(x * scale)).collect();
    let inputs = [scaled, normal::<E>(rng, len), normal::<E>(rng, len)];
    let exact = |[q, k, v]: [&[E]; 3]| {
        let tensors = [q, k, v].map(|x| tensor(x, &shape));
        let found = reference(&tensors, &[], |tape, x| Ok(vec![ops::attention(tape, &x[0], &x[1], &x[2], true)?]));
        found.outputs.into_iter().next().unwrap()
    };
    let [q, k, v] = inputs.each_ref().map(|x| &x[..]);
    let expected = exact([q, k, v]);

    let device = inputs.each_ref().map(|x| gpu.upload(x).unwrap());
    let run = || {
        let mut out = Guarded::<E>::new(gpu, len);
        attention(gpu, rung, device.each_ref().map(|x| x.view()), &mut out.view_mut(), shape).unwrap();
        out.download()
    };
    let found = run();
    same_bits(name, &found, &run());
    if E::SUFFIX == "f32" {
        // Where scores are large, one f32 evaluation says little of another's error: a bound instead.
        let magnitudes: Vec<E> = to_f64(v).into_iter().map(|x| round(x.abs())).collect();
        let (mixed, scores) = (exact([q, k, &magnitudes]), score_errors(to_f64(q), to_f64(k), shape));
        let sums = (2 * shape[1] + 20) as f64 * 2f64.powi(-24);
        within(name, &to_f64(&found), &expected, |i| mixed[i] * (4.0 * scores[i / HEAD_DIM] + sums) + 1e-38);
    } else {
        let naive = naive_attention::<E>([q, k, v].map(to_f32), shape);
        within_budget(name, &found, &expected, &naive, 2.0);
    }
}

/// For each row of q the most that f32 may be wrong in one of its scores: each of D multiply-adds, the scaling and the
/// subtraction of the maximum round once.
fn score_errors(q: Vec<f64>, k: Vec<f64>, [_, tokens, heads, d]: [usize; 4]) -> Vec<f64> {
    let row = |n: usize| {
        let (first, i, h) = (n / heads / tokens * tokens, n / heads % tokens, n % heads);
        let key = |j: usize| &k[((first + j) * heads + h) * d..][..d];
        let size = |j: usize| q[n * d..][..d].iter().zip(key(j)).map(|(q, k)| (q * k).abs()).sum::<f64>();
        (0..=i).map(size).fold(0.0, f64::max) * (d + 8) as f64 * 2f64.powi(-24) / (d as f64).sqrt()
    };
    (0..q.len() / d).map(row).collect()
}

#[test]
fn attentions() {
    for rung in &ATTENTION {
        let scales = prop_oneof![Just(1.0), Just(30.0)]; // scores near each other, and one above all others
        let shapes = (1usize..3, edges(&[32, 64, 128]), 1usize..4, scales);
        property(rung.steps[0].kernel.name, 6, shapes, |(batch, tokens, heads, scale), rng| match rung.dtype {
            "f32" => check_attention::<f32>(rung, [batch, tokens, heads, HEAD_DIM], scale, rng),
            _ => check_attention::<bf16>(rung, [batch, tokens, heads, HEAD_DIM], scale, rng),
        });
    }
}

#[test]
fn empty_shapes() {
    fn run<E: GpuFloat>(rung: &MatmulRung) {
        let gpu = gpu();
        let (none, some) = (gpu.alloc::<E>(0).unwrap(), gpu.upload(&[round::<E>(1.0); 64]).unwrap());
        let mut c = Guarded::<E>::new(gpu, 64);
        matmul(gpu, rung, none.view(), some.view(), &mut c.view_mut(), [0, 8, 8]).unwrap();
        same_bits("no rows", &c.download(), &poison(64));
        matmul(gpu, rung, none.view(), none.view(), &mut c.view_mut(), [8, 8, 0]).unwrap();
        same_bits("an empty sum", &c.download(), &[round::<E>(0.0); 64]);
    }
    for rung in &MATMUL {
        if rung.dtype == "f32" { run::<f32>(rung) } else { run::<bf16>(rung) }
    }
    let none = gpu().alloc::<f32>(0).unwrap();
    let mut out = Guarded::<f32>::new(gpu(), 0);
    attention(gpu(), &ATTENTION[0], [none.view(); 3], &mut out.view_mut(), [1, 0, 1, HEAD_DIM]).unwrap();
}

#[test]
fn bad_products_are_refused() {
    let gpu = gpu();
    let x = gpu.zeros::<bf16>(1024).unwrap();
    let mut c = gpu.zeros::<bf16>(1024).unwrap();
    let mut run = |rung: usize, from: usize, shape| {
        matmul(gpu, &MATMUL[rung], x.range(from..1024), x.view(), &mut c.view_mut(), shape).unwrap_err()
    };
    for rung in [5, 6] {
        let error = run(rung, 0, [8, 12, 8]);
        assert!(matches!(error, LaunchError::Range { what: "N", .. }), "{error}");
        let error = run(rung, 0, [8, 8, 4]);
        assert!(matches!(error, LaunchError::Range { what: "K", .. }), "{error}");
        let error = run(rung, 1, [8, 8, 8]);
        assert!(matches!(error, LaunchError::Misaligned { operand: "a", expected: 16, .. }), "{error}");
        let error = run(rung, 0, [129, 8, 8]);
        assert!(matches!(error, LaunchError::TooSmall { operand: "a", found: 1024, expected: 1032, .. }), "{error}");
        let error = run(rung, 0, [8, 136, 8]);
        assert!(matches!(error, LaunchError::TooSmall { operand: "b", .. }), "{error}");
        let error = run(rung, 0, [1 << 40, 8, 1 << 40]);
        assert!(matches!(error, LaunchError::Overflow { operand: "a", .. }), "{error}");
    }
    let error = run(0, 0, [8, 8, 8]);
    assert!(matches!(error, LaunchError::Range { what: "type", .. }), "{error}");
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<f32>::from_raw(x.view().address() + 2, 64) };
    let mut c = gpu.zeros::<f32>(64).unwrap();
    let error = matmul(gpu, &MATMUL[4], odd, odd, &mut c.view_mut(), [8, 8, 8]).unwrap_err();
    assert!(matches!(error, LaunchError::Misaligned { operand: "a", expected: 4, .. }), "{error}");
    let none = gpu.alloc::<f32>(0).unwrap();
    let error = matmul(gpu, &MATMUL[4], none.view(), none.view(), &mut c.view_mut(), [8, 8, 8]).unwrap_err();
    assert!(matches!(error, LaunchError::Null { operand: "a", expected: 64, .. }), "{error}");
}

#[test]
fn bad_attentions_are_refused() {
    let gpu = gpu();
    let x = gpu.zeros::<bf16>(1024).unwrap();
    let mut out = gpu.zeros::<bf16>(1024).unwrap();
    let mut run = |rung: usize, from: usize, shape| {
        attention(gpu, &ATTENTION[rung], [x.view(), x.range(from..1024), x.view()], &mut out.view_mut(), shape)
            .unwrap_err()
    };
    for rung in [3, 4] {
        let error = run(rung, 0, [1, 8, 1, 96]);
        assert!(matches!(&error, LaunchError::HeadDim { found: 96, expected, .. } if expected == &[64]), "{error}");
        let error = run(rung, 4, [1, 8, 1, 64]);
        assert!(matches!(error, LaunchError::Misaligned { operand: "k", expected: 16, .. }), "{error}");
        let error = run(rung, 0, [1, 17, 1, 64]);
        assert!(matches!(error, LaunchError::TooSmall { operand: "q", found: 1024, expected: 1088, .. }), "{error}");
        let error = run(rung, 0, [1 << 40, 1 << 20, 1, 64]);
        assert!(matches!(error, LaunchError::Overflow { operand: "q", .. }), "{error}");
    }
    let error = run(2, 0, [1, 8, 1, 64]);
    assert!(matches!(error, LaunchError::Range { what: "type", .. }), "{error}");
}

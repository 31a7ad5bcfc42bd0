//! `kernels/clip.cu`.

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::clip::GlobalNorm;
use handgrad::gpu::{Gpu, LaunchError};
use proptest::prelude::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Gradients in f32 and in bf16, each at an offset.
struct Gradients {
    f32s: Vec<(Vec<f32>, usize)>,
    bf16s: Vec<(Vec<bf16>, usize)>,
}

fn run(gpu: &Gpu, gradients: &Gradients, max_norm: f32) -> (f32, f32) {
    let Gradients { f32s, bf16s } = gradients;
    let lengths: Vec<usize> = f32s.iter().map(|(g, _)| g.len()).chain(bf16s.iter().map(|(g, _)| g.len())).collect();
    let mut sum = GlobalNorm::new(gpu, &lengths).unwrap();
    for (gradient, offset) in f32s {
        sum.add(Input::new(gpu, gradient, *offset).view(), gradient.len()).unwrap();
    }
    for (gradient, offset) in bf16s {
        sum.add(Input::new(gpu, gradient, *offset).view(), gradient.len()).unwrap();
    }
    let (mut norm, mut scale) = (Guarded::<f32>::new(gpu, 1), Guarded::<f32>::at(gpu, 1, 1));
    sum.finish(max_norm, &mut norm.view_mut(), &mut scale.view_mut()).unwrap();
    (norm.download()[0], scale.download()[0])
}

fn f32s(gradients: &[&[f32]]) -> Gradients {
    Gradients { f32s: gradients.iter().map(|g| (g.to_vec(), 0)).collect(), bf16s: vec![] }
}

/// Within the roundings of four squares' sum, its root, the ε that is added and the quotient.
fn near(found: f32, expected: f64) {
    assert!((found as f64 - expected).abs() <= 6.0 * 2f64.powi(-24) * expected, "found {found}, expected {expected}");
}

#[test]
fn against_f64() {
    let lengths = edges(&[4, 256, 1024, 2048]);
    let draws = (proptest::collection::vec((lengths, 0usize..3), 1..5), 0.01f64..10.0, 0.1f32..100.0);
    property("clip", 15, draws, |(buffers, width, max_norm), rng: &mut ChaCha8Rng| {
        let mut gradients = Gradients { f32s: vec![], bf16s: vec![] };
        let mut squares = 0.0;
        for (n, offset) in buffers {
            let drawn: Vec<f64> = normal::<f32>(rng, n).iter().map(|&x| width * x as f64).collect();
            if rng.random::<bool>() {
                gradients.f32s.push((drawn.iter().map(|&x| x as f32).collect(), offset));
                squares += to_f64(&gradients.f32s.last().unwrap().0).iter().map(|x| x * x).sum::<f64>();
            } else {
                gradients.bf16s.push((drawn.iter().map(|&x| bf16::from_f64(x)).collect(), offset));
                squares += to_f64(&gradients.bf16s.last().unwrap().0).iter().map(|x| x * x).sum::<f64>();
            }
        }
        let (norm, scale) = run(gpu(), &gradients, max_norm);
        near(norm, squares.sqrt());
        near(scale, (max_norm as f64 / (squares.sqrt() + 1e-6)).min(1.0));
        let again = run(gpu(), &gradients, max_norm);
        assert_eq!((norm.to_bits(), scale.to_bits()), (again.0.to_bits(), again.1.to_bits()), "two runs differ");
    });
}

/// More than one block a gradient, and more slots than the second stage has threads.
#[test]
fn long_and_many_gradients() {
    property("clip, long", 1, Just(()), |(), rng: &mut ChaCha8Rng| {
        let long = normal::<f32>(rng, 3 * 16_384 + 5);
        let many: Vec<Vec<f32>> = (0..300).map(|i| vec![i as f32; 1 + i % 3]).collect();
        let all: Vec<&[f32]> = many.iter().map(|g| &g[..]).chain([&long[..]]).collect();
        let squares: f64 = all.iter().flat_map(|g| to_f64(g)).map(|x| x * x).sum();
        near(run(gpu(), &f32s(&all), 1.0).0, squares.sqrt());
    });
}

#[test]
fn known_values() {
    let (norm, scale) = run(gpu(), &f32s(&[&[3.0], &[4.0]]), 1.0);
    assert_eq!(norm, 5.0);
    near(scale, 1.0 / (5.0 + 1e-6));
    assert_eq!(run(gpu(), &f32s(&[&[0.3, 0.4]]), 1.0).1, 1.0, "short gradients are left alone");
    assert_eq!(run(gpu(), &f32s(&[&[3.0, 4.0]]), 0.0), (5.0, 1.0), "0 leaves gradients alone");
    assert_eq!(run(gpu(), &f32s(&[&[0.0; 9], &[]]), 1.0), (0.0, 1.0));
    assert_eq!(run(gpu(), &f32s(&[]), 1.0), (0.0, 1.0));
}

#[test]
fn squares_beyond_f32() {
    let large = vec![vec![1e20f32]; 100];
    let (norm, scale) = run(gpu(), &f32s(&large.iter().map(|g| &g[..]).collect::<Vec<_>>()), 1.0);
    near(norm, 1e21);
    near(scale * 1e20, 0.1);
    near(run(gpu(), &f32s(&[&[1e20; 100]]), 1.0).0, 1e21);
    near(run(gpu(), &f32s(&[&[3e-30, 0.0, 4e-30, 0.0, 0.0]]), 1.0).0, 5e-30);
}

#[test]
fn what_is_not_finite_shows() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for place in [0, 6, 8] {
            let mut gradient = vec![1.0; 9];
            gradient[place] = bad;
            let (norm, scale) = run(gpu(), &f32s(&[&[2.0; 3], &gradient]), 1.0);
            assert!(!norm.is_finite() && scale.is_nan(), "{bad} at {place}: norm {norm}, scale {scale}");
        }
    }
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let x = gpu.upload(&[1.0f32; 8]).unwrap();
    let mut sum = GlobalNorm::new(gpu, &[8]).unwrap();
    assert!(matches!(sum.add(x.view(), 9), Err(LaunchError::TooSmall { operand: "gradient", .. })));
    sum.add(x.view(), 8).unwrap();
    let error = sum.add(x.view(), 8).unwrap_err();
    assert!(matches!(error, LaunchError::Range { what: "gradient", .. }), "{error}");
    let (mut norm, mut scale) = (Guarded::<f32>::new(gpu, 1), Guarded::<f32>::new(gpu, 1));
    let error = sum.finish(f32::NAN, &mut norm.view_mut(), &mut scale.view_mut()).unwrap_err();
    assert!(matches!(error, LaunchError::Range { what: "max_norm", .. }), "{error}");
    let sum = GlobalNorm::new(gpu, &[8]).unwrap();
    let error = sum.finish(1.0, &mut norm.view_mut().range_mut(0..0), &mut scale.view_mut()).unwrap_err();
    assert!(matches!(error, LaunchError::TooSmall { operand: "norm", .. }), "{error}");
}

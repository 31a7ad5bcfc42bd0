//! AdamW, the schedule and clipping, at values worked out by hand.

use handgrad::nn::Parameter;
use handgrad::ops;
use handgrad::optim::{AdamW, AdamWConfig, CosineSchedule, clip_grad_norm, not_finite};
use handgrad::{DType, Gradients, Tape, Tensor, Var};

fn parameter(name: &str, values: &[f64], shape: &[usize], dtype: DType) -> Parameter {
    let value = Tensor::from_vec(values.to_vec(), shape).unwrap().to_dtype(dtype).unwrap();
    Parameter::new(name.to_string(), value)
}

/// Gradients that are given: those of Σ wᵢ gᵢ.
fn gradients(list: &[(&Parameter, &[f64])]) -> Gradients {
    let mut tape = Tape::new();
    let outputs: Vec<Var> = list.iter().map(|(p, _)| p.on(&mut tape)).collect();
    let outputs: Vec<Var> = outputs.iter().map(|x| ops::scale(&mut tape, x, 1.0).unwrap()).collect();
    let cotangent = |p: &Parameter, g: &[f64]| {
        Tensor::from_vec(g.to_vec(), p.value.shape()).unwrap().to_dtype(p.value.dtype()).unwrap()
    };
    let seeds: Vec<(&Var, Tensor)> = outputs.iter().zip(list).map(|(x, (p, g))| (x, cotangent(p, g))).collect();
    tape.backward_from(&seeds).unwrap()
}

fn adamw(beta1: f64, beta2: f64, weight_decay: f64) -> AdamW {
    AdamW::new(AdamWConfig { beta1, beta2, eps: 1e-8, weight_decay })
}

fn step(optimizer: &mut AdamW, p: &mut Parameter, g: f64, lr: f64) -> f64 {
    let gradients = gradients(&[(p, &[g])]);
    optimizer.step(vec![p], &gradients, &Tensor::scalar(1.0f64), lr).unwrap();
    p.value.item().unwrap()
}

#[test]
fn adamw_takes_exact_first_steps_and_decays_first() {
    for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-6)] {
        let mut p = parameter("w", &[1.0], &[1, 1], dtype);
        let mut optimizer = adamw(0.9, 0.999, 0.1);
        for (g, expected) in [(0.5, 0.890000002), (0.5, 0.781100004), (-0.25, 0.721723665)] {
            let found = step(&mut optimizer, &mut p, g, 0.1);
            assert!((found - expected).abs() < tolerance, "{found}, expected {expected}");
        }
        let mut p = parameter("w", &[1.0], &[1, 1], dtype);
        let mut optimizer = adamw(0.9, 0.999, 0.1);
        let found: Vec<f64> = (0..10).map(|_| step(&mut optimizer, &mut p, 0.0, 0.1)).collect();
        assert!((found[0] - 0.99).abs() < tolerance && (found[9] - 0.904382075).abs() < tolerance);
    }
}

#[test]
fn adamw_moments_and_step_counter_go_on() {
    let mut p = parameter("w", &[1.0], &[1, 1], DType::F64);
    let mut optimizer = adamw(0.9, 0.999, 0.0);
    for g in [1.0, -2.0, 3.0] {
        step(&mut optimizer, &mut p, g, 0.01);
    }
    assert!((p.value.item().unwrap() - 0.9902286246).abs() < 1e-9);
    let moments = &optimizer.moments["w"];
    assert!((moments.m.item().unwrap() - 0.201).abs() < 1e-12);
    assert!((moments.v.item().unwrap() - 0.013994001).abs() < 1e-12);
    // a new optimizer with the old state
    let mut resumed = AdamW { config: optimizer.config, step: optimizer.step, moments: optimizer.moments.clone() };
    for g in [0.5, -1.5] {
        step(&mut resumed, &mut p, g, 0.01);
    }
    assert!((p.value.item().unwrap() - 0.9858944083).abs() < 1e-9);
}

#[test]
fn gains_and_biases_do_not_decay() {
    let mut matrix = parameter("matrix", &[1.0; 4], &[2, 2], DType::F32);
    let mut gain = parameter("gain", &[1.0; 2], &[2], DType::F32);
    let gradients = gradients(&[(&matrix, &[0.0; 4]), (&gain, &[0.0; 2])]);
    adamw(0.9, 0.999, 0.1).step(vec![&mut matrix, &mut gain], &gradients, &Tensor::scalar(1.0f64), 0.1).unwrap();
    assert_eq!(matrix.value.as_slice::<f32>().unwrap(), [0.99; 4]);
    assert_eq!(gain.value.as_slice::<f32>().unwrap(), [1.0; 2]);
}

#[test]
fn the_schedule_has_these_values() {
    let schedule = CosineSchedule { max: 1.0, min: 0.1, warmup: 4, total: 12 };
    let expected =
        [0.0, 0.25, 0.5, 0.75, 1.0, 0.965746, 0.868198, 0.722208, 0.55, 0.377792, 0.231802, 0.134254, 0.1, 0.1, 0.1];
    for (t, expected) in expected.iter().enumerate() {
        assert!((schedule.at(t) - expected).abs() < 1e-6, "t = {t}: {}, expected {expected}", schedule.at(t));
    }
    let no_warmup = CosineSchedule { warmup: 0, ..schedule };
    assert_eq!(no_warmup.at(0), 1.0);
    assert!((no_warmup.at(6) - 0.55).abs() < 1e-12);
    let only_warmup = CosineSchedule { warmup: 12, ..schedule };
    assert_eq!((only_warmup.at(6), only_warmup.at(12)), (0.5, 1.0));
}

fn clipped(values: &[f64], dtype: DType, max_norm: f64) -> anyhow::Result<(f64, Vec<f64>)> {
    let parameters: Vec<Parameter> =
        (0..values.len()).map(|i| parameter(&i.to_string(), &[0.0], &[1], dtype)).collect();
    let list: Vec<(&Parameter, &[f64])> = parameters.iter().zip(values.chunks(1)).collect();
    let gradients = gradients(&list);
    let parameters: Vec<&Parameter> = parameters.iter().collect();
    let clipped = clip_grad_norm(&gradients, &parameters, max_norm)?;
    let scale = clipped.scale.item()?;
    let scaled = |p: &&Parameter| match dtype {
        DType::F32 => f64::from(gradients.get(&p.name).unwrap().item().unwrap() as f32 * scale as f32),
        _ => gradients.get(&p.name).unwrap().item().unwrap() * scale,
    };
    Ok((clipped.norm.item()?, parameters.iter().map(scaled).collect()))
}

#[test]
fn clipping_scales_all_gradients_by_one_norm() {
    for dtype in [DType::F32, DType::F64] {
        let (norm, g) = clipped(&[3.0, 4.0], dtype, 1.0).unwrap();
        assert_eq!(norm, 5.0);
        assert!((g[0] - 0.59999988).abs() < 1e-7 && (g[1] - 0.79999984).abs() < 1e-7, "{g:?}");
        let small = [f64::from(0.3_f32), f64::from(0.4_f32)];
        assert_eq!(clipped(&small, dtype, 1.0).unwrap().1, small, "below the limit nothing changes");
        assert_eq!(clipped(&[3.0, 4.0], dtype, 0.0).unwrap(), (5.0, vec![3.0, 4.0]), "0 never clips");
    }
}

#[test]
fn the_norm_does_not_overflow() {
    let (norm, g) = clipped(&[1e20; 100], DType::F32, 1.0).unwrap();
    assert!((norm / 1e21 - 1.0).abs() < 1e-6);
    assert!(g.iter().all(|g| (g - 0.1).abs() < 1e-6), "{g:?}");
}

#[test]
fn a_gradient_that_is_not_finite_is_named() {
    for (values, name) in [([1.0, f64::INFINITY, 2.0], Some("1")), ([1.0, 2.0, f64::NAN], Some("2")), ([1.0; 3], None)]
    {
        let (norm, scaled) = clipped(&values, DType::F32, 1.0).unwrap();
        assert_eq!(norm.is_finite(), name.is_none());
        assert_eq!(scaled[0].is_nan(), name.is_some(), "a scale with which the optimizer changes nothing");
        let parameters: Vec<Parameter> =
            (0..values.len()).map(|i| parameter(&i.to_string(), &[0.0], &[1], DType::F32)).collect();
        let list: Vec<(&Parameter, &[f64])> = parameters.iter().zip(values.chunks(1)).collect();
        let parameters: Vec<&Parameter> = parameters.iter().collect();
        assert_eq!(not_finite(&gradients(&list), &parameters).unwrap(), name);
    }
}

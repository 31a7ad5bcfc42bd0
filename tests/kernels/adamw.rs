//! `kernels/adamw.cu`.

use crate::common::*;
use crate::elementwise::offsets;
use half::bf16;
use handgrad::gpu::kernels::adamw::{self, Parameter, Step};
use handgrad::gpu::{GpuFloat, LaunchError};
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

/// One element in f64, as `optim/adamw.rs` has it.
fn reference_step(s: &Step, w: &mut f64, m: &mut f64, v: &mut f64, g: f64) {
    let t = s.step as i32;
    *w *= 1.0 - s.lr * s.weight_decay;
    *m = s.beta1 * *m + (1.0 - s.beta1) * g;
    *v = s.beta2 * *v + (1.0 - s.beta2) * g * g;
    let (m_hat, v_hat) = (*m / (1.0 - s.beta1.powi(t)), *v / (1.0 - s.beta2.powi(t)));
    *w -= s.lr * m_hat / (v_hat.sqrt() + s.eps);
}

struct State {
    weights: Guarded<f32>,
    m: Guarded<f32>,
    v: Guarded<f32>,
    copy: Guarded<bf16>,
    n: usize,
}

impl State {
    fn new(weights: &[f32], offsets: [usize; 5]) -> State {
        let (n, zeros) = (weights.len(), vec![0.0; weights.len()]);
        State {
            weights: Guarded::holding(gpu(), weights, offsets[0]),
            m: Guarded::holding(gpu(), &zeros, offsets[1]),
            v: Guarded::holding(gpu(), &zeros, offsets[2]),
            copy: Guarded::at(gpu(), n, offsets[3]),
            n,
        }
    }

    fn step<E: GpuFloat>(
        &mut self,
        settings: &Step,
        gradient: &[E],
        scale: Option<f32>,
        with_copy: bool,
        offset: usize,
    ) {
        let gradient = Input::new(gpu(), gradient, offset);
        let scale = scale.map(|scale| gpu().upload(&[0.0, scale]).unwrap());
        let scale = scale.as_ref().map(|scale| scale.range(1..2));
        let mut parameter = Parameter {
            weights: self.weights.view_mut(),
            m: self.m.view_mut(),
            v: self.v.view_mut(),
            copy: with_copy.then(|| self.copy.view_mut()),
        };
        adamw::step(gpu(), &mut parameter, gradient.view(), scale, settings, self.n).unwrap();
    }

    fn bits(&self) -> Vec<u32> {
        let all = [self.weights.download(), self.m.download(), self.v.download()].concat();
        let copy = self.copy.download();
        all.iter().map(|x| x.to_bits()).chain(copy.iter().map(|x| x.to_bits() as u32)).collect()
    }
}

type Draw = (usize, [usize; 5], Option<f32>, bool, f64);

fn drawn<E: GpuFloat>((n, offsets, scale, with_copy, weight_decay): Draw, rng: &mut ChaCha8Rng) {
    let start = normal::<f32>(rng, n);
    let gradients: Vec<Vec<E>> = (0..3).map(|_| normal(rng, n)).collect();
    let mut settings = Step { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay, step: 0 };
    let (mut state, mut again) = (State::new(&start, offsets), State::new(&start, offsets));
    let mut expected: Vec<[f64; 3]> = start.iter().map(|&w| [w as f64, 0.0, 0.0]).collect();
    for gradient in &gradients {
        settings.step += 1;
        state.step(&settings, gradient, scale, with_copy, offsets[4]);
        again.step(&settings, gradient, scale, with_copy, offsets[4]);
        for ([w, m, v], g) in expected.iter_mut().zip(to_f64(gradient)) {
            reference_step(&settings, w, m, v, scale.unwrap_or(1.0) as f64 * g);
        }
    }
    assert_eq!(state.bits(), again.bits(), "two runs differ");
    let part = |i: usize| expected.iter().map(|state| state[i]).collect::<Vec<f64>>();
    let weights = state.weights.download();
    // three steps of at most about 1.5 lr, whose quotient is a few roundings off, and of each weight
    within("weights", &to_f64(&weights), &part(0), |i| 2f64.powi(-23) * (3.0 * part(0)[i].abs() + 1.0));
    within("m", &to_f64(&state.m.download()), &part(1), |_| {
        2f64.powi(-22) * scale.unwrap_or(1.0).max(1.0) as f64 * 4.0
    });
    within("v", &to_f64(&state.v.download()), &part(2), |i| 2f64.powi(-20) * part(2)[i]);
    let copy = state.copy.download();
    for (copy, weight) in copy.iter().zip(&weights) {
        let expected = bf16::from_f32(*weight).to_bits();
        assert_eq!(copy.to_bits(), if with_copy { expected } else { 0xffff }, "the copy of {weight}");
    }
}

#[test]
fn against_f64() {
    let scale = prop_oneof![Just(None), (0.01f32..1.0).prop_map(Some)];
    let draws = (edges(&[4, 256, 1024]), offsets::<5>(), scale, any::<bool>(), prop_oneof![Just(0.0), Just(0.1)]);
    property("adamw f32", 12, draws.clone(), drawn::<f32>);
    property("adamw bf16", 12, draws, drawn::<bf16>);
}

fn settings(lr: f64, weight_decay: f64) -> Step {
    Step { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay, step: 0 }
}

#[test]
fn the_first_steps_are_pytorchs() {
    let (mut state, mut settings) = (State::new(&[1.0], [0; 5]), settings(0.1, 0.1));
    for (gradient, expected) in [(0.5f32, 0.890000002), (0.5, 0.781100004), (-0.25, 0.721723665)] {
        settings.step += 1;
        state.step(&settings, &[gradient], None, true, 0);
        let found = state.weights.download()[0] as f64;
        assert!((found - expected).abs() < 2e-7, "found {found}, expected {expected}");
    }
    // no gradient: the weight decays
    let (mut state, mut settings) = (State::new(&[1.0], [0; 5]), Step { step: 0, ..settings });
    for _ in 0..10 {
        settings.step += 1;
        state.step(&settings, &[0.0f32], None, true, 0);
    }
    let found = state.weights.download()[0] as f64;
    assert!((found - 0.904382075).abs() < 1e-6, "found {found}");
}

#[test]
fn moments_as_known() {
    let (mut state, mut settings) = (State::new(&[1.0], [0; 5]), settings(0.01, 0.0));
    for gradient in [1.0f32, -2.0, 3.0] {
        settings.step += 1;
        state.step(&settings, &[gradient], None, true, 0);
    }
    let found = [state.weights.download()[0], state.m.download()[0], state.v.download()[0]];
    within("state", &to_f64(&found), &[0.9902286246, 0.201, 0.013994001], |_| 2e-7);
}

/// Steps too small for a bf16 weight add up in the f32 one, and the copy follows.
#[test]
fn small_steps_are_not_lost() {
    let (mut state, mut settings) = (State::new(&[1.0], [0; 5]), settings(0.0006, 0.0));
    for _ in 0..100 {
        settings.step += 1;
        state.step(&settings, &[bf16::ONE], None, true, 0);
    }
    let (weight, copy) = (state.weights.download()[0], state.copy.download()[0]);
    assert!((weight - 0.94).abs() < 1e-4 && copy == bf16::from_f32(weight), "found {weight} and {copy}");
}

#[test]
fn a_scale_that_is_not_finite_changes_nothing() {
    for scale in [f32::NAN, f32::INFINITY] {
        let mut state = State::new(&[1.0, 2.0, 3.0, 4.0, 5.0], [0; 5]);
        let before = state.bits();
        let settings = Step { step: 1, ..settings(0.1, 0.1) };
        state.step(&settings, &[f32::NAN, 1.0, 1.0, 1.0, f32::INFINITY], Some(scale), true, 0);
        assert_eq!(state.bits(), before);
    }
}

#[test]
fn nothing_to_do_and_bad_operands() {
    let gpu = gpu();
    let mut state = State::new(&[1.0; 8], [0; 5]);
    let gradient = gpu.upload(&[1.0f32; 8]).unwrap();
    let mut run = |n, step, short: usize| {
        let mut copy = state.copy.view_mut();
        let mut parameter = Parameter {
            weights: state.weights.view_mut(),
            m: state.m.view_mut(),
            v: state.v.view_mut(),
            copy: Some(copy.range_mut(0..8 - short)),
        };
        adamw::step(gpu, &mut parameter, gradient.view(), None, &Step { step, ..settings(0.1, 0.0) }, n)
    };
    run(0, 1, 0).unwrap();
    assert!(matches!(run(9, 1, 0), Err(LaunchError::TooSmall { operand: "weights", .. })));
    assert!(matches!(run(8, 1, 1), Err(LaunchError::TooSmall { operand: "copy", found: 7, expected: 8, .. })));
    assert!(matches!(run(8, 0, 0), Err(LaunchError::Range { what: "step", .. })));
    assert!(matches!(run(usize::MAX, 1, 0), Err(LaunchError::Overflow { .. })));
}

//! `kernels/qk_norm_rope.cu`.

use crate::common::*;
use crate::rope::{Angles, Case, FAR, FAR_SLOTS, behind, behind_mut, cases, pair_terms};
use crate::rows::{Odd, abs, plus, within_rounding};
use half::bf16;
use handgrad::gpu::kernels::qk_norm_rope::{Backward, Forward, backward, forward, forward_cached};
use handgrad::gpu::kernels::rope::{Heads, Table};
use handgrad::gpu::{GpuFloat, LaunchError};
use handgrad::ops;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

const EPS: f32 = 1e-6;

/// y and rstd.
fn run_forward<E: GpuFloat>(x: &[E], gain: &[E], case: &Case, angles: &Angles) -> (Vec<E>, Vec<f32>) {
    let (gpu, odd) = (gpu(), case.odd);
    let (x, gain) = (Input::new(gpu, x, odd.offset(0)), Input::new(gpu, gain, odd.offset(1)));
    let mut y = Guarded::<E>::at(gpu, case.len(), odd.offset(2));
    let mut rstd = Guarded::<f32>::at(gpu, case.rows(), 1);
    let (y_view, rstd_view) = (y.view_mut(), Some(rstd.view_mut()));
    let operands = Forward { x: x.view(), gain: gain.view(), table: angles.table(), y: y_view, rstd: rstd_view };
    forward(gpu, operands, case.shape, case.start, EPS).unwrap();
    (y.download(), rstd.download())
}

/// The cache afterwards.
fn run_cached<E: GpuFloat>(x: &[E], gain: &[E], before: &[E], case: &Case, angles: &Angles) -> Vec<E> {
    let (gpu, odd) = (gpu(), case.odd);
    let (x, gain) = (Input::new(gpu, x, odd.offset(0)), Input::new(gpu, gain, odd.offset(1)));
    let mut cache = Guarded::holding(gpu, before, odd.offset(2));
    let operands = Forward { x: x.view(), gain: gain.view(), table: angles.table(), y: cache.view_mut(), rstd: None };
    forward_cached(gpu, operands, case.shape, case.start, case.capacity(), EPS).unwrap();
    cache.download()
}

/// 1/√(mean(x²) + ε) of each head.
fn rstd_of(x: &[f64], head_dim: usize) -> Vec<f64> {
    let of_head = |x: &[f64]| 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / head_dim as f64 + EPS as f64).sqrt();
    x.chunks(head_dim).map(of_head).collect()
}

fn check_forward<E: GpuFloat>(case: Case, rng: &mut ChaCha8Rng) {
    let (x, gain, angles) = (normal::<E>(rng, case.len()), normal::<E>(rng, case.shape.head_dim), case.table());
    let (table, start) = (angles.cpu.clone(), case.start);
    let inputs = [tensor(&x, &case.dims()), tensor(&gain, &[case.shape.head_dim])];
    let expected =
        reference(&inputs, &[], |tape, v| Ok(vec![ops::qk_norm_rope(tape, &v[0], &v[1], EPS as f64, &table, start)?]));
    let (y, rstd) = run_forward(&x, &gain, &case, &angles);
    let (dim, expected_rstd) = (case.shape.head_dim, rstd_of(&to_f64(&x), case.shape.head_dim));
    let (x_abs, gain_abs) = (abs(&x), abs(&gain));
    let n: Vec<f64> = (0..x.len()).map(|i| expected_rstd[i / dim] * x_abs[i] * gain_abs[i % dim]).collect();
    within_rounding("y", &y, &expected.outputs[0], &pair_terms(&n));
    within_rounding("rstd", &rstd, &expected_rstd, &expected_rstd);
    let again = run_forward(&x, &gain, &case, &angles);
    same_bits("y", &y, &again.0);
    same_bits("rstd", &rstd, &again.1);

    let before = normal::<E>(rng, case.cache_len());
    same_bits("cache", &run_cached(&x, &gain, &before, &case, &angles), &case.in_cache(&y, &before));
}

#[test]
fn forward_against_f64() {
    property("qk_norm_rope forward f32", 25, cases(), check_forward::<f32>);
    property("qk_norm_rope forward bf16", 25, cases(), check_forward::<bf16>);
}

/// The operands of a backward pass.
struct Operands<E> {
    x: Vec<E>,
    gain: Vec<E>,
    rstd: Vec<f32>,
    d_y: Vec<E>,
    /// What the gain's gradient is added to.
    before: Option<Vec<f32>>,
}

impl<E: GpuFloat> Operands<E> {
    /// d_x and d_gain.
    fn run(&self, case: &Case, angles: &Angles) -> (Vec<E>, Vec<f32>) {
        let (gpu, odd) = (gpu(), case.odd);
        let (x, gain) = (Input::new(gpu, &self.x, odd.offset(0)), Input::new(gpu, &self.gain, odd.offset(1)));
        let (rstd, d_y) = (Input::new(gpu, &self.rstd, 1), Input::new(gpu, &self.d_y, odd.offset(2)));
        let mut d_x = Guarded::<E>::at(gpu, case.len(), odd.offset(3));
        let before = self.before.clone().unwrap_or_else(|| poison(self.gain.len()));
        let mut d_gain = Guarded::holding(gpu, &before, 1);
        let operands = Backward {
            x: x.view(),
            gain: gain.view(),
            table: angles.table(),
            rstd: rstd.view(),
            d_y: d_y.view(),
            d_x: d_x.view_mut(),
            d_gain: d_gain.view_mut(),
        };
        backward(gpu, operands, case.shape, case.start, self.before.is_some()).unwrap();
        (d_x.download(), d_gain.download())
    }

    /// Of d_x and d_gain, the sums of the absolute values that are added up.
    fn terms(&self) -> (Vec<f64>, Vec<f64>) {
        let (x, gain, d_n, dim) = (abs(&self.x), abs(&self.gain), pair_terms(&abs(&self.d_y)), self.gain.len());
        let (mut d_x, mut d_gain) = (vec![], vec![0.0; dim]);
        for (row, &rstd) in to_f64(&self.rstd).iter().enumerate() {
            let at = |c: usize| row * dim + c;
            let inner: f64 = (0..dim).map(|c| gain[c] * d_n[at(c)] * x[at(c)]).sum();
            let along_x = rstd.powi(3) * inner / dim as f64;
            d_x.extend((0..dim).map(|c| rstd * gain[c] * d_n[at(c)] + along_x * x[at(c)]));
            (0..dim).for_each(|c| d_gain[c] += rstd * x[at(c)] * d_n[at(c)]);
        }
        (d_x, plus(d_gain, self.before.as_ref().map(|before| abs(before))))
    }
}

fn check_backward<E: GpuFloat>((case, accumulate): (Case, bool), rng: &mut ChaCha8Rng) {
    let dim = case.shape.head_dim;
    let (x, gain, d_y) = (normal::<E>(rng, case.len()), normal::<E>(rng, dim), normal::<E>(rng, case.len()));
    let rstd = rstd_of(&to_f64(&x), dim).into_iter().map(|r| r as f32).collect();
    let operands = Operands { x, gain, rstd, d_y, before: accumulate.then(|| normal::<f32>(rng, dim)) };
    let angles = case.table();

    let (table, start) = (angles.cpu.clone(), case.start);
    let inputs = [tensor(&operands.x, &case.dims()), tensor(&operands.gain, &[dim])];
    let expected = reference(&inputs, &[tensor(&operands.d_y, &case.dims())], |tape, v| {
        Ok(vec![ops::qk_norm_rope(tape, &v[0], &v[1], EPS as f64, &table, start)?])
    });
    let [d_x, d_gain] = <[Vec<f64>; 2]>::try_from(expected.gradients).unwrap();
    let d_gain = plus(d_gain, operands.before.as_ref().map(|before| to_f64(before)));

    let (found, again) = (operands.run(&case, &angles), operands.run(&case, &angles));
    let terms = operands.terms();
    within_rounding("d_x", &found.0, &d_x, &terms.0);
    within_rounding("d_gain", &found.1, &d_gain, &terms.1);
    same_bits("d_x", &found.0, &again.0);
    same_bits("d_gain", &found.1, &again.1);
}

#[test]
fn backward_against_f64() {
    let cases = || (cases(), any::<bool>());
    property("qk_norm_rope backward f32", 25, cases(), check_backward::<f32>);
    property("qk_norm_rope backward bf16", 25, cases(), check_backward::<bf16>);
}

/// More heads than the blocks of a backward pass take at once.
#[test]
fn blocks_take_several_sets_of_heads() {
    let shape = Heads { batch: 1, tokens: 70, heads: 241, head_dim: 8 }; // 16,870 heads; 256 blocks × 64
    let case = Case { shape, start: 3, spare: 0, odd: Odd::default() };
    property("qk_norm_rope backward of many heads", 1, Just((case, false)), check_backward::<bf16>);
}

#[test]
fn offsets_beyond_32_bits() {
    let (gpu, dim) = (gpu(), FAR.head_dim);
    let data: Vec<f32> = (1..=dim).map(|i| i as f32).collect();
    let (x, cos, sin) =
        (gpu.upload(&data).unwrap(), gpu.upload(&[0.6f32; 64]).unwrap(), gpu.upload(&[0.8f32; 64]).unwrap());
    let (mut y, near) = (Guarded::<f32>::new(gpu, dim), Table { cos: cos.view(), sin: sin.view() });
    let operands = Forward { x: x.view(), gain: x.view(), table: near, y: y.view_mut(), rstd: None };
    forward(gpu, operands, FAR, 0, EPS).unwrap();
    for slot in FAR_SLOTS {
        let table = Table { cos: behind(cos.view(), slot * dim / 2), sin: behind(sin.view(), slot * dim / 2) };
        let mut cache = Guarded::<f32>::new(gpu, dim);
        let to = behind_mut(&mut cache, slot * dim);
        let operands = Forward { x: x.view(), gain: x.view(), table, y: to, rstd: None };
        forward_cached(gpu, operands, FAR, slot, slot + 1, EPS).unwrap();
        assert_eq!(cache.download(), y.download());
    }
}

/// Norm first, then rotation: with a gain, the other order gives other values.
#[test]
fn order_of_norm_and_rotation() {
    let (x, gain) = (gpu().upload(&[3.0f32, 4.0]).unwrap(), gpu().upload(&[1.0f32, 2.0]).unwrap());
    let angles = Angles::new(2, 2, Odd::default());
    let mut y = Guarded::<f32>::new(gpu(), 2);
    let shape = Heads { batch: 1, tokens: 1, heads: 1, head_dim: 2 };
    let operands = Forward { x: x.view(), gain: gain.view(), table: angles.table(), y: y.view_mut(), rstd: None };
    forward(gpu(), operands, shape, 1, 0.0).unwrap();
    within("y", &to_f64(&y.download()), &[-1.445570, 1.936576], |_| 2e-6);
}

#[test]
fn no_heads() {
    let case = |tokens| {
        let shape = Heads { batch: 2, tokens, heads: 3, head_dim: 4 };
        Case { shape, start: 1, spare: 2, odd: Odd::default() }
    };
    let operands = |before| Operands::<f32> { x: vec![], gain: vec![1.0; 4], rstd: vec![], d_y: vec![], before };
    let angles = case(0).table();
    assert!(run_forward::<f32>(&[], &[1.0; 4], &case(0), &angles).0.is_empty());
    assert_eq!(operands(None).run(&case(0), &angles).1, [0.0; 4]);
    assert_eq!(operands(Some(vec![3.0; 4])).run(&case(0), &angles).1, [3.0; 4]);
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let (x, angles) = (gpu.upload(&[1.0f32; 24]).unwrap(), Angles::new(4, 8, Odd::default()));
    let (mut y, mut rstd) = (gpu.alloc::<f32>(24).unwrap(), gpu.alloc::<f32>(5).unwrap());
    let shape = Heads { batch: 1, tokens: 3, heads: 2, head_dim: 4 };
    let mut attempt = |gain: usize, with_rstd: bool, shape, start, capacity| {
        let (gain, table) = (x.range(0..gain), angles.table());
        let rstd = with_rstd.then(|| rstd.view_mut());
        let operands = Forward { x: x.view(), gain, table, y: y.view_mut(), rstd };
        forward_cached(gpu, operands, shape, start, capacity, EPS).unwrap_err()
    };
    let error = attempt(3, false, shape, 0, 3);
    let kernel = "qk_norm_rope_forward";
    assert_eq!(error, LaunchError::TooSmall { kernel, operand: "gain", found: 3, expected: 4 });
    let error = attempt(4, true, shape, 0, 3);
    assert!(matches!(error, LaunchError::TooSmall { operand: "rstd", expected: 6, .. }), "{error}");
    let error = attempt(4, false, shape, 1, 3);
    assert!(matches!(error, LaunchError::Range { what: "cache", .. }), "{error}");
    let error = attempt(4, false, shape, 6, 20);
    assert!(matches!(error, LaunchError::Range { what: "positions", .. }), "{error}");
    let error = attempt(4, false, Heads { head_dim: 5, ..shape }, 0, 3);
    assert!(matches!(error, LaunchError::Range { what: "head_dim", .. }), "{error}");
    let error = attempt(4, false, Heads { batch: 2, ..shape }, 0, 3);
    assert!(matches!(error, LaunchError::TooSmall { operand: "x", expected: 48, .. }), "{error}");
    let none = gpu.alloc::<f32>(0).unwrap();
    let table = Table { cos: none.view(), ..angles.table() };
    let operands = Forward { x: x.view(), gain: x.view(), table, y: y.view_mut(), rstd: None };
    let error = forward(gpu, operands, shape, 0, EPS).unwrap_err();
    assert!(matches!(error, LaunchError::Range { what: "positions", .. }), "{error}");
}

#[test]
fn every_short_operand_is_named() {
    let (gpu, angles) = (gpu(), Angles::new(4, 8, Odd::default()));
    let names = ["x", "gain", "rstd", "d_y", "d_x", "d_gain"];
    for (short, name) in names.iter().enumerate() {
        let buffer = |i: usize, len: usize| gpu.zeros::<f32>(if i == short { len - 1 } else { len }).unwrap();
        let (x, gain, rstd, d_y) = (buffer(0, 24), buffer(1, 4), buffer(2, 6), buffer(3, 24));
        let (mut d_x, mut d_gain) = (buffer(4, 24), buffer(5, 4));
        let operands = Backward {
            x: x.view(),
            gain: gain.view(),
            table: angles.table(),
            rstd: rstd.view(),
            d_y: d_y.view(),
            d_x: d_x.view_mut(),
            d_gain: d_gain.view_mut(),
        };
        let shape = Heads { batch: 1, tokens: 3, heads: 2, head_dim: 4 };
        let error = backward(gpu, operands, shape, 0, false).unwrap_err();
        assert!(matches!(error, LaunchError::TooSmall { operand, .. } if operand == *name), "{error}");
    }
}

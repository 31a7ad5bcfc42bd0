//! `kernels/attention_forward.cu` and `kernels/attention_forward_f32.cu`.

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::attention_dims::AttentionShape;
use handgrad::gpu::kernels::attention_forward::forward;
use handgrad::gpu::{GpuFloat, LaunchError, View};
use handgrad::ops::attention::attention;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

/// Query, key and value, `[B,T,H,D]` each; k and v hold `kv_capacity` positions.
pub struct Operands<E> {
    pub q: Vec<E>,
    pub k: Vec<E>,
    pub v: Vec<E>,
}

impl<E: GpuFloat> Operands<E> {
    pub fn drawn(rng: &mut ChaCha8Rng, s: &AttentionShape) -> Operands<E> {
        let kv = s.batch * s.kv_capacity * s.n_kv_head * s.head_dim;
        let q = normal(rng, s.batch * s.tq * s.n_head * s.head_dim);
        let mut operands = Operands { q, k: normal(rng, kv), v: normal(rng, kv) };
        // What lies behind the keys in use must not matter.
        let row = s.n_kv_head * s.head_dim;
        for data in [&mut operands.k, &mut operands.v] {
            for (i, rows) in data.chunks_mut(row).enumerate() {
                if i % s.kv_capacity >= s.tk {
                    rows.fill(round(f64::NAN));
                }
            }
        }
        operands
    }

    /// The first `tk` positions of k or v.
    fn used(data: &[E], s: &AttentionShape) -> Vec<E> {
        let row = s.n_kv_head * s.head_dim;
        let positions = data.chunks(row).enumerate().filter(|(i, _)| i % s.kv_capacity < s.tk);
        positions.flat_map(|(_, x)| x.to_vec()).collect()
    }

    /// handgrad's own operator in f64.
    pub fn expected(&self, s: &AttentionShape) -> Vec<f64> {
        let kv = [s.batch, s.tk, s.n_kv_head, s.head_dim];
        let inputs = [
            tensor(&self.q, &[s.batch, s.tq, s.n_head, s.head_dim]),
            tensor(&Self::used(&self.k, s), &kv),
            tensor(&Self::used(&self.v, s), &kv),
        ];
        let result = reference(&inputs, &[], |tape, x| Ok(vec![attention(tape, &x[0], &x[1], &x[2], s.causal)?]));
        result.outputs.into_iter().next().unwrap()
    }

    /// Calls `body` with each row's index, query, keys that it sees, and their values, as f32.
    fn rows(&self, s: &AttentionShape, mut body: impl FnMut(usize, &[f32], &[&[f32]], &[&[f32]])) {
        let (q, k, v) = (to_f32(&self.q), to_f32(&self.k), to_f32(&self.v));
        let d = s.head_dim;
        for row in 0..s.batch * s.tq * s.n_head {
            let (b, i, h) = (row / s.n_head / s.tq, row / s.n_head % s.tq, row % s.n_head);
            let seen = if s.causal { (i + 1 + s.tk).saturating_sub(s.tq) } else { s.tk };
            let at = |j: usize| ((b * s.kv_capacity + j) * s.n_kv_head + h / (s.n_head / s.n_kv_head)) * d;
            let keys: Vec<&[f32]> = (0..seen).map(|j| &k[at(j)..][..d]).collect();
            let values: Vec<&[f32]> = (0..seen).map(|j| &v[at(j)..][..d]).collect();
            body(row, &q[row * d..][..d], &keys, &values);
        }
    }

    /// Eager attention in the type: scores, scaled scores, weights and output are tensors of it; sums are in f32.
    pub fn naive(&self, s: &AttentionShape) -> Vec<f64> {
        let d = s.head_dim;
        let mut out = vec![0.0; self.q.len()];
        self.rows(s, |row, q, keys, values| {
            let scale = s.scale() as f32;
            let score = |k: &&[f32]| rounded::<E>(rounded::<E>(q.iter().zip(*k).map(|(a, b)| a * b).sum()) * scale);
            let scores: Vec<f32> = keys.iter().map(score).collect();
            let max = scores.iter().fold(f32::NEG_INFINITY, |m, &s| m.max(s));
            let sum: f32 = scores.iter().map(|s| (s - max).exp()).sum();
            let weights: Vec<f32> = scores.iter().map(|s| rounded::<E>((s - max).exp() / sum)).collect();
            for c in 0..d {
                let o: f32 = weights.iter().zip(values).map(|(p, v)| p * v[c]).sum();
                out[row * d + c] = rounded::<E>(o) as f64;
            }
        });
        out
    }

    /// logsumexp in f64, and the bound of what f32 sums may make of it.
    fn logsumexp(&self, s: &AttentionShape) -> (Vec<f64>, Vec<f64>) {
        let unit = 2f64.powi(-24);
        let rows = s.batch * s.tq * s.n_head;
        let (mut lse, mut bounds) = (vec![f64::NEG_INFINITY; rows], vec![0.0; rows]);
        self.rows(s, |row, q, keys, _| {
            let products = |k: &&[f32]| q.iter().zip(*k).map(|(&a, &b)| a as f64 * b as f64).collect::<Vec<_>>();
            let scores: Vec<f64> = keys.iter().map(|k| products(k).iter().sum::<f64>() * s.scale()).collect();
            let size = keys.iter().map(|k| products(k).iter().map(|x| x.abs()).sum::<f64>() * s.scale());
            let max = scores.iter().fold(f64::NEG_INFINITY, |m, &s| m.max(s));
            if !keys.is_empty() {
                lse[row] = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
            }
            let terms = s.head_dim as f64 + 8.0;
            bounds[row] = unit * (terms * size.fold(0.0, f64::max) + 8.0 * (1.0 + lse[row].abs()) + keys.len() as f64);
        });
        (lse, bounds)
    }
}

/// Output and logsumexp, after a second run gave the same bits.
fn run<E: GpuFloat>(x: &Operands<E>, s: &AttentionShape) -> (Vec<E>, Vec<f32>) {
    let gpu = gpu();
    let [q, k, v] = [&x.q, &x.k, &x.v].map(|data| Input::new(gpu, data, 0));
    let once = || {
        let (mut o, mut lse) = (Guarded::<E>::new(gpu, x.q.len()), Guarded::new(gpu, x.q.len() / s.head_dim));
        forward(gpu, q.view(), k.view(), v.view(), &mut o.view_mut(), &mut lse.view_mut(), s).unwrap();
        (o.download(), lse.download())
    };
    let (first, second) = (once(), once());
    same_bits("o", &first.0, &second.0);
    same_bits("logsumexp", &first.1, &second.1);
    first
}

fn check<E: GpuFloat>(s: AttentionShape, rng: &mut ChaCha8Rng) {
    let x = Operands::<E>::drawn(rng, &s);
    let (o, lse) = run(&x, &s);
    within_budget("o", &o, &x.expected(&s), &x.naive(&s), 2.0);
    let (expected, bounds) = x.logsumexp(&s);
    within("logsumexp", &to_f64(&lse), &expected, |i| bounds[i]);
    for (row, o) in o.chunks(s.head_dim).enumerate() {
        let unseen = expected[row] == f64::NEG_INFINITY;
        assert!(!unseen || to_f64(o).iter().all(|&x| x == 0.0), "row {row} sees no key, expected zeros");
    }
}

/// Shapes at the edges of tiles of 32, 64 and 128; `spare` positions behind the keys.
fn shapes() -> impl Strategy<Value = AttentionShape> {
    let lengths = || prop_oneof![6 => edges(&[16, 32, 64, 128]), 1 => 129usize..200];
    let heads = (proptest::sample::select(GROUPS.to_vec()), 1usize..3, 1usize..3);
    let rest = (proptest::sample::select(HEAD_DIMS.to_vec()), any::<bool>(), 0usize..3);
    (lengths(), prop_oneof![8 => lengths(), 1 => Just(0)], heads, rest).prop_map(
        |(tq, tk, (group, n_kv_head, batch), (head_dim, causal, spare))| {
            // Many heads are seen at small sizes as well as at large ones.
            let n_kv_head = if group * tq > 300 { 1 } else { n_kv_head };
            let (n_head, kv_capacity) = (group * n_kv_head, tk + spare);
            AttentionShape { batch, tq, tk, n_head, n_kv_head, head_dim, kv_capacity, causal }
        },
    )
}

#[test]
fn against_f64() {
    property("attention_forward bf16", 40, shapes(), check::<bf16>);
    property("attention_forward f32", 24, shapes(), check::<f32>);
}

fn shape(tq: usize, tk: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { batch: 1, tq, tk, n_head: 1, n_kv_head: 1, head_dim, kv_capacity: tk, causal: true }
}

/// Every head_dim at several tiles, so that no variant is left to chance; the last one with heavy rows first.
#[test]
fn every_variant() {
    property("attention_forward variants", 1, Just(()), |(), rng| {
        for d in HEAD_DIMS {
            check::<bf16>(AttentionShape { n_head: 2, ..shape(200, 270, d) }, rng);
            check::<f32>(AttentionShape { n_head: 2, ..shape(70, 130, d) }, rng);
        }
    });
}

/// Scores 0 and values 1, 2, …: a row's output is the mean of what it sees.
#[test]
fn mask_is_aligned_to_the_last_key() {
    fn means<E: GpuFloat>(tq: usize, tk: usize, d: usize) -> Vec<f64> {
        let s = shape(tq, tk, d);
        let values = (0..tk * d).map(|i| round::<E>((i / d + 1) as f64)).collect();
        let x = Operands { q: vec![E::zeroed(); tq * d], k: vec![E::zeroed(); tk * d], v: values };
        let (o, _) = run(&x, &s);
        to_f64(&o).chunks(d).map(|row| if row.iter().all(|x| x == &row[0]) { row[0] } else { f64::NAN }).collect()
    }
    for d in HEAD_DIMS {
        for means in [means::<bf16>, means::<f32>] {
            assert_eq!(means(2, 5, d), [2.5, 3.0]);
            assert_eq!(means(1, 5, d), [3.0]);
            assert_eq!(means(5, 5, d), [1.0, 1.5, 2.0, 2.5, 3.0]);
            assert_eq!(means(5, 2, d), [0.0, 0.0, 0.0, 1.0, 1.5]);
            assert_eq!(means(3, 0, d), [0.0; 3]);
        }
        // Of 64 or 128 queries the last one alone sees the first key of the last tile.
        assert_eq!(means::<bf16>(64, 65, d)[63], 33.0);
        assert_eq!(means::<bf16>(128, 129, d)[127], 65.0);
    }
}

/// Keys that a tile has too many get the weight 0, not exp(0): with equal scores and values of 1 the output is exactly
/// 1.
#[test]
fn missing_keys_have_no_weight() {
    fn ones<E: GpuFloat>(t: usize, d: usize) {
        let one = vec![round::<E>(1.0); t * d];
        let x = Operands { q: vec![E::zeroed(); t * d], k: one.clone(), v: one };
        let (o, lse) = run(&x, &AttentionShape { causal: false, ..shape(t, t, d) });
        assert!(to_f64(&o).iter().all(|&x| x == 1.0), "T = {t}, D = {d}");
        assert!(lse.iter().all(|&x| (x as f64 - (t as f64).ln()).abs() < 1e-6), "T = {t}, D = {d}");
    }
    for t in [1, 31, 33, 63, 65] {
        for d in HEAD_DIMS {
            ones::<bf16>(t, d);
            ones::<f32>(t, d);
        }
    }
}

/// Two keys with the scores `[high, low]`.
fn two_scores<E: GpuFloat>(high: f64, low: f64) -> [f64; 2] {
    let (d, scale) = (64, 8.0); // √64
    let mut x = Operands { q: vec![E::zeroed(); d], k: vec![E::zeroed(); 2 * d], v: vec![E::zeroed(); 2 * d] };
    x.q[0] = round(scale);
    (x.k[0], x.k[d]) = (round(high), round(low));
    (x.v[0], x.v[d + 1]) = (round(1.0), round(1.0));
    let (o, lse) = run(&x, &shape(1, 2, d));
    let expected = high + (1.0 + (low - high).exp()).ln();
    assert!((lse[0] as f64 - expected).abs() <= expected.abs() * 2f64.powi(-22), "{lse:?}, expected {expected}");
    [to_f64(&o)[0], to_f64(&o)[1]]
}

#[test]
fn large_scores() {
    let near = |found: [f64; 2], expected: [f64; 2], tolerance: f64| {
        assert!(
            found.iter().zip(expected).all(|(f, e)| (f - e).abs() <= tolerance),
            "{found:?}, expected {expected:?}"
        );
    };
    let weights = [0.731_058_578_630_005, 0.268_941_421_369_995];
    // 2^-10 is an f32's rounding of 10,000·log2(e).
    near(two_scores::<f32>(1e4, 9999.0), weights, 1e-3);
    near(two_scores::<f32>(-1e4, -10001.0), weights, 1e-3);
    near(two_scores::<bf16>(128.0, 127.0), weights, 4e-3);
    near(two_scores::<bf16>(-29952.0, -30080.0), [1.0, 0.0], 0.0);
    near(two_scores::<bf16>(-59904.0, -60160.0), [1.0, 0.0], 0.0);
}

/// Scores fall by 2000 from one tile of keys to the next, or rise: what was seen first keeps or loses all its weight, and
/// no exponential overflows.
#[test]
fn scores_far_apart_between_tiles() {
    fn check<E: GpuFloat>(d: usize, from: f64, step: f64, winner: usize) {
        let (t, scale) = (200, (d as f64).sqrt());
        let zeros = || vec![E::zeroed(); t * d];
        let mut x = Operands { q: vec![E::zeroed(); d], k: zeros(), v: zeros() };
        x.q[0] = round(scale);
        for j in 0..t {
            (x.k[j * d], x.v[j * d]) = (round(from + step * (j / 32) as f64), round(j as f64));
        }
        let (o, lse) = run(&x, &shape(1, t, d));
        let mean =
            (winner * 32..t.min(winner * 32 + 32)).map(|j| j as f64).sum::<f64>() / (t - winner * 32).min(32) as f64;
        let found = to_f64(&o)[0];
        assert!((found - mean).abs() <= mean * 2f64.powi(-8), "D {d}: found {found}, expected {mean}");
        let expected = x.logsumexp(&shape(1, t, d)).0[0];
        assert!((lse[0] as f64 - expected).abs() <= 2f64.powi(-8), "D {d}: {lse:?}, expected {expected}");
    }
    for d in HEAD_DIMS {
        for (from, step, winner) in [(6000.0, -2000.0, 0), (-6000.0, 2000.0, 6)] {
            check::<bf16>(d, from, step, winner);
            check::<f32>(d, from, step, winner);
        }
    }
}

/// A broken number shows, and only where it is seen.
#[test]
fn nan_shows_in_its_rows() {
    fn broken<E: GpuFloat>(d: usize, from: impl Fn(&mut Operands<E>)) -> Vec<bool> {
        let s = shape(150, 150, d);
        let mut rng = rand::SeedableRng::seed_from_u64(1);
        let mut x = Operands::<E>::drawn(&mut rng, &s);
        from(&mut x);
        let (o, _) = run(&x, &s);
        o.chunks(d).map(|row| to_f64(row).iter().any(|x| x.is_nan())).collect()
    }
    fn check<E: GpuFloat>(d: usize) {
        let nan = || round::<E>(f64::NAN);
        let rows = |from: usize, to: usize| (0..150).map(|i| i >= from && i < to).collect::<Vec<bool>>();
        assert_eq!(broken::<E>(d, |x| x.q[70 * d + 3] = nan()), rows(70, 71), "query 70");
        assert_eq!(broken::<E>(d, |x| x.q[70 * d..71 * d].fill(nan())), rows(70, 71), "all of query 70");
        assert_eq!(broken::<E>(d, |x| x.k[140 * d + 1] = nan()), rows(140, 150), "key 140");
        let by_value = broken::<E>(d, |x| x.v[140 * d] = nan());
        assert!(by_value[140..].iter().all(|&b| b) && !by_value[..128].contains(&true), "value 140: {by_value:?}");
    }
    for d in [64, 96] {
        check::<bf16>(d);
        check::<f32>(d);
    }
}

#[test]
fn bad_operands_are_refused() {
    refusals::<f32>();
    refusals::<bf16>();
}

fn refusals<E: GpuFloat>() {
    let gpu = gpu();
    let s = AttentionShape { n_head: 2, kv_capacity: 8, ..shape(4, 4, 32) };
    let x = gpu.upload(&[E::zeroed(); 8 * 64 + 1]).unwrap();
    let (q, k) = (x.range(0..4 * 64), x.range(0..8 * 32));
    let none = gpu.alloc::<E>(0).unwrap();
    let attempt = |q: View<E>, k: View<E>, v: View<E>, offset: usize, rows: usize, s: AttentionShape| {
        let (mut o, mut lse) = (Guarded::<E>::at(gpu, 4 * 64, offset), Guarded::new(gpu, rows));
        let result = forward(gpu, q, k, v, &mut o.view_mut(), &mut lse.view_mut(), &s);
        if result.is_err() {
            same_bits("untouched", &o.download(), &poison(4 * 64));
        }
        result
    };
    attempt(q, k, k, 0, 8, s).unwrap();
    let kernel = "attention_forward";
    let refused = |result: Result<(), LaunchError>| result.unwrap_err();
    let small = |operand, found, expected| LaunchError::TooSmall { kernel, operand, found, expected };
    assert_eq!(refused(attempt(q.range(0..255), k, k, 0, 8, s)), small("q", 255, 256));
    assert_eq!(refused(attempt(q, k.range(0..255), k, 0, 8, s)), small("k", 255, 256));
    assert_eq!(refused(attempt(q, k, k.range(0..128), 0, 8, s)), small("v", 128, 256));
    assert_eq!(refused(attempt(q, k, k, 0, 7, s)), small("logsumexp", 7, 8));
    assert!(matches!(refused(attempt(none.view(), k, k, 0, 8, s)), LaunchError::Null { operand: "q", .. }));
    for (operand, error) in [
        ("q", attempt(x.range(1..257), k, k, 0, 8, s)),
        ("k", attempt(q, x.range(1..257), k, 0, 8, s)),
        ("v", attempt(q, k, x.range(1..257), 0, 8, s)),
        ("o", attempt(q, k, k, 1, 8, s)),
    ] {
        let error = refused(error);
        assert!(matches!(error, LaunchError::Misaligned { operand: o, expected: 16, .. } if o == operand), "{error}");
    }
    let error = refused(attempt(q, k, k, 0, 8, AttentionShape { head_dim: 48, ..s }));
    assert_eq!(error, LaunchError::HeadDim { kernel, found: 48, expected: HEAD_DIMS.to_vec() });
    assert!(error.to_string().contains("[32, 64, 96, 128]"), "{error}");
    let error = refused(attempt(q, k, k, 0, 8, AttentionShape { n_head: 3, n_kv_head: 2, ..s }));
    assert_eq!(error, LaunchError::Group { kernel, n_head: 3, n_kv_head: 2 });
    assert!(matches!(
        refused(attempt(q, k, k, 0, 8, AttentionShape { n_kv_head: 0, ..s })),
        LaunchError::Group { n_kv_head: 0, .. }
    ));
    let error = refused(attempt(q, k, k, 0, 8, AttentionShape { tk: 9, ..s }));
    assert!(matches!(error, LaunchError::Range { what: "tk", .. }), "{error}");
    let error = refused(attempt(q, k, k, 0, 8, AttentionShape { tq: 1 << 31, ..s }));
    assert!(matches!(error, LaunchError::Range { what: "tq", .. }), "{error}");
    let error = refused(attempt(q, k, k, 0, 8, AttentionShape { tq: usize::MAX / 2, ..s }));
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
}

/// No query: nothing is launched, and no operand is needed.
#[test]
fn nothing_to_attend_from() {
    let none = gpu().alloc::<f32>(0).unwrap();
    let (mut o, mut lse) = (Guarded::<f32>::new(gpu(), 0), Guarded::new(gpu(), 0));
    let s = AttentionShape { batch: 0, ..shape(3, 3, 64) };
    forward(gpu(), none.view(), none.view(), none.view(), &mut o.view_mut(), &mut lse.view_mut(), &s).unwrap();
    assert!(o.download().is_empty());
}

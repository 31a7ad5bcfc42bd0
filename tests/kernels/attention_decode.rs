//! `kernels/attention_decode.cu`.

use crate::attention_forward::Operands;
use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::attention_decode::decode;
use handgrad::gpu::kernels::attention_dims::AttentionShape;
use handgrad::gpu::{GpuFloat, LaunchError, View};
use handgrad::ops::attention::attention_cached;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;

/// The output, after a second run gave the same bits.
fn run<E: GpuFloat>(x: &Operands<E>, s: &AttentionShape) -> Vec<E> {
    let gpu = gpu();
    let [q, k, v] = [&x.q, &x.k, &x.v].map(|data| Input::new(gpu, data, 0));
    let once = || {
        let mut o = Guarded::<E>::new(gpu, x.q.len());
        decode(gpu, q.view(), k.view(), v.view(), &mut o.view_mut(), s).unwrap();
        o.download()
    };
    let first = once();
    same_bits("o", &first, &once());
    first
}

fn check<E: GpuFloat>(s: AttentionShape, rng: &mut ChaCha8Rng) {
    let x = Operands::<E>::drawn(rng, &s);
    let o = run(&x, &s);
    let expected = x.expected(&s);
    within_budget("o", &o, &expected, &x.naive(&s), 2.0);
    if s.causal {
        // The operator that generation calls, on the same cache with its broken tail.
        let cache = [s.batch, s.kv_capacity, s.n_kv_head, s.head_dim];
        let q = tensor(&x.q, &[s.batch, s.tq, s.n_head, s.head_dim]);
        let cached = attention_cached(&q, &tensor(&x.k, &cache), &tensor(&x.v, &cache), s.tk).unwrap();
        assert_eq!(cached.to_f64_vec(), expected);
    }
}

/// Few queries, caches at the edges of tiles of 32 and 64 keys, every group; long enough for several ranges and to go
/// round the stages of shared memory.
fn shapes() -> impl Strategy<Value = AttentionShape> {
    let group = proptest::sample::select([&GROUPS[..], &[16]].concat());
    let tq = prop_oneof![3 => Just(1usize), 2 => 2usize..=8];
    let tk = prop_oneof![4 => edges(&[8, 16, 32, 64, 128]), 2 => 129usize..700, 1 => Just(0)];
    let rest =
        (proptest::sample::select(HEAD_DIMS.to_vec()), prop_oneof![4 => Just(true), 1 => Just(false)], 0usize..70);
    (tq, tk, (group, 1usize..4, 1usize..3), rest).prop_map(
        |(tq, tk, (group, n_kv_head, batch), (head_dim, causal, spare))| AttentionShape {
            batch,
            tq,
            tk,
            n_head: group * n_kv_head,
            n_kv_head,
            head_dim,
            kv_capacity: tk + spare,
            causal,
        },
    )
}

#[test]
fn against_f64() {
    property("attention_decode bf16", 60, shapes(), check::<bf16>);
    property("attention_decode f32", 40, shapes(), check::<f32>);
}

/// 1 of `n_kv_head` heads, a group of 4; causal.
fn shape(tq: usize, tk: usize, n_kv_head: usize, head_dim: usize) -> AttentionShape {
    let n_head = 4 * n_kv_head;
    AttentionShape { batch: 1, tq, tk, n_head, n_kv_head, head_dim, kv_capacity: tk, causal: true }
}

/// Every head_dim; with one block for each head, whose range goes round the stages more than once, and with ranges to
/// merge.
#[test]
fn every_variant() {
    property("attention_decode variants", 1, Just(()), |(), rng| {
        for (d, n_kv_head) in [(64, 206), (128, 103)] {
            // 80% of a card with 128 multiprocessors and room for two blocks (64) or one (128) on each.
            check::<bf16>(AttentionShape { n_head: n_kv_head, ..shape(1, 230, n_kv_head, d) }, rng);
            check::<f32>(AttentionShape { n_head: n_kv_head, ..shape(1, 120, n_kv_head, d) }, rng);
        }
        for d in HEAD_DIMS {
            for tq in [1, 7] {
                check::<bf16>(shape(tq, 330, 2, d), rng);
                check::<f32>(shape(tq, 170, 2, d), rng);
            }
        }
    });
}

/// Scores 0 and values 1, 2, …: a row's output is the mean of what it sees.
#[test]
fn mask_is_aligned_to_the_last_key() {
    fn means<E: GpuFloat>(tq: usize, tk: usize) -> Vec<f64> {
        let s = AttentionShape { n_head: 2, ..shape(tq, tk, 1, 32) };
        let values = (0..tk * 32).map(|i| round::<E>((i / 32 + 1) as f64)).collect();
        let x = Operands { q: vec![E::zeroed(); tq * 64], k: vec![E::zeroed(); tk * 32], v: values };
        let mean = |row: &[f64]| if row.iter().all(|x| x == &row[0]) { row[0] } else { f64::NAN };
        to_f64(&run(&x, &s)).chunks(64).map(mean).collect()
    }
    for means in [means::<bf16>, means::<f32>] {
        assert_eq!(means(2, 5), [2.5, 3.0]);
        assert_eq!(means(1, 5), [3.0]);
        assert_eq!(means(5, 2), [0.0, 0.0, 0.0, 1.0, 1.5]);
        assert_eq!(means(3, 0), [0.0; 3]);
        assert_eq!(means(1, 65), [33.0]);
    }
}

/// The first 4 rows see no key, in none of two ranges.
#[test]
fn no_key_in_any_range() {
    fn check<E: GpuFloat>(tk: usize) {
        let s = AttentionShape { n_head: 1, ..shape(tk + 4, tk, 1, 32) };
        let values = (0..tk * 32).map(|i| round::<E>((i / 32 + 1) as f64)).collect();
        let x = Operands { q: vec![E::zeroed(); s.tq * 32], k: vec![E::zeroed(); tk * 32], v: values };
        let expected: Vec<f64> = (0..s.tq * 32).map(|i| (i / 32).saturating_sub(3)).map(mean).collect();
        within("means", &to_f64(&run(&x, &s)), &expected, |i| expected[i] * 1e-6);
    }
    fn mean(seen: usize) -> f64 {
        if seen == 0 { 0.0 } else { (seen + 1) as f64 / 2.0 }
    }
    check::<bf16>(66);
    check::<f32>(35);
}

/// One key: its value, exactly, whatever the score.
#[test]
fn one_key_and_large_scores() {
    fn check<E: GpuFloat>(high: f64, low: f64, expected: [f64; 2], tolerance: f64) {
        let s = AttentionShape { n_head: 1, ..shape(1, 2, 1, 64) };
        let mut x = Operands { q: vec![E::zeroed(); 64], k: vec![E::zeroed(); 128], v: vec![E::zeroed(); 128] };
        x.q[0] = round(8.0); // √64
        (x.k[0], x.k[64], x.v[0], x.v[65]) = (round(high), round(low), round(1.0), round(1.0));
        let o = to_f64(&run(&x, &s));
        let near = expected.iter().zip(&o).all(|(e, o)| (e - o).abs() <= tolerance);
        assert!(near, "scores {high}, {low}: {:?}, expected {expected:?}", &o[..2]);
        let one = to_f64(&run(&x, &AttentionShape { tk: 1, ..s }));
        assert_eq!(one[..2], [1.0, 0.0]);
    }
    check::<f32>(1e4, 9999.0, [0.731_058_58, 0.268_941_42], 1e-3); // 2^-10 is a rounding of 10,000·log2(e)
    check::<f32>(-1e4, -10001.0, [0.731_058_58, 0.268_941_42], 1e-3);
    check::<bf16>(-29952.0, -30080.0, [1.0, 0.0], 0.0);
    check::<bf16>(30080.0, 29952.0, [1.0, 0.0], 0.0);
}

/// A broken number shows in its rows, through the merge of ranges as well.
#[test]
fn nan_shows() {
    fn broken<E: GpuFloat>(from: impl Fn(&mut Operands<E>)) -> Vec<bool> {
        let s = shape(2, 300, 1, 64);
        let mut rng = rand::SeedableRng::seed_from_u64(1);
        let mut x = Operands::<E>::drawn(&mut rng, &s);
        from(&mut x);
        run(&x, &s).chunks(64).map(|row| to_f64(row).iter().any(|x| x.is_nan())).collect()
    }
    fn check<E: GpuFloat>() {
        let nan = || round::<E>(f64::NAN);
        let only = |rows: std::ops::Range<usize>| (0..8).map(|row| rows.contains(&row)).collect::<Vec<bool>>();
        assert_eq!(broken::<E>(|x| x.q[2 * 64 + 3] = nan()), only(2..3), "head 2 of query 0");
        assert_eq!(broken::<E>(|x| x.k[299 * 64] = nan()), only(4..8), "the last key");
        assert_eq!(broken::<E>(|x| x.k[100 * 64] = nan()), only(0..8), "key 100");
        assert_eq!(broken::<E>(|x| x.v[100 * 64] = nan()), only(0..8), "value 100");
    }
    check::<bf16>();
    check::<f32>();
}

#[test]
fn bad_operands_are_refused() {
    refusals::<f32>();
    refusals::<bf16>();
}

fn refusals<E: GpuFloat>() {
    let gpu = gpu();
    let s = AttentionShape { n_head: 2, kv_capacity: 8, ..shape(2, 4, 1, 32) };
    let x = gpu.upload(&[E::zeroed(); 8 * 32 + 1]).unwrap();
    let (q, k, none) = (x.range(0..128), x.range(0..256), gpu.alloc::<E>(0).unwrap());
    let attempt = |q: View<E>, k: View<E>, v: View<E>, offset: usize, s: AttentionShape| {
        let mut o = Guarded::<E>::at(gpu, 128, offset);
        let result = decode(gpu, q, k, v, &mut o.view_mut(), &s);
        if result.is_err() {
            same_bits("untouched", &o.download(), &poison(128));
        }
        result
    };
    attempt(q, k, k, 0, s).unwrap();
    let kernel = "attention_decode";
    let small = |operand, found, expected| LaunchError::TooSmall { kernel, operand, found, expected };
    assert_eq!(attempt(q.range(0..127), k, k, 0, s).unwrap_err(), small("q", 127, 128));
    assert_eq!(attempt(q, k.range(0..255), k, 0, s).unwrap_err(), small("k", 255, 256));
    assert_eq!(attempt(q, k, k.range(0..128), 0, s).unwrap_err(), small("v", 128, 256));
    let error = attempt(q, none.view(), k, 0, s).unwrap_err();
    assert!(matches!(error, LaunchError::Null { operand: "k", .. }), "{error}");
    for (operand, result) in [
        ("q", attempt(x.range(1..129), k, k, 0, s)),
        ("k", attempt(q, x.range(1..257), k, 0, s)),
        ("v", attempt(q, k, x.range(1..257), 0, s)),
        ("o", attempt(q, k, k, 1, s)),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, LaunchError::Misaligned { operand: o, expected: 16, .. } if o == operand), "{error}");
    }
    let error = attempt(q, k, k, 0, AttentionShape { head_dim: 80, ..s }).unwrap_err();
    assert_eq!(error, LaunchError::HeadDim { kernel, found: 80, expected: HEAD_DIMS.to_vec() });
    let error = attempt(q, k, k, 0, AttentionShape { n_head: 5, n_kv_head: 2, ..s }).unwrap_err();
    assert_eq!(error, LaunchError::Group { kernel, n_head: 5, n_kv_head: 2 });
    let error = attempt(q, k, k, 0, AttentionShape { tk: 9, ..s }).unwrap_err();
    assert!(matches!(error, LaunchError::Range { what: "tk", .. }), "{error}");
    let error = attempt(q, k, k, 0, AttentionShape { kv_capacity: usize::MAX / 4, ..s }).unwrap_err();
    assert!(matches!(error, LaunchError::Overflow { operand: "k", .. }), "{error}");
}

/// No query: nothing is launched, and no operand is needed.
#[test]
fn nothing_to_attend_from() {
    let none = gpu().alloc::<f32>(0).unwrap();
    let mut o = Guarded::<f32>::new(gpu(), 0);
    let s = AttentionShape { batch: 0, ..shape(1, 3, 1, 64) };
    decode(gpu(), none.view(), none.view(), none.view(), &mut o.view_mut(), &s).unwrap();
    assert!(o.download().is_empty());
}

//! `kernels/attention_forward*.cu` and `kernels/attention_decode.cu`, at what no draw of normal numbers shows: masks, missing
//! keys, scores far apart, NaN, the unused end of a cache, the logsumexp.

use crate::common::*;
use handgrad::gpu::attention::{Decode, forward_grid, merge_grid};
use handgrad::launch::{Absent, F32, In, Into, int};
use handgrad::ops::{attention, attention_cached};
use handgrad::{DType, Tape, Tensor, Var};

/// q `[B,Tq,H,D]`, k and v `[B,capacity,Hkv,D]`, of which the first `tk` positions are in use.
struct Operands {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tk: usize,
}

/// Which kernel computes an output.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    Forward,
    /// The one for few queries over a cache.
    Decode,
}

const PATHS: [Path; 2] = [Path::Forward, Path::Decode];

impl Operands {
    /// One sequence and one KV head.
    fn new(q: &[f64], k: &[f64], v: &[f64], heads: usize, d: usize, dtype: DType) -> Operands {
        let tk = k.len() / d;
        let kv = [1, tk, 1, d];
        Operands {
            q: put(q, &[1, q.len() / heads / d, heads, d], dtype),
            k: put(k, &kv, dtype),
            v: put(v, &kv, dtype),
            tk,
        }
    }

    /// The output, which twice is the same bits.
    fn run(&self, path: Path, causal: bool) -> Vec<f64> {
        let once = || match path {
            Path::Forward => {
                let [q, k, v] = [&self.q, &self.k, &self.v].map(|x| Var::constant(x.clone()));
                attention(&mut Tape::inference(), &q, &k, &v, causal).unwrap().value().clone()
            }
            Path::Decode => attention_cached(&self.q, &self.k, &self.v, self.tk).unwrap(),
        };
        let found = once();
        same_bits("two runs", &found, &once());
        get(&found)
    }
}

/// Scores 0 and values 1, 2, …: a row's output is the mean of what it sees.
#[test]
fn the_mask_is_aligned_to_the_last_key() {
    let means = |path: Path, tq: usize, tk: usize, d: usize, dtype: DType| -> Vec<f64> {
        let values: Vec<f64> = (0..tk * d).map(|i| (i / d + 1) as f64).collect();
        let x = Operands::new(&vec![0.0; tq * d], &vec![0.0; tk * d], &values, 1, d, dtype);
        let found = x.run(path, true);
        found.chunks(d).map(|row| if row.iter().all(|x| x == &row[0]) { row[0] } else { f64::NAN }).collect()
    };
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for path in PATHS {
            let means = |tq, tk| means(path, tq, tk, d, dtype);
            assert_eq!(means(2, 5), [2.5, 3.0]);
            assert_eq!(means(1, 5), [3.0]);
            assert_eq!(means(5, 5), [1.0, 1.5, 2.0, 2.5, 3.0]);
            assert_eq!(means(5, 2), [0.0, 0.0, 0.0, 1.0, 1.5]);
            assert_eq!(means(3, 0), [0.0; 3]);
            assert_eq!(means(1, 65), [33.0]);
        }
        // Of 64 or 128 queries the last one alone sees the first key of the last tile.
        assert_eq!(means(Path::Forward, 64, 65, d, dtype)[63], 33.0);
        assert_eq!(means(Path::Forward, 128, 129, d, dtype)[127], 65.0);
    }
}

/// What the kernels for few queries write into guarded memory, of one sequence and one KV head; more queries than the
/// operator gives them.
fn guarded_decode(x: &Operands, splits_expected: usize) -> Vec<f64> {
    let (tq, heads, d) = (x.q.shape()[1], x.q.shape()[2], x.q.shape()[3]);
    let (rows, size) = (tq * heads, x.q.dtype().size());
    let plan = Decode::new(gpu().limits(), d, size, rows, x.tk, 1).unwrap();
    assert!(plan.splits >= splits_expected, "{plan:?}");
    let out = Guarded::new(x.q.shape(), x.q.dtype());
    let (o, lse) = (Guarded::new(&[rows, plan.splits, d], DType::F32), Guarded::new(&[rows, plan.splits], DType::F32));
    let scale = F32((std::f64::consts::LOG2_E / (d as f64).sqrt()) as f32);
    let parts = if plan.splits == 1 { [Absent, Absent] } else { [Into(&o.window), Into(&lse.window)] };
    let tensors = [In(&x.q), In(&x.k), In(&x.v), Into(&out.window), parts[0], parts[1]];
    let sizes = [1, tq, x.tk, heads, 1, x.k.shape()[1], 1].map(int);
    let cuts = [int(plan.row_tiles), int(plan.splits), int(plan.tiles_per_split), scale];
    gpu().launch("attention_decode_split", &plan.grid, &[&tensors[..], &sizes, &cuts].concat()).unwrap();
    if plan.splits > 1 {
        o.get();
        lse.get();
        let args = [In(&o.window), In(&lse.window), Into(&out.window), int(rows), int(plan.splits), int(d)];
        gpu().launch("attention_decode_merge", &merge_grid(rows), &args).unwrap();
    }
    out.get()
}

/// The first 4 rows see no key, in none of two ranges.
#[test]
fn no_key_in_any_range_of_a_cache() {
    for (tk, dtype) in [(66, DType::Bf16), (35, DType::F32)] {
        let (d, tq) = (32, tk + 4);
        let values: Vec<f64> = (0..tk * d).map(|i| (i / d + 1) as f64).collect();
        let x = Operands::new(&vec![0.0; tq * d], &vec![0.0; tk * d], &values, 1, d, dtype);
        let mean = |seen: usize| if seen == 0 { 0.0 } else { (seen + 1) as f64 / 2.0 };
        let expected: Vec<f64> = (0..tq * d).map(|i| mean((i / d).saturating_sub(3))).collect();
        for found in [x.run(Path::Forward, true), guarded_decode(&x, 2)] {
            within("means", &found, &expected, |i| expected[i] * 1e-6);
        }
    }
}

/// The operator's launches are these: every head_dim, one range or several.
#[test]
fn decoding_stays_in_its_memory() {
    let mut rng = rng();
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for (tq, tk, heads) in [(1, 1, 1), (1, 330, 4), (7, 170, 3), (2, 65, 16)] {
            let mut normal = |len: usize| normal(&mut rng, len * d);
            let x = Operands::new(&normal(tq * heads), &normal(tk), &normal(tk), heads, d, dtype);
            assert_eq!(guarded_decode(&x, 1), x.run(Path::Decode, true));
        }
    }
}

/// What the forward kernel writes into guarded memory: output and logsumexp of one sequence and one head.
fn guarded(x: &Operands, causal: bool) -> (Vec<f64>, Vec<f64>) {
    let (tq, heads, d) = (x.q.shape()[1], x.q.shape()[2], x.q.shape()[3]);
    let out = Guarded::new(x.q.shape(), x.q.dtype());
    let logsumexp = Guarded::new(&[tq, heads], DType::F32);
    let grid = forward_grid(d, x.q.dtype().size(), tq, heads).unwrap();
    let scale = F32((std::f64::consts::LOG2_E / (d as f64).sqrt()) as f32);
    let sizes = [1, tq, x.tk, heads, 1, x.k.shape()[1], usize::from(causal)].map(int);
    let tensors = [In(&x.q), In(&x.k), In(&x.v), Into(&out.window), Into(&logsumexp.window)];
    gpu().launch("attention_forward", &grid, &[&tensors[..], &sizes, &[scale]].concat()).unwrap();
    (out.get(), logsumexp.get())
}

/// Keys that a tile has too many get the weight 0, not exp(0): with equal scores and values of 1 the output is exactly 1, and
/// the logsumexp ln T.
#[test]
fn missing_keys_have_no_weight() {
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for t in [1, 31, 33, 63, 65] {
            let ones = vec![1.0; t * d];
            let x = Operands::new(&vec![0.0; t * d], &ones, &ones, 1, d, dtype);
            let (out, logsumexp) = guarded(&x, false);
            assert!(out.iter().all(|&x| x == 1.0), "T = {t}, D = {d}");
            assert!(logsumexp.iter().all(|&x| (x - (t as f64).ln()).abs() < 1e-6), "T = {t}, D = {d}");
            assert_eq!(out, x.run(Path::Forward, false));
        }
    }
}

/// logsumexp in f64 for one sequence and one KV head, and the bound of what f32 sums may make of it.
fn logsumexp(x: &Operands, causal: bool) -> Vec<(f64, f64)> {
    let (q, k, d, heads) = (get(&x.q), get(&x.k), x.q.shape()[3], x.q.shape()[2]);
    let (tq, scale) = (x.q.shape()[1], 1.0 / (d as f64).sqrt());
    let row = |(n, q): (usize, &[f64])| {
        let seen = if causal { (n / heads + 1 + x.tk).saturating_sub(tq) } else { x.tk };
        let keys = || k.chunks(d).take(seen);
        let scores: Vec<f64> = keys().map(|k| q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * scale).collect();
        let sizes = keys().map(|k| q.iter().zip(k).map(|(a, b)| (a * b).abs()).sum::<f64>() * scale);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let value = if seen == 0 { max } else { max + sum.ln() };
        let terms = (d + 8) as f64 * sizes.fold(0.0, f64::max) + 8.0 * (1.0 + value.abs()) + seen as f64;
        (value, 2f64.powi(-24) * terms)
    };
    q.chunks(d).enumerate().map(row).collect()
}

#[test]
fn the_logsumexp_of_normal_draws() {
    let mut rng = rng();
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for (tq, tk, heads, causal) in [(70, 130, 2, true), (33, 17, 3, true), (65, 129, 1, false), (1, 1, 4, true)] {
            let mut normal = |len: usize| normal(&mut rng, len * d);
            let x = Operands::new(&normal(tq * heads), &normal(tk), &normal(tk), heads, d, dtype);
            let (out, found) = guarded(&x, causal);
            let expected = logsumexp(&x, causal);
            within("logsumexp", &found, &expected.iter().map(|e| e.0).collect::<Vec<f64>>(), |i| expected[i].1);
            assert_eq!(out, x.run(Path::Forward, causal), "the operator's output");
            for (row, out) in out.chunks(d).enumerate() {
                let unseen = expected[row].0 == f64::NEG_INFINITY;
                assert!(!unseen || out.iter().all(|&x| x == 0.0), "row {row} sees no key, expected zeros");
            }
        }
    }
}

/// Two keys with the scores `[high, low]`: their weights, which are the output as the values are the first two unit vectors.
fn two_scores(path: Path, dtype: DType, high: f64, low: f64) -> [f64; 2] {
    let (d, mut q) = (64, vec![0.0; 64]);
    let (mut k, mut v) = (vec![0.0; 2 * d], vec![0.0; 2 * d]);
    q[0] = 8.0; // √64
    (k[0], k[d], v[0], v[d + 1]) = (high, low, 1.0, 1.0);
    let x = Operands::new(&q, &k, &v, 1, d, dtype);
    let found = x.run(path, true);
    if path == Path::Forward {
        let (out, logsumexp) = guarded(&x, true);
        let expected = high.max(low) + (1.0 + (-(low - high).abs()).exp()).ln();
        assert!(
            (logsumexp[0] - expected).abs() <= expected.abs() * 2f64.powi(-22),
            "{logsumexp:?}, expected {expected}"
        );
        assert_eq!(out, found);
    } else {
        // One key: its value, exactly, whatever the score.
        let one = Operands { tk: 1, ..x }.run(path, true);
        assert_eq!(one[..2], [1.0, 0.0]);
    }
    [found[0], found[1]]
}

#[test]
fn large_scores() {
    let near = |dtype: DType, scores: [f64; 2], expected: [f64; 2], tolerance: f64| {
        for path in PATHS {
            let found = two_scores(path, dtype, scores[0], scores[1]);
            let near = found.iter().zip(expected).all(|(f, e)| (f - e).abs() <= tolerance);
            assert!(near, "{path:?}: scores {scores:?}: {found:?}, expected {expected:?}");
        }
    };
    let weights = [0.731_058_578_630_005, 0.268_941_421_369_995];
    // 2^-10 is an f32's rounding of 10,000·log2(e).
    near(DType::F32, [1e4, 9999.0], weights, 1e-3);
    near(DType::F32, [-1e4, -10001.0], weights, 1e-3);
    near(DType::Bf16, [128.0, 127.0], weights, 4e-3);
    near(DType::Bf16, [-29952.0, -30080.0], [1.0, 0.0], 0.0);
    near(DType::Bf16, [30080.0, 29952.0], [1.0, 0.0], 0.0);
    near(DType::Bf16, [-59904.0, -60160.0], [1.0, 0.0], 0.0);
}

/// Scores fall by 2000 from one tile of keys to the next, or rise: what was seen first keeps or loses all its weight, and
/// no exponential overflows.
#[test]
fn scores_far_apart_between_tiles() {
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for (from, step, winner) in [(6000.0, -2000.0, 0), (-6000.0, 2000.0, 6)] {
            let t = 200;
            let (mut q, mut k, mut v) = (vec![0.0; d], vec![0.0; t * d], vec![0.0; t * d]);
            q[0] = (d as f64).sqrt();
            for j in 0..t {
                (k[j * d], v[j * d]) = (from + step * (j / 32) as f64, j as f64);
            }
            let x = Operands::new(&q, &k, &v, 1, d, dtype);
            let winners = winner * 32..t.min(winner * 32 + 32);
            let mean = winners.clone().sum::<usize>() as f64 / winners.len() as f64;
            for path in PATHS {
                let found = x.run(path, true)[0];
                assert!((found - mean).abs() <= mean * 2f64.powi(-8), "D {d}: found {found}, expected {mean}");
            }
            let (found, expected) = (guarded(&x, true).1[0], logsumexp(&x, true)[0].0);
            assert!((found - expected).abs() <= 2f64.powi(-8), "D {d}: {found}, expected {expected}");
        }
    }
}

/// Which rows of the output are broken if `change` breaks a number of q, k and v.
fn broken(path: Path, dtype: DType, shape: [usize; 4], change: &dyn Fn(&mut [Vec<f64>; 3])) -> Vec<bool> {
    let [tq, tk, heads, d] = shape;
    let mut rng = rand::SeedableRng::seed_from_u64(1);
    let mut data = [tq * heads, tk, tk].map(|rows| normal(&mut rng, rows * d));
    change(&mut data);
    let x = Operands::new(&data[0], &data[1], &data[2], heads, d, dtype);
    x.run(path, true).chunks(d).map(|row| row.iter().any(|x| x.is_nan())).collect()
}

/// A broken number shows, and only where it is seen.
#[test]
fn nan_shows_in_its_rows() {
    const NAN: f64 = f64::NAN;
    for (d, dtype) in [64, 96].into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        let rows = |from: usize, to: usize| (0..150).map(|i| i >= from && i < to).collect::<Vec<bool>>();
        let broken = |change: &dyn Fn(&mut [Vec<f64>; 3])| broken(Path::Forward, dtype, [150, 150, 1, d], change);
        assert_eq!(broken(&|x| x[0][70 * d + 3] = NAN), rows(70, 71), "query 70");
        assert_eq!(broken(&|x| x[0][70 * d..71 * d].fill(NAN)), rows(70, 71), "all of query 70");
        assert_eq!(broken(&|x| x[1][140 * d + 1] = NAN), rows(140, 150), "key 140");
        let by_value = broken(&|x| x[2][140 * d] = NAN);
        assert!(by_value[140..].iter().all(|&b| b) && !by_value[..128].contains(&true), "value 140: {by_value:?}");
    }
}

/// The same through the merge of a cache's ranges.
#[test]
fn nan_shows_through_the_merge_of_ranges() {
    const NAN: f64 = f64::NAN;
    for dtype in BOTH {
        let broken = |change: &dyn Fn(&mut [Vec<f64>; 3])| broken(Path::Decode, dtype, [2, 300, 4, 64], change);
        let only = |rows: std::ops::Range<usize>| (0..8).map(|row| rows.contains(&row)).collect::<Vec<bool>>();
        assert_eq!(broken(&|x| x[0][2 * 64 + 3] = NAN), only(2..3), "head 2 of query 0");
        assert_eq!(broken(&|x| x[1][299 * 64] = NAN), only(4..8), "the last key");
        assert_eq!(broken(&|x| x[1][100 * 64] = NAN), only(0..8), "key 100");
        assert_eq!(broken(&|x| x[2][100 * 64] = NAN), only(0..8), "value 100");
    }
}

/// What lies behind the positions in use does not matter: NaN there gives the bits of a cache that ends.
#[test]
fn the_unused_end_of_a_cache_is_not_read() {
    let mut rng = rng();
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for (batch, tq, heads, hkv, tk, spare) in [(2, 1, 4, 2, 65, 3), (1, 3, 2, 2, 300, 69), (2, 70, 2, 1, 90, 40)] {
            let (row, capacity) = (hkv * d, tk + spare);
            let q = draw(&mut rng, &[batch, tq, heads, d], dtype);
            let used = [(); 2].map(|()| normal(&mut rng, batch * tk * row));
            let with_end = used.each_ref().map(|data| {
                let positions = data.chunks(tk * row).flat_map(|x| [x, &vec![f64::NAN; spare * row]].concat());
                put(&positions.collect::<Vec<f64>>(), &[batch, capacity, hkv, d], dtype)
            });
            let alone = used.map(|data| put(&data, &[batch, tk, hkv, d], dtype));
            let expected = attention_cached(&q, &alone[0], &alone[1], tk).unwrap();
            let found = attention_cached(&q, &with_end[0], &with_end[1], tk).unwrap();
            assert!(get(&found).iter().all(|x| x.is_finite()));
            same_bits("with and without an unused end", &found, &expected);
        }
    }
}

/// No query: nothing is launched, and no operand is needed.
#[test]
fn nothing_to_attend_from() {
    for dtype in BOTH {
        let (q, kv) = (put(&[], &[0, 3, 2, 64], dtype), put(&[], &[0, 5, 1, 64], dtype));
        assert_eq!(attention_cached(&q, &kv, &kv, 3).unwrap().shape(), [0, 3, 2, 64]);
        let (q, kv) = (Var::constant(q), Var::constant(kv));
        assert_eq!(attention(&mut Tape::inference(), &q, &kv, &kv, true).unwrap().shape(), [0, 3, 2, 64]);
    }
}

//! `kernels/attention_backward_*.cu`: any order of blocks, activations as a model makes them, what sees nothing, scores far
//! below 0.

use crate::common::*;
use handgrad::gpu::attention::{backward_passes, delta_grid};
use handgrad::gpu::grid::shared::STATISTICS_PAD;
use handgrad::launch::{In, Int, Into, int};
use handgrad::ops::cases::plain;
use handgrad::ops::{self, attention};
use handgrad::{DType, Tape, Tensor, Var};
use rand_chacha::ChaCha8Rng;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

/// B, Tq, Tk, H, Hkv, D.
type Shape = [usize; 6];

/// q, k, v and the cotangent.
fn drawn([b, tq, tk, h, hkv, d]: Shape, dtype: DType, rng: &mut ChaCha8Rng) -> [Tensor; 4] {
    let (q, kv) = ([b, tq, h, d], [b, tk, hkv, d]);
    [&q, &kv, &kv, &q].map(|shape| draw(rng, shape, dtype))
}

/// The output, then d_q, d_k and d_v, which are the same bits twice, each with what it is in f64.
fn gradients([q, k, v, d_out]: &[Tensor; 4], causal: bool) -> [Vec<(Tensor, Vec<f64>)>; 2] {
    let f = |tape: &mut Tape, x: &[Var]| Ok(vec![attention(tape, &x[0], &x[1], &x[2], causal)?]);
    against_f64(&[q, k, v], &[d_out], &f)
}

/// What an eager bf16 version gives for d_q, d_k and d_v, causal.
fn naive([q, k, v, d_out]: &[Tensor; 4]) -> Vec<Vec<f64>> {
    let [q, k, v, d_out] = [q, k, v, d_out].map(|x| exact(x).to_dtype(DType::F32).unwrap());
    let f = |tape: &mut Tape, x: &[Var]| Ok(vec![plain::attention(tape, &x[0], &x[1], &x[2], true)?]);
    both_ways(&[&q, &k, &v], &[&d_out], &f).1.iter().map(get).collect()
}

/// q, k and v as a block's first layer makes them from text: embedding, RMSNorm with one channel far above the others,
/// projections, and QK-Norm and RoPE for q and k. Words come again and keys resemble each other, unlike in normal draws.
fn activations([b, tq, _, h, hkv, d]: Shape, rng: &mut ChaCha8Rng) -> [Tensor; 3] {
    const TEXT: &[u8] = b"the cat sat on the mat, and the dog sat on the log; ";
    const WIDTH: usize = 64;
    let mut drawn = |shape: &[usize], size: f64| {
        let data: Vec<f64> = normal(rng, shape.iter().product()).iter().map(|x| x * size).collect();
        Tensor::from_vec(data, shape).unwrap()
    };
    let ids: Vec<u32> = TEXT.iter().cycle().take(b * tq).map(|&byte| byte as u32).collect();
    let ids = Tensor::from_vec(ids, &[b, tq]).unwrap();
    let gain = (0..WIDTH).map(|i| if i == 5 { 20.0 } else { 1.0 }).collect::<Vec<f64>>();
    let mut weight = |heads: usize| drawn(&[heads * d, WIDTH], (WIDTH as f64).powf(-0.5));
    let (wq, wk, wv) = (weight(h), weight(hkv), weight(hkv));
    let inputs = [drawn(&[256, WIDTH], 0.02), Tensor::from_vec(gain, &[WIDTH]).unwrap(), wq, wk, wv, drawn(&[d], 1.0)];
    let rope = ops::RopeTable::new(d, tq, 10_000.0).unwrap();
    let made = forward(&inputs.each_ref(), &|tape, x| {
        let embedded = ops::embedding(tape, &x[0], &ids)?;
        let normed = ops::rms_norm(tape, &embedded, &x[1], 1e-6)?;
        let mut project = |weight: &Var, heads: usize, normed_heads: bool| {
            let y = ops::linear(tape, &normed, weight, None)?;
            let y = ops::reshape(tape, &y, &[b, tq, heads, d])?;
            if normed_heads { ops::qk_norm_rope(tape, &y, &x[5], 1e-6, &rope, 0) } else { Ok(y) }
        };
        Ok(vec![project(&x[2], h, true)?, project(&x[3], hkv, true)?, project(&x[4], hkv, false)?])
    });
    made.try_into().expect("three outputs")
}

#[test]
fn activations_of_a_forward_pass() {
    let mut rng = rng();
    for group in [1, 2, 3, 4, 6, 8] {
        let hkv = if group < 4 { 2 } else { 1 };
        let shape = [2, 70, 70, group * hkv, hkv, 32];
        let [q, k, v] = activations(shape, &mut rng).map(|x| put(&get(&x), x.shape(), DType::Bf16));
        let d_out = draw(&mut rng, q.shape(), DType::Bf16);
        let x = [q, k, v, d_out];
        let [_, found] = gradients(&x, true);
        for ((name, (found, expected)), naive) in ["d_q", "d_k", "d_v"].into_iter().zip(&found).zip(naive(&x)) {
            within_budget(name, &get(found), expected, &naive, 3.0);
        }
    }
}

/// Scores four times as sharp as those of normal draws.
#[test]
fn sharp_scores() {
    let mut rng = rng();
    for (d, (tq, tk, h, hkv)) in
        HEAD_DIMS.into_iter().zip([(65, 65, 4, 2), (33, 129, 3, 1), (64, 64, 2, 2), (129, 40, 2, 1)])
    {
        let shape = [1, tq, tk, h, hkv, d];
        let [q, k, v, d_out] = drawn(shape, DType::Bf16, &mut rng);
        let q = put(&get(&q).iter().map(|x| 4.0 * x).collect::<Vec<f64>>(), q.shape(), DType::Bf16);
        let x = [q, k, v, d_out];
        let [_, found] = gradients(&x, true);
        for (found, naive) in found.iter().zip(naive(&x)) {
            within_budget(&format!("{shape:?}"), &get(&found.0), &found.1, &naive, 3.0);
        }
    }
}

/// Tells a child process to print the bits of its gradients.
const PRINT_BITS: &str = "HANDGRAD_TEST_PRINT_BITS";

/// What the child processes of the test below run; in the tests' own process it does nothing.
#[test]
fn child() {
    if std::env::var_os(PRINT_BITS).is_none() {
        return;
    }
    for dtype in BOTH {
        let mut rng = rand::SeedableRng::seed_from_u64(1);
        let x = drawn([2, 150, 150, 6, 2, 32], dtype, &mut rng);
        for (gradient, _) in &gradients(&x, true)[1] {
            let mut hasher = DefaultHasher::new();
            get(gradient).iter().for_each(|x| x.to_bits().hash(&mut hasher));
            println!("bits {:x}", hasher.finish());
        }
    }
}

/// Every order in a process of its own: the emulator reads its seed once.
#[test]
fn any_order_of_blocks_gives_the_same_bits() {
    let bits = |seed: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "attention_backward::child", "--nocapture"]);
        let found = command.env(PRINT_BITS, "1").env("HANDGRAD_EMULATOR_SEED", seed).output().unwrap();
        let text = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(found.status.success(), "seed {seed}: {text}{}", String::from_utf8_lossy(&found.stderr));
        let bits: Vec<String> = text.lines().filter(|line| line.starts_with("bits ")).map(str::to_string).collect();
        assert_eq!(bits.len(), 6, "{text}");
        bits
    };
    let in_order = bits("0");
    for seed in ["1", "2", "3"] {
        assert_eq!(bits(seed), in_order, "blocks in the order of seed {seed}");
    }
}

#[test]
fn a_single_token() {
    for dtype in BOTH {
        let values = |x: f64, y: f64| put(&[x, y].repeat(16), &[1, 1, 1, 32], dtype);
        let x = [values(0.5, 2.0), values(-1.5, 0.25), values(3.0, -4.0), values(1.0, 2.0)];
        let [_, found] = gradients(&x, true);
        assert_eq!(get(&found[0].0), [0.0; 32]);
        assert_eq!(get(&found[1].0), [0.0; 32]);
        within("d_v", &get(&found[2].0), &[1.0, 2.0].repeat(16), |_| 1e-6);
    }
}

/// A single key has the weight 1 whatever q and k are: of d_q and d_k there remains the rounding of f32.
#[test]
fn a_single_key() {
    let mut rng = rng();
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for (tq, causal) in [(1, true), (17, false), (65, false), (40, true)] {
            let x = drawn([2, tq, 1, 4, 2, d], dtype, &mut rng);
            let [_, found] = gradients(&x, causal);
            for (found, expected) in &found[..2] {
                within("d_q and d_k", &get(found), expected, |_| 1e-3);
            }
            let (d_v, expected) = &found[2];
            // A rounding of the sum over queries and heads, and that of the weights, which are 1.
            let terms = 1.01 * (tq * 2) as f64;
            within("d_v", &get(d_v), expected, |i| {
                unit(dtype) * (expected[i].abs() + 0.05 * terms.sqrt()) + 1e-5 * terms
            });
        }
    }
}

/// Queries without a key have no gradient; an empty side leaves zeros on the other.
#[test]
fn nothing_to_see() {
    let mut rng = rng();
    for dtype in BOTH {
        for (tq, tk) in [(5, 2), (200, 70), (40, 1)] {
            let [_, found] = gradients(&drawn([2, tq, tk, 2, 1, 32], dtype, &mut rng), true);
            let row = 2 * 32;
            for batch in get(&found[0].0).chunks(tq * row) {
                let (blind, seeing) = batch.split_at((tq - tk) * row);
                assert!(blind.iter().all(|&x| x == 0.0), "Tq {tq}, Tk {tk}: a gradient of a query without keys");
                // The first that sees a key sees only that, so its gradient is 0 as well, up to rounding.
                let mut heads = seeing[row..].chunks(32);
                assert!(heads.all(|head| head.iter().any(|&x| x != 0.0)), "Tq {tq}, Tk {tk}: a query without gradient");
            }
        }
        for (tq, tk, causal) in [(0, 130, true), (130, 0, true), (0, 0, true), (0, 130, false), (130, 0, false)] {
            let [_, found] = gradients(&drawn([1, tq, tk, 2, 1, 64], dtype, &mut rng), causal);
            assert!(found.iter().all(|(x, _)| get(x).iter().all(|&x| x == 0.0)), "Tq {tq}, Tk {tk}");
        }
    }
}

/// Scores of −56,569: zeros behind the last key would get a weight of e^56569. A float has steps of 1/256 there, so
/// exp(s − ℓ) is good for two digits.
#[test]
fn very_negative_scores() {
    let mut rng = rng();
    for dtype in BOTH {
        for (tq, tk, causal) in [(3, 5, false), (140, 5, false), (70, 70, true), (33, 129, true)] {
            let [_, _, v, d_out] = drawn([1, tq, tk, 1, 1, 32], dtype, &mut rng);
            let (q, k) = (vec![-100.0; tq * 32], vec![100.0; tk * 32]);
            let x = [put(&q, &[1, tq, 1, 32], dtype), put(&k, &[1, tk, 1, 32], dtype), v, d_out];
            let [_, found] = gradients(&x, causal);
            // Equal keys: d_q is 0 but for rounding, as the d_s of a query sum to 0.
            let d_q = get(&found[0].0);
            assert!(d_q.iter().all(|x| x.abs() < 20.0), "{d_q:?}");
            for (name, (found, expected)) in ["d_k", "d_v"].into_iter().zip(&found[1..]) {
                let largest = expected.iter().fold(0.0f64, |m, e| m.max(e.abs()));
                within(name, &get(found), expected, |_| 0.02 * largest);
            }
        }
    }
}

/// The three launches into guarded memory give what the operator gives.
#[test]
fn backward_stays_in_its_memory() {
    let mut rng = rng();
    for (d, dtype) in HEAD_DIMS.into_iter().flat_map(|d| BOTH.map(|dtype| (d, dtype))) {
        for (b, tq, tk, h, hkv) in [(1, 33, 65, 2, 1), (2, 65, 33, 3, 3), (1, 1, 3, 1, 1)] {
            let x = drawn([b, tq, tk, h, hkv, d], dtype, &mut rng);
            let [q, k, v, d_out] = &x;
            let f = |tape: &mut Tape, x: &[Var]| Ok(vec![attention(tape, &x[0], &x[1], &x[2], false)?]);
            let (outputs, expected) = both_ways(&[q, k, v], &[d_out], &f);
            // ℓ of each query in f64, rounded once: the operator's is as near.
            let logsumexp = put(&logsumexp([b, tq, tk, h, hkv, d], q, k), &[b, tq, h], DType::F32);
            let padded = tq.next_multiple_of(STATISTICS_PAD);
            let statistics = Guarded::new(&[b, h, padded, 2], DType::F32);
            let tensors = [In(&outputs[0]), In(d_out), In(&logsumexp), Into(&statistics.window)];
            let shape = [tq, padded, h, d].map(int);
            gpu()
                .launch("attention_backward_delta", &delta_grid(padded, h, b), &[&tensors[..], &shape].concat())
                .unwrap();
            statistics.get();
            let [d_q, d_k, d_v] = [q, k, v].map(|x| Guarded::new(x.shape(), dtype));
            let numbers = [int(tq), int(padded), int(tk), int(h), int(hkv), Int(tk as i64)];
            let inputs = [In(q), In(k), In(v), In(d_out), In(&statistics.window)];
            let [queries, keys] = backward_passes(d, dtype.size()).unwrap();
            let args = [&inputs[..], &[Into(&d_q.window)], &numbers].concat();
            gpu().launch("attention_backward_dq", &queries.grid(tq, b * h), &args).unwrap();
            let args = [&inputs[..], &[Into(&d_k.window), Into(&d_v.window)], &numbers].concat();
            gpu().launch("attention_backward_dkv", &keys.grid(tk, b * hkv), &args).unwrap();
            for (found, expected) in [d_q, d_k, d_v].iter().zip(&expected) {
                let largest = get(expected).iter().fold(1.0f64, |m, e| m.max(e.abs()));
                within("guarded", &found.get(), &get(expected), |_| 8.0 * unit(dtype).max(1e-6) * largest);
            }
        }
    }
}

/// ℓ of each query, all keys seen.
fn logsumexp([b, tq, tk, h, hkv, d]: Shape, q: &Tensor, k: &Tensor) -> Vec<f64> {
    let (q, k) = (get(q), get(k));
    let row = |n: usize| {
        let key = |j: usize| ((n / h / tq * tk + j) * hkv + n % h / (h / hkv)) * d;
        let dot = |j: usize| q[n * d..][..d].iter().zip(&k[key(j)..]).map(|(a, b)| a * b).sum::<f64>();
        (0..tk).map(|j| (dot(j) / (d as f64).sqrt()).exp()).sum::<f64>().ln()
    };
    (0..b * tq * h).map(row).collect()
}

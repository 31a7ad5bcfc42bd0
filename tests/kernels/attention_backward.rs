//! `kernels/attention_backward_*.cu`: against the f64 tape, from an exact forward's output and log-sum-exp.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::attention_backward::{Gradients, Saved, backward};
use handgrad::gpu::kernels::attention_dims::AttentionShape;
use handgrad::gpu::{GpuFloat, LaunchError, Result, View};
use handgrad::{Tensor, Var, ops};
use proptest::prelude::*;
use proptest::sample::select;
use rand_chacha::ChaCha8Rng;

/// What the kernels read, and what comes out of them in f64.
struct Problem<E> {
    shape: AttentionShape,
    q: Vec<E>,
    k: Vec<E>,
    v: Vec<E>,
    o: Vec<E>,
    d_o: Vec<E>,
    logsumexp: Vec<f32>,
    /// d_q, d_k, d_v
    expected: Vec<Vec<f64>>,
}

impl<E: GpuFloat> Problem<E> {
    /// Standard normal inputs, q times `sharpness`.
    fn random(shape: AttentionShape, sharpness: f64, rng: &mut ChaCha8Rng) -> Problem<E> {
        let (q_len, k_len) = (queries(&shape) * shape.head_dim, keys(&shape) * shape.head_dim);
        let q = to_f64(&normal::<E>(rng, q_len)).into_iter().map(|x| round(x * sharpness)).collect();
        Problem::new(shape, q, normal(rng, k_len), normal(rng, k_len), normal(rng, q_len))
    }

    fn new(shape: AttentionShape, q: Vec<E>, k: Vec<E>, v: Vec<E>, d_o: Vec<E>) -> Problem<E> {
        let AttentionShape { batch, tq, tk, n_head, n_kv_head, head_dim, causal, .. } = shape;
        let (q_shape, k_shape) = ([batch, tq, n_head, head_dim], [batch, tk, n_kv_head, head_dim]);
        let inputs = [tensor(&q, &q_shape), tensor(&k, &k_shape), tensor(&v, &k_shape)];
        let exact = reference(&inputs, &[tensor(&d_o, &q_shape)], |tape, x| {
            Ok(vec![ops::attention(tape, &x[0], &x[1], &x[2], causal)?])
        });
        let o = exact.outputs[0].iter().map(|&x| round(x)).collect();
        let logsumexp = logsumexp(&shape, &to_f64(&q), &to_f64(&k));
        Problem { shape, q, k, v, o, d_o, logsumexp, expected: exact.gradients }
    }

    /// d_q, d_k and d_v of the kernels, which twice give the same bits.
    fn run(&self) -> [Vec<E>; 3] {
        let found = self.try_run(&self.shape, 0).unwrap();
        for (first, again) in found.iter().zip(self.try_run(&self.shape, 0).unwrap()) {
            same_bits("attention_backward", first, &again);
        }
        found
    }

    /// One run with another shape than the inputs', or with all at `offset` elements from an aligned address.
    fn try_run(&self, shape: &AttentionShape, offset: usize) -> Result<[Vec<E>; 3]> {
        let gpu = gpu();
        let input = |data: &[E]| Input::new(gpu, data, offset);
        let (q, k, v, o, d_o) = (input(&self.q), input(&self.k), input(&self.v), input(&self.o), input(&self.d_o));
        let logsumexp = Input::new(gpu, &self.logsumexp, offset);
        let [mut d_q, mut d_k, mut d_v] = [&self.q, &self.k, &self.v].map(|x| Guarded::<E>::at(gpu, x.len(), offset));
        let saved =
            Saved { q: q.view(), k: k.view(), v: v.view(), o: o.view(), d_o: d_o.view(), logsumexp: logsumexp.view() };
        let mut gradients = Gradients { d_q: d_q.view_mut(), d_k: d_k.view_mut(), d_v: d_v.view_mut() };
        backward(gpu, shape, &saved, &mut gradients)?;
        Ok([d_q.download(), d_k.download(), d_v.download()])
    }

    /// Largest errors relative to the largest value of each gradient.
    fn relative_errors(&self) -> Vec<f64> {
        let largest = |x: &mut dyn Iterator<Item = f64>| x.fold(0.0f64, |m, x| if x <= m { m } else { x });
        let found = self.run();
        let error = |(found, expected): (&Vec<E>, &Vec<f64>)| {
            let error = largest(&mut to_f64(found).iter().zip(expected).map(|(f, e)| (f - e).abs()));
            error / largest(&mut expected.iter().map(|e| e.abs()))
        };
        found.iter().zip(&self.expected).map(error).collect()
    }
}

/// q, k and v as a block's first layer makes them from text: embedding, RMSNorm with one channel far above the others,
/// projections, and QK-Norm and RoPE for q and k. Words come again and keys resemble each other, unlike in normal draws.
fn activations(shape: &AttentionShape, rng: &mut ChaCha8Rng) -> [Vec<f64>; 3] {
    const TEXT: &[u8] = b"the cat sat on the mat, and the dog sat on the log; ";
    const WIDTH: usize = 64;
    let &AttentionShape { batch, tq, n_head, n_kv_head, head_dim, .. } = shape;
    let mut drawn = |sizes: &[usize], size: f64| {
        let data = to_f64(&normal::<f32>(rng, sizes.iter().product())).into_iter().map(|x| x * size).collect();
        Tensor::from_vec(data, sizes).unwrap()
    };
    let ids: Vec<u32> = TEXT.iter().cycle().take(batch * tq).map(|&byte| byte as u32).collect();
    let ids = Tensor::from_vec(ids, &[batch, tq]).unwrap();
    let gain = Tensor::from_vec((0..WIDTH).map(|i| if i == 5 { 20.0 } else { 1.0 }).collect::<Vec<f64>>(), &[WIDTH]);
    let mut weight = |heads: usize| drawn(&[heads * head_dim, WIDTH], (WIDTH as f64).powf(-0.5));
    let (wq, wk, wv) = (weight(n_head), weight(n_kv_head), weight(n_kv_head));
    let inputs = [drawn(&[256, WIDTH], 0.02), gain.unwrap(), wq, wk, wv, drawn(&[head_dim], 1.0)];
    let rope = ops::RopeTable::new(head_dim, tq, 10_000.0).unwrap();
    let made = reference(&inputs, &[], |tape, x| {
        let (table, gain, head_gain) = (&x[0], &x[1], &x[5]);
        let embedded = ops::embedding(tape, table, &ids)?;
        let normed = ops::rms_norm(tape, &embedded, gain, 1e-6)?;
        let mut project = |weight: &Var, heads: usize, normed_heads: bool| {
            let y = ops::linear(tape, &normed, weight, None)?;
            let y = ops::reshape(tape, &y, &[batch, tq, heads, head_dim])?;
            if normed_heads { ops::qk_norm_rope(tape, &y, head_gain, 1e-6, &rope, 0) } else { Ok(y) }
        };
        Ok(vec![project(&x[2], n_head, true)?, project(&x[3], n_kv_head, true)?, project(&x[4], n_kv_head, false)?])
    });
    made.outputs.try_into().expect("three outputs")
}

fn shape_of([batch, tq, tk, n_head, n_kv_head, head_dim]: [usize; 6], causal: bool) -> AttentionShape {
    AttentionShape { batch, tq, tk, n_head, n_kv_head, head_dim, kv_capacity: tk, causal }
}

fn queries(shape: &AttentionShape) -> usize {
    shape.batch * shape.tq * shape.n_head
}

fn keys(shape: &AttentionShape) -> usize {
    shape.batch * shape.tk * shape.n_kv_head
}

/// The keys that query `i` sees, counted from the first.
fn visible(shape: &AttentionShape, i: usize) -> usize {
    if shape.causal { (i + 1 + shape.tk).saturating_sub(shape.tq) } else { shape.tk }
}

/// Row n of q belongs to query `i` of head `h`; where key j of its KV head begins in k.
fn key_offset(shape: &AttentionShape, n: usize, j: usize) -> usize {
    let (b, h) = (n / shape.n_head / shape.tq, n % shape.n_head);
    let kv_head = h / (shape.n_head / shape.n_kv_head);
    ((b * shape.tk + j) * shape.n_kv_head + kv_head) * shape.head_dim
}

fn logsumexp(shape: &AttentionShape, q: &[f64], k: &[f64]) -> Vec<f32> {
    let (d, scale) = (shape.head_dim, 1.0 / (shape.head_dim as f64).sqrt());
    let row = |n: usize| {
        let scores: Vec<f64> = (0..visible(shape, n / shape.n_head % shape.tq))
            .map(|j| (0..d).map(|c| q[n * d + c] * k[key_offset(shape, n, j) + c]).sum::<f64>() * scale)
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if scores.is_empty() { max } else { max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln() }
    };
    (0..queries(shape)).map(|n| row(n) as f32).collect()
}

/// What eager operators in the type E give: each matrix of scores, probabilities and their gradients is rounded, and
/// d_k and d_v first exist for every query head; sums are in f32. δ comes from the saved output. The probabilities are
/// a softmax in bf16; in f32 they come from the saved ℓ, since a softmax lacks the rounding of ℓ, which counts there.
fn naive<E: GpuFloat>(problem: &Problem<E>) -> [Vec<f64>; 3] {
    let shape = &problem.shape;
    let (d, scale) = (shape.head_dim, 1.0 / (shape.head_dim as f32).sqrt());
    let [q, k, v, o, d_o] = [&problem.q, &problem.k, &problem.v, &problem.o, &problem.d_o].map(|x| to_f32(x));
    let r = rounded::<E>;
    let dot = |a: &[f32], b: &[f32]| r(a[..d].iter().zip(b).map(|(a, b)| a * b).sum());
    let mut d_q = vec![0.0f64; q.len()];
    // [B,Tk,H,D]
    let repeated = shape.batch * shape.tk * shape.n_head * d;
    let (mut d_k, mut d_v) = (vec![0.0f32; repeated], vec![0.0f32; repeated]);
    for n in 0..queries(shape) {
        let (b, i, h) = (n / shape.n_head / shape.tq, n / shape.n_head % shape.tq, n % shape.n_head);
        let offsets: Vec<usize> = (0..visible(shape, i)).map(|j| key_offset(shape, n, j)).collect();
        let scores: Vec<f32> = offsets.iter().map(|&at| r(dot(&q[n * d..], &k[at..]) * scale)).collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let own = max + scores.iter().map(|s| (s - max).exp()).sum::<f32>().ln();
        let l = if E::SUFFIX == "bf16" { own } else { problem.logsumexp[n] };
        let p: Vec<f32> = scores.iter().map(|s| r((s - l).exp())).collect();
        let d_p: Vec<f32> = offsets.iter().map(|&at| dot(&d_o[n * d..], &v[at..])).collect();
        let delta: f32 = d_o[n * d..][..d].iter().zip(&o[n * d..]).map(|(d_o, o)| d_o * o).sum();
        let d_s: Vec<f32> = p.iter().zip(&d_p).map(|(p, d_p)| r(r(p * (d_p - delta)) * scale)).collect();
        for c in 0..d {
            d_q[n * d + c] = r(offsets.iter().zip(&d_s).map(|(&at, d_s)| d_s * k[at + c]).sum()) as f64;
        }
        for (j, (p, d_s)) in p.iter().zip(&d_s).enumerate() {
            let to = ((b * shape.tk + j) * shape.n_head + h) * d;
            for c in 0..d {
                d_k[to + c] += d_s * q[n * d + c];
                d_v[to + c] += p * d_o[n * d + c];
            }
        }
    }
    let group = shape.n_head / shape.n_kv_head * d;
    let heads_summed = |x: Vec<f32>| {
        let sums = x.chunks(group).flat_map(|heads| (0..d).map(|c| heads[c..].iter().step_by(d).map(|&x| r(x)).sum()));
        sums.map(|sum| r(sum) as f64).collect()
    };
    [d_q, heads_summed(d_k), heads_summed(d_v)]
}

fn check<E: GpuFloat>((shape, sharpness): (AttentionShape, f64), rng: &mut ChaCha8Rng) {
    check_problem(&Problem::<E>::random(shape, sharpness, rng));
}

fn check_problem<E: GpuFloat>(problem: &Problem<E>) {
    let shape = &problem.shape;
    let (found, naive) = (problem.run(), naive(problem));
    for (i, name) in ["d_q", "d_k", "d_v"].into_iter().enumerate() {
        if shape.tk == 1 && name != "d_v" {
            // A single key has the weight 1 whatever q and k are. What remains of d_o·v − δ is the rounding of f32.
            within(name, &to_f64(&found[i]), &problem.expected[i], |_| 1e-3);
        } else {
            within_budget(name, &found[i], &problem.expected[i], &naive[i], 3.0);
        }
    }
}

/// Causal, one key or query more than whole tiles: the first key of a tile is seen by the last query of a warp or tile
/// alone.
#[test]
fn one_beyond_a_tile() {
    property("attention_backward, one beyond a tile", 1, Just(()), |(), rng| {
        for head_dim in HEAD_DIMS {
            for (tq, tk) in [(16, 33), (17, 16), (64, 65), (65, 64), (128, 65), (128, 129), (129, 128)] {
                check::<bf16>((shape_of([1, tq, tk, 2, 2, head_dim], true), 1.0), rng);
            }
        }
    });
}

/// Lengths around the tiles; batch and KV heads only as many as the emulator has time for, and so many that the naive
/// errors are not small by chance.
fn shapes(lengths: fn() -> BoxedStrategy<usize>) -> impl Strategy<Value = (AttentionShape, f64)> {
    let heads = (1..=3usize, select(&GROUPS[..]), 1..=2usize);
    let parts = (heads, lengths(), lengths(), select(&HEAD_DIMS[..]), any::<bool>(), select(vec![1.0, 4.0]));
    parts.prop_map(|((n_kv_head, group, batch), tq, tk, head_dim, causal, sharpness)| {
        let mut shape = shape_of([batch, tq, tk, n_kv_head * group, n_kv_head, head_dim], causal);
        while shape.batch * shape.n_kv_head > 1 && queries(&shape) * tk * head_dim > 8 << 20 {
            shape.batch = 1;
            shape.n_kv_head -= (shape.n_kv_head > 1) as usize;
            shape.n_head = shape.n_kv_head * group;
        }
        shape.batch = shape.batch.max(64 / (tq.min(tk) * shape.n_kv_head));
        (shape, sharpness)
    })
}

#[test]
fn bf16_against_f64() {
    property("attention_backward bf16", 24, shapes(|| edges(&[16, 32, 64, 128])), check::<bf16>);
}

#[test]
fn f32_against_f64() {
    property("attention_backward f32", 16, shapes(|| edges(&[16, 32, 64])), check::<f32>);
}

#[test]
fn several_tiles() {
    let lengths = || (130..=330usize).boxed();
    for head_dim in HEAD_DIMS {
        let shapes = (lengths(), lengths(), any::<bool>())
            .prop_map(move |(tq, tk, causal)| (shape_of([1, tq, tk, 2, 1, head_dim], causal), 1.0));
        property("attention_backward, several tiles", 2, shapes, check::<bf16>);
    }
}

fn from_a_forward_pass(rng: &mut ChaCha8Rng) {
    for group in GROUPS {
        let n_kv_head = if group < 4 { 2 } else { 1 };
        let shape = shape_of([2, 70, 70, group * n_kv_head, n_kv_head, 32], true);
        let [q, k, v] = activations(&shape, rng).map(|x| x.into_iter().map(round).collect());
        let d_o = normal(rng, queries(&shape) * shape.head_dim);
        check_problem(&Problem::<bf16>::new(shape, q, k, v, d_o));
    }
}

#[test]
fn activations_of_a_forward_pass() {
    property("attention_backward, activations", 1, Just(()), |(), rng| {
        from_a_forward_pass(rng);
    });
}

/// Tells a child process to print the bits of its gradients.
const PRINT_BITS: &str = "HANDGRAD_TEST_PRINT_BITS";

/// What the child processes of the test below run; in the tests' own process it does nothing.
#[test]
fn child() {
    if std::env::var_os(PRINT_BITS).is_none() {
        return;
    }
    fn print<E: GpuFloat>() {
        let mut rng = rand::SeedableRng::seed_from_u64(1);
        let problem = Problem::<E>::random(shape_of([2, 150, 150, 6, 2, 32], true), 1.0, &mut rng);
        for gradient in problem.run() {
            let mut hasher = DefaultHasher::new();
            bytemuck::cast_slice::<E, u8>(&gradient).hash(&mut hasher);
            println!("bits {:x}", hasher.finish());
        }
    }
    print::<f32>();
    print::<bf16>();
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

fn a_single_token<E: GpuFloat>() {
    let values = |x: f64, y: f64| [round(x), round(y)].repeat(16);
    let shape = shape_of([1, 1, 1, 1, 1, 32], true);
    let [d_q, d_k, d_v] =
        Problem::<E>::new(shape, values(0.5, 2.0), values(-1.5, 0.25), values(3.0, -4.0), values(1.0, 2.0)).run();
    assert_eq!(to_f64(&d_q), [0.0; 32]);
    assert_eq!(to_f64(&d_k), [0.0; 32]);
    within("d_v", &to_f64(&d_v), &[1.0, 2.0].repeat(16), |_| 1e-6);
}

/// Queries without a key have no gradient; an empty side leaves zeros on the other.
fn nothing_to_see<E: GpuFloat>(rng: &mut ChaCha8Rng) {
    for (tq, tk) in [(5, 2), (200, 70), (40, 1)] {
        let problem = Problem::<E>::random(shape_of([2, tq, tk, 2, 1, 32], true), 1.0, rng);
        let row = 2 * 32;
        let d_q = to_f64(&problem.run()[0]);
        for batch in d_q.chunks(tq * row) {
            let (blind, seeing) = batch.split_at((tq - tk) * row);
            assert!(blind.iter().all(|&x| x == 0.0), "Tq {tq}, Tk {tk}: a gradient of a query without keys");
            // The first that sees a key sees only that, so its gradient is 0 as well, up to rounding.
            let mut heads = seeing[row..].chunks(32);
            assert!(heads.all(|head| head.iter().any(|&x| x != 0.0)), "Tq {tq}, Tk {tk}: a query without gradient");
        }
    }
    for causal in [false, true] {
        for (tq, tk) in [(0, 130), (130, 0), (0, 0)] {
            let problem = Problem::<E>::random(shape_of([1, tq, tk, 2, 1, 64], causal), 1.0, rng);
            assert!(problem.run().iter().all(|x| to_f64(x).iter().all(|&x| x == 0.0)), "Tq {tq}, Tk {tk}");
        }
    }
}

/// Scores of −56,569: zeros behind the last key would get a weight of e^56569. A float has steps of 1/256 there, so
/// exp(s − ℓ) is good for two digits.
fn very_negative_scores<E: GpuFloat>(rng: &mut ChaCha8Rng) {
    for (tq, tk, causal) in [(3, 5, false), (140, 5, false), (70, 70, true), (33, 129, true)] {
        let shape = shape_of([1, tq, tk, 1, 1, 32], causal);
        let (q, k) = (vec![round(-100.0); tq * 32], vec![round(100.0); tk * 32]);
        let problem = Problem::<E>::new(shape, q, k, normal(rng, tk * 32), normal(rng, tq * 32));
        // Equal keys: d_q is 0 but for rounding, as the d_s of a query sum to 0.
        let d_q = to_f64(&problem.run()[0]);
        assert!(d_q.iter().all(|x| x.abs() < 20.0), "{d_q:?}");
        let errors = problem.relative_errors();
        assert!(errors[1] < 0.02 && errors[2] < 0.02, "Tq {tq}, Tk {tk}: relative errors {errors:?}");
    }
}

#[test]
fn edges_of_the_contract() {
    a_single_token::<f32>();
    a_single_token::<bf16>();
    property("attention_backward, nothing to see", 1, Just(()), |(), rng| {
        nothing_to_see::<f32>(rng);
        nothing_to_see::<bf16>(rng);
    });
    property("attention_backward, very negative scores", 1, Just(()), |(), rng| {
        very_negative_scores::<f32>(rng);
        very_negative_scores::<bf16>(rng);
    });
}

fn refusals<E: GpuFloat>(rng: &mut ChaCha8Rng) {
    let shape = shape_of([1, 4, 4, 4, 2, 32], true);
    let problem = Problem::<E>::random(shape, 1.0, rng);
    let refused = |change: fn(&mut AttentionShape)| {
        let mut shape = shape;
        change(&mut shape);
        problem.try_run(&shape, 0).map(|_| ()).unwrap_err()
    };
    let kernel = "attention_backward";
    let error = refused(|shape| shape.head_dim = 40);
    assert_eq!(error, LaunchError::HeadDim { kernel, found: 40, expected: HEAD_DIMS.to_vec() });
    let error = refused(|shape| shape.n_kv_head = 3);
    assert_eq!(error, LaunchError::Group { kernel, n_head: 4, n_kv_head: 3 });
    let error = refused(|shape| shape.kv_capacity = 5);
    assert!(matches!(error, LaunchError::Range { what: "kv_capacity", .. }), "{error}");
    let error = refused(|shape| shape.batch = 2);
    assert_eq!(error, LaunchError::TooSmall { kernel, operand: "q", found: 512, expected: 1024 });
    let error = refused(|shape| (shape.tk, shape.kv_capacity) = (5, 5));
    assert!(matches!(error, LaunchError::TooSmall { operand: "k", .. }), "{error}");
    let error = refused(|shape| shape.batch = usize::MAX / 8);
    assert!(matches!(error, LaunchError::Overflow { .. }), "{error}");
    let error = refused(|shape| (shape.tq, shape.tk, shape.kv_capacity) = (1 << 30, 1 << 30, 1 << 30));
    assert!(matches!(error, LaunchError::Range { .. }), "{error}");
    let error = problem.try_run(&shape, 1).map(|_| ()).unwrap_err();
    assert!(matches!(error, LaunchError::Misaligned { operand: "q", expected: 16, .. }), "{error}");

    let nothing = gpu().alloc::<E>(0).unwrap();
    let (q, l) = (Input::new(gpu(), &problem.q, 0), Input::new(gpu(), &problem.logsumexp, 0));
    let mut d = [&problem.q, &problem.k, &problem.v].map(|x| Guarded::<E>::new(gpu(), x.len()));
    let [d_q, d_k, d_v] = d.each_mut().map(Guarded::view_mut);
    let null: View<E> = nothing.view();
    let saved = Saved { q: q.view(), k: q.view(), v: q.view(), o: q.view(), d_o: null, logsumexp: l.view() };
    let error = backward(gpu(), &shape, &saved, &mut Gradients { d_q, d_k, d_v }).unwrap_err();
    assert_eq!(error, LaunchError::Null { kernel, operand: "d_o", expected: 512 });
}

#[test]
fn bad_operands_are_refused() {
    property("attention_backward, refusals", 1, Just(()), |(), rng| {
        refusals::<f32>(rng);
        refusals::<bf16>(rng);
    });
}

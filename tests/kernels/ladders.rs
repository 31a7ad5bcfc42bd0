//! The teaching ladders, `kernels/matmul/` and `kernels/attention/`: every rung computes the same, and the emulator counts
//! what each rung's file says that it changed.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::*;
use half::bf16;
use handgrad::gpu::kernels::ladder::{ATTENTION, AttentionRung, HEAD_DIM, MATMUL, MatmulRung, attention, matmul};
use handgrad::gpu::{GpuFloat, Kernel, LaunchError, View};
use handgrad::ops;
use handgrad::ops::matmul::Layout;
use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// One test at a time launches the ladders' kernels, so that what is counted between two reports is one launch's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_matmul<E: GpuFloat>(rung: &MatmulRung, [m, n, k]: [usize; 3], offsets: [usize; 3], rng: &mut ChaCha8Rng) {
    let _alone = alone();
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
    let _alone = alone();
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
    let _alone = alone();
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

/// What the emulator counted for some kernels, added up.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    launches: f64,
    instructions: f64,
    global_loads: f64,
    copies: f64,
    float32_flops: f64,
    tensor_flops: f64,
    sectors: f64,
    sectors_ideal: f64,
    bytes_touched: f64,
    wavefronts: f64,
    wavefronts_ideal: f64,
    /// The least that a launch takes, of all kernels together.
    microseconds: f64,
}

impl Counts {
    fn of(report: &Value, kernels: &[&Kernel]) -> Counts {
        let mut counts = Counts::default();
        for entry in report["kernels"].as_array().unwrap() {
            if !kernels.iter().any(|kernel| entry["kernel"] == kernel.name) {
                continue;
            }
            let number = |path: &str| entry.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
            counts.launches += number("/launches");
            counts.instructions += number("/instructions/warp");
            counts.global_loads += number("/instructions/by_class/global_load");
            counts.copies += number("/instructions/by_class/copy_async");
            counts.float32_flops += number("/flops/float32");
            counts.tensor_flops += number("/flops/tensor_core");
            counts.sectors += number("/global/sectors");
            counts.sectors_ideal += number("/global/sectors_ideal");
            counts.bytes_touched += number("/global/bytes_touched");
            counts.wavefronts += number("/shared/wavefronts");
            counts.wavefronts_ideal += number("/shared/wavefronts_ideal");
            counts.microseconds += number("/roofline/microseconds");
        }
        counts
    }

    fn minus(self, before: Counts) -> Counts {
        Counts {
            launches: self.launches - before.launches,
            instructions: self.instructions - before.instructions,
            global_loads: self.global_loads - before.global_loads,
            copies: self.copies - before.copies,
            float32_flops: self.float32_flops - before.float32_flops,
            tensor_flops: self.tensor_flops - before.tensor_flops,
            sectors: self.sectors - before.sectors,
            sectors_ideal: self.sectors_ideal - before.sectors_ideal,
            bytes_touched: self.bytes_touched - before.bytes_touched,
            wavefronts: self.wavefronts - before.wavefronts,
            wavefronts_ideal: self.wavefronts_ideal - before.wavefronts_ideal,
            microseconds: self.microseconds - before.microseconds,
        }
    }
}

/// The counts of one run, which launches each of the kernels once. Should a showcase of another test come between, again.
fn counted(kernels: &[&Kernel], run: impl Fn()) -> Counts {
    let _alone = alone();
    let count = || Counts::of(&gpu().emulator_report().unwrap(), kernels);
    for _ in 0..20 {
        let before = count();
        run();
        let found = count().minus(before);
        if found.launches == kernels.len() as f64 {
            return found;
        }
    }
    panic!("{kernels:?}: never launched alone");
}

fn count_matmul<E: GpuFloat>(rung: &MatmulRung, shape @ [m, n, k]: [usize; 3]) -> Counts {
    let ones = |len| gpu().upload(&vec![round::<E>(1.0); len]).unwrap();
    let (a, b, c) = (ones(m * k), ones(k * n), Mutex::new(ones(m * n)));
    counted(&[&rung.kernel], || {
        matmul(gpu(), rung, a.view(), b.view(), &mut c.lock().unwrap().view_mut(), shape).unwrap();
    })
}

fn count_matmuls(shape: [usize; 3]) -> [Counts; 7] {
    MATMUL.each_ref().map(|rung| match rung.dtype {
        "f32" => count_matmul::<f32>(rung, shape),
        _ => count_matmul::<bf16>(rung, shape),
    })
}

fn count_attention<E: GpuFloat>(rung: &AttentionRung, shape: [usize; 4]) -> Counts {
    let ones = || gpu().upload(&vec![round::<E>(1.0); shape.iter().product()]).unwrap();
    let ([q, k, v], out) = ([ones(), ones(), ones()], Mutex::new(ones()));
    let kernels: Vec<&Kernel> = rung.steps.iter().map(|step| &step.kernel).collect();
    counted(&kernels, || {
        attention(gpu(), rung, [q.view(), k.view(), v.view()], &mut out.lock().unwrap().view_mut(), shape).unwrap();
    })
}

fn count_attentions(shape: [usize; 4]) -> [Counts; 5] {
    ATTENTION.each_ref().map(|rung| match rung.dtype {
        "f32" => count_attention::<f32>(rung, shape),
        _ => count_attention::<bf16>(rung, shape),
    })
}

#[test]
fn each_product_counts_what_it_claims() {
    if !gpu().is_emulated() {
        return;
    }
    let [m, n, k] = [256, 256, 64];
    let flops = (2 * m * n * k) as f64;
    let [naive, coalesced, shared, registers, vectors, tensor, pipelined] = count_matmuls([m, n, k]);
    for plain in [naive, coalesced, shared, registers, vectors] {
        assert_eq!((plain.float32_flops, plain.tensor_flops), (flops, 0.0));
    }
    assert!(naive.sectors > 6.0 * coalesced.sectors, "{naive:?} {coalesced:?}");
    assert!(naive.sectors_ideal < 0.2 * naive.sectors && coalesced.sectors_ideal == coalesced.sectors, "{naive:?}");
    assert!(coalesced.sectors > 10.0 * shared.sectors, "{coalesced:?} {shared:?}");
    assert!(shared.sectors > 2.0 * registers.sectors, "{shared:?} {registers:?}");
    assert!(shared.wavefronts > 7.0 * registers.wavefronts, "{shared:?} {registers:?}");
    assert!(shared.instructions > 2.0 * registers.instructions, "{shared:?} {registers:?}");
    assert!(registers.instructions > 1.3 * vectors.instructions, "{registers:?} {vectors:?}");
    assert!(vectors.sectors == registers.sectors && vectors.wavefronts <= registers.wavefronts, "{vectors:?}");
    assert_eq!((tensor.tensor_flops, tensor.float32_flops), (flops, 0.0));
    assert!(vectors.instructions > 4.0 * tensor.instructions, "{vectors:?} {tensor:?}");
    assert!(tensor.wavefronts > 4.0 * tensor.wavefronts_ideal && tensor.copies == 0.0, "{tensor:?}");
    assert_eq!((pipelined.tensor_flops, pipelined.sectors), (flops, tensor.sectors));
    assert!(pipelined.wavefronts == pipelined.wavefronts_ideal, "{pipelined:?}");
    assert!(pipelined.copies > 0.0 && pipelined.global_loads == 0.0, "{pipelined:?}");
    for no_conflicts in [shared, registers, vectors] {
        assert_eq!(no_conflicts.wavefronts, no_conflicts.wavefronts_ideal);
    }
}

#[test]
fn each_attention_counts_what_it_claims() {
    if !gpu().is_emulated() {
        return;
    }
    let (heads, tokens) = (2, 256);
    let [naive, tiled, online, tensor, pipelined] = count_attentions([1, tokens, heads, HEAD_DIM]);
    assert!(naive.sectors > 20.0 * tiled.sectors && naive.sectors_ideal < 0.4 * naive.sectors, "{naive:?} {tiled:?}");
    assert!(tiled.sectors > 2.0 * online.sectors, "{tiled:?} {online:?}");
    assert_eq!(online.bytes_touched, (4 * tokens * heads * HEAD_DIM * 4) as f64, "q, k, v and the output");
    assert!(tiled.bytes_touched > 4.0 * online.bytes_touched, "{tiled:?} {online:?}");
    assert!(online.instructions > 10.0 * tensor.instructions, "{online:?} {tensor:?}");
    assert!(tensor.tensor_flops > 0.0 && tensor.wavefronts > 5.0 * tensor.wavefronts_ideal, "{tensor:?}");
    assert_eq!((pipelined.tensor_flops, pipelined.sectors), (tensor.tensor_flops, tensor.sectors));
    assert!(pipelined.wavefronts == pipelined.wavefronts_ideal, "{pipelined:?}");
    assert!(pipelined.copies > 0.0 && pipelined.global_loads == 0.0, "{pipelined:?}");
    for no_conflicts in [tiled, online] {
        assert_eq!(no_conflicts.wavefronts, no_conflicts.wavefronts_ideal);
    }
}

fn print_row(kernels: &[&Kernel], counts: &Counts, flops: f64) {
    let report = gpu().emulator_report().unwrap();
    let entries = report["kernels"].as_array().unwrap().iter();
    let ours = entries.filter(|entry| kernels.iter().any(|kernel| entry["kernel"] == kernel.name));
    let mut bounds: Vec<&str> = ours.filter_map(|entry| entry["roofline"]["bound"].as_str()).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let name = kernels[0].file.rsplit('/').next().unwrap_or_default();
    let million = |x: f64| format!("{:.2}", x / 1e6);
    println!(
        "| `{name}` | {} | {:.0}% | {:.2} | {} | {} | {} | {:.1} | {} |",
        million(counts.sectors),
        100.0 * counts.sectors_ideal / counts.sectors,
        flops / (32.0 * counts.sectors),
        million(counts.wavefronts),
        million(counts.wavefronts_ideal),
        million(counts.instructions),
        counts.microseconds,
        bounds.join(", "),
    );
}

#[test]
#[ignore = "prints the tables of kernels/matmul/README.md and kernels/attention/README.md, in minutes"]
fn tables() {
    let (shape, attention_shape) = ([1024, 2048, 256], [2, 512, 8, HEAD_DIM]);
    for (rung, counts) in MATMUL.iter().zip(count_matmuls(shape)) {
        print_row(&[&rung.kernel], &counts, 2.0 * shape.iter().product::<usize>() as f64);
    }
    let pairs = 2 * 8 * 512 * 513 / 2;
    for (rung, counts) in ATTENTION.iter().zip(count_attentions(attention_shape)) {
        let kernels: Vec<&Kernel> = rung.steps.iter().map(|step| &step.kernel).collect();
        print_row(&kernels, &counts, (4 * HEAD_DIM * pairs) as f64);
    }
}

//! `kernels/cross_entropy.cu`.

use crate::common::*;
use crate::rows::within_rounding;
use half::bf16;
use handgrad::gpu::kernels::cross_entropy::{self, Tally, count};
use handgrad::gpu::{Buffer, GpuFloat, LaunchError, View};
use handgrad::ops::IGNORE_INDEX;
use handgrad::{Tensor, ops};
use proptest::prelude::*;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// The losses of rows, the mean, and the gradient that lies where the logits were.
struct Found<E> {
    losses: Vec<f32>,
    mean: f32,
    gradient: Vec<E>,
}

struct Case<'a, E> {
    logits: &'a [E],
    targets: &'a [i32],
    vocab: usize,
    ignore_index: i32,
    d_loss: Option<f32>,
    /// Elements before the logits.
    offset: usize,
    /// Rows of one launch.
    chunk: usize,
}

fn upload(targets: &[i32]) -> Buffer<u32> {
    gpu().upload(bytemuck::cast_slice::<i32, u32>(targets)).unwrap()
}

fn tally_of<E>(case: &Case<E>, targets: View<u32>) -> Tally {
    let d_loss = case.d_loss.map(|d_loss| gpu().upload(&[d_loss]).unwrap());
    count(gpu(), targets, d_loss.as_ref().map(Buffer::view), case.targets.len(), case.vocab, case.ignore_index).unwrap()
}

fn run<E: GpuFloat>(case: &Case<E>) -> (Found<E>, Tally) {
    let (gpu, rows) = (gpu(), case.targets.len());
    let targets = upload(case.targets);
    let mut logits = Guarded::holding(gpu, case.logits, case.offset);
    let (mut losses, mut mean) = (Guarded::<f32>::new(gpu, rows), Guarded::<f32>::new(gpu, 1));
    let tally = tally_of(case, targets.view());
    for start in (0..rows).step_by(case.chunk) {
        let (end, vocab) = (rows.min(start + case.chunk), case.vocab);
        cross_entropy::gradient(
            gpu,
            &mut logits.view_mut().range_mut(start * vocab..end * vocab),
            targets.range(start..end),
            &mut losses.view_mut().range_mut(start..end),
            tally.scale(),
            end - start,
            vocab,
            case.ignore_index,
        )
        .unwrap();
    }
    cross_entropy::mean(gpu, losses.view(), &tally, &mut mean.view_mut(), rows).unwrap();
    let found = Found { losses: losses.download(), mean: mean.download()[0], gradient: logits.download() };

    let (logits, mut alone) = (Input::new(gpu, case.logits, case.offset), Guarded::<f32>::new(gpu, rows));
    let to = &mut alone.view_mut();
    cross_entropy::forward(gpu, logits.view(), targets.view(), to, rows, case.vocab, case.ignore_index).unwrap();
    same_bits("losses with and without gradient", &found.losses, &alone.download());
    (found, tally)
}

/// What the gradient adds up, in absolute values: the probability, whose exponential multiplies what its argument was
/// rounded by, and 1 at the target.
fn terms<E: GpuFloat>(case: &Case<E>, counted: usize) -> Vec<f64> {
    let scale = (case.d_loss.unwrap_or(1.0) as f64 / counted.max(1) as f64).abs();
    let logits = to_f64(case.logits);
    let row = |(row, &target): (&[f64], &i32)| {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
        let term = move |(v, x): (usize, &f64)| {
            let p = (x - max).exp() / sum;
            let hit = if v as i32 == target { 1.0 } else { 0.0 };
            scale * (p * (1.0 + (max - x) / 24.0) + hit)
        };
        row.iter().enumerate().map(term).collect::<Vec<f64>>()
    };
    logits.chunks(case.vocab).zip(case.targets).flat_map(row).collect()
}

fn check<E: GpuFloat>(case: &Case<E>) {
    let (rows, vocab) = (case.targets.len(), case.vocab);
    let (found, tally) = run(case);
    let ids: Vec<u32> = case.targets.iter().map(|&t| t as u32).collect();
    let targets = Tensor::from_vec(ids, &[rows]).unwrap();
    let d_loss = Tensor::scalar(case.d_loss.unwrap_or(1.0) as f64);
    let f64s = reference(&[tensor(case.logits, &[rows, vocab])], &[d_loss], |tape, vars| {
        Ok(vec![ops::cross_entropy(tape, &vars[0], &targets, case.ignore_index)?])
    });
    let counted = case.targets.iter().filter(|&&t| t != case.ignore_index).count();
    assert_eq!(tally.check().unwrap(), counted);
    let mean = f64s.outputs[0][0];
    within("mean", &[found.mean as f64], &[mean], |_| 2e-6 * (1.0 + mean));
    within_rounding("gradient", &found.gradient, &f64s.gradients[0], &terms(case, counted));
    for (n, row) in to_f64(&found.gradient).chunks(vocab).enumerate() {
        let ignored = case.targets[n] == case.ignore_index;
        assert!(!ignored || row.iter().all(|&d| d == 0.0) && found.losses[n] == 0.0, "row {n} is ignored");
    }
    let (again, _) = run(case);
    same_bits("gradient", &found.gradient, &again.gradient);
    same_bits("losses", &found.losses, &again.losses);
    let (whole, _) = run(&Case { chunk: rows.max(1), ..*case });
    same_bits("gradient in chunks", &found.gradient, &whole.gradient);
    same_bits("mean of chunks", &[found.mean], &[whole.mean]);
}

type Draw = ((usize, usize), usize, usize, Option<f32>, f64);

fn drawn<E: GpuFloat>(((rows, vocab), offset, chunk, d_loss, width): Draw, rng: &mut ChaCha8Rng) {
    let logits: Vec<E> = to_f64(&normal::<f32>(rng, rows * vocab)).iter().map(|x| round::<E>(width * x)).collect();
    let ignore_index = if rng.random::<bool>() { IGNORE_INDEX } else { 0 };
    let targets: Vec<i32> = (0..rows)
        .map(|_| if rng.random_range(0..4) == 0 { ignore_index } else { rng.random_range(0..vocab as i32) })
        .collect();
    check(&Case { logits: &logits, targets: &targets, vocab, ignore_index, d_loss, offset, chunk });
}

#[test]
fn against_f64() {
    // one vector and a half, 128 threads' worth, the larger block's: with heads and tails of every length
    let shapes = prop_oneof![
        4 => (1usize..7, edges(&[8, 16, 128 * 4, 128 * 8])),
        1 => (1usize..3, edges(&[2048, 512 * 8])),
    ];
    let d_loss = prop_oneof![Just(None), (-3.0f32..3.0).prop_map(Some)];
    let draws = (shapes, 0usize..8, 1usize..4, d_loss, prop_oneof![Just(1.0), Just(8.0)]);
    property("cross_entropy f32", 25, draws.clone(), drawn::<f32>);
    property("cross_entropy bf16", 25, draws, drawn::<bf16>);
}

/// A case in f32 with −100 ignored, one launch.
fn f32s<'a>(logits: &'a [f32], targets: &'a [i32]) -> Case<'a, f32> {
    let (vocab, chunk) = (logits.len() / targets.len(), targets.len());
    Case { logits, targets, vocab, ignore_index: IGNORE_INDEX, d_loss: None, offset: 0, chunk }
}

fn near(found: &[f32], expected: &[f64]) {
    within("known value", &to_f64(found), expected, |i| 1e-6 * expected[i].abs().max(1.0));
}

#[test]
fn known_values() {
    let (found, _) = run(&f32s(&[0.0, 0.0, 0.0, 0.0], &[0, IGNORE_INDEX]));
    near(&[found.mean], &[2f64.ln()]);
    assert_eq!(found.gradient, [-0.5, 0.5, 0.0, 0.0]);
    for (logits, target, loss) in [
        (&[1e8f32, 1e8][..], 1, 2f64.ln()),
        (&[1000.0, 0.0], 1, 1000.0),
        (&[1000.0, 0.0], 0, 0.0),
        (&[-101.0, 0.0, 0.0], 0, 101.69314718),
        (&[1.0, 2.0, 3.0], 2, 0.40760596),
        (&[1.0, 2.0, 3.0], 0, 2.40760596),
        (&[f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY], 1, 0.0),
        (&[f32::NEG_INFINITY, 0.0], 0, f64::INFINITY),
        (&[-6e4, -6e4], 0, 2f64.ln()),
    ] {
        near(&run(&f32s(logits, &[target])).0.losses, &[loss]);
    }
    let (found, _) = run(&f32s(&[1.0, 2.0, 3.0], &[2]));
    near(&found.gradient, &[0.09003057, 0.24472847, -0.33475904]);
}

#[test]
fn all_ignored_is_a_loss_of_zero() {
    let (found, tally) = run(&f32s(&[f32::NAN, f32::INFINITY, 1.0, 2.0], &[IGNORE_INDEX; 2]));
    assert_eq!((found.mean, found.gradient), (0.0, vec![0.0; 4]));
    assert_eq!(tally.check().unwrap(), 0);
    // the scale is 0 as well, for those who use it elsewhere
    let (mut logits, mut losses) = (Guarded::holding(gpu(), &[1.0f32, 2.0], 0), Guarded::<f32>::new(gpu(), 1));
    let (target, to) = (upload(&[1]), (&mut logits.view_mut(), &mut losses.view_mut()));
    cross_entropy::gradient(gpu(), to.0, target.view(), to.1, tally.scale(), 1, 2, IGNORE_INDEX).unwrap();
    assert_eq!(logits.download(), [0.0, 0.0]);
    let nothing = count(gpu(), upload(&[]).view(), None, 0, 5, IGNORE_INDEX).unwrap();
    assert_eq!(nothing.check().unwrap(), 0);
    let mut mean = Guarded::<f32>::new(gpu(), 1);
    let losses = gpu().alloc::<f32>(0).unwrap();
    cross_entropy::mean(gpu(), losses.view(), &nothing, &mut mean.view_mut(), 0).unwrap();
    assert_eq!(mean.download(), [0.0]);
}

#[test]
fn what_is_not_finite_shows() {
    for bad in [f32::NAN, f32::INFINITY] {
        // in each place once: the head, a vector, the tail
        for place in [0, 9, 12] {
            let mut logits = vec![1.0; 2 * 13];
            logits[place] = bad;
            let (found, _) = run(&Case { offset: 3, ..f32s(&logits, &[1, 1]) });
            assert!(found.losses[0].is_nan() && found.mean.is_nan() && found.losses[1].is_finite());
            assert!(
                found.gradient[..13].iter().all(|d| d.is_nan()) && found.gradient[13..].iter().all(|d| d.is_finite())
            );
        }
    }
    let (found, _) = run(&f32s(&[f32::NEG_INFINITY; 3], &[1]));
    assert!(found.losses[0].is_nan());
}

#[test]
fn bad_targets_are_reported() {
    let logits = vec![0.0f32; 5 * 7];
    for (targets, message) in [
        ([0, -100, -4, 5, 1, 2, 3], "target -4 in row 2"),
        ([0, -100, 4, 5, 1, 2, -3], "target 5 in row 3"),
        ([i32::MAX, 0, 0, 0, 0, 0, i32::MIN], "target 2147483647 in row 0"),
        ([0, 0, 0, 0, 0, 0, i32::MIN], "target -2147483648 in row 6"),
    ] {
        let (found, tally) = run(&f32s(&logits, &targets));
        let error = tally.check().unwrap_err();
        assert!(matches!(error, LaunchError::Range { what: "targets", .. }), "{error}");
        assert!(error.to_string().contains(message) && error.to_string().contains("0 to 4 or -100"), "{error}");
        assert!(found.mean.is_nan(), "a bad target shows in the mean");
    }
    // ignored although it is beyond the vocabulary
    let (found, tally) = run(&Case { ignore_index: 255, ..f32s(&[0.0; 6], &[255, 2]) });
    assert_eq!((tally.check().unwrap(), found.losses[0], &found.gradient[..3]), (1, 0.0, &[0.0; 3][..]));
    near(&[found.mean], &[3f64.ln()]);
    // the first bad row of many, whichever thread finds it
    let mut targets = vec![1i32; 3000];
    targets[1999..].fill(-1);
    let tally = tally_of(&Case { vocab: 7, ..f32s(&[0.0; 3000], &targets) }, upload(&targets).view());
    assert!(tally.check().unwrap_err().to_string().contains("row 1999"));
}

#[test]
fn the_mean_of_many_rows() {
    property("cross_entropy mean", 3, edges(&[1024, 4096]), |rows, rng| {
        let mut targets: Vec<i32> = (0..rows).map(|n| if n % 3 == 0 { IGNORE_INDEX } else { 1 }).collect();
        targets[0] = 1;
        let logits = normal::<f32>(rng, 2 * rows);
        let (found, _) = run(&f32s(&logits, &targets));
        let counted = targets.iter().filter(|&&t| t == 1).count();
        let sum: f64 = found.losses.iter().map(|&x| x as f64).sum();
        within("mean", &[found.mean as f64], &[sum / counted as f64], |_| 1e-6);
    });
}

#[test]
fn a_vocabulary_above_250_000() {
    property("cross_entropy, large vocabulary", 1, 0usize..8, |offset, rng| {
        let (vocab, ignore_index, d_loss) = (256_001, IGNORE_INDEX, None);
        let targets = [256_000, IGNORE_INDEX, 7];
        let logits = normal::<f32>(rng, 3 * vocab);
        check(&Case { logits: &logits, targets: &targets, vocab, ignore_index, d_loss, offset, chunk: 2 });
        let logits: Vec<bf16> = logits.iter().map(|&x| bf16::from_f32(x)).collect();
        check(&Case { logits: &logits, targets: &targets, vocab, ignore_index, d_loss, offset, chunk: 2 });
    });
}

/// The last row of logits beyond 2³¹ elements: all others are ignored, so that only this one needs memory.
#[test]
fn offsets_beyond_32_bits() {
    let (gpu, vocab) = (gpu(), 151_936);
    let logits: Vec<bf16> = (0..vocab).map(|v| bf16::from_f32((v % 100) as f32 / 25.0)).collect();
    let row = gpu.upload(&logits).unwrap();
    let mut alone = Guarded::<f32>::new(gpu, 1);
    let target = upload(&[77]);
    let to = &mut alone.view_mut();
    cross_entropy::forward(gpu, row.view(), target.view(), to, 1, vocab, IGNORE_INDEX).unwrap();
    for rows in [14_134usize, 14_135] {
        let mut targets = vec![IGNORE_INDEX; rows];
        targets[rows - 1] = 77;
        let targets = upload(&targets);
        let start = row.view().address() - ((rows - 1) * vocab * size_of::<bf16>()) as u64;
        // SAFETY: the kernel reads the logits of the last row only, which are there.
        let all = unsafe { View::<bf16>::from_raw(start, rows * vocab) };
        let mut losses = Guarded::<f32>::new(gpu, rows);
        cross_entropy::forward(gpu, all, targets.view(), &mut losses.view_mut(), rows, vocab, IGNORE_INDEX).unwrap();
        same_bits("the last row", &losses.download()[rows - 1..], &alone.download());
    }
}

#[test]
fn bad_operands_are_refused() {
    let gpu = gpu();
    let (logits, targets) = (gpu.upload(&[0.0f32; 12]).unwrap(), upload(&[0; 4]));
    let mut losses = Guarded::<f32>::new(gpu, 4);
    let mut forward = |rows, vocab| {
        cross_entropy::forward(gpu, logits.view(), targets.view(), &mut losses.view_mut(), rows, vocab, -100)
    };
    let error = forward(4, 4).unwrap_err();
    assert_eq!(
        error,
        LaunchError::TooSmall { kernel: "cross_entropy_forward", operand: "logits", found: 12, expected: 16 }
    );
    assert!(matches!(forward(6, 2), Err(LaunchError::TooSmall { operand: "targets", .. })));
    assert!(matches!(forward(4, 0), Err(LaunchError::Range { what: "vocab", .. })));
    assert!(matches!(forward(usize::MAX, 2), Err(LaunchError::Overflow { operand: "logits", .. })));
    forward(0, 3).unwrap();
    // SAFETY: refused before anything is read.
    let odd = unsafe { View::<f32>::from_raw(logits.view().address() + 1, 8) };
    let error = cross_entropy::forward(gpu, odd, targets.view(), &mut losses.view_mut(), 2, 4, -100).unwrap_err();
    assert!(matches!(error, LaunchError::Misaligned { operand: "logits", .. }), "{error}");
}

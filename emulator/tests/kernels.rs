//! Real kernels on the emulated device: the results are those of plain Rust, the checks find nothing, and no order of
//! blocks and warps changes a bit.

mod support;

use cuda_emulator::device::LaunchOutcome;
use support::attention_cases::{attention, decode_attention};
use support::cases::*;
use support::gpu::{Arg, Gpu, shape};
use support::matmul_cases::{matmul_bf16, matmul_f16_warp, matmul_f32, matmul_tf32_warp};
use support::nvcc::{ALL_FLAGS, FAST_MATH, O3, ptx};
use support::training_cases::*;

/// Every case under several orders; the first one also with the other compilers' flags.
fn check(cases: &[Case]) {
    for case in cases {
        let text = ptx(&format!("kernels/{}", case.source), O3);
        let first = run(case, &text, 0);
        case.check(&first, 1.0);
        for seed in 1..4 {
            assert_eq!(first, run(case, &text, seed), "{}: seed {seed} against seed 0", case.name);
        }
    }
    let case = &cases[0];
    for flags in &ALL_FLAGS[1..] {
        let found = run(case, &ptx(&format!("kernels/{}", case.source), flags), 5);
        case.check(&found, if *flags == FAST_MATH { 16.0 } else { 1.0 });
    }
}

fn run(case: &Case, text: &str, seed: u64) -> Vec<Vec<f64>> {
    let found = Gpu::new(text, seed).and_then(|mut gpu| (case.run)(&mut gpu));
    found.unwrap_or_else(|fault| panic!("{}, seed {seed}: {fault}", case.name))
}

/// The places of 24 warps in the order in which they counted, and all that the launch counted.
fn arrivals(seed: u64) -> (Vec<u32>, LaunchOutcome) {
    let mut gpu = Gpu::new(&ptx("kernels/arrival.cu", O3), seed).unwrap();
    let (counter, places) = (gpu.upload(&[0u32]).unwrap(), gpu.alloc::<u32>(24).unwrap());
    gpu.launch("arrival", shape(6, 128), &[counter, places].map(Arg::Pointer)).unwrap();
    (gpu.download(places, 24).unwrap(), gpu.outcomes.pop().unwrap())
}

/// Else the comparison of results under several seeds would mean nothing.
#[test]
fn seeds_change_the_order_and_repeat_it() {
    let orders: Vec<_> = (0..4).map(arrivals).collect();
    assert_eq!(orders[0].0, (0..24).collect::<Vec<u32>>(), "seed 0 is launch order");
    for seed in 1..4 {
        let (places, outcome) = arrivals(seed as u64);
        assert_eq!(places, orders[seed].0, "seed {seed} again");
        assert_eq!(outcome.counters, orders[seed].1.counters, "seed {seed} again");
        assert!(orders[..seed].iter().all(|(other, _)| *other != places), "seed {seed} is like one before: {places:?}");
        let mut sorted = places.clone();
        sorted.sort();
        assert_eq!(sorted, orders[0].0, "every warp once");
        let blocks: Vec<u32> = places.chunks(4).map(|warps| *warps.iter().min().unwrap()).collect();
        assert!(!blocks.is_sorted(), "seed {seed}: the blocks stay in launch order");
        assert!(places.chunks(4).any(|warps| !warps.is_sorted()), "seed {seed}: the warps stay in launch order");
    }
}

#[test]
fn plain_matmul() {
    check(&[matmul_f32(37, 70, 19), matmul_f32(1, 1, 1), matmul_f32(64, 64, 64), matmul_f32(65, 129, 33)]);
}

#[test]
fn tensor_core_matmul() {
    check(&[
        matmul_bf16(3, 33, 136, 72),
        matmul_bf16(3, 1, 8, 8),
        matmul_bf16(3, 256, 256, 256),
        matmul_bf16(4, 129, 128, 104),
    ]);
}

#[test]
fn fragments_of_f16() {
    check(&[matmul_f16_warp(48), matmul_f16_warp(16)]);
}

#[test]
fn fragments_of_tf32() {
    check(&[matmul_tf32_warp(40), matmul_tf32_warp(8)]);
}

#[test]
fn flash_attention() {
    check(&[attention(1, 70, 2, 64), attention(1, 1, 1, 64), attention(2, 64, 1, 64), attention(1, 131, 1, 64)]);
}

#[test]
fn flash_attention_of_96_channels() {
    check(&[attention(1, 66, 1, 96), attention(1, 129, 2, 96)]);
}

#[test]
fn decoding() {
    check(&[decode_attention(2, 37, 4, 2, 3), decode_attention(1, 1, 1, 1, 1), decode_attention(1, 9, 2, 1, 5)]);
}

#[test]
fn cross_entropy() {
    check(&[cross_entropy_f32(4, 131), cross_entropy_f32(2, 1), cross_entropy_f32(3, 1000)]);
    check(&[cross_entropy_bf16(5, 97)]);
}

#[test]
fn adamw_step() {
    check(&[adamw(519), adamw(1), adamw(4), adamw(256)]);
}

#[test]
fn rms_norm_both_ways() {
    check(&[rms_norm(5, 67, 2), rms_norm(1, 1, 1), rms_norm(9, 200, 4)]);
}

#[test]
fn histograms() {
    check(&[histogram(1003, 3), histogram(1, 1), histogram(5000, 2)]);
}

#[test]
fn softmax_by_warps() {
    check(&[softmax(5, 37), softmax(1, 1), softmax(3, 1024)]);
}

#[test]
fn transposes() {
    check(&[transpose(37, 41), transpose(1, 65), transpose(64, 32)]);
}

#[test]
fn prefix_sums() {
    check(&[scan(1000, 64), scan(1, 32), scan(3000, 256)]);
}

#[test]
fn sums_across_blocks() {
    check(&[sum_last_block(1000, 5), sum_last_block(3, 1), sum_last_block(5000, 7)]);
    check(&[sum_atomic(777)]);
}

#[test]
fn named_barriers() {
    check(&[producer_consumer(1000, 2), producer_consumer(1, 1), producer_consumer(64, 3), producer_consumer(129, 1)]);
}

#[test]
fn spin_locks() {
    check(&[spin_lock("spin_lock", 3, 48), spin_lock("spin_lock", 1, 1)]);
    check(&[spin_lock("spin_lock_inner", 2, 40)]);
}

#[test]
fn sorting() {
    check(&[radix_sort(300), radix_sort(1), radix_sort(2048)]);
}

#[test]
fn asynchronous_copies() {
    check(&[window_sum(1000, 2), window_sum(4, 1), window_sum(1024, 1), window_sum(2052, 3)]);
    check(&[gather_reversed(100)]);
}

#[test]
fn rotary_positions() {
    check(&[rope(9, 0), rope(5, 200_000)]);
}

#[test]
fn activations() {
    check(&[gelu(300)]);
    check(&[silu(100)]);
    check(&[gate_f16(50)]);
    check(&[gate_bf16(50)]);
    check(&[dropout(1001)]);
    check(&[moments(100)]);
}

//! How fast the interpreter runs with all its checks, on one core: milliseconds and lane instructions a second of real
//! kernels. `cargo bench -p cuda-emulator`; a word as argument picks the kernels whose names contain it.

#[path = "../tests/support/mod.rs"]
mod support;

use std::fs;
use std::time::Duration;

use support::attention_cases::attention;
use support::cases::{Case, scan, softmax};
use support::gpu::Gpu;
use support::matmul_cases::{matmul_bf16, matmul_f32};
use support::nvcc::{O3, ptx};
use support::training_cases::cross_entropy_f32;

const TIME: Duration = Duration::from_millis(1500);

fn main() {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    println!("{:36} {:>9} {:>12} {:>16}", "kernel", "ms", "warp instr.", "G lane instr./s");
    for case in [
        matmul_bf16(3, 256, 256, 256),
        attention(1, 256, 4, 96),
        matmul_f32(128, 128, 128),
        cross_entropy_f32(8, 32_000),
        softmax(256, 1024),
        scan(65_536, 256),
    ] {
        if case.name.contains(&filter) {
            measure(&case);
        }
    }
}

/// The mean of many runs, copies to and from the device included.
fn measure(case: &Case) {
    let text = ptx(&format!("kernels/{}", case.source), O3);
    let mut gpu = Gpu::new(&text, 0).unwrap();
    case.check(&(case.run)(&mut gpu).unwrap(), 1.0);
    let (warps, lanes) = gpu.outcomes.iter().fold((0, 0), |(warps, lanes), outcome| {
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        (warps + sum(&outcome.counters.executed), lanes + sum(&outcome.counters.lanes))
    });

    let (mut total, mut runs) = (Duration::ZERO, 0);
    while total < TIME {
        let mut gpu = Gpu::new(&text, 0).unwrap();
        let start = core_time();
        for _ in 0..8 {
            (case.run)(&mut gpu).unwrap();
        }
        total += core_time() - start;
        runs += 8;
    }
    let seconds = total.as_secs_f64() / runs as f64;
    println!("{:36} {:9.2} {:12} {:16.2}", case.name, seconds * 1e3, warps, lanes as f64 / seconds / 1e9);
}

/// Time that this thread has had on a core (Linux's scheduler statistics): other work on the machine does not count.
fn core_time() -> Duration {
    let statistics = fs::read_to_string("/proc/thread-self/schedstat").expect("/proc/thread-self/schedstat");
    Duration::from_nanos(statistics.split(' ').next().and_then(|n| n.parse().ok()).expect("nanoseconds"))
}

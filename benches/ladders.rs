//! The tables of `kernels/matmul/README.md` and `kernels/attention/README.md`: what the emulator counts for each rung.
//!
//! `cargo bench --features cuda --bench ladders`, some minutes.

#[path = "../tests/ladders/counts.rs"]
mod counts;
#[path = "../tests/ladders/rungs.rs"]
mod rungs;

use counts::{Counts, count_attentions, count_matmuls};
use handgrad::gpu::Gpu;
use rungs::{ATTENTION, HEAD_DIM, MATMUL};

fn print_row(gpu: &Gpu, file: &str, kernels: &[&str], counts: &Counts, flops: f64) {
    let report = gpu.emulator_report().unwrap();
    let entries = report["kernels"].as_array().unwrap().iter();
    let ours = entries.filter(|entry| kernels.iter().any(|kernel| entry["kernel"] == **kernel));
    let mut bounds: Vec<&str> = ours.filter_map(|entry| entry["roofline"]["bound"].as_str()).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let name = file.rsplit('/').next().unwrap_or_default();
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

fn main() {
    let gpu = Gpu::emulator().unwrap_or_else(|error| panic!("{error:#}"));
    let (shape, attention_shape) = ([1024, 2048, 256], [2, 512, 8, HEAD_DIM]);
    for (rung, counts) in MATMUL.iter().zip(count_matmuls(&gpu, shape)) {
        print_row(&gpu, rung.file, &[rung.kernel], &counts, 2.0 * shape.iter().product::<usize>() as f64);
    }
    let pairs = 2 * 8 * 512 * 513 / 2;
    for (rung, counts) in ATTENTION.iter().zip(count_attentions(&gpu, attention_shape)) {
        let kernels: Vec<&str> = rung.steps.iter().map(|step| step.kernel).collect();
        print_row(&gpu, rung.file, &kernels, &counts, (4 * HEAD_DIM * pairs) as f64);
    }
}

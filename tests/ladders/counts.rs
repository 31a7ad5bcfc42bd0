//! What the emulator counts for each rung of the ladders: shared by the test and by `cargo bench --bench ladders`.

use crate::rungs::{ATTENTION, AttentionRung, MATMUL, MatmulRung, attention, matmul, ones};
use handgrad::Tensor;
use handgrad::gpu::Gpu;
use serde_json::Value;

/// What the emulator counted for some kernels, added up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub launches: f64,
    pub instructions: f64,
    pub global_loads: f64,
    pub copies: f64,
    pub float32_flops: f64,
    pub tensor_flops: f64,
    pub sectors: f64,
    pub sectors_ideal: f64,
    pub bytes_touched: f64,
    pub wavefronts: f64,
    pub wavefronts_ideal: f64,
    /// The least that a launch takes, of all kernels together.
    pub microseconds: f64,
}

impl Counts {
    /// Adds `times` what a report says of the kernels.
    fn add(&mut self, report: &Value, kernels: &[&str], times: f64) {
        for entry in report["kernels"].as_array().unwrap() {
            if !kernels.iter().any(|kernel| entry["kernel"] == *kernel) {
                continue;
            }
            let number = |path: &str| times * entry.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
            self.launches += number("/launches");
            self.instructions += number("/instructions/warp");
            self.global_loads += number("/instructions/by_class/global_load");
            self.copies += number("/instructions/by_class/copy_async");
            self.float32_flops += number("/flops/float32");
            self.tensor_flops += number("/flops/tensor_core");
            self.sectors += number("/global/sectors");
            self.sectors_ideal += number("/global/sectors_ideal");
            self.bytes_touched += number("/global/bytes_touched");
            self.wavefronts += number("/shared/wavefronts");
            self.wavefronts_ideal += number("/shared/wavefronts_ideal");
            self.microseconds += number("/roofline/microseconds");
        }
    }
}

/// The counts of one run.
fn counted(gpu: &Gpu, kernels: &[&str], run: impl FnOnce()) -> Counts {
    let report = || gpu.emulator_report().expect("the emulator's report");
    let mut found = Counts::default();
    found.add(&report(), kernels, -1.0);
    run();
    gpu.synchronize().unwrap();
    found.add(&report(), kernels, 1.0);
    assert_eq!(found.launches, kernels.len() as f64, "{kernels:?}: a launch each");
    found
}

fn count_matmul(gpu: &Gpu, rung: &MatmulRung, [m, n, k]: [usize; 3]) -> Counts {
    let (a, b) = (ones(gpu, &[m, k], rung.dtype), ones(gpu, &[k, n], rung.dtype));
    let c = Tensor::empty(&[m, n], rung.dtype, gpu).unwrap();
    counted(gpu, &[rung.kernel], || matmul(gpu, rung, &a, &b, &c).unwrap())
}

/// One product `[M,K] × [K,N]` by each rung; `shape` is M, N, K.
pub fn count_matmuls(gpu: &Gpu, shape: [usize; 3]) -> [Counts; 7] {
    MATMUL.each_ref().map(|rung| count_matmul(gpu, rung, shape))
}

fn count_attention(gpu: &Gpu, rung: &AttentionRung, shape: [usize; 4]) -> Counts {
    let x = [(); 3].map(|()| ones(gpu, &shape, rung.dtype));
    let out = Tensor::empty(&shape, rung.dtype, gpu).unwrap();
    let kernels: Vec<&str> = rung.steps.iter().map(|step| step.kernel).collect();
    counted(gpu, &kernels, || attention(gpu, rung, x.each_ref(), &out).unwrap())
}

/// One attention by each rung; `shape` is B, T, H, D.
pub fn count_attentions(gpu: &Gpu, shape: [usize; 4]) -> [Counts; 5] {
    ATTENTION.each_ref().map(|rung| count_attention(gpu, rung, shape))
}

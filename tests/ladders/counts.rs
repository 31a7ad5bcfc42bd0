//! What the emulator counts for each rung of the ladders: shared by the test and by `cargo bench --bench ladders`.

use half::bf16;
use handgrad::gpu::kernels::ladder::{ATTENTION, AttentionRung, MATMUL, MatmulRung, attention, matmul};
use handgrad::gpu::{Gpu, GpuFloat, Kernel};
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
    fn add(&mut self, report: &Value, kernels: &[&Kernel], times: f64) {
        for entry in report["kernels"].as_array().unwrap() {
            if !kernels.iter().any(|kernel| entry["kernel"] == kernel.name) {
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
fn counted(gpu: &Gpu, kernels: &[&Kernel], run: impl FnOnce()) -> Counts {
    let report = || gpu.emulator_report().expect("the emulator's report");
    let mut found = Counts::default();
    found.add(&report(), kernels, -1.0);
    run();
    found.add(&report(), kernels, 1.0);
    assert_eq!(found.launches, kernels.len() as f64, "{kernels:?}: a launch each");
    found
}

fn count_matmul<E: GpuFloat>(gpu: &Gpu, rung: &MatmulRung, shape @ [m, n, k]: [usize; 3], one: E) -> Counts {
    let ones = |len| gpu.upload(&vec![one; len]).unwrap();
    let (a, b, mut c) = (ones(m * k), ones(k * n), ones(m * n));
    counted(gpu, &[&rung.kernel], || {
        matmul(gpu, rung, a.view(), b.view(), &mut c.view_mut(), shape).unwrap();
    })
}

/// One product `[M,K] × [K,N]` by each rung; `shape` is M, N, K.
pub fn count_matmuls(gpu: &Gpu, shape: [usize; 3]) -> [Counts; 7] {
    MATMUL.each_ref().map(|rung| match rung.dtype {
        "f32" => count_matmul(gpu, rung, shape, 1.0f32),
        _ => count_matmul(gpu, rung, shape, bf16::ONE),
    })
}

fn count_attention<E: GpuFloat>(gpu: &Gpu, rung: &AttentionRung, shape: [usize; 4], one: E) -> Counts {
    let ones = || gpu.upload(&vec![one; shape.iter().product()]).unwrap();
    let (q, k, v, mut out) = (ones(), ones(), ones(), ones());
    let kernels: Vec<&Kernel> = rung.steps.iter().map(|step| &step.kernel).collect();
    counted(gpu, &kernels, || {
        attention(gpu, rung, [q.view(), k.view(), v.view()], &mut out.view_mut(), shape).unwrap();
    })
}

/// One attention by each rung; `shape` is B, T, H, D.
pub fn count_attentions(gpu: &Gpu, shape: [usize; 4]) -> [Counts; 5] {
    ATTENTION.each_ref().map(|rung| match rung.dtype {
        "f32" => count_attention(gpu, rung, shape, 1.0f32),
        _ => count_attention(gpu, rung, shape, bf16::ONE),
    })
}

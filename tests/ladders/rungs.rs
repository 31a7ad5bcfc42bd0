//! The teaching ladders, `kernels/matmul/` and `kernels/attention/`: one product and one causal attention, each from the
//! plainest kernel to a pipelined one on the tensor cores. No operator uses them: the table of rungs and the two functions
//! that launch one stand here, for the tests, the counters and `cargo bench --bench ladders`.
#![allow(dead_code, reason = "each target uses its own part")]

use handgrad::gpu::{Gpu, Grid, LaunchError};
use handgrad::launch::{In, Out, int};
use handgrad::{DType, Device, Tensor};

/// A rung of the matrix product C `[M,N]` = A `[M,K]` · B `[K,N]`, row-major.
#[derive(Debug)]
pub struct MatmulRung {
    /// The file below `kernels/`, and the compiled kernel.
    pub file: &'static str,
    pub kernel: &'static str,
    pub dtype: DType,
    /// Rows and columns of C that a block computes.
    pub tile: [usize; 2],
    pub threads: [u32; 3],
}

/// A rung of causal attention over q, k, v `[B,T,H,64]`.
#[derive(Debug)]
pub struct AttentionRung {
    pub file: &'static str,
    pub dtype: DType,
    /// The launches, in order.
    pub steps: &'static [AttentionStep],
}

/// A launch: blocks over the queries, for scores also over the keys, and over the heads of the batch.
#[derive(Debug)]
pub struct AttentionStep {
    pub kernel: &'static str,
    pub kind: Step,
    /// Queries of a block.
    pub queries: usize,
    pub threads: [u32; 3],
}

/// What a step of attention computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Scores `[B,H,T,T]` from q and k, by tiles of `KEYS`.
    Scores,
    /// Each row of scores to probabilities, in place.
    Softmax,
    /// The output from probabilities and v.
    Output,
    /// All of it.
    Whole,
}

/// The only head size of the ladder.
pub const HEAD_DIM: usize = 64;
/// Keys of a block of scores.
const KEYS: usize = 32;

const fn product(
    file: &'static str,
    kernel: &'static str,
    dtype: DType,
    tile: [usize; 2],
    threads: [u32; 3],
) -> MatmulRung {
    MatmulRung { file, kernel, dtype, tile, threads }
}

const fn step(kernel: &'static str, kind: Step, queries: usize, threads: [u32; 3]) -> AttentionStep {
    AttentionStep { kernel, kind, queries, threads }
}

pub static MATMUL: [MatmulRung; 7] = [
    product("matmul/01_naive", "ladder_matmul_01_naive", DType::F32, [32, 8], [32, 8, 1]),
    product("matmul/02_coalesced", "ladder_matmul_02_coalesced", DType::F32, [8, 32], [32, 8, 1]),
    product("matmul/03_shared_tiles", "ladder_matmul_03_shared_tiles", DType::F32, [32, 32], [32, 32, 1]),
    product("matmul/04_register_tiles", "ladder_matmul_04_register_tiles", DType::F32, [128, 128], [16, 16, 1]),
    product("matmul/05_vectorised", "ladder_matmul_05_vectorised", DType::F32, [128, 128], [256, 1, 1]),
    product("matmul/06_tensor_cores", "ladder_matmul_06_tensor_cores", DType::Bf16, [128, 128], [256, 1, 1]),
    product("matmul/07_pipelined", "ladder_matmul_07_pipelined", DType::Bf16, [128, 128], [256, 1, 1]),
];

static NAIVE: [AttentionStep; 3] = [
    step("ladder_attention_01_naive_scores", Step::Scores, 8, [32, 8, 1]),
    step("ladder_attention_01_naive_softmax", Step::Softmax, 128, [128, 1, 1]),
    step("ladder_attention_01_naive_output", Step::Output, 4, [64, 4, 1]),
];
static TILED: [AttentionStep; 3] = [
    step("ladder_attention_02_tiled_scores", Step::Scores, 32, [32, 32, 1]),
    step("ladder_attention_02_tiled_softmax", Step::Softmax, 4, [128, 1, 1]),
    step("ladder_attention_02_tiled_output", Step::Output, 32, [32, 32, 1]),
];
static ONLINE: [AttentionStep; 1] = [step("ladder_attention_03_online_softmax", Step::Whole, 32, [32, 32, 1])];
static TENSOR_CORES: [AttentionStep; 1] = [step("ladder_attention_04_tensor_cores", Step::Whole, 64, [128, 1, 1])];
static PIPELINED: [AttentionStep; 1] = [step("ladder_attention_05_pipelined", Step::Whole, 64, [128, 1, 1])];

pub static ATTENTION: [AttentionRung; 5] = [
    AttentionRung { file: "attention/01_naive", dtype: DType::F32, steps: &NAIVE },
    AttentionRung { file: "attention/02_tiled", dtype: DType::F32, steps: &TILED },
    AttentionRung { file: "attention/03_online_softmax", dtype: DType::F32, steps: &ONLINE },
    AttentionRung { file: "attention/04_tensor_cores", dtype: DType::Bf16, steps: &TENSOR_CORES },
    AttentionRung { file: "attention/05_pipelined", dtype: DType::Bf16, steps: &PIPELINED },
];

/// `c` `[M,N]` = `a` `[M,K]` · `b` `[K,N]`, by one rung; in bf16, N and K are multiples of 8, so that rows are copied 16 bytes at
/// a time. Errors: those of the launch.
pub fn matmul(gpu: &Gpu, rung: &MatmulRung, a: &Tensor, b: &Tensor, c: &Tensor) -> Result<(), LaunchError> {
    let ((m, k), (_, n)) = (a.rows_cols(), b.rows_cols());
    assert!(rung.dtype == DType::F32 || n % 8 == 0 && k % 8 == 0, "N {n} and K {k} in bf16");
    let blocks = [m.div_ceil(rung.tile[0]), n.div_ceil(rung.tile[1]), 1];
    let grid = Grid { blocks, threads: rung.threads, shared_bytes: 0, variant: "" };
    gpu.launch(rung.kernel, &grid, &[In(a), In(b), Out(c), int(m), int(n), int(k)])
}

/// Causal attention of q, k, v into `out`, all `[B,T,H,64]`, by one rung. Errors: those of the launch; no memory for the
/// scores of rungs 1 and 2.
pub fn attention(gpu: &Gpu, rung: &AttentionRung, [q, k, v]: [&Tensor; 3], out: &Tensor) -> anyhow::Result<()> {
    let &[batch, tokens, heads, HEAD_DIM] = q.shape() else { panic!("{q:?}, expected [B,T,H,64]") };
    let scores =
        if rung.steps.iter().any(|step| step.kind == Step::Scores) { [batch, heads, tokens, tokens] } else { [1; 4] };
    let scores = Tensor::empty(&scores, DType::F32, gpu)?;
    let shape = [int(tokens), int(heads)];
    for step in rung.steps {
        let keys = if step.kind == Step::Scores { tokens.div_ceil(KEYS) } else { 1 };
        let blocks = [tokens.div_ceil(step.queries), keys, batch * heads];
        let grid = Grid { blocks, threads: step.threads, shared_bytes: 0, variant: "" };
        let args = match step.kind {
            Step::Scores => vec![In(q), In(k), Out(&scores), shape[0], shape[1]],
            Step::Softmax => vec![Out(&scores), shape[0]],
            Step::Output => vec![In(&scores), In(v), Out(out), shape[0], shape[1]],
            Step::Whole => vec![In(q), In(k), In(v), Out(out), shape[0], shape[1]],
        };
        gpu.launch(step.kernel, &grid, &args)?;
    }
    Ok(())
}

/// Ones on the device.
pub fn ones(gpu: &Gpu, shape: &[usize], dtype: DType) -> Tensor {
    Tensor::full(shape, 1.0, dtype).to(&Device::Gpu(gpu.clone())).unwrap()
}

/// Every rung once: a product of 128×128×64, attention of one head over 128 tokens.
pub fn run_all(gpu: &Gpu) {
    for rung in &MATMUL {
        let (a, b) = (ones(gpu, &[128, 64], rung.dtype), ones(gpu, &[64, 128], rung.dtype));
        matmul(gpu, rung, &a, &b, &Tensor::empty(&[128, 128], rung.dtype, gpu).unwrap()).unwrap();
    }
    for rung in &ATTENTION {
        let x = ones(gpu, &[1, 128, 1, HEAD_DIM], rung.dtype);
        attention(gpu, rung, [&x; 3], &Tensor::empty(x.shape(), rung.dtype, gpu).unwrap()).unwrap();
    }
    gpu.synchronize().unwrap();
}

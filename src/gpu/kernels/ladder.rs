//! The teaching ladders, `kernels/matmul/` and `kernels/attention/`: one product and one causal attention, each from
//! the plainest kernel to a pipelined one on the tensor cores. [`MATMUL`] and [`ATTENTION`] list the rungs; one
//! function each runs any of them.
//!
//! No operator uses them: they are there to be read in order, with what the emulator counts for each.

use half::bf16;

use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, LaunchError, Param, Result, View, ViewMut};

/// A rung of the matrix product C `[M,N]` = A `[M,K]` · B `[K,N]`, row-major.
#[derive(Debug)]
pub struct MatmulRung {
    pub kernel: Kernel,
    /// `f32` or `bf16`, of all three matrices.
    pub dtype: &'static str,
    /// Rows and columns of C that a block computes.
    pub tile: [usize; 2],
    pub block: [u32; 3],
}

/// A rung of causal attention over q, k, v `[B,T,H,64]`.
#[derive(Debug)]
pub struct AttentionRung {
    /// `f32` or `bf16`, of q, k, v and the output.
    pub dtype: &'static str,
    /// The launches, in order.
    pub steps: &'static [AttentionStep],
}

/// A launch: blocks over the queries, for scores also over the keys, and over the heads of the batch.
#[derive(Debug)]
pub struct AttentionStep {
    pub kernel: Kernel,
    pub kind: Step,
    /// Queries of a block.
    pub queries: usize,
    pub block: [u32; 3],
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
/// bf16 rows are copied 16 bytes at a time.
const CHUNK: usize = 8;

const MATMUL_PARAMS: &[Param] = &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I64, Param::I64];
const MIXING_PARAMS: &[Param] = &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I32];
const SOFTMAX_PARAMS: &[Param] = &[Param::Pointer, Param::I64];
const WHOLE_PARAMS: &[Param] =
    &[Param::Pointer, Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I32];

const fn product(
    file: &'static str,
    name: &'static str,
    dtype: &'static str,
    tile: [usize; 2],
    block: [u32; 3],
) -> MatmulRung {
    MatmulRung { kernel: Kernel { file, name, params: MATMUL_PARAMS }, dtype, tile, block }
}

const fn step(file: &'static str, name: &'static str, kind: Step, queries: usize, block: [u32; 3]) -> AttentionStep {
    let params = match kind {
        Step::Scores | Step::Output => MIXING_PARAMS,
        Step::Softmax => SOFTMAX_PARAMS,
        Step::Whole => WHOLE_PARAMS,
    };
    AttentionStep { kernel: Kernel { file, name, params }, kind, queries, block }
}

pub static MATMUL: [MatmulRung; 7] = [
    product("matmul/01_naive", "ladder_matmul_01_naive", "f32", [32, 8], [32, 8, 1]),
    product("matmul/02_coalesced", "ladder_matmul_02_coalesced", "f32", [8, 32], [32, 8, 1]),
    product("matmul/03_shared_tiles", "ladder_matmul_03_shared_tiles", "f32", [32, 32], [32, 32, 1]),
    product("matmul/04_register_tiles", "ladder_matmul_04_register_tiles", "f32", [128, 128], [16, 16, 1]),
    product("matmul/05_vectorised", "ladder_matmul_05_vectorised", "f32", [128, 128], [256, 1, 1]),
    product("matmul/06_tensor_cores", "ladder_matmul_06_tensor_cores", "bf16", [128, 128], [256, 1, 1]),
    product("matmul/07_pipelined", "ladder_matmul_07_pipelined", "bf16", [128, 128], [256, 1, 1]),
];

static NAIVE: [AttentionStep; 3] = [
    step("attention/01_naive", "ladder_attention_01_naive_scores", Step::Scores, 8, [32, 8, 1]),
    step("attention/01_naive", "ladder_attention_01_naive_softmax", Step::Softmax, 128, [128, 1, 1]),
    step("attention/01_naive", "ladder_attention_01_naive_output", Step::Output, 4, [64, 4, 1]),
];
static TILED: [AttentionStep; 3] = [
    step("attention/02_tiled", "ladder_attention_02_tiled_scores", Step::Scores, 32, [32, 32, 1]),
    step("attention/02_tiled", "ladder_attention_02_tiled_softmax", Step::Softmax, 4, [128, 1, 1]),
    step("attention/02_tiled", "ladder_attention_02_tiled_output", Step::Output, 32, [32, 32, 1]),
];
static ONLINE: [AttentionStep; 1] =
    [step("attention/03_online_softmax", "ladder_attention_03_online_softmax", Step::Whole, 32, [32, 32, 1])];
static TENSOR_CORES: [AttentionStep; 1] =
    [step("attention/04_tensor_cores", "ladder_attention_04_tensor_cores", Step::Whole, 64, [128, 1, 1])];
static PIPELINED: [AttentionStep; 1] =
    [step("attention/05_pipelined", "ladder_attention_05_pipelined", Step::Whole, 64, [128, 1, 1])];

pub static ATTENTION: [AttentionRung; 5] = [
    AttentionRung { dtype: "f32", steps: &NAIVE },
    AttentionRung { dtype: "f32", steps: &TILED },
    AttentionRung { dtype: "f32", steps: &ONLINE },
    AttentionRung { dtype: "bf16", steps: &TENSOR_CORES },
    AttentionRung { dtype: "bf16", steps: &PIPELINED },
];

pub const KERNELS: &[&Kernel] = &[
    &MATMUL[0].kernel,
    &MATMUL[1].kernel,
    &MATMUL[2].kernel,
    &MATMUL[3].kernel,
    &MATMUL[4].kernel,
    &MATMUL[5].kernel,
    &MATMUL[6].kernel,
    &NAIVE[0].kernel,
    &NAIVE[1].kernel,
    &NAIVE[2].kernel,
    &TILED[0].kernel,
    &TILED[1].kernel,
    &TILED[2].kernel,
    &ONLINE[0].kernel,
    &TENSOR_CORES[0].kernel,
    &PIPELINED[0].kernel,
];

/// `c` `[M,N]` = `a` `[M,K]` · `b` `[K,N]` for `[M,N,K]`, by one rung.
///
/// Errors: E is not the rung's type; for bf16, N or K is no multiple of 8, or an address none of 16 bytes; operands
/// that do not fit the shape.
pub fn matmul<E: GpuFloat>(
    gpu: &Gpu,
    rung: &MatmulRung,
    a: View<E>,
    b: View<E>,
    c: &mut ViewMut<E>,
    [m, n, k]: [usize; 3],
) -> Result<()> {
    let check = Check(rung.kernel.name);
    right_type::<E>(check, rung.dtype)?;
    check.operand("a", a, check.product("a", &[m, k])?)?;
    check.operand("b", b, check.product("b", &[k, n])?)?;
    check.output("c", c, check.product("c", &[m, n])?)?;
    if rung.dtype == bf16::SUFFIX {
        for (what, length) in [("N", n), ("K", k)] {
            if !length.is_multiple_of(CHUNK) {
                return Err(check.range(what, length, format!("a multiple of {CHUNK}")));
            }
        }
        for (operand, view) in [("a", a), ("b", b), ("c", c.as_view())] {
            check.aligned(operand, view, 16)?;
        }
    }
    let grid = [blocks(check, "M", m, rung.tile[0])?, blocks(check, "N", n, rung.tile[1])?, 1];
    let config = Config { grid, block: rung.block, shared_bytes: 0 };
    let [m, n, k] = [m, n, k].map(|length| Arg::I64(length as i64));
    gpu.launch(&rung.kernel, "", config, &[a.arg(), b.arg(), c.arg(), m, n, k])
}

/// Causal attention of `q`, `k`, `v` into `out`, all `[B,T,H,64]`, by one rung.
///
/// Errors: E is not the rung's type; a head size other than 64; for bf16, an address that is no multiple of 16 bytes;
/// operands that do not fit the shape; no memory for the scores of rungs 1 and 2.
pub fn attention<E: GpuFloat>(
    gpu: &Gpu,
    rung: &AttentionRung,
    [q, k, v]: [View<E>; 3],
    out: &mut ViewMut<E>,
    [batch, tokens, heads, head_dim]: [usize; 4],
) -> Result<()> {
    let check = Check(rung.steps[0].kernel.name);
    right_type::<E>(check, rung.dtype)?;
    check.head_dim(head_dim, &[HEAD_DIM])?;
    let len = check.product("q", &[batch, tokens, heads, head_dim])?;
    for (operand, view) in [("q", q), ("k", k), ("v", v), ("out", out.as_view())] {
        check.operand(operand, view, len)?;
        if rung.dtype == bf16::SUFFIX {
            check.aligned(operand, view, 16)?;
        }
    }
    if len == 0 {
        return Ok(());
    }
    let materialised = rung.steps.iter().any(|step| step.kind == Step::Scores);
    let scores = if materialised { check.product("scores", &[batch, heads, tokens, tokens])? } else { 0 };
    let mut scores = gpu.alloc::<f32>(scores)?;
    let scores = scores.view_mut();
    let batch_heads = blocks(check, "B·H", batch * heads, 1)?;
    let shape = [Arg::I64(tokens as i64), Arg::I32(check.i32("H", heads)?)];
    for step in rung.steps {
        let keys = if step.kind == Step::Scores { blocks(check, "T", tokens, KEYS)? } else { 1 };
        let config = Config {
            grid: [blocks(check, "T", tokens, step.queries)?, keys, batch_heads],
            block: step.block,
            shared_bytes: 0,
        };
        let args = match step.kind {
            Step::Scores => vec![q.arg(), k.arg(), scores.arg(), shape[0], shape[1]],
            Step::Softmax => vec![scores.arg(), shape[0]],
            Step::Output => vec![scores.arg(), v.arg(), out.arg(), shape[0], shape[1]],
            Step::Whole => vec![q.arg(), k.arg(), v.arg(), out.arg(), shape[0], shape[1]],
        };
        gpu.launch(&step.kernel, "", config, &args)?;
    }
    Ok(())
}

fn right_type<E: GpuFloat>(check: Check, expected: &'static str) -> Result<()> {
    if E::SUFFIX == expected { Ok(()) } else { Err(check.range("type", E::SUFFIX, expected)) }
}

/// How many blocks cover a length. Error: more than a launch can count; what the card takes is checked at the launch.
fn blocks(check: Check, what: &'static str, length: usize, tile: usize) -> std::result::Result<u32, LaunchError> {
    let most = u32::MAX as usize * tile;
    u32::try_from(length.div_ceil(tile)).map_err(|_| check.range(what, length, format!("at most {most}")))
}

/// Every rung once: a product of 128×128×64, attention of one head over 128 tokens.
pub fn showcase(gpu: &Gpu) -> Result<()> {
    show(gpu, 1.0f32)?;
    show(gpu, bf16::ONE)
}

fn show<E: GpuFloat>(gpu: &Gpu, one: E) -> Result<()> {
    let shape @ [m, n, k] = [128, 128, 64];
    let (a, b, mut c) = (gpu.upload(&vec![one; m * k])?, gpu.upload(&vec![one; k * n])?, gpu.alloc::<E>(m * n)?);
    for rung in MATMUL.iter().filter(|rung| rung.dtype == E::SUFFIX) {
        matmul(gpu, rung, a.view(), b.view(), &mut c.view_mut(), shape)?;
    }
    let tokens = 128;
    let (x, mut out) = (gpu.upload(&vec![one; tokens * HEAD_DIM])?, gpu.alloc::<E>(tokens * HEAD_DIM)?);
    for rung in ATTENTION.iter().filter(|rung| rung.dtype == E::SUFFIX) {
        attention(gpu, rung, [x.view(); 3], &mut out.view_mut(), [1, tokens, 1, HEAD_DIM])?;
    }
    Ok(())
}

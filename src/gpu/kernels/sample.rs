//! The choice of the next token on the device: `kernels/sample.cu`.

use crate::gpu::{Arg, Buffer, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const ARGMAX: Kernel =
    Kernel { file: "sample", name: "sample_argmax", params: &[Param::Pointer, Param::Pointer, Param::I32] };
const TOP_P: Kernel = Kernel {
    file: "sample",
    name: "sample_top_p",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I32, Param::F32, Param::F32],
};

pub const KERNELS: &[&Kernel] = &[&ARGMAX, &TOP_P];

const THREADS: u32 = 512;
/// A u64 for each of 16 digits and each thread.
const SHARED_BYTES: usize = 16 * THREADS as usize * 8;
/// So many masses of 2⁴³ are 2⁶³, which leaves a bit to spare.
const MOST_VOCAB: usize = 1 << 20;

/// The id of the largest logit of each row, the lowest among equals: logits `[rows,vocab]`, choice `[rows]`. A row
/// whose logits are not all numbers below ∞, or all −∞, gives 2³² − 1: see [`read`].
pub fn argmax<E: GpuFloat>(
    gpu: &Gpu,
    logits: View<E>,
    choice: &mut ViewMut<u32>,
    rows: usize,
    vocab: usize,
) -> Result<()> {
    let check = Check("sample_argmax");
    let (config, vocab) = prepare(check, logits, choice, rows, vocab)?;
    gpu.launch(&ARGMAX, E::SUFFIX, config, &[logits.arg(), choice.arg(), vocab])
}

/// A draw from the tokens that top-p keeps, by the rule of `generate::sampler`; u `[rows]` are numbers in 0..1, one a
/// row. Temperature 0 is [`argmax`].
#[expect(clippy::too_many_arguments, reason = "operands, sizes and settings of one kernel")]
pub fn top_p<E: GpuFloat>(
    gpu: &Gpu,
    logits: View<E>,
    u: View<f32>,
    choice: &mut ViewMut<u32>,
    rows: usize,
    vocab: usize,
    temperature: f32,
    top_p: f32,
) -> Result<()> {
    let check = Check("sample_top_p");
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(check.range("temperature", temperature, "0 (argmax) or a positive number"));
    }
    if !(0.0..=1.0).contains(&top_p) {
        return Err(check.range("top_p", top_p, "0 to 1"));
    }
    check.operand("u", u, rows)?;
    if temperature == 0.0 {
        return argmax(gpu, logits, choice, rows, vocab);
    }
    let (config, vocab) = prepare(check, logits, choice, rows, vocab)?;
    let config = Config { shared_bytes: SHARED_BYTES, ..config };
    let args = [logits.arg(), u.arg(), choice.arg(), vocab, Arg::F32(temperature), Arg::F32(top_p)];
    gpu.launch(&TOP_P, E::SUFFIX, config, &args)
}

/// The ids, once the device has got there. Error: a row without a choice, with `step`, the number of tokens generated
/// so far.
pub fn read(choice: &Buffer<u32>, step: usize) -> Result<Vec<u32>> {
    let ids = choice.download()?;
    match ids.iter().position(|&id| id == u32::MAX) {
        None => Ok(ids),
        Some(row) => {
            Err(Check("sample").range("logits", format!("non-finite logits at step {step} in row {row}"), "numbers"))
        }
    }
}

fn prepare<E: GpuFloat>(
    check: Check,
    logits: View<E>,
    choice: &ViewMut<u32>,
    rows: usize,
    vocab: usize,
) -> Result<(Config, Arg)> {
    check.positive("vocab", vocab)?;
    check.operand("logits", logits, check.product("logits", &[rows, vocab])?)?;
    check.output("choice", choice, rows)?;
    if vocab > MOST_VOCAB {
        return Err(check.range("vocab", vocab, format!("at most {MOST_VOCAB}")));
    }
    let rows = check.i32("rows", rows)? as u32;
    Ok((Config { grid: [rows, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 }, Arg::I32(vocab as i32)))
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    let logits: Vec<f32> = (0..2 * 5003).map(|i| (i * i % 1013) as f32 / 100.0).collect();
    run(gpu, &logits)?;
    run(gpu, &logits.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<bf16>>())
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (rows, vocab) = (2, data.len() / 2);
    let (logits, u, mut choice) = (gpu.upload(data)?, gpu.upload(&[0.25f32, 0.75])?, gpu.alloc::<u32>(rows)?);
    argmax(gpu, logits.view(), &mut choice.view_mut(), rows, vocab)?;
    top_p(gpu, logits.view(), u.view(), &mut choice.view_mut(), rows, vocab, 0.8, 0.9)
}

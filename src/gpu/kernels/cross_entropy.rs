//! Cross-entropy and its gradient in place on the device: `kernels/cross_entropy.cu`.
//!
//! [`count`] looks at all targets of a step once; then [`gradient`] (or [`forward`]) takes the logits, whole or in
//! chunks of rows; [`mean`] gives the loss. [`Tally::check`] says whether a target was out of range, once the device
//! has got there.

use crate::gpu::{Arg, Buffer, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const FORWARD: Kernel = Kernel {
    file: "cross_entropy",
    name: "cross_entropy_forward",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I32, Param::I32],
};
const GRADIENT: Kernel = Kernel {
    file: "cross_entropy",
    name: "cross_entropy_gradient",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::Pointer, Param::I32, Param::I32],
};
const COUNT: Kernel = Kernel {
    file: "cross_entropy",
    name: "cross_entropy_count",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I32, Param::I32],
};
const MEAN: Kernel = Kernel {
    file: "cross_entropy",
    name: "cross_entropy_mean",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64],
};

pub const KERNELS: &[&Kernel] = &[&FORWARD, &GRADIENT, &COUNT, &MEAN];

const ONE_BLOCK: Config = Config { grid: [1, 1, 1], block: [1024, 1, 1], shared_bytes: 0 };

/// What [`count`] found, on the device.
pub struct Tally {
    /// Counted targets, the first bad row or 2³² − 1, its target.
    words: Buffer<u32>,
    scale: Buffer<f32>,
    vocab: usize,
    ignore_index: i32,
}

impl Tally {
    /// d_L / N, `[1]`; 0 where no target counts.
    pub fn scale(&self) -> View<'_, f32> {
        self.scale.view()
    }

    /// Waits for the device. Returns N, the number of targets that count. Error: a target that is neither
    /// `ignore_index` nor in 0..V, with its row.
    pub fn check(&self) -> Result<usize> {
        let words = self.words.download()?;
        let (row, target) = (words[1], words[2] as i32);
        if row == u32::MAX {
            return Ok(words[0] as usize);
        }
        let expected = format!("0 to {} or {}", self.vocab - 1, self.ignore_index);
        Err(Check("cross_entropy").range("targets", format!("target {target} in row {row}"), expected))
    }
}

/// Counts the targets `[rows]` (i32 in two's complement) that are not `ignore_index`, and looks for bad ones. `d_loss`
/// `[1]` is the gradient of the mean loss, 1 if it is not given.
pub fn count(
    gpu: &Gpu,
    targets: View<u32>,
    d_loss: Option<View<f32>>,
    rows: usize,
    vocab: usize,
    ignore_index: i32,
) -> Result<Tally> {
    let check = Check("cross_entropy_count");
    check.operand("targets", targets, rows)?;
    if let Some(d_loss) = d_loss {
        check.operand("d_loss", d_loss, 1)?;
    }
    check.i32("rows", rows)?;
    check.positive("vocab", vocab)?;
    let sizes = [Arg::I64(rows as i64), Arg::I32(check.i32("vocab", vocab)?), Arg::I32(ignore_index)];
    let (words, scale) = (gpu.alloc::<u32>(3)?, gpu.alloc::<f32>(1)?);
    let pointers = [targets.arg(), Arg::optional(d_loss), words.view().arg(), scale.view().arg()];
    gpu.launch(&COUNT, "", ONE_BLOCK, &[&pointers[..], &sizes].concat())?;
    Ok(Tally { words, scale, vocab, ignore_index })
}

/// The loss of each row, `[rows]`, of logits `[rows,vocab]` against targets `[rows]`; 0 where ignored, NaN where bad.
pub fn forward<E: GpuFloat>(
    gpu: &Gpu,
    logits: View<E>,
    targets: View<u32>,
    losses: &mut ViewMut<f32>,
    rows: usize,
    vocab: usize,
    ignore_index: i32,
) -> Result<()> {
    let (config, vocab) = prepare(Check("cross_entropy_forward"), logits, targets, losses, rows, vocab)?;
    let args = [logits.arg(), targets.arg(), losses.arg(), vocab, Arg::I32(ignore_index)];
    gpu.launch(&FORWARD, E::SUFFIX, config, &args)
}

/// The same, and the gradient over the logits: `scale` times (softmax − one-hot), 0 in ignored rows. `scale` `[1]` is
/// [`Tally::scale`] unless several batches share one mean.
#[expect(clippy::too_many_arguments, reason = "operands and sizes of one kernel")]
pub fn gradient<E: GpuFloat>(
    gpu: &Gpu,
    logits: &mut ViewMut<E>,
    targets: View<u32>,
    losses: &mut ViewMut<f32>,
    scale: View<f32>,
    rows: usize,
    vocab: usize,
    ignore_index: i32,
) -> Result<()> {
    let check = Check("cross_entropy_gradient");
    check.operand("scale", scale, 1)?;
    let (config, vocab) = prepare(check, logits.as_view(), targets, losses, rows, vocab)?;
    let args = [logits.arg(), targets.arg(), losses.arg(), scale.arg(), vocab, Arg::I32(ignore_index)];
    gpu.launch(&GRADIENT, E::SUFFIX, config, &args)
}

/// The mean of the losses `[rows]` of all chunks over the targets that count, `[1]`; 0 if none does.
pub fn mean(gpu: &Gpu, losses: View<f32>, tally: &Tally, mean: &mut ViewMut<f32>, rows: usize) -> Result<()> {
    let check = Check("cross_entropy_mean");
    check.product("losses", &[rows])?;
    check.operand("losses", losses, rows)?;
    check.output("mean", mean, 1)?;
    let args = [losses.arg(), tally.words.view().arg(), mean.arg(), Arg::I64(rows as i64)];
    gpu.launch(&MEAN, "", ONE_BLOCK, &args)
}

/// Checks the operands; a block a row, smaller where the vocabulary is.
fn prepare<E: GpuFloat>(
    check: Check,
    logits: View<E>,
    targets: View<u32>,
    losses: &ViewMut<f32>,
    rows: usize,
    vocab: usize,
) -> Result<(Config, Arg)> {
    check.positive("vocab", vocab)?;
    check.operand("logits", logits, check.product("logits", &[rows, vocab])?)?;
    check.operand("targets", targets, rows)?;
    check.output("losses", losses, rows)?;
    let (rows, vocab) = (check.i32("rows", rows)?, check.i32("vocab", vocab)?);
    let threads = if vocab <= 2048 { 128 } else { 512 };
    Ok((Config { grid: [rows as u32, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }, Arg::I32(vocab)))
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 4 * 5003])?;
    run(gpu, &vec![bf16::ONE; 4 * 5003])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (rows, vocab) = (4, data.len() / 4);
    let (mut logits, targets) = (gpu.upload(data)?, gpu.upload(&[0, 1, 2, 3])?);
    let (mut losses, mut loss) = (gpu.alloc::<f32>(rows)?, gpu.alloc::<f32>(1)?);
    let tally = count(gpu, targets.view(), None, rows, vocab, -100)?;
    forward(gpu, logits.view(), targets.view(), &mut losses.view_mut(), rows, vocab, -100)?;
    let to = (&mut logits.view_mut(), &mut losses.view_mut());
    gradient(gpu, to.0, targets.view(), to.1, tally.scale(), rows, vocab, -100)?;
    mean(gpu, losses.view(), &tally, &mut loss.view_mut(), rows)
}

//! Addition on the device, of one shape or with the second operand repeated over rows: `kernels/add.cu`.

use super::elementwise::{aligned, launch, most, variant};
use super::rows::{SUM_PARAMS, sum_partials};
use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};
use half::bf16;

const FORWARD: Kernel =
    Kernel { file: "add", name: "add_forward", params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64] };
const REPEATED_FORWARD: Kernel = Kernel {
    file: "add",
    name: "add_repeated_forward",
    params: &[Param::Pointer, Param::Pointer, Param::Pointer, Param::I64, Param::I64],
};
const REPEATED_BACKWARD: Kernel = Kernel {
    file: "add",
    name: "add_repeated_backward",
    params: &[Param::Pointer, Param::Pointer, Param::I64, Param::I64, Param::I64],
};
const REPEATED_REDUCE: Kernel = Kernel { file: "add", name: "add_repeated_reduce", params: SUM_PARAMS };

pub const KERNELS: &[&Kernel] = &[&FORWARD, &REPEATED_FORWARD, &REPEATED_BACKWARD, &REPEATED_REDUCE];

/// A block of the repeated kernels: lanes side by side over columns, times rows.
const BLOCK: [u32; 3] = [32, 8, 1];
/// Rows of a chunk, whose sums are one row of the workspace, and the most chunks there are.
const LEAST_CHUNK: usize = 64;
const MOST_CHUNKS: usize = 128;

/// y = a + b, all `[n]`.
pub fn forward<E: GpuFloat>(gpu: &Gpu, a: View<E>, b: View<E>, y: &mut ViewMut<E>, n: usize) -> Result<()> {
    let check = Check("add_forward");
    check.product("a", &[n])?;
    check.operand("a", a, n)?;
    check.operand("b", b, n)?;
    check.output("y", y, n)?;
    launch::<E>(gpu, &FORWARD, most::<E>(), &[a.arg(), b.arg(), y.arg()], n, &[])
}

/// a = a + b, both `[n]`.
pub fn forward_in_place<E: GpuFloat>(gpu: &Gpu, a: &mut ViewMut<E>, b: View<E>, n: usize) -> Result<()> {
    // The kernel reads an element before it writes it, in the same thread.
    let (a, mut y) = a.in_place();
    forward(gpu, a, b, &mut y, n)
}

/// `y[r,c] = a[r,c] + b[c]`, with a, y `[rows,cols]` and b `[cols]`: a bias, or a position table with rows = B, cols =
/// T·C.
pub fn repeated_forward<E: GpuFloat>(
    gpu: &Gpu,
    a: View<E>,
    b: View<E>,
    y: &mut ViewMut<E>,
    rows: usize,
    cols: usize,
) -> Result<()> {
    let check = Check("add_repeated_forward");
    let len = check.product("a", &[rows, cols])?;
    check.operand("a", a, len)?;
    check.operand("b", b, if rows == 0 { 0 } else { cols })?;
    check.output("y", y, len)?;
    let pointers = [a.arg(), b.arg(), y.arg()];
    let aligned = aligned(&pointers) && cols.is_multiple_of(most::<E>());
    let blocks = column_tiles::<E>(cols, aligned) * rows.div_ceil(BLOCK[1] as usize);
    let config = Config { block: BLOCK, ..Config::linear(blocks, 1)? };
    let args = [&pointers[..], &[Arg::I64(rows as i64), Arg::I64(cols as i64)]].concat();
    gpu.launch(&REPEATED_FORWARD, &variant::<E>(aligned), config, &args)
}

/// a = a + b, as [`repeated_forward`].
pub fn repeated_forward_in_place<E: GpuFloat>(
    gpu: &Gpu,
    a: &mut ViewMut<E>,
    b: View<E>,
    rows: usize,
    cols: usize,
) -> Result<()> {
    let (a, mut y) = a.in_place();
    repeated_forward(gpu, a, b, &mut y, rows, cols)
}

/// `d_b[c] = Σᵣ d_y[r,c]`, or += with `accumulate`; d_y `[rows,cols]`, d_b `[cols]` in f32. The same bits every time.
pub fn repeated_backward<E: GpuFloat>(
    gpu: &Gpu,
    d_y: View<E>,
    d_b: &mut ViewMut<f32>,
    rows: usize,
    cols: usize,
    accumulate: bool,
) -> Result<()> {
    let check = Check("add_repeated_backward");
    let len = check.product("d_y", &[rows, cols])?;
    check.operand("d_y", d_y, len)?;
    check.output("d_b", d_b, cols)?;
    let chunk_rows = rows.div_ceil(MOST_CHUNKS).max(LEAST_CHUNK);
    let chunks = rows.div_ceil(chunk_rows);
    let partial = gpu.alloc::<f32>(check.product("partial", &[chunks, cols])?)?;

    let aligned = d_y.is_aligned(16) && cols.is_multiple_of(most::<E>());
    let sizes = [rows, cols, chunk_rows].map(|size| Arg::I64(size as i64));
    let args = [&[d_y.arg(), partial.view().arg()], &sizes[..]].concat();
    let Config { grid: [tiles, ..], .. } = Config::linear(column_tiles::<E>(cols, aligned), 1)?;
    let config = Config { grid: [tiles, chunks as u32, 1], block: BLOCK, shared_bytes: 0 };
    gpu.launch(&REPEATED_BACKWARD, &variant::<E>(aligned), config, &args)?;
    sum_partials(gpu, &REPEATED_REDUCE, partial.view(), d_b, chunks as u32, cols, accumulate)
}

fn column_tiles<E: GpuFloat>(cols: usize, aligned: bool) -> usize {
    let width = if aligned { most::<E>() } else { 1 };
    cols.div_ceil(BLOCK[0] as usize * width)
}

pub fn showcase(gpu: &Gpu) -> Result<()> {
    run(gpu, &vec![1.0f32; 64 * 256])?;
    run(gpu, &vec![bf16::ONE; 64 * 256])
}

fn run<E: GpuFloat>(gpu: &Gpu, data: &[E]) -> Result<()> {
    let (x, mut y, mut d_b) = (gpu.upload(data)?, gpu.alloc::<E>(data.len())?, gpu.alloc::<f32>(256)?);
    for start in [0, 1] {
        let (range, rows) = (start..data.len(), data.len() / 256 - start);
        forward(gpu, x.range(range.clone()), x.range(range.clone()), &mut y.range_mut(range.clone()), range.len())?;
        let to = &mut y.range_mut(range.clone());
        repeated_forward(gpu, x.range(range.clone()), x.range(range.clone()), to, rows, 256)?;
        repeated_backward(gpu, x.range(range), &mut d_b.view_mut(), rows, 256, false)?;
    }
    Ok(())
}

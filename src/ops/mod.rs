//! The operators, one file each: formula, the function on [`Var`](crate::Var)s, its backward, the dispatch, and the
//! plain reference that every tuned version is checked against.
//!
//! Naming: `d_x` is the gradient of the loss with respect to `x`; dimension letters are those of the [crate] page.

pub mod adamw;
pub mod add;
pub mod attention;
pub mod cache_write;
pub mod cases;
pub mod cast;
pub mod check;
pub mod cross_entropy;
pub mod embedding;
pub mod gelu;
pub mod global_norm;
pub mod layer_norm;
pub mod linear;
pub mod linear_cross_entropy;
pub mod matmul;
pub mod mul;
pub mod qk_norm_rope;
pub mod reshape;
pub mod rms_norm;
pub mod rope;
pub mod sample;
pub mod scale;
pub mod silu;
pub mod softmax;
pub mod swiglu;

pub use adamw::{AdamWStep, adamw_step};
pub use add::add;
pub use attention::{attention, attention_cached};
pub use cache_write::cache_write;
pub use cast::cast;
pub use cross_entropy::{IGNORE_INDEX, cross_entropy};
pub use embedding::embedding;
pub use gelu::gelu;
pub use global_norm::global_norm;
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use linear_cross_entropy::linear_cross_entropy;
pub use matmul::{Layout, matmul};
pub use mul::mul;
pub use qk_norm_rope::qk_norm_rope;
pub use reshape::reshape;
pub use rms_norm::{rms_norm, rms_norm_residual};
pub use rope::{RopeScaling, RopeTable, rope};
pub use scale::scale;
pub use silu::silu;
pub use softmax::softmax;
pub use swiglu::swiglu;

use crate::cpu::parallel;
use crate::device::Device;
use crate::dtype::{DType, Float};
use crate::gpu::Gpu;
use crate::gpu::grid::{self, Grid};
use crate::launch::{Arg, In, Int, Out, int};
use crate::tensor::Tensor;
use anyhow::{Result, bail, ensure};

/// Runs the version of an operator for where its `tensors` lie: on the CPU in f32 or f64, or on a card in f32 or bf16.
/// Errors: tensors on different devices; a dtype that the device does not compute in.
fn dispatch<R>(
    op: &str,
    tensors: &[&Tensor],
    f32: impl FnOnce() -> Result<R>,
    f64: impl FnOnce() -> Result<R>,
    gpu: impl FnOnce(&Gpu) -> Result<R>,
) -> Result<R> {
    let device = tensors[0].device();
    for tensor in &tensors[1..] {
        let other = tensor.device();
        ensure!(other == device, "{op}: found tensors on {device} and {other}, expected one device");
    }
    match (&device, tensors[0].dtype()) {
        (Device::Cpu, DType::F32) => f32(),
        (Device::Cpu, DType::F64) => f64(),
        (Device::Cpu, dtype) => bail!("{op}: found dtype {dtype}, expected f32 or f64 on the cpu"),
        (Device::Gpu(card), DType::F32 | DType::Bf16) => gpu(card),
        (Device::Gpu(card), dtype) => bail!("{op}: found dtype {dtype}, expected f32 or bf16 on {}", card.name()),
    }
}

/// The output of an elementwise kernel: of the inputs' shape and dtype.
fn elementwise(gpu: &Gpu, kernel: &str, inputs: &[&Tensor]) -> Result<Tensor> {
    let (n, dtype) = (inputs[0].len(), inputs[0].dtype());
    let y = Tensor::empty(inputs[0].shape(), dtype, gpu)?;
    let args: Vec<Arg> = inputs.iter().copied().map(In).chain([Out(&y), int(n)]).collect();
    gpu.launch(kernel, &Grid::elementwise(n, dtype.size()), &args)?;
    Ok(y)
}

/// The second stage of a sum over rows on a card: `partial` `[parts, cols]` to `[cols]`, f32.
fn sum_parts(gpu: &Gpu, kernel: &str, partial: &Tensor) -> Result<Tensor> {
    let (parts, cols) = partial.rows_cols();
    if partial.len() == 0 {
        return Tensor::zeros_on(&[cols], DType::F32, &Device::Gpu(gpu.clone()));
    }
    let total = Tensor::empty(&[cols], DType::F32, gpu)?;
    gpu.launch(kernel, &grid::sum_parts(cols), &[In(partial), Out(&total), int(parts), int(cols), Int(0)])?;
    Ok(total)
}

fn same_dtype(op: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    ensure!(a.dtype() == b.dtype(), "{op}: found dtypes {} and {}, expected the same", a.dtype(), b.dtype());
    Ok(())
}

fn same_shape(op: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    ensure!(a.shape() == b.shape(), "{op}: found shapes {:?} and {:?}, expected the same", a.shape(), b.shape());
    same_dtype(op, a, b)
}

/// Checks a gain or bias: one value for each column of `x`.
fn per_column(op: &str, name: &str, x: &Tensor, vector: &Tensor) -> Result<()> {
    let (_, cols) = x.rows_cols();
    ensure!(cols > 0, "{op}: found x {:?}, expected a last dimension of at least 1", x.shape());
    ensure!(
        vector.shape() == [cols],
        "{op}: found x {:?} and {name} {:?}, expected {name} [{cols}]",
        x.shape(),
        vector.shape()
    );
    same_dtype(op, x, vector)
}

/// f(x) for each element.
fn map<F: Float>(x: &Tensor, f: impl Fn(F) -> F + Sync) -> Result<Tensor> {
    Tensor::from_vec(parallel::map(x.as_slice()?, f), x.shape())
}

/// f(a, b) for each pair of elements; the shapes are the same.
fn zip<F: Float>(a: &Tensor, b: &Tensor, f: impl Fn(F, F) -> F + Sync) -> Result<Tensor> {
    Tensor::from_vec(parallel::zip(a.as_slice()?, b.as_slice()?, f), a.shape())
}

/// f(a, b, c) for each triple of elements; the shapes are the same.
fn zip3<F: Float>(a: &Tensor, b: &Tensor, c: &Tensor, f: impl Fn(F, F, F) -> F + Sync) -> Result<Tensor> {
    Tensor::from_vec(parallel::zip3(a.as_slice()?, b.as_slice()?, c.as_slice()?, f), a.shape())
}

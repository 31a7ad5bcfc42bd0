//! The operators, one file each: formula, the function on [`Var`](crate::Var)s, its backward, the dispatch, and the
//! plain reference that every tuned version is checked against.
//!
//! Naming: `d_x` is the gradient of the loss with respect to `x`; dimension letters are those of the [crate] page.

pub mod add;
pub mod attention;
pub mod cases;
pub mod cross_entropy;
pub mod embedding;
pub mod gelu;
pub mod layer_norm;
pub mod linear;
pub mod matmul;
pub mod mul;
pub mod qk_norm_rope;
pub mod reshape;
pub mod rms_norm;
pub mod rope;
pub mod scale;
pub mod silu;
pub mod softmax;
pub mod swiglu;

pub use add::add;
pub use attention::{attention, attention_cached};
pub use cross_entropy::{IGNORE_INDEX, cross_entropy};
pub use embedding::embedding;
pub use gelu::gelu;
pub use layer_norm::layer_norm;
pub use linear::linear;
pub use matmul::{Layout, matmul};
pub use mul::mul;
pub use qk_norm_rope::qk_norm_rope;
pub use reshape::reshape;
pub use rms_norm::{rms_norm, rms_norm_residual};
pub use rope::{RopeTable, rope};
pub use scale::scale;
pub use silu::silu;
pub use softmax::softmax;
pub use swiglu::swiglu;

use crate::cpu::parallel;
use crate::dtype::{DType, Float};
use crate::tensor::Tensor;
use anyhow::{Result, anyhow, ensure};

/// The error of an operator that is not computed in a dtype on this device.
fn unsupported(op: &str, dtype: DType) -> anyhow::Error {
    anyhow!("{op}: found dtype {dtype}, expected f32 or f64 on the CPU")
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

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

/// Applies a function of one number to every element, in parallel.
fn map<F: Float>(x: &Tensor, f: impl Fn(F) -> F + Sync) -> Result<Tensor> {
    let x_data = x.as_slice::<F>()?;
    let mut y = vec![F::zero(); x.len()];
    crate::cpu::parallel::par_rows(&mut y, 1, |i, y| y[0] = f(x_data[i]));
    Tensor::from_vec(y, x.shape())
}

/// Applies a function of two numbers to every pair of elements, in parallel.
fn zip<F: Float>(a: &Tensor, b: &Tensor, f: impl Fn(F, F) -> F + Sync) -> Result<Tensor> {
    let (a_data, b_data) = (a.as_slice::<F>()?, b.as_slice::<F>()?);
    let mut y = vec![F::zero(); a.len()];
    crate::cpu::parallel::par_rows(&mut y, 1, |i, y| y[0] = f(a_data[i], b_data[i]));
    Tensor::from_vec(y, a.shape())
}

/// Applies a function of three numbers to every triple of elements, in parallel.
fn zip3<F: Float>(a: &Tensor, b: &Tensor, c: &Tensor, f: impl Fn(F, F, F) -> F + Sync) -> Result<Tensor> {
    let (a_data, b_data, c_data) = (a.as_slice::<F>()?, b.as_slice::<F>()?, c.as_slice::<F>()?);
    let mut y = vec![F::zero(); a.len()];
    crate::cpu::parallel::par_rows(&mut y, 1, |i, y| y[0] = f(a_data[i], b_data[i], c_data[i]));
    Tensor::from_vec(y, a.shape())
}

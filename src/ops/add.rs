//! Addition, with the second operand repeated over leading dimensions.
//!
//! ```text
//! forward    y = a + b               a [.., S..], b [S..]: residual sums (same shape), biases [C], position tables [T,C]
//! backward   d_a = d_y
//!            d_b = Σ over the repeats of d_y
//! ```

use super::{same_dtype, unsupported, zip};
use crate::cpu::parallel::{par_rows, sum_over_rows};
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// `a + b`. Error: `b`'s shape is not the end of `a`'s.
pub fn add(tape: &mut Tape, a: &Var, b: &Var) -> Result<Var> {
    let y = forward(a.value(), b.value())?;
    let b_shape = b.shape().to_vec();
    Ok(tape.record(&[a, b], y, || Box::new(Add { b_shape })))
}

struct Add {
    b_shape: Vec<usize>,
}

impl Backward for Add {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let d_b = if needs[1] { Some(sum_repeats(&d_y, &self.b_shape)?) } else { None };
        Ok(vec![Some(d_y), d_b])
    }
}

pub(super) fn forward(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    ensure!(
        a.shape().ends_with(b.shape()),
        "add: found shapes {:?} and {:?}, expected the second to be the end of the first",
        a.shape(),
        b.shape()
    );
    same_dtype("add", a, b)?;
    match a.dtype() {
        DType::F32 => reference::<f32>(a, b),
        DType::F64 => reference::<f64>(a, b),
        dtype => Err(unsupported("add", dtype)),
    }
}

fn reference<F: Float>(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.shape() == b.shape() {
        return zip::<F>(a, b, |a, b| a + b);
    }
    let b_data = b.as_slice::<F>()?;
    let mut y = a.as_slice::<F>()?.to_vec();
    par_rows(&mut y, b.len(), |_, y| {
        for (y, &b) in y.iter_mut().zip(b_data) {
            *y += b;
        }
    });
    Tensor::from_vec(y, a.shape())
}

/// The gradient of an operand that was repeated over leading dimensions: `[R.., S..]` → `[S..]`.
pub(super) fn sum_repeats(d_y: &Tensor, shape: &[usize]) -> Result<Tensor> {
    match d_y.dtype() {
        DType::F32 => sum_repeats_reference::<f32>(d_y, shape),
        DType::F64 => sum_repeats_reference::<f64>(d_y, shape),
        dtype => Err(unsupported("add", dtype)),
    }
}

fn sum_repeats_reference<F: Float>(d_y: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if d_y.shape() == shape {
        return Ok(d_y.clone());
    }
    let d_y = d_y.as_slice::<F>()?;
    let cols: usize = shape.iter().product();
    let sum = sum_over_rows(d_y.len() / cols.max(1), cols, |i, sum: &mut [F]| {
        for (s, &d) in sum.iter_mut().zip(&d_y[i * cols..]) {
            *s += d;
        }
    });
    Tensor::from_vec(sum, shape)
}

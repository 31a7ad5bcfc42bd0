//! Linear layer: y = x Wᵀ + b (report §5.3).
//!
//! ```text
//! forward    y = x Wᵀ + b                         x [.., I], W [O,I], b [O] or none → y [.., O]
//! backward   d_x = d_y W
//!            d_W = d_yᵀ x
//!            d_b = Σ over rows of d_y
//! ```

use super::matmul::{Layout, product, weight_gradient};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// `x Wᵀ + b` for each row of `x`. Errors name the shapes found and expected.
pub fn linear(tape: &mut Tape, x: &Var, weight: &Var, bias: Option<&Var>) -> Result<Var> {
    check(x.value(), weight.value(), bias.map(Var::value))?;
    let (rows, in_features) = x.value().rows_cols();
    let flat_x = x.value().reshape(&[rows, in_features])?;
    let y = product("linear", &flat_x, weight.value(), Layout::NT)?; // [rows, O]
    let x_shape = x.shape().to_vec();
    let y = y.reshape(&[&x_shape[..x_shape.len() - 1], &weight.shape()[..1]].concat())?; // [.., O]
    // Each operand is saved only if the other one needs a gradient.
    let flat_x = weight.needs_gradient().then_some(flat_x);
    let saved_weight = x.needs_gradient().then(|| weight.value().clone());
    let y = tape.record(&[x, weight], y, move |d_y, sink| {
        let (rows, out_features) = d_y.rows_cols();
        let d_y = d_y.reshape(&[rows, out_features])?;
        if let Some(weight) = saved_weight {
            sink.add(0, product("linear", &d_y, &weight, Layout::NN)?.reshape(&x_shape)?)?; // [.., I]
        }
        if let Some(flat_x) = flat_x {
            let sum = sink.take(1);
            sink.add(1, weight_gradient("linear", &d_y, &flat_x, sum)?)?; // [O,I]
        }
        Ok(())
    });
    match bias {
        Some(bias) => super::add(tape, &y, bias),
        None => Ok(y),
    }
}

fn check(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<()> {
    let (x, w) = (x.shape(), weight.shape());
    ensure!(w.len() == 2, "linear: found weight {w:?}, expected [O,I]");
    ensure!(x.last() == Some(&w[1]), "linear: found x {x:?} and weight {w:?}, expected x [.., {}]", w[1]);
    if let Some(bias) = bias {
        ensure!(
            bias.shape() == [w[0]],
            "linear: found weight {w:?} and bias {:?}, expected bias [{}]",
            bias.shape(),
            w[0]
        );
    }
    Ok(())
}

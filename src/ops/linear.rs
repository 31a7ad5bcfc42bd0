//! Linear layer: y = x Wᵀ + b (report §5.3).
//!
//! ```text
//! forward    y = x Wᵀ + b                         x [.., I], W [O,I], b [O] or none → y [.., O]
//! backward   d_x = d_y W
//!            d_W = d_yᵀ x
//!            d_b = Σ over rows of d_y
//! ```

use super::matmul::{Layout, product};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// `x Wᵀ + b` for each row of `x`. Errors name the shapes found and expected.
pub fn linear(tape: &mut Tape, x: &Var, weight: &Var, bias: Option<&Var>) -> Result<Var> {
    check(x.value(), weight.value(), bias.map(Var::value))?;
    let (rows, in_features) = x.value().rows_cols();
    let flat_x = x.value().reshape(&[rows, in_features])?;
    let y = product("linear", &flat_x, weight.value(), Layout::NT)?; // [rows, O]
    let y = y.reshape(&[&x.shape()[..x.shape().len() - 1], &weight.shape()[..1]].concat())?; // [.., O]
    let y = tape.record(&[x, weight], y, || {
        Box::new(Linear {
            flat_x: weight.needs_gradient().then_some(flat_x),
            x_shape: x.shape().to_vec(),
            weight: x.needs_gradient().then(|| weight.value().clone()),
        })
    });
    match bias {
        Some(bias) => super::add(tape, &y, bias),
        None => Ok(y),
    }
}

/// Each operand is saved only if the other one needs a gradient.
struct Linear {
    /// `[rows, I]`
    flat_x: Option<Tensor>,
    x_shape: Vec<usize>,
    weight: Option<Tensor>,
}

impl Backward for Linear {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let (rows, out_features) = d_y.rows_cols();
        let d_y = d_y.reshape(&[rows, out_features])?;
        let d_x = match self.weight {
            Some(weight) => Some(product("linear", &d_y, &weight, Layout::NN)?.reshape(&self.x_shape)?), // [.., I]
            None => None,
        };
        let d_weight = match self.flat_x {
            Some(flat_x) => Some(product("linear", &d_y, &flat_x, Layout::TN)?), // [O,I]
            None => None,
        };
        Ok(vec![d_x, d_weight])
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

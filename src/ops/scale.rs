//! Multiplication by a constant.
//!
//! ```text
//! forward    y = c x
//! backward   d_x = c d_y
//! ```

use super::{map, unsupported};
use crate::dtype::DType;
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::Result;

/// `c x`.
pub fn scale(tape: &mut Tape, x: &Var, c: f64) -> Result<Var> {
    let y = forward(x.value(), c)?;
    Ok(tape.record(&[x], y, || Box::new(Scale { c })))
}

struct Scale {
    c: f64,
}

impl Backward for Scale {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(forward(&only(d_outputs), self.c)?)])
    }
}

fn forward(x: &Tensor, c: f64) -> Result<Tensor> {
    match x.dtype() {
        DType::F32 => map::<f32>(x, |x| x * c as f32),
        DType::F64 => map::<f64>(x, |x| x * c),
        dtype => Err(unsupported("scale", dtype)),
    }
}

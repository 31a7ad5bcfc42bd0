//! Multiplication by a constant.
//!
//! ```text
//! forward    y = c x
//! backward   d_x = c d_y
//! ```

use super::{dispatch, map};
use crate::gpu::{Gpu, Grid};
use crate::launch::{F32, In, Out, int};
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;

/// `c x`. Error: a dtype that the device does not compute in.
pub fn scale(tape: &mut Tape, x: &Var, c: f64) -> Result<Var> {
    let y = scaled(x.value(), c)?;
    Ok(tape.record(&[x], y, move |d_y, sink| sink.add(0, scaled(&d_y, c)?)))
}

/// The product on a plain tensor.
pub(super) fn scaled(x: &Tensor, c: f64) -> Result<Tensor> {
    dispatch("scale", &[x], || map::<f32>(x, |x| x * c as f32), || map::<f64>(x, |x| x * c), |gpu| launch(gpu, x, c))
}

fn launch(gpu: &Gpu, x: &Tensor, c: f64) -> Result<Tensor> {
    let y = Tensor::empty(x.shape(), x.dtype(), gpu)?;
    let grid = Grid::elementwise(x.len(), x.dtype().size());
    gpu.launch("scale", &grid, &[In(x), Out(&y), F32(c as f32), int(x.len())])?;
    Ok(y)
}

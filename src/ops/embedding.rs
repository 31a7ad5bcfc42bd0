//! Embedding: a row of the table for each token id (report §5.2).
//!
//! ```text
//! forward    y[n] = table[ids[n]]                 table [V,C], ids [..] → y [.., C]
//! backward   d_table[v] = Σ over n with ids[n] = v of d_y[n]
//! ```
//!
//! The backward adds the rows of one token in the order of their positions, so it is the same bits every time.

use super::unsupported;
use crate::dtype::{DType, Float};
use crate::tape::{Backward, Tape, Var, only};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};

/// Rows of `table` `[V,C]` for `ids` (u32, any shape). Error: an id ≥ V, named with its place.
pub fn embedding(tape: &mut Tape, table: &Var, ids: &Tensor) -> Result<Var> {
    let y = forward(table.value(), ids)?;
    let (ids, table_shape) = (ids.clone(), table.shape().to_vec());
    Ok(tape.record(&[table], y, || Box::new(Embedding { ids, table_shape })))
}

struct Embedding {
    ids: Tensor,
    table_shape: Vec<usize>,
}

impl Backward for Embedding {
    fn backward(self: Box<Self>, d_outputs: Vec<Option<Tensor>>, _needs: &[bool]) -> Result<Vec<Option<Tensor>>> {
        let d_y = only(d_outputs);
        let d_table = match d_y.dtype() {
            DType::F32 => backward_reference::<f32>(&d_y, &self.ids, &self.table_shape)?,
            DType::F64 => backward_reference::<f64>(&d_y, &self.ids, &self.table_shape)?,
            dtype => return Err(unsupported("embedding", dtype)),
        };
        Ok(vec![Some(d_table)])
    }
}

fn forward(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    ensure!(table.shape().len() == 2, "embedding: found a table {:?}, expected [V,C]", table.shape());
    let vocab_size = table.shape()[0];
    for (n, &id) in ids.as_slice::<u32>()?.iter().enumerate() {
        ensure!(
            (id as usize) < vocab_size,
            "embedding: found id {id} at position {n}, expected ids below {vocab_size}"
        );
    }
    match table.dtype() {
        DType::F32 => reference::<f32>(table, ids),
        DType::F64 => reference::<f64>(table, ids),
        dtype => Err(unsupported("embedding", dtype)),
    }
}

fn reference<F: Float>(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let channels = table.shape()[1];
    let table = table.as_slice::<F>()?;
    let mut y = Vec::with_capacity(ids.len() * channels);
    for &id in ids.as_slice::<u32>()? {
        y.extend_from_slice(&table[id as usize * channels..(id as usize + 1) * channels]);
    }
    Tensor::from_vec(y, &[ids.shape(), &[channels]].concat())
}

fn backward_reference<F: Float>(d_y: &Tensor, ids: &Tensor, table_shape: &[usize]) -> Result<Tensor> {
    let channels = table_shape[1];
    let d_y = d_y.as_slice::<F>()?;
    let mut d_table = vec![F::zero(); table_shape[0] * channels];
    for (n, &id) in ids.as_slice::<u32>()?.iter().enumerate() {
        let d_row = &mut d_table[id as usize * channels..(id as usize + 1) * channels];
        for (d, &d_y) in d_row.iter_mut().zip(&d_y[n * channels..]) {
            *d += d_y;
        }
    }
    Tensor::from_vec(d_table, table_shape)
}

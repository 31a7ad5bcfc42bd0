//! RoPE's two layouts, and the way between them.
//!
//! RoPE rotates pairs of channels of a head. Here a pair is two neighbours, (2i, 2i+1); in Hugging Face files it is
//! (i, i + D/2), one from each half of the head. Sorting a head's rows as `0, 2, 4, …, 1, 3, 5, …` turns one into the other:
//! file row `i` is our row `order[i]`. Only what makes the channels of q and k has such rows: the q and k projections
//! (weights and biases) and the gains of the q and k norms. Scores are sums over channels, so v and o never notice.

use crate::dtype::Element;
use crate::nn::config::{ModelConfig, Positions};
use crate::{DType, Tensor};
use anyhow::{Result, bail, ensure};
use half::bf16;

#[derive(Clone, Copy)]
enum FileDirection {
    ToFile,
    FromFile,
}

/// A parameter, its gradient or its moment as it stands in a file. `name` decides: what has no RoPE rows is returned as it is.
/// Error: the rows are not those of the configuration's heads, or not floats.
pub fn to_file(config: &ModelConfig, name: &str, tensor: &Tensor) -> Result<Tensor> {
    convert(config, name, tensor, FileDirection::ToFile)
}

/// The inverse of [`to_file`]. Error: the rows are not those of the configuration's heads, or not floats.
pub fn from_file(config: &ModelConfig, name: &str, tensor: &Tensor) -> Result<Tensor> {
    convert(config, name, tensor, FileDirection::FromFile)
}

/// Heads that the rows of parameter `name` belong to; `None` for a parameter that RoPE does not touch.
fn heads(config: &ModelConfig, name: &str) -> Option<usize> {
    if config.positions != Positions::Rope {
        return None;
    }
    let mut parts = name.rsplit('.');
    match (parts.next()?, parts.next()?) {
        ("weight" | "bias", "q_proj") => Some(config.n_head),
        ("weight" | "bias", "k_proj") => Some(config.n_kv_head),
        ("weight", "q_norm" | "k_norm") => Some(1),
        _ => None,
    }
}

fn convert(config: &ModelConfig, name: &str, tensor: &Tensor, direction: FileDirection) -> Result<Tensor> {
    let Some(heads) = heads(config, name) else { return Ok(tensor.clone()) };
    let rows = heads * config.head_dim;
    let found = tensor.shape().first().copied();
    ensure!(
        found == Some(rows),
        "{name}: found shape {:?}, expected {rows} rows ({heads} heads of {})",
        tensor.shape(),
        config.head_dim
    );
    match tensor.dtype() {
        DType::F32 => permute::<f32>(tensor, config.head_dim, direction),
        DType::F64 => permute::<f64>(tensor, config.head_dim, direction),
        DType::Bf16 => permute::<bf16>(tensor, config.head_dim, direction),
        DType::U32 => bail!("{name}: found dtype u32, expected a float"),
    }
}

/// Rows of every head in the other order. A bias or a gain is a matrix of one column.
fn permute<E: Element>(tensor: &Tensor, head_dim: usize, direction: FileDirection) -> Result<Tensor> {
    let from = tensor.as_slice::<E>()?;
    let mut to = from.to_vec();
    let width: usize = tensor.shape()[1..].iter().product();
    let head = head_dim * width;
    // Nothing to move, and no chunks of length 0.
    if head > 0 {
        for (from, to) in from.chunks_exact(head).zip(to.chunks_exact_mut(head)) {
            for i in 0..head_dim {
                let (source, target) = match direction {
                    FileDirection::ToFile => (order(i, head_dim), i),
                    FileDirection::FromFile => (i, order(i, head_dim)),
                };
                to[target * width..][..width].copy_from_slice(&from[source * width..][..width]);
            }
        }
    }
    Tensor::from_vec(to, tensor.shape())
}

/// Our row of a head that is row `i` of the head in a file: even rows first, then odd ones.
fn order(i: usize, head_dim: usize) -> usize {
    let half = head_dim / 2;
    if i < half { 2 * i } else { 2 * (i - half) + 1 }
}

//! The model, from a parameter to the whole transformer.
//!
//! A layer is a struct that owns its [`Parameter`]s and has a `forward` on [`Var`]s. Parameters carry the names that
//! checkpoints of Hugging Face use, so a file needs no table of names.

pub mod attention;
pub mod block;
pub mod config;
pub mod cost;
pub mod embedding;
pub mod feed_forward;
pub mod init;
pub mod kv_cache;
pub mod linear;
pub mod norm;
pub mod transformer;

pub use attention::Attention;
pub use block::Block;
pub use config::ModelConfig;
pub use embedding::Embedding;
pub use feed_forward::FeedForward;
pub use kv_cache::KvCache;
pub use linear::Linear;
pub use norm::Norm;
pub use transformer::Transformer;

use crate::tape::{Tape, Var};
use crate::tensor::Tensor;

/// A tensor that training changes, under its checkpoint name.
#[derive(Clone, Debug)]
pub struct Parameter {
    pub name: String,
    /// The master weights, f32 (f64 in checks).
    pub value: Tensor,
    /// Their bf16 copy, where the model computes in bf16.
    pub copy: Option<Tensor>,
}

impl Parameter {
    pub fn new(name: String, value: Tensor) -> Parameter {
        Parameter { name, value, copy: None }
    }

    /// The weights that the model computes with.
    pub fn compute(&self) -> &Tensor {
        self.copy.as_ref().unwrap_or(&self.value)
    }

    /// The parameter as a leaf of `tape`.
    pub fn on(&self, tape: &mut Tape) -> Var {
        tape.leaf(&self.name, self.compute())
    }
}

/// What has parameters. Implementations destructure the struct, so that a new field cannot be forgotten here.
pub trait Module {
    /// Every parameter, in a fixed order.
    fn parameters(&self) -> Vec<&Parameter>;
    /// The same, in the same order, to be changed.
    fn parameters_mut(&mut self) -> Vec<&mut Parameter>;
}

//! A table of vectors, one per token or per position (report §5.2).

use super::config::Init;
use super::{Module, Parameter, init};
use crate::ops;
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::Result;
use rand_chacha::ChaCha8Rng;

#[derive(Clone, Debug)]
pub struct Embedding {
    /// `[V,C]`
    pub weight: Parameter,
}

impl Embedding {
    pub fn new(name: &str, rows: usize, channels: usize, init: Init, rng: &mut ChaCha8Rng) -> Embedding {
        Embedding { weight: Parameter::new(format!("{name}.weight"), init::matrix(init, rows, channels, 1.0, rng)) }
    }

    /// ids `[B,T]` → `[B,T,C]`
    pub fn forward(&self, tape: &mut Tape, ids: &Tensor) -> Result<Var> {
        let weight = self.weight.on(tape);
        ops::embedding(tape, &weight, ids)
    }
}

impl Module for Embedding {
    fn parameters(&self) -> Vec<&Parameter> {
        let Embedding { weight } = self;
        vec![weight]
    }

    fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let Embedding { weight } = self;
        vec![weight]
    }
}

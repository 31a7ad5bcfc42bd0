//! What a training step needs in memory, and whether a device has it: asked before anything is allocated.
//!
//! The prediction follows the tape. Forward leaves what each operator's backward half keeps; then comes the head, which
//! makes its gradients at once ([`mod@crate::ops::linear_cross_entropy`]); then the walk back, where gradients of weights
//! come and stay until the update, and activations go:
//!
//! ```text
//! always     weights, their bf16 copies, the RoPE tables; two moments
//! head       + what all operators keep + hidden, d_hidden, d_weight + a chunk of logits
//! backward   of each operator: + the gradients that it gives + workspace; − the gradient that it takes − what it kept
//! ```
//!
//! With accumulation the sums of all gradients are there from the second part on, and what an operator gives goes into them.
//!
//! The peak is the largest sum of these moments. All blocks are alike, so it is in the last block, the first one, or
//! outside of them. Bytes are those that are asked for, as the emulator's pool counts them; a card's pool rounds each
//! allocation up to 512. Left out are scalars and the partial sums of the gradient norm, 4 KiB a tensor at most.

pub mod inference;
mod operators;

use super::{Placement, Recipe};
use crate::dtype::DType;
use crate::nn::ModelConfig;
use crate::nn::config::{NormPosition, Positions};
use crate::ops::RopeTable;
use anyhow::Result;
use operators::{Block, Op};

/// Bytes at the peak of a step that is not the first. In f64, as a damaged configuration may ask for any number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Master weights in f32, their copies in bf16, the RoPE tables.
    pub weights: f64,
    /// AdamW's two.
    pub moments: f64,
    /// Of the weights, those that are there at the peak.
    pub gradients: f64,
    /// What is kept for backward, and the gradients of activations.
    pub activations: f64,
    /// The logits of a chunk, partial sums, sorted ids: what lives within one operator.
    pub workspace: f64,
}

impl Footprint {
    /// Bytes of all of them.
    pub fn total(&self) -> f64 {
        self.weights + self.moments + self.gradients + self.activations + self.workspace
    }
}

/// A training step, as far as its memory depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Validated.
    pub config: &'a ModelConfig,
    /// Sequences at once.
    pub batch_size: usize,
    /// Whether gradients of several batches add up.
    pub accumulate: bool,
    /// Tokens of each.
    pub seq_len: usize,
    /// Of activations and compute weights: f32 or bf16.
    pub dtype: DType,
    /// Whether blocks keep their input only.
    pub recompute: bool,
    /// The card's, on which the splits of matrix products depend; 0 is the CPU, which has none.
    pub multiprocessors: usize,
}

/// Error: the run of a validated configuration needs more than its device has free. Where that is unknown, there is none.
pub fn check(config: &ModelConfig, recipe: &Recipe, placement: &Placement) -> Result<()> {
    let needed = Step::new(config, recipe, placement).footprint().total();
    let on_card = placement.device.gpu().is_some();
    let more = match (placement.recompute, on_card && placement.dtype == DType::F32) {
        (false, true) => ", or use --recompute or --dtype bf16",
        (false, false) => ", or use --recompute",
        (true, true) => ", or use --dtype bf16",
        (true, false) => "",
    };
    let purpose = format!("for training; lower --batch-size, --seq-len or the model's size{more}");
    placement.device.check_memory(needed, &purpose)
}

/// Bytes of the RoPE tables once `positions` have been used: cos φ and sin φ in f32 on a card, in f64 on the CPU.
fn rope_tables(config: &ModelConfig, positions: usize, on_card: bool) -> f64 {
    let rows = RopeTable::rows(positions, config.max_seq_len);
    let size = if on_card { DType::F32.size() } else { DType::F64.size() };
    if config.positions == Positions::Rope { (size * config.head_dim) as f64 * rows as f64 } else { 0.0 }
}

/// The memory at one moment of the walk, and at the worst one: gradients of weights, activations, workspace.
#[derive(Clone, Copy, Default)]
struct Walk {
    gradients: f64,
    activations: f64,
    peak: [f64; 3],
    /// Whether gradients of weights go into sums that are there already.
    into_sums: bool,
}

impl Walk {
    fn moment(&mut self, workspace: f64) {
        let now = [self.gradients, self.activations, workspace];
        if now.iter().sum::<f64>() > self.peak.iter().sum() {
            self.peak = now;
        }
    }

    fn back(&mut self, ops: &[Op]) {
        for op in ops {
            self.gradients += op.weight;
            self.activations += op.gives;
            self.moment(op.workspace);
            self.activations -= op.takes + op.keeps;
            self.gradients -= if self.into_sums { op.weight } else { 0.0 };
        }
    }

    /// The same block `times` times: what it changes is the same each time, so the middle ones have no peak.
    fn back_through(&mut self, block: &[Op], times: usize) {
        let before = *self;
        self.back(block);
        if times > 1 {
            let middle = (times - 2) as f64;
            self.gradients += middle * (self.gradients - before.gradients);
            self.activations += middle * (self.activations - before.activations);
            self.back(block);
        }
    }
}

impl<'a> Step<'a> {
    /// A step of the recipe, where it is placed.
    pub fn new(config: &'a ModelConfig, recipe: &Recipe, placement: &Placement) -> Step<'a> {
        Step {
            config,
            batch_size: recipe.batch_size,
            accumulate: recipe.accumulate > 1,
            seq_len: recipe.seq_len,
            dtype: placement.dtype,
            recompute: placement.recompute,
            multiprocessors: placement.device.gpu().map_or(0, |gpu| gpu.limits().multiprocessors as usize),
        }
    }

    /// The most sequences whose step takes at most so many bytes; 0 if not even one fits.
    pub fn largest_batch(&self, bytes: f64) -> usize {
        let fits = |batch_size: usize| Step { batch_size, ..*self }.footprint().total() <= bytes;
        let mut step = 1;
        while fits(2 * step) && step < ModelConfig::MAX_SIZE {
            step *= 2;
        }
        let mut batch = 0;
        while step > 0 {
            if fits(batch + step) {
                batch += step;
            }
            step /= 2;
        }
        batch
    }

    /// The prediction.
    pub fn footprint(&self) -> Footprint {
        let first = self.walk(Walk::default());
        let parameters = first.gradients / 4.0; // every one has its gradient now
        let worst = match self.accumulate {
            true => self.walk(Walk { gradients: first.gradients, into_sums: true, ..Walk::default() }),
            false => first,
        };
        let [gradients, activations, workspace] = worst.peak;
        let copies = if self.dtype == DType::Bf16 { 2.0 } else { 0.0 };
        let tables = rope_tables(self.config, self.seq_len, self.multiprocessors > 0);
        let weights = (4.0 + copies) * parameters + tables;
        Footprint { weights, moments: 8.0 * parameters, gradients, activations, workspace }
    }

    /// A forward and backward pass that begins with `walk`.
    fn walk(&self, mut walk: Walk) -> Walk {
        let config = self.config;
        let (c, v, tokens) = (config.n_embd as f64, config.vocab_size as f64, self.tokens());
        let stream = self.activation(c); // one state of the residual stream
        let pre = config.norm_position == NormPosition::Pre;
        let norm = self.norm(stream, stream); // the final one; it keeps the last block's output
        let Block { ops: block, keeps } = self.block();
        let embeddings = self.embeddings();

        walk.activations += config.n_layer as f64 * keeps + embeddings.iter().map(|op| op.keeps).sum::<f64>();
        walk.activations += if pre { norm.keeps } else { 0.0 };
        // linear_cross_entropy: hidden is its caller's; d_hidden stays; losses and targets, 4 bytes a token, do not.
        walk.activations += 2.0 * stream + 8.0 * tokens;
        walk.gradients += 4.0 * v * c;
        walk.moment(self.logits());
        walk.activations -= stream + 8.0 * tokens;
        walk.gradients -= if walk.into_sums { 4.0 * v * c } else { 0.0 };
        walk.back(if pre { std::slice::from_ref(&norm) } else { &[] });
        walk.back_through(&block, config.n_layer);
        walk.back(&embeddings);
        walk
    }
}

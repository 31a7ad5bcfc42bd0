//! An LLM engine written by hand.
//!
//! # Reading order
//!
//! 1. [`tensor`] and [`dtype`]: what the numbers live in.
//! 2. [`tape`]: the autograd engine, on one page; [`gradcheck`] is how every gradient is proven.
//! 3. [`ops`]: one operator, one file, from [`ops::add`] to [`ops::attention`].
//!
//! # Dimension letters
//!
//! | letter | is | letter | is |
//! |---|---|---|---|
//! | `B` | batch: sequences | `H`, `Hkv` | query heads, KV heads |
//! | `T` | tokens of a sequence (`Tq` queries, `Tk` keys) | `D` | channels of one head, `head_dim` |
//! | `C` | channels of the residual stream, `n_embd` | `F` | channels inside the feed-forward, `n_ff` |
//! | `V` | vocabulary size | `L` | layers |

pub mod cpu;
pub mod dtype;
pub mod gradcheck;
pub mod nn;
pub mod ops;
pub mod tape;
pub mod tensor;

pub use dtype::DType;
pub use tape::{Gradients, Tape, Var};
pub use tensor::Tensor;

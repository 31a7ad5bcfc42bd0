//! An LLM engine written by hand: tensors, autograd, every operator and its gradient, training, cached generation.
//!
//! # Reading order
//!
//! 1. [`tensor`], [`dtype`] and [`device`]: what the numbers live in, and where; [`mod@launch`]: how a kernel gets them. To be
//!    read last: [`cpu`], the loops that are tuned, and [`gpu`], the CUDA backend under the launches of `kernels/`.
//! 2. [`tape`]: the autograd engine, on one page; [`gradcheck`] is how every gradient is proven.
//! 3. [`ops`]: one operator, one file, from [`add`](mod@ops::add) to [`attention`](mod@ops::attention).
//! 4. [`nn`]: parameters and layers, up to [`nn::Transformer`].
//! 5. [`optim`], [`data`], [`tokenizer`], [`formats`]: what a training step needs around the model.
//!    [`figure`] draws.
//! 6. [`mod@train`] and [`mod@generate`]: the two things one does with a model; [`cli`] prints.
//!
//! Dependencies point up this list only.
//!
//! # Dimension letters
//!
//! | letter | is | letter | is |
//! |---|---|---|---|
//! | `B` | batch: sequences | `H`, `Hkv` | query heads, KV heads |
//! | `T` | tokens of a sequence (`Tq` queries, `Tk` keys) | `D` | channels of one head, `head_dim` |
//! | `C` | channels of the residual stream, `n_embd` | `F` | channels inside the feed-forward, `n_ff` |
//! | `V` | vocabulary size | `L` | layers |
//!
//! `d_x` is the gradient of the loss with respect to `x`, everywhere.
//!
//! # From the documents to the code
//!
//! "Chapter 8" is the chapter on assembling a modern dense model, "the report" the pre-training report.
//!
//! | section | place |
//! |---|---|
//! | chapter 8, table of upgrades | [`nn::config`] |
//! | chapter 8.1, order of a block | [`nn::block`], [`nn::attention`] |
//! | chapter 8.2.1, RMSNorm, RoPE, GQA | [`ops::rms_norm`](mod@ops::rms_norm), [`ops::rope`](mod@ops::rope), [`ops::qk_norm_rope`](mod@ops::qk_norm_rope), [`ops::attention`](mod@ops::attention) |
//! | chapter 8.2.2, SwiGLU, block, model | [`nn::feed_forward`], [`nn::block`], [`nn::transformer`] |
//! | chapter 8.2.3, training, generation | [`train::trainer`], [`mod@generate`], [`nn::kv_cache`] |
//! | chapter 8.3, cost of the KV cache | [`nn::cost`] |
//! | chapter 8, Q6: layer by layer | `handgrad trace`, `tests/golden.rs` |
//! | report §4.1 BPE training | [`tokenizer::bpe::train`](mod@tokenizer::bpe::train), [`tokenizer::bpe::pattern`] |
//! | report §4.2 tokenizer | [`tokenizer::bpe`], [`formats::tokenizer_json`] |
//! | report §4.3 encoding the data | [`data::encode`], [`data::shard`] |
//! | report §5.1 initialisation | [`nn::init`] |
//! | report §5.2, §5.3 embedding, linear | [`nn::embedding`], [`nn::linear`] |
//! | report §5.4 norms | [`nn::norm`], [`ops::rms_norm`](mod@ops::rms_norm), [`ops::layer_norm`](mod@ops::layer_norm) |
//! | report §5.5 RoPE | [`ops::rope`](mod@ops::rope) |
//! | report §5.6, §5.7 softmax, attention | [`ops::softmax`](mod@ops::softmax), [`nn::attention`] |
//! | report §5.8 SwiGLU | [`ops::swiglu`](mod@ops::swiglu) |
//! | report §5.9, §5.10 block, model | [`nn::block`], [`nn::transformer`] |
//! | report §6.1 AdamW | [`optim::adamw`], [`ops::adamw`] |
//! | report §6.2 cross-entropy | [`ops::cross_entropy`](mod@ops::cross_entropy), [`ops::linear_cross_entropy`](mod@ops::linear_cross_entropy) |
//! | report §6.3 data loader | [`data::batch`] |
//! | report §6.4, §6.5 schedule, clipping | [`optim::schedule`], [`optim::clip`], [`ops::global_norm`](mod@ops::global_norm) |
//! | report §7.1, §7.3 loop, validation | [`train::run`], [`train::trainer`] |
//! | report §7.2 checkpoints | [`train::state`], [`formats`] |
//! | report §7.4 metrics | [`train::metrics`], [`train::curves`], [`train::events`] |
//! | report §7.5 inference | [`generate::sampler`], [`ops::sample`], [`mod@generate`] |
//! | report §8.1 configuration | [`nn::config`], [`train::recipe`], [`nn::cost`] |
//! | report §9.1 scaling | [`train::scaling`] |
//! | report §9.2 KV cache | [`nn::kv_cache`] |
//! | report §9.3 FlashAttention-2 | [`cpu::attention`] |
//! | report §10.2 the two bugs | `tests/model.rs`, `tests/generation.rs` |
//! | report §10.3 looking at the data | [`data::inspect`] |

pub mod cli;
pub mod cpu;
pub mod data;
pub mod device;
pub mod dtype;
pub mod figure;
pub mod formats;
pub mod generate;
pub mod gpu;
pub mod gradcheck;
pub mod launch;
pub mod nn;
pub mod ops;
pub mod optim;
pub mod shown;
pub mod tape;
pub mod tensor;
pub mod tokenizer;
pub mod train;

pub use device::Device;
pub use dtype::DType;
pub use tape::{Gradients, Tape, Var};
pub use tensor::Tensor;

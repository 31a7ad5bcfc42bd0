//! Data: from documents to batches of token ids.
//!
//! [`Corpus`] holds the documents, of files that [`text`] reads. A tokenizer turns them into one long row of ids, [`split`] keeps its tail for
//! validation, and the rest of [`batch`] cuts it into windows: a window of `T` ids has as its targets the same window
//! one token later. What is too large for memory stands in [`shard`]s, which [`encode`] writes and [`inspect`] looks
//! into.

pub mod batch;
pub mod corpus;
pub mod encode;
pub mod inspect;
pub mod progress;
pub mod shard;
pub mod text;
pub mod tokens;
pub mod training_data;

pub use batch::{Batch, random_batch, split, whole_batches};
pub use corpus::Corpus;
pub use tokens::{TokenRow, Tokens};
pub use training_data::TrainingData;

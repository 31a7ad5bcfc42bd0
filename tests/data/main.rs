//! Data: corpora, batches, shards of token ids.

mod batches;
mod cli;
mod directories;
mod progress;
mod shards;
mod special;

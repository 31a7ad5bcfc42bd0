//! Data: corpora, batches, shards of token ids.

mod batches;
mod cli;
mod directories;
mod kinds;
mod progress;
mod shards;
mod special;

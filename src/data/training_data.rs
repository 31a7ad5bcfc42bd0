//! What a model learns from or is tested on: texts, or shards of token ids.

use super::encode::NO_END;
use super::shard::{self, ShardSet};
use super::{Corpus, Tokens, progress};
use crate::formats::tokenizer_json;
use crate::shown::shown_path;
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Data as `--data` names it.
pub enum TrainingData {
    /// Documents in memory.
    Texts(Corpus),
    /// A directory of `handgrad data encode`.
    Shards(PathBuf),
}

impl TrainingData {
    /// Opens a file of text, a directory of texts or of shards; without one, the built-in corpus. Errors: those of
    /// [`Corpus::load`].
    pub fn open(data: Option<&Path>) -> Result<TrainingData> {
        match data {
            None => Ok(TrainingData::Texts(Corpus::builtin())),
            Some(dir) if shard::is_in(dir) || progress::is_begun(dir) => Ok(TrainingData::Shards(dir.to_path_buf())),
            Some(path) => Ok(TrainingData::Texts(Corpus::load(path)?)),
        }
    }

    /// For messages.
    pub fn name(&self) -> String {
        match self {
            TrainingData::Texts(corpus) => corpus.name.clone(),
            TrainingData::Shards(dir) => shown_path(dir),
        }
    }

    /// The tokenizer of a `choice`: `char`, `bytes` or the path of a tokenizer.json; by default characters, or the one that
    /// made the shards. Errors: a file that [`tokenizer_json::read`] refuses; characters or bytes for shards.
    pub fn tokenizer(&self, choice: Option<&str>) -> Result<Tokenizer> {
        match (self, choice) {
            (TrainingData::Texts(corpus), None | Some("char")) => {
                Ok(Tokenizer::chars_of(corpus.documents.iter().map(String::as_str), ends(corpus)))
            }
            (TrainingData::Texts(corpus), Some("bytes")) => Ok(Tokenizer::bytes(ends(corpus))),
            (TrainingData::Shards(dir), None) => tokenizer_json::read(&dir.join("tokenizer.json")),
            (TrainingData::Shards(dir), Some(name @ ("char" | "bytes"))) => {
                anyhow::bail!(
                    "--tokenizer: found {name}, expected none or a file: {} is encoded already",
                    shown_path(dir)
                )
            }
            (_, Some(path)) => tokenizer_json::read(Path::new(path)),
        }
    }

    /// All ids in a row. Errors: a text that the tokenizer cannot encode; several without a token that ends one; shards that another tokenizer made, that are
    /// damaged, or not all there.
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Tokens> {
        match self {
            TrainingData::Texts(corpus) => {
                ensure!(!ends(corpus) || tokenizer.end_of_text().is_some(), "{}: {NO_END}", corpus.name);
                Ok(tokenizer.encode_documents(&corpus.documents).with_context(|| corpus.name.clone())?.into())
            }
            TrainingData::Shards(dir) => {
                progress::check_finished(dir)?;
                Ok(ShardSet::open(dir, tokenizer)?.into())
            }
        }
    }
}

/// One text has no end to learn.
fn ends(corpus: &Corpus) -> bool {
    corpus.documents.len() > 1
}

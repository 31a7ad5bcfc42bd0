//! How far an encoding is, and whether it may go on: `progress.json` beside the shards.

use super::shard::{self, Format};
use crate::formats::{atomic, generation_config, read_json, tokenizer_json, write_json};
use crate::shown::{json_error, shown_path};
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const FILE: &str = "progress.json";

/// How far a run is: what `progress.json` holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What must be the same for a run to go on: fingerprint, settings and files.
    pub(super) plan: EncodingPlan,
    /// Shards written.
    pub shards: usize,
    /// The file to go on with, where in it, and how many of its lines have been read.
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) line: usize,
    /// Documents that were not empty, and those that were, which leave no trace.
    pub documents: u64,
    pub empty: u64,
    /// Bytes of text and ids, of all shards.
    pub bytes: u64,
    pub tokens: u64,
    pub finished: bool,
}

impl Progress {
    /// Error: numbers that no run writes, whatever its files are.
    fn check(&self) -> Result<()> {
        let files = &self.plan.files;
        let all = files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
        let all = all.context("plan.files: found more than 2^64 bytes, expected the files' sizes")?;
        // Behind the last file there is nothing to go on with.
        let size = files.get(self.file).map_or(0, |file| file.bytes);
        ensure!(self.file <= files.len(), "file: found {}, expected at most {}", self.file, files.len());
        ensure!(self.offset <= size, "offset: found {}, expected at most {size}, the file's bytes", self.offset);
        ensure!(
            self.line as u64 <= self.offset,
            "line: found {}, expected at most one a byte of {}",
            self.line,
            self.offset
        );
        ensure!(
            !self.finished || self.file == files.len(),
            "finished: found true at file {}, expected it behind the last of {}",
            self.file,
            files.len()
        );
        // A byte of a file is at most three of its text, the U+FFFD of --lossy, and each document has one at least.
        let most = all.saturating_mul(3);
        ensure!(self.bytes <= most, "bytes: found {}, expected at most {most}", self.bytes);
        ensure!(self.documents <= most, "documents: found {}, expected at most {most}", self.documents);
        let lines = all.saturating_add(files.len() as u64);
        ensure!(self.empty <= lines, "empty: found {}, expected at most {lines}", self.empty);
        Ok(())
    }
}

/// What decides the shards that a run writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct EncodingPlan {
    pub(super) fingerprint: String,
    pub(super) shard_tokens: usize,
    pub(super) batch: usize,
    pub(super) lossy: bool,
    pub(super) specials: String,
    /// The token that ends documents.
    #[serde(default)]
    pub(super) end_of_text: Option<u32>,
    pub(super) files: Vec<InputFile>,
}

/// A file as it was when the run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct InputFile {
    path: PathBuf,
    pub(super) bytes: u64,
    /// When it was last changed, in nanoseconds since 1970.
    changed: u64,
}

impl InputFile {
    /// A file as it is now. Error: a file that cannot be read, or whose name is not UTF-8.
    pub(super) fn of(path: &Path) -> Result<InputFile> {
        let place = || format!("{}: cannot be read", shown_path(path));
        let meta = fs::metadata(path).with_context(place)?;
        let changed = meta.modified().with_context(place)?.duration_since(UNIX_EPOCH).unwrap_or_default();
        // progress.json is text.
        ensure!(path.to_str().is_some(), "{}: found a name that is not UTF-8, expected another", shown_path(path));
        Ok(InputFile { path: std::path::absolute(path)?, bytes: meta.len(), changed: changed.as_nanos() as u64 })
    }
}

/// Finds out how far an interrupted run of the same plan is, or begins one. Errors: the directory holds shards of another
/// plan, damaged ones or another tokenizer; it cannot be written to.
pub(super) fn begin(plan: EncodingPlan, out: &Path, tokenizer: &Tokenizer, format: Format) -> Result<Progress> {
    let place = shown_path(out);
    let holds_shards = shard::is_in(out);
    let tokenizer_path = out.join("tokenizer.json");
    match read_progress(out)? {
        Some(state) if state.plan == plan => {
            let tokens = shard::check(out, state.shards, format)?;
            ensure!(
                tokens == state.tokens,
                "{}: found {} tokens, expected {tokens} as in the {} shards: the file is damaged",
                shown_path(out.join(FILE)),
                state.tokens,
                state.shards
            );
            atomic::clean(out)?;
            return Ok(state);
        }
        // A run that came to no shard, such as one that met a bad text, may be followed by any other.
        Some(state) => ensure!(
            state.shards == 0 && !holds_shards,
            "{place}: found shards of other or changed files, other settings or another tokenizer, expected a new directory"
        ),
        None => {
            ensure!(!holds_shards, "{place}: found shards without progress.json, expected a new directory");
            let others = tokenizer_path.exists()
                && tokenizer_json::fingerprint(&tokenizer_json::read(&tokenizer_path)?) != format.fingerprint;
            ensure!(!others, "{}: found another tokenizer, expected a new directory", shown_path(&tokenizer_path));
        }
    }
    tokenizer_json::write(&tokenizer_path, tokenizer)?;
    generation_config::write_tokenizer_config(out, tokenizer, None)?;
    let state = Progress { plan, ..Progress::default() };
    save(out, &state)?;
    Ok(state)
}

/// How far the run is that writes `out`, if one does. Error: progress.json cannot be read, or holds what no run writes.
fn read_progress(out: &Path) -> Result<Option<Progress>> {
    let path = out.join(FILE);
    if !path.exists() {
        return Ok(None);
    }
    let state: Progress = serde_json::from_value(read_json(&path)?).map_err(|error| {
        let (path, error) = (shown_path(&path), json_error(&error));
        anyhow!("{path}: not the progress of handgrad data encode: {error}")
    })?;
    state.check().with_context(|| format!("{}: the file is damaged", shown_path(&path)))?;
    Ok(Some(state))
}

/// Whether a run has begun to write a directory, though it may not have come to a shard.
pub fn is_begun(dir: &Path) -> bool {
    dir.join(FILE).exists() && dir.join("tokenizer.json").exists()
}

/// Checks that the run that wrote the shards of `dir` has ended. Errors: it was interrupted; a shard is gone;
/// progress.json cannot be read.
pub fn check_finished(dir: &Path) -> Result<()> {
    let Some(state) = read_progress(dir)? else { return Ok(()) };
    let place = shown_path(dir);
    ensure!(state.finished, "{place}: found an unfinished handgrad data encode, expected it to be called again first");
    let missing = (0..state.shards).map(|number| shard::path(dir, number)).find(|path| !path.exists());
    ensure!(
        missing.is_none(),
        "{}: not there, expected {} shards",
        shown_path(missing.unwrap_or_default()),
        state.shards
    );
    Ok(())
}

/// Writes how far the run is. Error: the file cannot be written.
pub(super) fn save(out: &Path, progress: &Progress) -> Result<()> {
    write_json(&out.join(FILE), &serde_json::to_value(progress)?)
}

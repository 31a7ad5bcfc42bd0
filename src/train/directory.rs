//! The directory that a run writes: making it ready, and finding the checkpoints in it.

use super::state;
use crate::formats::atomic;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// What a run writes into its directory, besides `step-…`.
const FILES: [&str; 6] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "optimizer.safetensors",
    "trainer_state.json",
    "metrics.jsonl",
];

/// Makes the output directory. One that holds a run is refused, or emptied of that run's files if `overwrite`.
///
/// Errors: `out` is a file, holds a run, or cannot be made, written to or emptied.
pub fn prepare_out(out: &Path, overwrite: bool) -> Result<()> {
    if out.exists() {
        ensure!(out.is_dir(), "--out {}: found a file, expected a directory or a new path", out.display());
        let holds_run = FILES.iter().any(|file| out.join(file).exists()) || !step_directories(out).is_empty();
        ensure!(
            !holds_run || overwrite,
            "--out {}: found a training run, expected a new directory; choose another, or continue it with --resume, or replace it with --overwrite",
            out.display()
        );
    }
    std::fs::create_dir_all(out).with_context(|| format!("--out {}: cannot be made", out.display()))?;
    atomic::write(&out.join("write-test"), |_| Ok(()))
        .and_then(|_| Ok(std::fs::remove_file(out.join("write-test"))?))
        .with_context(|| format!("--out {}: cannot be written to", out.display()))?;
    remove_run(out).with_context(|| format!("--out {}: the old run cannot be removed", out.display()))?;
    atomic::clean(out)
}

fn remove_run(out: &Path) -> Result<()> {
    for directory in step_directories(out) {
        std::fs::remove_dir_all(directory)?;
    }
    for file in FILES.iter().map(|file| out.join(file)).filter(|file| file.exists()) {
        std::fs::remove_file(file)?;
    }
    Ok(())
}

/// The step and place of a run's last checkpoint: `out` itself or one of its `step-…` directories.
pub fn last_checkpoint(out: &Path) -> Option<(usize, PathBuf)> {
    let all = step_directories(out).into_iter().chain([out.to_path_buf()]);
    all.filter_map(|path| Some((state::read(&path).ok()?.step, path))).max()
}

fn step_directories(out: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| is_step_directory(path)).collect()
}

fn is_step_directory(path: &Path) -> bool {
    let step = path.file_name().and_then(|name| name.to_str()?.strip_prefix("step-"));
    step.is_some_and(|step| !step.is_empty() && step.bytes().all(|b| b.is_ascii_digit())) && path.is_dir()
}

/// The run that a checkpoint belongs to: the directory above `step-000100`, or the checkpoint itself.
pub fn run_of(checkpoint: &Path) -> PathBuf {
    match checkpoint.parent() {
        Some(parent) if is_step_directory(checkpoint) && parent.join("metrics.jsonl").exists() => parent.to_path_buf(),
        _ => checkpoint.to_path_buf(),
    }
}

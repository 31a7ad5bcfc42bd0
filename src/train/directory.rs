//! The directory that a run writes, and the checkpoints in it.
//!
//! ```text
//! OUT/run.json             which run writes here
//! OUT/metrics.jsonl        its log; of it curves.svg, curves.png and events.out.tfevents.…, for people and TensorBoard
//! OUT/step-000100/         a checkpoint that --save-every asked for
//! OUT/best-000120/         the one with the lowest validation loss, if --keep-best asked for it
//! OUT/checkpoint-000150/   the checkpoint that an interrupt or the end of the run left
//! OUT/latest               a link to it
//! OUT/model.safetensors …  links through `latest`: OUT is a model directory itself
//! ```
//!
//! A checkpoint is written under a temporary name and renamed, so its name leads to all of it or to nothing. OUT goes from
//! one to the next when the link `latest` is renamed; then the old one is removed.

use super::state::{self, TrainerState};
use crate::formats::lock::Lock;
use crate::formats::{atomic, read_json, write_json};
use crate::shown::{shown, shown_path};
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::json;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};

/// The files of a checkpoint.
const FILES: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "optimizer.safetensors",
    "trainer_state.json",
];
const LATEST: &str = "latest";
const METRICS: &str = "metrics.jsonl";
const RUN: &str = "run.json";
/// What is made of the metrics.
const PICTURES: [&str; 3] = [super::events::FILE, "curves.svg", "curves.png"];
/// Begin the names of directories; digits follow.
const STEP: &str = "step-";
const BEST: &str = "best-";
const CHECKPOINT: &str = "checkpoint-";
/// All of them.
const PREFIXES: [&str; 3] = [STEP, BEST, CHECKPOINT];

/// Which old run the directory of a new one may hold; it is removed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Replace {
    Nothing,
    /// One that ended before its first checkpoint.
    WithoutCheckpoint,
    Any,
}

/// Makes the output directory, keeps other processes out of it, and notes that it belongs to `run`.
///
/// Errors: `out` is a file, is being written by another process, holds a run that may not be replaced, or cannot be made,
/// written to or emptied.
pub fn prepare_out(out: &Path, replace: Replace, run: &str) -> Result<Lock> {
    let place = shown_path(out);
    ensure!(!out.exists() || out.is_dir(), "--out {place}: found a file, expected a directory or a new path");
    atomic::make_directories(out).context("--out")?;
    let lock = Lock::take(out).context("--out")?;
    let checkpoint = !directories(out, STEP).is_empty() || FILES.iter().any(|file| out.join(file).exists());
    ensure!(
        !checkpoint || replace == Replace::Any,
        "--out {place}: found a training run, expected a new directory; choose another, or continue it with --resume, or replace it with --overwrite"
    );
    ensure!(
        !out.join(METRICS).exists() || replace != Replace::Nothing,
        "--out {place}: found the metrics of a run that ended before its first checkpoint, expected a new directory; choose another, or replace it with --overwrite"
    );
    // What a run will need is tried now: files, and links.
    let test = out.join("write-test");
    atomic::write(&test, |_| Ok(()))
        .and_then(|()| atomic::link(&test, Path::new(LATEST)))
        .and_then(|()| atomic::remove(&test))
        .with_context(|| format!("--out {place}: cannot be written to"))?;
    remove_run(out).with_context(|| format!("--out {place}: the old run cannot be removed"))?;
    claim(out, run)?;
    Ok(lock)
}

fn remove_run(out: &Path) -> Result<()> {
    let directories = PREFIXES.into_iter().flat_map(|prefix| directories(out, prefix));
    let files = FILES.iter().chain(&[LATEST, METRICS, RUN]).chain(&PICTURES).map(|name| out.join(name));
    directories.chain(files).try_for_each(|path| atomic::remove(&path))?;
    atomic::clean(out)
}

/// Writes with `body` the checkpoint of `step` that --save-every asked for, and removes all but the newest `most` of these,
/// 0: none; its path. Error: it cannot be written; one that was there before stays then.
pub fn keep(out: &Path, step: usize, most: usize, body: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let most = if most == 0 { usize::MAX } else { most };
    keep_newest(out, STEP, step, most, body)
}

/// Writes with `body` the checkpoint of `step` that is the best so far, in place of the one before; its path. Error: as
/// [`keep`].
pub fn keep_best(out: &Path, step: usize, body: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    keep_newest(out, BEST, step, 1, body)
}

fn keep_newest(
    out: &Path,
    prefix: &str,
    step: usize,
    most: usize,
    body: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let path = out.join(format!("{prefix}{step:06}"));
    atomic::directory(&path, body)?;
    let mut all: Vec<Checkpoint> = directories(out, prefix).iter().map(|name| open(name)).collect();
    all.sort_by_key(|checkpoint| Reverse(checkpoint.step));
    for old in all.iter().skip(most).filter(|old| old.name != path) {
        let _ = atomic::remove(&old.name); // the new one is there; what stays goes with the next one
    }
    Ok(path)
}

/// Writes with `body` the checkpoint of `step` that OUT then shows, and removes the one that it showed before. Error: it
/// cannot be written; OUT then shows the old one.
pub fn replace(out: &Path, step: usize, body: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let name = |n: usize| format!("{CHECKPOINT}{step:06}{}", if n == 1 { String::new() } else { format!("-{n}") });
    let name = (1..).map(name).find(|name| !out.join(name).exists()).expect("some number is free");
    atomic::directory(&out.join(&name), body)?;
    let latest = out.join(LATEST);
    if latest.is_dir() && !latest.is_symlink() {
        atomic::remove(&latest)?; // a copy of this directory in which links became what they led to
    }
    // Missing names come before the switch and lead nowhere until then; files that are no links come after it, as until
    // then they are the checkpoint.
    show(out, |path| !path.exists())?;
    atomic::link(&latest, Path::new(&name))?;
    show(out, |path| !path.is_symlink())?;
    let _ = sweep(&out.canonicalize()?, &out.join(&name)); // The new one is there; what stays goes with the next one.
    Ok(())
}

/// Makes those of a checkpoint's files in OUT that `wanted` names links through `latest`.
fn show(out: &Path, wanted: fn(&Path) -> bool) -> Result<()> {
    let files = FILES.iter().map(|file| (out.join(file), Path::new(LATEST).join(file)));
    files.filter(|(path, _)| wanted(path)).try_for_each(|(path, target)| atomic::link(&path, &target))
}

/// Removes what ended processes left anywhere in the run's directory: temporary files, and those checkpoints of an
/// interrupt or end which neither OUT shows nor the run goes on from, which is `used`. Error: something cannot be removed.
pub fn sweep(out: &Path, used: &Path) -> Result<()> {
    let shown = open(out).directory;
    for directory in directories(out, CHECKPOINT).into_iter().filter(|path| *path != shown && path != used) {
        atomic::remove(&directory)?;
    }
    let checkpoints = PREFIXES.into_iter().flat_map(|prefix| directories(out, prefix));
    checkpoints.chain([out.to_path_buf()]).try_for_each(|path| atomic::clean(&path))
}

/// The directories of `out` that are named `prefix` and digits, or what follows them.
fn directories(out: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| is_named(path, prefix) && path.is_dir()).collect()
}

fn is_named(path: &Path, prefix: &str) -> bool {
    let rest = path.file_name().and_then(|name| name.to_str()?.strip_prefix(prefix));
    rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// A checkpoint as it is named, and the directory that its files lie in.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// For messages and as an argument: OUT, or OUT/step-000100.
    pub name: PathBuf,
    pub directory: PathBuf,
    pub step: usize,
}

/// The checkpoints of a run, the newest first, whether they are whole or not.
pub fn checkpoints(out: &Path) -> Vec<Checkpoint> {
    let own = out.join("trainer_state.json").exists().then(|| out.to_path_buf());
    let kept = [STEP, BEST].into_iter().flat_map(|prefix| directories(out, prefix));
    let mut all: Vec<Checkpoint> = own.into_iter().chain(kept).map(|name| open(&name)).collect();
    all.sort_by_key(|checkpoint| Reverse(checkpoint.step));
    all
}

/// The checkpoint that a directory is, or shows.
pub fn open(name: &Path) -> Checkpoint {
    let latest = name.join(LATEST);
    let shown = if latest.is_symlink() { latest.canonicalize().ok() } else { None };
    let directory = shown.unwrap_or_else(|| name.to_path_buf());
    let named = directory.file_name().and_then(|name| name.to_str()?.split('-').nth(1)?.parse().ok());
    // The name has the step of one that cannot be read.
    let step = state::read(&directory).map(|state| state.step).ok().or(named).unwrap_or(0);
    Checkpoint { name: name.to_path_buf(), directory, step }
}

/// The newest checkpoint of a run that is whole, with its state; `warn` is told of newer ones that are not. Error: there is
/// none; of several that are not whole, what is wrong with the newest.
pub fn newest_whole(out: &Path, warn: &mut dyn FnMut(&str)) -> Result<(Checkpoint, TrainerState)> {
    let run = run_in(out);
    let mut errors = vec![];
    for checkpoint in checkpoints(out) {
        let state = state::read_whole(&checkpoint.directory);
        let state = state.and_then(|state| belongs(&checkpoint, &state, run.as_deref()).map(|()| state));
        match state {
            Ok(state) => {
                errors.iter().for_each(|error| warn(&format!("{error:#}; an earlier checkpoint is taken")));
                return Ok((checkpoint, state));
            }
            Err(error) => errors.push(error),
        }
    }
    Err(errors.into_iter().next().unwrap_or_else(|| anyhow!("{}: found no checkpoint", shown_path(out))))
}

fn belongs(checkpoint: &Checkpoint, state: &TrainerState, run: Option<&str>) -> Result<()> {
    match run {
        Some(run) if !state.run.is_empty() && state.run != run => {
            bail!(
                "{}: found a checkpoint of run {}, expected one of {}",
                shown_path(&checkpoint.name),
                shown(&state.run),
                shown(run)
            )
        }
        _ => Ok(()),
    }
}

/// Whether a path is named as the checkpoints in a run's directory are.
pub fn is_checkpoint(path: &Path) -> bool {
    PREFIXES.into_iter().any(|prefix| is_named(path, prefix))
}

/// The directory of the run that wrote `checkpoint`, a full path: the one above it, if that is of the same `run`, or the
/// checkpoint itself, if it has another name. `None`: it lies elsewhere than it was written.
pub fn run_of(checkpoint: &Path, run: &str) -> Option<PathBuf> {
    let Some(parent) = checkpoint.parent().filter(|_| is_checkpoint(checkpoint)) else {
        return Some(checkpoint.to_path_buf());
    };
    match run_in(parent) {
        Some(found) if found == run => Some(parent.to_path_buf()),
        None if parent.join(METRICS).exists() => Some(parent.to_path_buf()),
        _ if run.is_empty() => Some(checkpoint.to_path_buf()),
        _ => None,
    }
}

/// Notes that a directory belongs to `run`. Error: it cannot be written.
pub fn claim(out: &Path, run: &str) -> Result<()> {
    if run_in(out).as_deref() == Some(run) {
        return Ok(());
    }
    write_json(&out.join(RUN), &json!({ "run": run }))
}

/// A run's log.
pub fn metrics(out: &Path) -> PathBuf {
    out.join(METRICS)
}

/// The run that writes a directory, if it says so.
fn run_in(out: &Path) -> Option<String> {
    Some(read_json(&out.join(RUN)).ok()?.get("run")?.as_str()?.to_string())
}

//! `metrics.jsonl`: one JSON object a line (report §7.4).

use super::StepReport;
use crate::formats::atomic;
use crate::shown::shown_path;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Appends lines to a run's metrics. What a full disk does not take is kept for later.
pub struct Metrics {
    path: PathBuf,
    file: File,
    pending: Vec<u8>,
}

impl Metrics {
    /// Starts the file anew, or goes on behind step `keep_through`, dropping lines of later steps. Error: it cannot be
    /// read or written.
    pub fn open(path: &Path, keep_through: Option<usize>) -> Result<Metrics> {
        let kept = keep_through.map_or(Ok(vec![]), |step| lines_through(path, step))?;
        atomic::write(path, |file| Ok(file.write_all(&kept)?))?;
        let context = || format!("{}: cannot be written", shown_path(path));
        let file = OpenOptions::new().append(true).open(path).with_context(context)?;
        Ok(Metrics { path: path.to_path_buf(), file, pending: vec![] })
    }

    /// A step's line; `tokens`: those of all steps so far. Error: it is not written yet.
    pub fn step(&mut self, report: &StepReport, tokens: usize, tokens_per_s: f64) -> Result<()> {
        self.line(json!({
            "step": report.step, "tokens": tokens, "loss": report.loss, "lr": report.lr,
            "grad_norm": report.grad_norm, "tokens_per_s": tokens_per_s,
        }))
    }

    /// The line of an evaluation after `step`; `val_loss`: the mean over its tokens. Error: it is not written yet.
    pub fn evaluation(&mut self, step: usize, tokens: usize, val_loss: f64) -> Result<()> {
        self.line(json!({ "step": step, "tokens": tokens, "val_loss": val_loss }))
    }

    fn line(&mut self, object: serde_json::Value) -> Result<()> {
        self.pending.extend(format!("{object}\n").bytes());
        self.write()
    }

    /// Writes what is pending, from the byte where the disk left off.
    fn write(&mut self) -> Result<()> {
        while !self.pending.is_empty() {
            let place = || format!("{}: cannot be written", shown_path(&self.path));
            let written = self.file.write(&self.pending).with_context(place)?;
            ensure!(written > 0, "{}: the disk takes no more", place());
            self.pending.drain(..written);
        }
        Ok(())
    }

    /// Brings all lines to the disk. Error: they are not there yet.
    pub fn flush(&mut self) -> Result<()> {
        self.write()?;
        self.file.sync_all().with_context(|| format!("{}: cannot be written", shown_path(&self.path)))
    }
}

/// Begins the metrics of a new run with those of another, if there are any. Error: a file that cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    let lines = std::fs::read(from).with_context(|| format!("{}: cannot be read", shown_path(from)))?;
    atomic::write(to, |file| Ok(file.write_all(&lines)?))
}

/// All lines, but for damaged ones. Error: a file that cannot be read.
pub fn read(path: &Path) -> Result<Vec<serde_json::Value>> {
    let bytes = std::fs::read(path).with_context(|| format!("{}: cannot be read", shown_path(path)))?;
    let lines = bytes.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    Ok(lines.filter(|line: &serde_json::Value| line["step"].is_u64()).collect())
}

/// The lines up to those of `step`; damaged ones are left out.
fn lines_through(path: &Path, step: usize) -> Result<Vec<u8>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => vec![],
        Err(error) => return Err(error).with_context(|| format!("{}: cannot be read", shown_path(path))),
    };
    let kept = bytes.split(|&byte| byte == b'\n').filter(|line| {
        let object: Option<serde_json::Value> = serde_json::from_slice(line).ok();
        object.is_some_and(|object| object["step"].as_u64().is_some_and(|found| found <= step as u64))
    });
    Ok(kept.flat_map(|line| [line, b"\n"].concat()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_replaces_the_file_and_does_not_write_into_it() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to, other] = ["from", "to", "other"].map(|name| dir.path().join(name));
        copy(&from, &to).unwrap();
        assert!(!to.exists(), "no metrics, no copy");
        std::fs::write(&from, "new").unwrap();
        std::fs::write(&other, "old").unwrap();
        std::fs::hard_link(&other, &to).unwrap();
        copy(&from, &to).unwrap();
        let text = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((text(&to), text(&other)), ("new".to_string(), "old".to_string()));
    }
}

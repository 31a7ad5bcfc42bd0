//! `metrics.jsonl`: one JSON object a line (report §7.4).

use super::StepReport;
use crate::formats::atomic;
use anyhow::{Context, Result};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Appends lines to a run's metrics; each line is written whole.
pub struct Metrics {
    path: PathBuf,
    file: File,
}

impl Metrics {
    /// Starts the file anew, or goes on behind step `keep_through`, dropping lines of later steps. Error: it cannot be
    /// read or written.
    pub fn open(path: &Path, keep_through: Option<usize>) -> Result<Metrics> {
        let kept = match keep_through {
            Some(step) => lines_through(path, step)?,
            None => String::new(),
        };
        atomic::write(path, |file| Ok(file.write_all(kept.as_bytes())?))?;
        let context = || format!("{}: cannot be written", path.display());
        let file = OpenOptions::new().append(true).open(path).with_context(context)?;
        Ok(Metrics { path: path.to_path_buf(), file })
    }

    /// A step's line; `tokens`: those of all steps so far. Error: it cannot be written.
    pub fn step(&mut self, report: &StepReport, tokens: usize, tokens_per_s: f64) -> Result<()> {
        self.line(json!({
            "step": report.step, "tokens": tokens, "loss": report.loss, "lr": report.lr,
            "grad_norm": report.grad_norm, "tokens_per_s": tokens_per_s,
        }))
    }

    /// The line of an evaluation after `step`; `val_loss`: the mean over its tokens. Error: it cannot be written.
    pub fn evaluation(&mut self, step: usize, tokens: usize, val_loss: f64) -> Result<()> {
        self.line(json!({ "step": step, "tokens": tokens, "val_loss": val_loss }))
    }

    fn line(&mut self, object: serde_json::Value) -> Result<()> {
        let line = format!("{object}\n");
        self.file.write_all(line.as_bytes()).with_context(|| format!("{}: cannot be written", self.path.display()))
    }
}

/// Begins the metrics of a new run with those of another, if there are any. Error: a file that cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    let lines = std::fs::read(from).with_context(|| format!("{}: cannot be read", from.display()))?;
    atomic::write(to, |file| Ok(file.write_all(&lines)?))
}

fn lines_through(path: &Path, step: usize) -> Result<String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("{}: cannot be read", path.display())),
    };
    let kept = text.lines().filter(|line| {
        let object: Option<serde_json::Value> = serde_json::from_str(line).ok();
        object.is_some_and(|object| object["step"].as_u64().is_some_and(|found| found <= step as u64))
    });
    Ok(kept.map(|line| format!("{line}\n")).collect())
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

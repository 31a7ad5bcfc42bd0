//! Curves of training runs (report §8.3), from their metrics.

use super::{directory, metrics};
use crate::figure::{self, Line, Panel};
use crate::shown::shown_path;
use anyhow::{Result, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Title of a panel, and what it shows: a key of the metrics, and what is added to the run's name for it.
const PANELS: [(&str, &[(&str, &str)]); 4] = [
    ("loss, nats a token", &[("loss", "training"), ("val_loss", "validation")]),
    ("learning rate", &[("lr", "")]),
    ("gradient norm", &[("grad_norm", "")]),
    ("tokens/s", &[("tokens_per_s", "")]),
];

/// The curves of one run beside its metrics, `curves.svg` and `curves.png`. Error: they cannot be read, drawn or written.
pub fn write(out: &Path) -> Result<()> {
    let panels = panels(&[out.to_path_buf()])?;
    ["curves.svg", "curves.png"].iter().try_for_each(|name| figure::write(&out.join(name), &panels))
}

/// A panel for each of loss, learning rate, gradient norm and speed, with the lines of all runs. Error: a directory without
/// metrics, or with none that can be drawn.
pub fn panels(runs: &[PathBuf]) -> Result<Vec<Panel>> {
    let mut all = vec![];
    for run in runs {
        let path = directory::metrics(run);
        ensure!(path.exists(), "{}: found no metrics.jsonl, expected the directory of a training run", shown_path(run));
        let lines = metrics::read(&path)?;
        ensure!(!lines.is_empty(), "{}: found no line of metrics, expected some", shown_path(&path));
        all.push((name(run), lines));
    }
    let panel = |(title, keys): &(&str, &[(&str, &str)])| Panel {
        title: title.to_string(),
        x_label: "step".to_string(),
        lines: all.iter().flat_map(|(run, lines)| keys.iter().map(|key| line(run, lines, key, runs.len()))).collect(),
    };
    Ok(PANELS.iter().map(panel).collect())
}

fn line(run: &str, lines: &[Value], (key, what): &(&str, &str), runs: usize) -> Line {
    let points = lines.iter().filter_map(|line| Some((line["step"].as_f64()?, line[*key].as_f64()?))).collect();
    let name = match (runs > 1, what.is_empty()) {
        (true, false) => format!("{run}, {what}"),
        (false, false) => what.to_string(),
        _ => run.to_string(),
    };
    Line { name, points }
}

/// What tells runs apart for people: the directory's name.
fn name(run: &Path) -> String {
    let full = run.canonicalize().unwrap_or_else(|_| run.to_path_buf());
    shown_path(Path::new(full.file_name().unwrap_or(run.as_os_str())))
}

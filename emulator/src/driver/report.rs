//! The report file (`HANDGRAD_EMULATOR_REPORT`): counters of every launch, findings, leaks.
//!
//! Written when a context is released and when the process ends; in between now and then, so that a process that is killed
//! leaves one too.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::card::Card;
use crate::device::{Launch, Leak, Options, Outcome};
use crate::fault::Fault;

/// Time between two writes, and the share of the time that writing may take.
const PAUSE: Duration = Duration::from_secs(1);
const SHARE: u32 = 20;

pub struct ReportFile {
    path: Option<String>,
    device: Value,
    launches: Vec<Value>,
    findings: Vec<Value>,
    leaks: Vec<Value>,
    changed: bool,
    next_write: Instant,
}

impl ReportFile {
    pub fn new(path: Option<String>, card: &Card, options: &Options) -> ReportFile {
        ReportFile {
            path,
            device: json!({ "card": card.key, "seed": options.seed }),
            launches: Vec::new(),
            findings: Vec::new(),
            leaks: Vec::new(),
            changed: true,
            next_write: Instant::now() + PAUSE,
        }
    }

    pub fn launch(&mut self, launch: &Launch, _outcome: &Outcome, _card: &Card) {
        if self.path.is_some() {
            self.launches.push(json!({
                "kernel": launch.kernel.name,
                "grid": launch.grid,
                "block": launch.block,
                "dynamic_shared": launch.dynamic_shared,
            }));
            self.changed = true;
            self.write_sometimes();
        }
    }

    pub fn finding(&mut self, call: &str, fault: &Fault) {
        if self.path.is_some() {
            self.findings.push(json!({ "call": call, "code": fault.code as u32, "message": fault.message }));
            self.changed = true;
        }
    }

    pub fn leak(&mut self, leak: &Leak) {
        if self.path.is_some() {
            self.leaks.push(json!({ "label": leak.label, "bytes": leak.bytes }));
            self.changed = true;
        }
    }

    pub fn write_sometimes(&mut self) {
        if self.changed && Instant::now() >= self.next_write {
            self.write();
        }
    }

    /// Writes the file whole, and then in place of the old one.
    pub fn write(&mut self) {
        let Some(path) = self.path.as_ref().filter(|_| self.changed) else { return };
        let start = Instant::now();
        let text = format!("{:#}\n", self.json());
        let new = format!("{path}.new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
        if let Err(e) = written {
            super::tell(&format!("HANDGRAD_EMULATOR_REPORT: {path}: {e}"));
        }
        self.changed = false;
        self.next_write = Instant::now() + PAUSE.max(start.elapsed() * SHARE);
    }

    fn json(&self) -> Value {
        json!({
            "device": self.device,
            "launches": self.launches,
            "findings": self.findings,
            "leaks": self.leaks,
        })
    }
}

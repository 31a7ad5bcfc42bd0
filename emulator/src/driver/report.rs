//! The report of a process: counters of every launch, findings, leaks; in a file (`HANDGRAD_EMULATOR_REPORT`) and on request.
//!
//! The file is written when a context is released and when the process ends; in between now and then, so that a process
//! that is killed leaves one too. A pipe or a device gets the report once, when the process ends.

use std::io;

use crate::card::Card;
use crate::counters::report::Report;
use crate::device::{Launch, LaunchOutcome, Leak};
use crate::fault::{Code, Fault};

pub struct ReportFile {
    report: Report,
    changed: bool,
    /// Whether the program was told that the file can't be written.
    complained: bool,
}

impl ReportFile {
    pub fn from_environment(card: Card) -> ReportFile {
        ReportFile { report: Report::from_environment(card), changed: true, complained: false }
    }

    pub fn launch(&mut self, launch: &Launch, outcome: &LaunchOutcome) {
        self.report.record(launch, outcome);
        self.changed = true;
        self.write_sometimes();
    }

    pub fn finding(&mut self, fault: &Fault) {
        self.report.finding(fault);
        self.changed = true;
    }

    pub fn leak(&mut self, leak: &Leak) {
        self.finding(&Fault::new(Code::IllegalState, leak_text(leak)));
    }

    /// The whole report, as JSON or as a table for people.
    pub fn text(&self, json: bool) -> String {
        if json { format!("{:#}\n", self.report.json()) } else { self.report.text() }
    }

    pub fn write_sometimes(&mut self) {
        if self.changed && self.report.wanted() && !self.report.is_stream() {
            let saved = self.report.save_if_due();
            self.complain(saved);
        }
    }

    pub fn write(&mut self) {
        if !self.report.is_stream() {
            self.write_last();
        }
    }

    /// At the end of the process.
    pub fn write_last(&mut self) {
        if std::mem::take(&mut self.changed) {
            let saved = self.report.save();
            self.complain(saved);
        }
    }

    fn complain(&mut self, saved: io::Result<()>) {
        if let Err(e) = saved
            && !std::mem::replace(&mut self.complained, true)
        {
            super::tell(&format!("HANDGRAD_EMULATOR_REPORT can't be written: {e}"));
        }
    }
}

/// "leak: allocation 3 of 4096 bytes at 0x… was never freed"
pub fn leak_text(leak: &Leak) -> String {
    format!("leak: {} ({} bytes at {:#x}) was never freed", leak.label, leak.bytes, leak.address)
}

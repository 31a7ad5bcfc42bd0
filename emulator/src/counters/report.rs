//! The launches of a process and what was found wrong, as JSON and as text.
//!
//! Launches of the same kernel, grid, block and shared memory are one entry with their sums. The keys are stable:
//!
//! - `schema`: `"cuda-emulator-report-1"`; `card`, `card_name`;
//! - `kernels`, in the order of first launches, each with `kernel`, `grid`, `block` (three numbers; zeros where
//!   different shapes were added up because there were too many), `static_shared_bytes`, `dynamic_shared_bytes`,
//!   `registers_per_thread` (an estimate), `launches`; sums over these launches:
//!   - `instructions`: `warp`, `lanes_per_instruction`, `by_class` (class to warp instructions);
//!   - `flops`: `tensor_core`, `float32`, `float64`, `half`;
//!   - `global`: `bytes_requested`, `bytes_touched` (each byte once a launch), `sectors`, `sectors_ideal`,
//!     `efficiency_percent`;
//!   - `shared`: `wavefronts`, `wavefronts_ideal`, `efficiency_percent`;
//!   - `branches`, `diverged_branches`, `barriers`, `atomics`;
//!   - `occupancy`: `blocks_per_multiprocessor`, `warps_per_multiprocessor`, `percent`, `limit`;
//!   - `roofline`, of one launch: `microseconds`, `bound`, `limits` (`unit`, `microseconds`);
//!   - `lines`: the source lines with most instructions, excess sectors or excess wavefronts: `line`, `instructions`,
//!     `lanes_per_instruction`, `diverged_branches`, `sectors`, `sectors_ideal`, `wavefronts`, `wavefronts_ideal`;
//! - `findings`: `code` (the `CUresult`), `name`, `message`, `count`; `findings_left_out`.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::roofline::{Roofline, roofline};
use super::{Counters, Derived, Listing, Share};
use crate::card::Card;
use crate::device::{Launch, LaunchOutcome};
use crate::fault::{Code, Fault};
use crate::occupancy::{Occupancy, estimated_registers, occupancy, shared_bytes};

/// The variable that names the file.
pub const VARIABLE: &str = "HANDGRAD_EMULATOR_REPORT";
/// More shapes than this of all kernels are added up under their kernel's name.
const MOST_ENTRIES: usize = 512;
const MOST_FINDINGS: usize = 1000;
/// Lines of a kernel in a report, by each measure.
const MOST_LINES: usize = 10;
/// `save_if_due` writes no more often.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Report {
    card: Card,
    entries: Vec<KernelLaunches>,
    places: HashMap<Key, usize>,
    findings: Vec<Finding>,
    findings_left_out: u64,
    path: Option<PathBuf>,
    saved: Option<Instant>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    kernel: String,
    /// Modules may have kernels of the same name: their length tells most of them apart.
    instructions: usize,
    /// `None`: all shapes.
    shape: Option<([u32; 3], [u32; 3], u32)>,
}

/// Launches of one kernel and shape.
#[derive(Debug)]
pub(super) struct KernelLaunches {
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub static_shared: u32,
    pub dynamic_shared: u32,
    pub registers: u32,
    pub launches: u64,
    pub occupancy: Occupancy,
    blocks: u64,
    touched_bytes: u64,
    listing: Listing,
    counters: Counters,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    pub code: Code,
    pub message: String,
    pub count: u64,
}

impl Report {
    pub fn new(card: Card) -> Report {
        Report {
            card,
            entries: Vec::new(),
            places: HashMap::new(),
            findings: Vec::new(),
            findings_left_out: 0,
            path: None,
            saved: None,
        }
    }

    /// A report that `save` writes to the file that the environment names, if it names one.
    pub fn from_environment(card: Card) -> Report {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
        // The program may change its folder later on.
        let path = path.map(|path| std::path::absolute(&path).unwrap_or(path));
        Report { path, ..Report::new(card) }
    }

    /// Whether a file is to be written.
    pub fn wanted(&self) -> bool {
        self.path.is_some()
    }

    /// Whether the file is a pipe or a device: its reader expects one report, the last.
    pub fn is_stream(&self) -> bool {
        self.path.as_deref().is_some_and(is_stream)
    }

    /// Adds a launch.
    pub fn record(&mut self, launch: &Launch, outcome: &LaunchOutcome) {
        let index = self.place(launch);
        let entry = &mut self.entries[index];
        entry.launches += 1;
        entry.touched_bytes += outcome.touched.iter().map(|range| range.end - range.begin).sum::<u64>();
        entry.counters.add(&outcome.counters);
    }

    /// The entry of a launch's shape, new if there is none yet.
    fn place(&mut self, launch: &Launch) -> usize {
        let program = launch.kernel;
        let shape = Some((launch.grid, launch.block, launch.dynamic_shared));
        let mut key = Key { kernel: program.name.clone(), instructions: program.code.len(), shape };
        if let Some(&index) = self.places.get(&key) {
            return index;
        }
        let (mut grid, mut block) = (launch.grid, launch.block);
        if self.entries.len() >= MOST_ENTRIES {
            key.shape = None;
            (grid, block) = ([0; 3], [0; 3]);
            if let Some(&index) = self.places.get(&key) {
                return index;
            }
        }
        let registers = estimated_registers(program);
        let threads = launch.block.iter().product();
        self.entries.push(KernelLaunches {
            kernel: program.name.clone(),
            grid,
            block,
            static_shared: program.static_shared,
            dynamic_shared: launch.dynamic_shared,
            registers,
            launches: 0,
            occupancy: occupancy(&self.card, threads, registers, shared_bytes(program, launch.dynamic_shared)),
            blocks: launch.grid.iter().map(|&n| n as u64).product(),
            touched_bytes: 0,
            listing: Listing::of(program),
            counters: Counters::new(program.code.len()),
        });
        self.places.insert(key, self.entries.len() - 1);
        self.entries.len() - 1
    }

    /// Adds what was found wrong; the same text again is counted.
    pub fn finding(&mut self, fault: &Fault) {
        let known = self.findings.iter().position(|found| found.code == fault.code && found.message == fault.message);
        if let Some(index) = known {
            self.findings[index].count += 1;
        } else if self.findings.len() >= MOST_FINDINGS {
            self.findings_left_out += 1;
        } else {
            self.findings.push(Finding { code: fault.code, message: fault.message.clone(), count: 1 });
        }
    }

    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }

    pub(super) fn entries(&self) -> &[KernelLaunches] {
        &self.entries
    }

    pub(super) fn card(&self) -> &Card {
        &self.card
    }

    pub fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|found| {
                let name = format!("{:?}", found.code);
                json!({"code": found.code as u32, "name": name, "message": found.message, "count": found.count})
            })
            .collect();
        json!({
            "schema": "cuda-emulator-report-1",
            "card": self.card.key,
            "card_name": self.card.name,
            "kernels": self.entries.iter().map(|entry| entry.json(&self.card)).collect::<Vec<_>>(),
            "findings": findings,
            "findings_left_out": self.findings_left_out,
        })
    }

    /// The table for people.
    pub fn text(&self) -> String {
        super::text::table(self)
    }

    /// Writes the file, if one is wanted.
    pub fn save(&mut self) -> io::Result<()> {
        self.saved = Some(Instant::now());
        match &self.path {
            Some(path) => write_whole(path, format!("{:#}\n", self.json()).as_bytes()),
            None => Ok(()),
        }
    }

    /// `save`, unless it was done a moment ago: for after each launch.
    pub fn save_if_due(&mut self) -> io::Result<()> {
        match self.saved {
            Some(saved) if saved.elapsed() < INTERVAL => Ok(()),
            _ => self.save(),
        }
    }
}

impl KernelLaunches {
    pub fn derived(&self) -> Derived {
        self.listing.derive(&self.counters)
    }

    pub fn roofline(&self, card: &Card, derived: &Derived) -> Roofline {
        // Where shapes were added up, nothing says how many multiprocessors had a block: all count.
        let blocks = if self.grid == [0; 3] { u64::MAX } else { self.blocks };
        roofline(card, derived, self.touched_bytes, blocks, self.launches)
    }

    pub fn bytes_touched(&self, derived: &Derived) -> u64 {
        self.touched_bytes.min(32 * derived.traffic.sectors)
    }

    /// The lines that matter by any measure, most instructions first.
    pub fn lines(&self) -> Vec<Share> {
        let shares = self.listing.by_line(&self.counters);
        let measures: [fn(&Share) -> u64; 3] = [
            |share| share.instructions,
            |share| share.traffic.excess_sectors(),
            |share| share.traffic.excess_wavefronts(),
        ];
        let mut chosen = vec![false; shares.len()];
        for measure in measures {
            let mut order: Vec<usize> = (0..shares.len()).filter(|&index| measure(&shares[index]) > 0).collect();
            order.sort_by_key(|&index| std::cmp::Reverse(measure(&shares[index])));
            order.iter().take(MOST_LINES).for_each(|&index| chosen[index] = true);
        }
        shares.into_iter().zip(chosen).filter(|&(_, chosen)| chosen).map(|(share, _)| share).collect()
    }

    fn json(&self, card: &Card) -> Value {
        let derived = self.derived();
        let traffic = &derived.traffic;
        let classes: serde_json::Map<String, Value> = derived
            .classes
            .iter()
            .map(|&(class, count)| (json!(class).as_str().unwrap_or_default().to_string(), json!(count)))
            .collect();
        json!({
            "kernel": self.kernel,
            "grid": self.grid,
            "block": self.block,
            "static_shared_bytes": self.static_shared,
            "dynamic_shared_bytes": self.dynamic_shared,
            "registers_per_thread": self.registers,
            "launches": self.launches,
            "instructions": {
                "warp": derived.instructions,
                "lanes_per_instruction": derived.lanes_per_instruction(),
                "by_class": classes,
            },
            "flops": {
                "tensor_core": derived.all_tensor_flops(),
                "float32": derived.float32_flops,
                "float64": derived.float64_flops,
                "half": derived.half_flops,
            },
            "global": {
                "bytes_requested": traffic.bytes,
                "bytes_touched": self.bytes_touched(&derived),
                "sectors": traffic.sectors,
                "sectors_ideal": traffic.sectors_ideal,
                "efficiency_percent": derived.sector_efficiency(),
            },
            "shared": {
                "wavefronts": traffic.wavefronts,
                "wavefronts_ideal": traffic.wavefronts_ideal,
                "efficiency_percent": derived.wavefront_efficiency(),
            },
            "branches": derived.branches,
            "diverged_branches": derived.diverged_branches,
            "barriers": derived.barriers,
            "atomics": traffic.atomics,
            "occupancy": self.occupancy,
            "roofline": self.roofline(card, &derived),
            "lines": self.lines().iter().map(line_json).collect::<Vec<_>>(),
        })
    }
}

fn line_json(share: &Share) -> Value {
    json!({
        "line": share.line,
        "instructions": share.instructions,
        "lanes_per_instruction": share.lanes as f64 / share.instructions.max(1) as f64,
        "diverged_branches": share.diverged_branches,
        "sectors": share.traffic.sectors,
        "sectors_ideal": share.traffic.sectors_ideal,
        "wavefronts": share.traffic.wavefronts,
        "wavefronts_ideal": share.traffic.wavefronts_ideal,
    })
}

/// A device, a pipe, or whatever a process has open under a number: even where that is a file, others write to it too.
fn is_stream(path: &Path) -> bool {
    let opened = ["/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];
    opened.iter().any(|name| path.starts_with(name)) || fs::metadata(path).is_ok_and(|found| !found.is_file())
}

/// Writes a file so that a reader sees the old text or the new, never a part. Links stay links, and
/// streams are written to as they are.
fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if is_stream(path) {
        return fs::File::options().append(true).open(path)?.write_all(bytes);
    }
    let path = match fs::canonicalize(path) {
        Ok(found) => found,
        // A link to a file that does not exist yet.
        Err(_) if path.is_symlink() => return fs::write(path, bytes),
        Err(_) => path.to_path_buf(),
    };
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, &path).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

#[cfg(test)]
mod tests;

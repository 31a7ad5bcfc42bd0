//! A report as a person reads it: a paragraph for each kernel and shape, then what was found wrong.

use std::fmt::Write;

use super::report::{KernelLaunches, Report};
use super::{Derived, Share};
use crate::card::Card;

/// Source lines printed for each kernel.
const LINES: usize = 8;

pub(super) fn table(report: &Report) -> String {
    let mut text = format!("{}\n", report.card().name);
    for entry in report.entries() {
        // Writing to a String does not fail.
        let _ = write_entry(&mut text, entry, report.card());
    }
    for found in report.findings() {
        let times = if found.count > 1 { format!(" ({} times)", found.count) } else { String::new() };
        let _ = writeln!(text, "\nfinding: {}{times}", found.message);
    }
    text
}

fn write_entry(text: &mut String, entry: &KernelLaunches, card: &Card) -> std::fmt::Result {
    let derived = entry.derived();
    let [shape, block] = [entry.grid, entry.block].map(|[x, y, z]| format!("{x}x{y}x{z}"));
    let shape = if entry.grid == [0; 3] { "several shapes".to_string() } else { format!("grid {shape} block {block}") };
    let launches = if entry.launches == 1 { "1 launch".to_string() } else { format!("{} launches", entry.launches) };
    writeln!(text, "\n{}  {shape}  {launches}", entry.kernel)?;
    let mut row = |name: &str, value: String| writeln!(text, "  {name:<20}{value}");
    row("instructions", instructions(&derived))?;
    row("FLOPs", flops(&derived))?;
    let traffic = &derived.traffic;
    if traffic.sectors > 0 {
        let bytes = grouped(entry.bytes_touched(&derived));
        let (sectors, ideal) = (grouped(traffic.sectors), grouped(traffic.sectors_ideal));
        let percent = derived.sector_efficiency();
        row("global memory", format!("{sectors} sectors, ideal {ideal} ({percent:.1}%), {bytes} bytes touched"))?;
    }
    if traffic.wavefronts > 0 {
        let (wavefronts, ideal) = (grouped(traffic.wavefronts), grouped(traffic.wavefronts_ideal));
        row(
            "shared memory",
            format!("{wavefronts} wavefronts, ideal {ideal} ({:.1}%)", derived.wavefront_efficiency()),
        )?;
    }
    let (diverged, branches) = (grouped(derived.diverged_branches), grouped(derived.branches));
    let lanes = derived.lanes_per_instruction();
    row("divergence", format!("{lanes:.1} of 32 lanes an instruction, {diverged} of {branches} branches diverged"))?;
    row("barriers, atomics", format!("{}, {}", grouped(derived.barriers), grouped(traffic.atomics)))?;
    let fit = &entry.occupancy;
    let (blocks, percent, limit) = (fit.blocks_per_multiprocessor, fit.percent, fit.limit);
    let needs = format!(
        "about {} registers a thread, {} bytes static and {} dynamic shared memory",
        entry.registers, entry.static_shared, entry.dynamic_shared
    );
    row("occupancy", format!("{blocks} blocks a multiprocessor, {percent:.0}%, by {limit} ({needs})"))?;
    let roofline = entry.roofline(card, &derived);
    let limits: Vec<String> =
        roofline.limits.iter().map(|limit| format!("{} {}", limit.unit, microseconds(limit.microseconds))).collect();
    row("least time a launch", limits.join(", "))?;
    for share in entry.lines().iter().take(LINES) {
        writeln!(text, "    {}", line(share, derived.instructions))?;
    }
    Ok(())
}

fn instructions(derived: &Derived) -> String {
    let mut classes = derived.classes.clone();
    classes.sort_by_key(|&(class, count)| (std::cmp::Reverse(count), class));
    let parts: Vec<String> = classes
        .iter()
        .map(|&(class, count)| format!("{} {:.1}%", class.label(), 100.0 * count as f64 / derived.instructions as f64))
        .collect();
    format!("{} of warps: {}", grouped(derived.instructions), parts.join(", "))
}

fn flops(derived: &Derived) -> String {
    let (tensor, cuda) = (grouped(derived.all_tensor_flops()), grouped(derived.cuda_core_flops()));
    format!("{tensor} tensor core, {cuda} CUDA core")
}

fn line(share: &Share, all: u64) -> String {
    let percent = 100.0 * share.instructions as f64 / all.max(1) as f64;
    let mut text = format!("{:<36} {percent:5.1}% of instructions", share.line);
    let traffic = &share.traffic;
    if traffic.excess_sectors() > 0 {
        let _ = write!(text, ", {} sectors (ideal {})", grouped(traffic.sectors), grouped(traffic.sectors_ideal));
    }
    if traffic.excess_wavefronts() > 0 {
        let (found, ideal) = (grouped(traffic.wavefronts), grouped(traffic.wavefronts_ideal));
        let _ = write!(text, ", {found} wavefronts (ideal {ideal})");
    }
    if share.diverged_branches > 0 {
        let _ = write!(text, ", {} branches diverged", grouped(share.diverged_branches));
    }
    text
}

/// 1234567 as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn microseconds(value: f64) -> String {
    if value < 1000.0 { format!("{value:.2} µs") } else { format!("{:.3} ms", value / 1000.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(microseconds(12.345), "12.35 µs");
        assert_eq!(microseconds(12345.6), "12.346 ms");
    }
}

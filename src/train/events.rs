//! A run's log for TensorBoard and what reads its files: `events.out.tfevents.0.handgrad` beside `metrics.jsonl`.
//!
//! ```text
//! record    length u64 | masked CRC-32C of the length u32 | event | masked CRC-32C of the event u32      little-endian
//! masked    (crc rotated right by 15) + 0xa282ead8
//! event     protobuf: 1 wall time, f64; 2 step; 3 file version, of the first event; 5 summary
//! summary   protobuf: 1 value, repeated: 1 tag, 2 number, f32
//! ```
//!
//! The file follows from the metrics alone, so a run that goes on continues it; times of day stand in neither. Written by
//! hand, as the crates that do it bring decoders for pictures.

use super::metrics;
use crate::formats::atomic;
use crate::shown::shown_path;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

pub const FILE: &str = "events.out.tfevents.0.handgrad";
/// Keys of metrics, and the names that TensorBoard groups them by.
const TAGS: [(&str, &str); 5] = [
    ("loss", "loss/training"),
    ("val_loss", "loss/validation"),
    ("lr", "training/learning_rate"),
    ("grad_norm", "training/gradient_norm"),
    ("tokens_per_s", "training/tokens_per_s"),
];

/// Brings the file of a run's directory up to its metrics: what is new is appended, as readers follow the file. Errors: the
/// metrics cannot be read; the file cannot be written.
pub fn write(out: &Path) -> Result<()> {
    let path = out.join(FILE);
    let bytes = encoded(&metrics::read(&super::directory::metrics(out))?);
    let place = || format!("{}: cannot be written", shown_path(&path));
    match std::fs::read(&path) {
        Ok(old) if bytes.starts_with(&old) => {
            let mut file = OpenOptions::new().append(true).open(&path).with_context(place)?;
            file.write_all(&bytes[old.len()..]).with_context(place)
        }
        _ => atomic::write(&path, |file| Ok(file.write_all(&bytes)?)),
    }
}

/// The records of all lines.
fn encoded(lines: &[Value]) -> Vec<u8> {
    let mut bytes = record(&[&tagged(1, 1)[..], &0f64.to_le_bytes(), &field(3, b"brain.Event:2")].concat());
    for line in lines {
        let step = line["step"].as_u64().unwrap_or(0);
        let values = TAGS.iter().filter_map(|(key, tag)| Some((tag, line[*key].as_f64()?)));
        let summary: Vec<u8> = values
            .flat_map(|(tag, number)| {
                let number = (number as f32).to_le_bytes();
                field(1, &[&field(1, tag.as_bytes())[..], &tagged(2, 5), &number].concat())
            })
            .collect();
        if !summary.is_empty() {
            let time = [&tagged(1, 1)[..], &0f64.to_le_bytes()].concat();
            bytes.extend(record(&[&time[..], &tagged(2, 0), &varint(step), &field(5, &summary)].concat()));
        }
    }
    bytes
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), event, &masked(event)].concat()
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8).to_le_bytes()
}

/// A protobuf field of bytes.
fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    [&tagged(number, 2)[..], &varint(bytes.len() as u64), bytes].concat()
}

/// What begins a field: its number, and how its value is written.
fn tagged(number: u64, kind: u64) -> Vec<u8> {
    varint(number << 3 | kind)
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = vec![];
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

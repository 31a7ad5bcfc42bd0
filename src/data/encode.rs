//! Texts to shards of token ids (report §4.3).
//!
//! Files are read in batches of a fixed size, each batch is encoded on all threads, and a shard is written when enough
//! ids have come together. Nothing depends on the number of threads, so that an interrupted run goes on where its last
//! shard ended (`progress.json` says where) and writes what it would have written.

use super::corpus::list;
use super::progress::{EncodingPlan, InputFile, Progress, begin, save};
use super::shard::{self, Format};
use super::text::{self, Kind, Lossy};
use crate::formats::atomic;
use crate::formats::lock::Lock;
use crate::shown::shown_path;
use crate::tokenizer::{SpecialText, Tokenizer};
use anyhow::{Context, Result, ensure};
use rayon::prelude::*;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Bytes of a batch, about.
const BATCH: usize = 1 << 24;
/// Bytes that a thread encodes at a time, about.
const PART: usize = 1 << 19;

/// What to say where documents would touch.
pub const NO_END: &str = "found several documents and a tokenizer with no token that ends one, expected \
    handgrad data encode with --end-of-text TEXT, which names it, or none, which lets them touch";

/// How to encode.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// A shard ends with the batch that brings it to as many ids.
    pub shard_tokens: usize,
    /// Whether bytes that are not UTF-8 become U+FFFD instead of being an error.
    pub lossy: bool,
    /// What a special token's text within a text becomes.
    pub specials: SpecialText,
    /// Whether documents may touch, where the tokenizer has no token that ends them.
    pub touch: bool,
    /// Bytes of a batch, about.
    pub batch: usize,
    /// Bytes that a thread encodes at a time, about; the ids do not depend on it.
    pub part: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            shard_tokens: 1 << 25,
            lossy: false,
            specials: SpecialText::Text,
            touch: false,
            batch: BATCH,
            part: PART,
        }
    }
}

/// The files to encode: those named, and all `.txt`, `.jsonl` and `.ndjson` in the directories named, by path.
/// Errors: nothing there; a pipe or device; a directory that cannot be listed or has no such file.
pub fn files(inputs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for input in inputs {
        let place = shown_path(input);
        let meta = fs::metadata(input).with_context(|| format!("{place}: cannot be read"))?;
        if !meta.is_dir() {
            ensure!(meta.is_file(), "{place}: found a pipe or device, expected a regular file");
            all.push(input.clone());
            continue;
        }
        let mut found = Vec::new();
        list(input, &mut found)?;
        let known = |path: &PathBuf| {
            let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
            ["txt", "jsonl", "ndjson"].iter().any(|known| ending == *known)
        };
        found.retain(known);
        ensure!(!found.is_empty(), "{place}: found no .txt, .jsonl or .ndjson files in the directory, expected some");
        found.sort();
        all.append(&mut found);
    }
    Ok(all)
}

/// Encodes files into shards in `out`, or goes on with it. `progress` hears how many bytes of files have been read
/// since it was last called; `interrupted` is asked between batches.
///
/// Errors: text that is not UTF-8 or that the tokenizer refuses, a line of JSON without `text`, a file that holds no text,
/// several documents without a token that ends one, each with its place;
/// `out` holds another run or is being written; no tokens at all; a disk that is full. What was written before stays,
/// and the same call goes on behind it.
pub fn encode(
    files: &[PathBuf],
    out: &Path,
    tokenizer: &Tokenizer,
    settings: Settings,
    progress: &dyn Fn(u64),
    interrupted: &dyn Fn() -> bool,
) -> Result<Progress> {
    let format = Format::of(tokenizer);
    atomic::make_directories(out)?;
    let _lock = Lock::take(out)?;
    let mut state = begin(plan(files, settings, tokenizer, format)?, out, tokenizer, format)?;
    let done_before: u64 = state.plan.files[..state.file].iter().map(|source| source.bytes).sum();
    progress(done_before + state.offset);
    let mut now = state.clone();
    let mut ids: Vec<u32> = Vec::new();
    while now.file < files.len() {
        if interrupted() {
            return Ok(state);
        }
        let before = now.offset;
        let batch = TextBatch::read(&files[now.file], &mut now, settings, tokenizer)?;
        progress(batch.end - before);
        batch.encode(&files[now.file], tokenizer, settings.specials, &mut now, &mut ids)?;
        let touches = now.documents > 1 && tokenizer.end_of_text().is_none() && !settings.touch;
        ensure!(!touches, "{}: {NO_END}", shown_path(&files[now.file]));
        now.offset = batch.end;
        if batch.end == now.plan.files[now.file].bytes {
            (now.file, now.offset, now.line) = (now.file + 1, 0, 0);
        }
        if ids.len() >= settings.shard_tokens {
            write(out, format, &mut now, &mut ids)?;
            state = now.clone();
        }
    }
    now.finished = true;
    if !ids.is_empty() {
        write(out, format, &mut now, &mut ids)?;
    }
    ensure!(now.tokens > 0, "{}: found no text in {} files, expected some", shown_path(out), files.len());
    save(out, &now)?;
    Ok(now)
}

fn plan(files: &[PathBuf], settings: Settings, tokenizer: &Tokenizer, format: Format) -> Result<EncodingPlan> {
    Ok(EncodingPlan {
        fingerprint: format!("{:016x}", format.fingerprint),
        shard_tokens: settings.shard_tokens,
        batch: settings.batch,
        lossy: settings.lossy,
        specials: format!("{:?}", settings.specials),
        end_of_text: tokenizer.end_of_text(),
        files: files.iter().map(|path| InputFile::of(path)).collect::<Result<_>>()?,
    })
}

/// Writes a shard, then how far the run is.
fn write(out: &Path, format: Format, now: &mut Progress, ids: &mut Vec<u32>) -> Result<()> {
    shard::write(&shard::path(out, now.shards), format, ids)?;
    now.shards += 1;
    now.tokens += ids.len() as u64;
    ids.clear();
    save(out, now)
}

/// Texts from one file.
struct TextBatch {
    units: Vec<Unit>,
    /// What the units' places count: lines, or bytes.
    lines: bool,
    /// Where the batch ends in the file.
    end: u64,
}

/// A document, or a part of one.
struct Unit {
    text: String,
    /// Its line in the file, or the byte where it begins.
    place: u64,
    begins: bool,
    ends: bool,
}

impl TextBatch {
    fn read(path: &Path, now: &mut Progress, settings: Settings, tokenizer: &Tokenizer) -> Result<TextBatch> {
        let (start, size) = (now.offset, now.plan.files[now.file].bytes);
        let lines = text::kind(path)? == Kind::Lines;
        let (place, lossy) = (shown_path(path), Lossy::flag(settings.lossy));
        let mut wanted = settings.batch as u64;
        loop {
            let end = size.min(start + wanted + 4096);
            let bytes = read_range(path, start, end)?;
            let cut = match lines {
                true => bytes.iter().take(wanted as usize).rposition(|&byte| byte == b'\n').map(|last| last + 1),
                false => tokenizer.next_cut(&bytes, wanted as usize),
            };
            // The end of the file is a cut, where no other is left.
            let Some(cut) = cut.or((end == size).then_some(bytes.len())) else {
                wanted *= 2;
                continue;
            };
            let units = match lines {
                true => text::documents(&bytes[..cut], &place, start, &mut now.line, lossy)?
                    .into_iter()
                    .map(|(line, text)| Unit { text, place: line as u64, begins: true, ends: true })
                    .collect(),
                false => {
                    let text = text::document(bytes[..cut].to_vec(), &place, start, lossy)?;
                    text_units(text, start, start + cut as u64 == size, tokenizer, settings.part)
                }
            };
            return Ok(TextBatch { units, lines, end: start + cut as u64 });
        }
    }

    /// Appends the ids of the batch, with the tokens that begin and end documents, once each.
    fn encode(
        &self,
        path: &Path,
        tokenizer: &Tokenizer,
        specials: SpecialText,
        now: &mut Progress,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        let encode = |unit: &Unit| {
            let place = || match (self.lines, unit.place) {
                (true, line) => format!("{}: line {line}", shown_path(path)),
                (false, 0) => shown_path(path),
                (false, byte) => format!("{}: counted from byte {byte}", shown_path(path)),
            };
            tokenizer.encode_as(&unit.text, specials).with_context(place)
        };
        let ids: Vec<Result<Vec<u32>>> = self.units.par_iter().map(encode).collect();
        let ids: Vec<Vec<u32>> = ids.into_iter().collect::<Result<_>>()?; // of several errors the first
        for (unit, ids) in self.units.iter().zip(ids) {
            if unit.text.is_empty() && unit.begins && unit.ends {
                now.empty += 1;
                continue;
            }
            now.bytes += unit.text.len() as u64;
            now.documents += u64::from(unit.ends);
            // A text may say itself where it begins and ends, if what it says counts.
            out.extend(tokenizer.begin_of_text().filter(|begin| unit.begins && ids.first() != Some(begin)));
            let end = tokenizer.end_of_text().filter(|end| unit.ends && ids.last() != Some(end));
            out.extend(ids);
            out.extend(end);
        }
        Ok(())
    }
}

fn read_range(path: &Path, start: u64, end: u64) -> Result<Vec<u8>> {
    let place = || format!("{}: cannot be read", shown_path(path));
    let mut file = File::open(path).with_context(place)?;
    file.seek(SeekFrom::Start(start)).with_context(place)?;
    let mut bytes = vec![0; (end - start) as usize];
    file.read_exact(&mut bytes).with_context(place)?;
    Ok(bytes)
}

/// A text that begins at byte `start` of its file in parts of about `part` bytes for the threads; `ends` tells whether the file does with it.
fn text_units(text: String, start: u64, ends: bool, tokenizer: &Tokenizer, part: usize) -> Vec<Unit> {
    let mut cuts = vec![0];
    while let Some(cut) = tokenizer.next_cut(text.as_bytes(), cuts[cuts.len() - 1] + part.max(1)) {
        cuts.push(cut);
    }
    let last = cuts.len() - 1;
    let part = |i: usize| {
        let end = cuts.get(i + 1).copied().unwrap_or(text.len());
        let place = start + cuts[i] as u64;
        Unit { text: text[cuts[i]..end].to_string(), place, begins: place == 0, ends: ends && i == last }
    };
    (0..=last).map(part).collect()
}

//! What a file of training text is, and its bytes as text.
//!
//! | name | content | read as |
//! |---|---|---|
//! | `.jsonl`, `.ndjson` | | a document in `text` on each line |
//! | `.txt` | | one document |
//! | any other | the first line is an object with a string `text` | a document on each line |
//! | any other | | one document |
//! | any | shards, token ids with a header, archives, models | refused by name |
//! | `.bin` | | refused: token ids without a header |
//!
//! A byte order mark before lines of JSON is dropped; in a document it stays, as every byte does. A document has no NUL
//! byte: what has is no text.

use super::shard;
use crate::formats::foreign;
use crate::shown::{json_error, shown_path};
use crate::tokenizer::bpe::train::LineFormat;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

const MARK: &[u8] = "\u{feff}".as_bytes();
/// Bytes of a file that are looked at to find out what it is.
const START: usize = 1 << 16;
/// Bytes of a first line at most.
const LINE: u64 = 1 << 30;

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One document.
    Text,
    /// A document on each line, within JSON.
    Lines,
}

#[derive(Deserialize)]
struct Line {
    text: Option<String>,
}

/// What a regular file is, see the table above. Errors, each with the path: it cannot be read; it is of a kind that holds no
/// text.
pub fn kind(path: &Path) -> Result<Kind> {
    let context = || format!("{}: cannot be read", shown_path(path));
    let mut file = BufReader::with_capacity(START, File::open(path).with_context(context)?);
    let mut start = vec![];
    file.by_ref().take(START as u64).read_to_end(&mut start).with_context(context)?;
    if start.len() == START && is_open(&start) {
        file.take(LINE).read_until(b'\n', &mut start).with_context(context)?; // a first line of JSON to its end
    }
    kind_of(path, &start)
}

/// What a file is, by its name and by what it begins with, which ends no earlier than the first line.
fn kind_of(path: &Path, start: &[u8]) -> Result<Kind> {
    let place = shown_path(path);
    if let Some(found) = holds_no_text(start) {
        bail!("{place}: found {found}");
    }
    let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
    let first = start.strip_prefix(MARK).unwrap_or(start).trim_ascii_start();
    match ending.to_str() {
        Some("jsonl" | "ndjson") => Ok(Kind::Lines),
        Some("txt") => Ok(Kind::Text),
        Some("bin") => bail!(
            "{place}: found a .bin, as files of token ids end, expected text: ids mean nothing without their tokenizer \
             (nanoGPT's meta.pkl); encode the text itself with handgrad data encode"
        ),
        Some("json") if first.starts_with(b"[") => {
            bail!("{place}: found a list of JSON, expected lines of it, each an object with a text in \"text\"")
        }
        _ => {
            let first = first.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let line = first.starts_with(b"{").then(|| serde_json::from_slice::<Line>(first));
            let is_document = matches!(line, Some(Ok(Line { text: Some(_) })));
            Ok(if is_document { Kind::Lines } else { Kind::Text })
        }
    }
}

/// Whether bytes begin an object and do not come to the end of its line.
fn is_open(start: &[u8]) -> bool {
    let first = start.strip_prefix(MARK).unwrap_or(start).trim_ascii_start();
    first.starts_with(b"{") && !first.contains(&b'\n')
}

fn holds_no_text(start: &[u8]) -> Option<&'static str> {
    let number = start.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes));
    let pointer = start.starts_with(b"version https://git-lfs");
    // What can be read as text may begin with any word.
    let cut = std::str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true);
    if !pointer && cut && !start.contains(&0) {
        return None;
    }
    if start.starts_with(shard::MAGIC) {
        return Some("a shard of handgrad data encode, expected text: give the directory of all shards");
    }
    // The magic numbers of llm.c's files of GPT-2's and of Llama 3's tokens.
    if matches!(number, Some(20_240_520 | 20_240_801)) {
        return Some(
            "token ids with the header of llm.c, expected text: ids mean nothing without their tokenizer; encode the text \
             itself with handgrad data encode",
        );
    }
    foreign::archive(start)
}

/// Whether what is not text becomes U+FFFD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lossy {
    Yes,
    /// It is an error.
    No,
    /// It is an error that names the flag `--lossy`, which was not given.
    NotAsked,
}

impl Lossy {
    /// For commands that have the flag.
    pub fn flag(given: bool) -> Lossy {
        if given { Lossy::Yes } else { Lossy::NotAsked }
    }
}

/// Bytes that stand at `offset` of what `place` names, as text. Error: not UTF-8, with the offset.
pub fn utf8(bytes: Vec<u8>, place: &str, offset: u64, lossy: Lossy) -> Result<String> {
    String::from_utf8(bytes).or_else(|error| {
        let hint = match lossy {
            Lossy::Yes => return Ok(String::from_utf8_lossy(error.as_bytes()).into_owned()),
            Lossy::No => "",
            Lossy::NotAsked => " (--lossy replaces what is not)",
        };
        let at = error.utf8_error().valid_up_to();
        let (byte, at) = (error.as_bytes()[at], offset + at as u64);
        bail!("{place}: found byte 0x{byte:02X} at offset {at}, expected UTF-8 text{hint}")
    })
}

/// A document, or a part of one, as [`utf8`]. Errors: as there; a NUL byte, with its offset.
pub fn document(bytes: Vec<u8>, place: &str, offset: u64, lossy: Lossy) -> Result<String> {
    if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
        bail!("{place}: found byte 0x00 at offset {}, expected text, which has none", offset + at as u64);
    }
    utf8(bytes, place, offset, lossy)
}

/// The document of each line of JSON that is not blank, with the line's number. `bytes` stand at `offset` of a file, behind
/// `lines` lines, which is then raised. Errors, each with the line: not UTF-8; no object with a string `text`; the
/// escape of half a surrogate pair, which is no text either.
pub fn documents(
    bytes: &[u8],
    place: &str,
    offset: u64,
    lines: &mut usize,
    lossy: Lossy,
) -> Result<Vec<(usize, String)>> {
    let (mut documents, mut start) = (Vec::new(), offset);
    for whole in bytes.split_inclusive(|&byte| byte == b'\n') {
        *lines += 1;
        let line = if start == 0 { whole.strip_prefix(MARK).unwrap_or(whole) } else { whole };
        let text = utf8(line.to_vec(), place, start, lossy)?;
        start += whole.len() as u64;
        if text.trim().is_empty() {
            continue;
        }
        let expected = format!("{place}: line {lines}: expected a JSON object with a text in \"text\"");
        // A list of one text would do as well for the reader below.
        ensure!(text.trim_start().starts_with('{'), "{expected}");
        let mut parsed = serde_json::from_str::<Line>(&text);
        if lossy == Lossy::Yes && parsed.is_err() {
            parsed = serde_json::from_str(&without_half_surrogates(&text));
        }
        let parsed = parsed.map_err(|error| {
            let half = lossy == Lossy::NotAsked && error.to_string().contains("hex escape");
            let hint = if half { " (--lossy replaces half a surrogate pair)" } else { "" };
            anyhow!("{expected}: {}{hint}", json_error(&error))
        })?;
        let Some(text) = parsed.text else { bail!("{place}: line {lines}: found no \"text\", expected a text there") };
        documents.push((*lines, text));
    }
    Ok(documents)
}

/// JSON in which escaped halves of surrogate pairs that stand alone are U+FFFD.
fn without_half_surrogates(json: &str) -> String {
    let unit = |at: usize| {
        let escape = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(escape, 16).ok()
    };
    let (mut mended, mut at) = (String::with_capacity(json.len()), 0);
    while let Some(skipped) = json[at..].find('\\') {
        mended.push_str(&json[at..at + skipped]);
        at += skipped;
        let (len, half) = match (unit(at), unit(at + 6)) {
            (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => (12, false),
            (Some(0xD800..0xE000), _) => (6, true),
            _ => (1 + json[at + 1..].chars().next().map_or(0, char::len_utf8), false),
        };
        mended.push_str(if half { "\\ufffd" } else { &json[at..at + len] });
        at += len;
    }
    mended + &json[at..]
}

/// Lines of JSON, for the training of tokenizers.
pub const LINES: LineFormat = LineFormat {
    is_of: |path| Ok(kind(path)? == Kind::Lines),
    documents: |bytes, place, offset, lossy| {
        let place = if offset == 0 { place.to_string() } else { format!("{place}, behind byte {offset}") };
        let documents = documents(bytes, &place, offset, &mut 0, Lossy::flag(lossy))?;
        Ok(documents.into_iter().map(|(_, text)| text).collect())
    },
};

/// The documents of a file or a pipe. Errors: those of [`kind`], [`document`] and [`documents`].
pub fn read(path: &Path) -> Result<Vec<String>> {
    let place = shown_path(path);
    // Read once: what comes from a pipe comes once.
    let bytes = fs::read(path).with_context(|| format!("{place}: cannot be read"))?;
    match kind_of(path, &bytes)? {
        Kind::Text => Ok(vec![document(bytes, &place, 0, Lossy::No)?]),
        Kind::Lines => {
            let documents = documents(&bytes, &place, 0, &mut 0, Lossy::No)?;
            Ok(documents.into_iter().map(|(_, text)| text).collect())
        }
    }
}

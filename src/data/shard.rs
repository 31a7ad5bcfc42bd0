//! Token ids in files: a directory of shards, which together are one long row.
//!
//! ```text
//! DIR/tokenizer.json        the tokenizer that made the ids
//! DIR/shard-00000.tokens    bytes 0..8   "HGTOKENS"
//!                           8..12        version, 1
//!                           12..16       bytes of an id, 2 or 4
//!                           16..24       number of ids
//!                           24..32       fingerprint of the tokenizer
//!                           32..64       0
//!                           64..         ids
//! ```
//!
//! All numbers are little-endian. Ids take 2 bytes if every id of the vocabulary fits.

use crate::formats::{atomic, tokenizer_json};
use crate::shown::shown_path;
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(super) const MAGIC: &[u8; 8] = b"HGTOKENS";
const VERSION: u32 = 1;
/// Bytes before the ids.
pub const HEADER: usize = 64;

/// What a file of ids needs besides them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Bytes of an id: 2 or 4.
    pub width: usize,
    /// Tells tokenizers apart.
    pub fingerprint: u64,
}

impl Format {
    /// 2 bytes for up to 65,536 ids, else 4.
    pub fn of(tokenizer: &Tokenizer) -> Format {
        let width = if tokenizer.vocab_size() <= 1 << 16 { 2 } else { 4 };
        Format { width, fingerprint: tokenizer_json::fingerprint(tokenizer) }
    }

    fn header(self, count: usize) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&(self.width as u32).to_le_bytes());
        header[16..24].copy_from_slice(&(count as u64).to_le_bytes());
        header[24..32].copy_from_slice(&self.fingerprint.to_le_bytes());
        header
    }
}

/// The path of shard `number`.
pub fn path(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("shard-{number:05}.tokens"))
}

/// Whether a directory holds shards, and not texts. The first one may be missing.
pub fn is_in(dir: &Path) -> bool {
    files(dir).is_ok_and(|count| count > 0)
}

/// Checks the first `count` shards of a directory: how many ids they hold. Error: one of them is missing or damaged, or
/// another tokenizer made it.
pub fn check(dir: &Path, count: usize, format: Format) -> Result<u64> {
    (0..count).map(|number| Ok(Shard::open(&path(dir, number), format.fingerprint)?.count as u64)).sum()
}

/// Writes a shard atomically. Error: an id that does not fit its width; a disk that is full.
pub fn write(path: &Path, format: Format, ids: &[u32]) -> Result<()> {
    if format.width == 2 {
        let wide = ids.iter().find(|&&id| id > u32::from(u16::MAX));
        ensure!(
            wide.is_none(),
            "{}: found id {}, expected at most 65535 in 2 bytes",
            shown_path(path),
            wide.unwrap_or(&0)
        );
    }
    let size = HEADER + format.width * ids.len();
    atomic::write_sized(path, Some(size as u64), |file| {
        file.write_all(&format.header(ids.len()))?;
        for chunk in ids.chunks(1 << 16) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|id| id.to_le_bytes().into_iter().take(format.width)).collect();
            file.write_all(&bytes)?;
        }
        Ok(())
    })
}

/// One file of ids. It is opened anew for each read: there may be more shards than a process may hold open. It is never
/// mapped: if it were cut short then, the system would end the process.
#[derive(Debug)]
struct Shard {
    path: PathBuf,
    width: usize,
    count: usize,
}

impl Shard {
    /// Errors, each with the file: an empty file, another format or version, a length that is not the header's, another
    /// tokenizer.
    fn open(path: &Path, fingerprint: u64) -> Result<Shard> {
        let place = shown_path(path);
        let file = File::open(path).with_context(|| format!("{place}: cannot be read"))?;
        let size = file.metadata().with_context(|| format!("{place}: cannot be read"))?.len();
        ensure!(size > 0, "{place}: found an empty file, no tokens in it");
        ensure!(size >= HEADER as u64, "{place}: found {size} bytes, expected a header of {HEADER} at least");
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).with_context(|| format!("{place}: cannot be read"))?;
        let number =
            |range: Range<usize>| header[range].iter().rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
        ensure!(
            header[..8] == MAGIC[..],
            "{place}: found {:?}, expected {:?}",
            header[..8].escape_ascii().to_string(),
            "HGTOKENS"
        );
        let (version, width, count) = (number(8..12), number(12..16), number(16..24));
        ensure!(version == u64::from(VERSION), "{place}: found version {version}, expected {VERSION}");
        ensure!([2, 4].contains(&width), "{place}: found {width} bytes for each id, expected 2 or 4");
        let (bytes, rest) = (size - HEADER as u64, (size - HEADER as u64) % width);
        ensure!(rest == 0, "{place}: found {bytes} bytes of ids, expected a multiple of {width}, not a rest of {rest}");
        ensure!(
            bytes / width == count,
            "{place}: found {} ids, expected {count}: the file is cut short or too long",
            bytes / width
        );
        let made_by = number(24..32);
        ensure!(
            made_by == fingerprint,
            "{place}: found ids of another tokenizer ({made_by:016x}), expected those of {fingerprint:016x}"
        );
        Ok(Shard { path: path.to_path_buf(), width: width as usize, count: count as usize })
    }

    /// Appends ids `range`. Error: the file is gone or was cut short since it was opened.
    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) -> Result<()> {
        let mut bytes = vec![0; range.len() * self.width];
        let start = (HEADER + range.start * self.width) as u64;
        File::open(&self.path).and_then(|file| file.read_exact_at(&mut bytes, start)).with_context(|| {
            format!("{}: cannot be read, expected ids {} to {}", shown_path(&self.path), range.start, range.end)
        })?;
        match self.width {
            2 => out.extend(bytes.chunks_exact(2).map(|id| u32::from(u16::from_le_bytes([id[0], id[1]])))),
            _ => out.extend(bytes.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]]))),
        }
        Ok(())
    }
}

/// All shards of a directory, as one row.
#[derive(Debug)]
pub struct ShardSet {
    shards: Vec<Shard>,
    /// Where each shard begins in the row, and where the last one ends.
    starts: Vec<usize>,
}

impl ShardSet {
    /// Opens the shards of `dir`, which `tokenizer` must have made. Errors: no shard, a gap in their numbers, one that
    /// is damaged, no ids in any. One without ids among others is passed over.
    pub fn open(dir: &Path, tokenizer: &Tokenizer) -> Result<ShardSet> {
        let fingerprint = tokenizer_json::fingerprint(tokenizer);
        let count = count_shards(dir)?;
        ensure!(count > 0, "{}: found no shard-00000.tokens, expected shards of handgrad data encode", shown_path(dir));
        let shards: Vec<Shard> = (0..count).map(|n| Shard::open(&path(dir, n), fingerprint)).collect::<Result<_>>()?;
        let mut starts = vec![0];
        for shard in &shards {
            starts.push(starts[starts.len() - 1] + shard.count);
        }
        ensure!(starts[count] > 0, "{}: found {count} shards without any tokens, expected some", shown_path(dir));
        Ok(ShardSet { shards, starts })
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.starts[self.shards.len()]
    }

    /// Never: shards without any ids are an error.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends ids `range` of the row. Error: a file is gone or was cut short since it was opened.
    pub fn read(&self, range: Range<usize>, out: &mut Vec<u32>) -> Result<()> {
        let mut at = range.start;
        let mut shard = self.starts.partition_point(|&start| start <= at) - 1;
        while at < range.end {
            let end = range.end.min(self.starts[shard + 1]);
            self.shards[shard].read(at - self.starts[shard]..end - self.starts[shard], out)?;
            (at, shard) = (end, shard + 1);
        }
        Ok(())
    }
}

/// How many files are named as shards are.
fn files(dir: &Path) -> Result<usize> {
    let place = || format!("{}: cannot be listed", shown_path(dir));
    let mut count = 0;
    for entry in std::fs::read_dir(dir).with_context(place)? {
        let name = entry.with_context(place)?.file_name();
        count += usize::from(name.to_str().is_some_and(|name| name.starts_with("shard-") && name.ends_with(".tokens")));
    }
    Ok(count)
}

/// How many shards there are. Error: one is missing among them.
fn count_shards(dir: &Path) -> Result<usize> {
    let count = files(dir)?;
    let missing = (0..count).find(|&number| !path(dir, number).exists());
    if let Some(number) = missing {
        anyhow::bail!("{}: found {count} shards, but no {}", shown_path(dir), shown_path(path(Path::new(""), number)));
    }
    Ok(count)
}

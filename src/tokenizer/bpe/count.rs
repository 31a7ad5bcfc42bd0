//! Counting the pieces of text files, in parallel and in little memory.
//!
//! Files are read one stretch at a time, each thread its own, and a stretch is let go when its pieces are counted:
//! memory grows with the distinct pieces, not with the text. Stretches begin and end at [`next_cut`], so that the
//! counts depend neither on their length nor on the number of threads. Every file is a text of its own: no piece
//! reaches into the next file.

use super::cuts::{look_behind, next_cut};
use super::pattern::{Pattern, Scanner};
use super::special::{Specials, Stage, Stretch};
use super::tables::WordMap;
use crate::shown::shown_path;
use crate::tokenizer::SpecialText;
use anyhow::{Context, Error, Result, bail, ensure};
use rayon::prelude::*;
use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How text is read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub pattern: Pattern,
    /// Whether bytes that are not UTF-8 become U+FFFD instead of being an error.
    pub lossy: bool,
    /// Bytes of a stretch, about.
    pub stretch: usize,
    pub lines: Option<LineFormat>,
}

/// Files whose lines hold documents: whoever knows them says which files these are, and reads them.
#[derive(Clone, Copy, Debug)]
pub struct LineFormat {
    pub is_of: fn(&Path) -> Result<bool>,
    pub documents: ReadDocuments,
}

/// The documents of whole lines, which stand at an offset of the file that a name is given for; whether what is not UTF-8
/// becomes U+FFFD.
pub type ReadDocuments = fn(&[u8], &str, u64, bool) -> Result<Vec<String>>;

/// Pieces and how often each occurs.
#[derive(Default)]
pub struct Counts {
    pub words: WordMap,
    pub counts: Vec<u64>,
}

impl Counts {
    #[inline]
    fn add(&mut self, word: &[u8], count: u64) {
        let number = self.words.insert(word);
        if number == self.counts.len() {
            self.counts.push(0);
        }
        self.counts[number] += count;
    }

    /// Counts the pieces of a text; special tokens in it are boundaries and count nothing.
    pub fn add_text(&mut self, text: &str, pattern: Pattern, specials: &Specials) {
        for stretch in specials.split(text, Stage::Raw, SpecialText::Allow) {
            let Stretch::Text(stretch) = stretch else { continue };
            let scanner = Scanner::new(pattern, stretch);
            let mut start = 0;
            while let Some(end) = scanner.end_of_piece(start) {
                self.add(&stretch.as_bytes()[start..end], 1);
                start = end;
            }
        }
    }

    fn merge(mut self, other: Counts) -> Counts {
        if self.words.len() < other.words.len() {
            return other.merge(self);
        }
        for (word, &count) in other.words.iter().zip(&other.counts) {
            self.add(word, count);
        }
        self
    }
}

/// Counts the pieces of all files. `progress` hears how many bytes have been read since it was last called.
/// Errors, each with the file: it cannot be read, is no regular file, is not UTF-8 (with the offset of the first bad
/// byte).
pub fn count_files(
    files: &[PathBuf],
    reading: Reading,
    specials: &Specials,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Counts> {
    let files: Vec<TextFile> = files.iter().map(|path| TextFile::open(path, reading.lines)).collect::<Result<_>>()?;
    let tasks: Vec<(&TextFile, usize)> = files
        .iter()
        .flat_map(|file| (0..file.len).step_by(reading.stretch.max(1)).map(move |start| (file, start)))
        .collect();
    // Tasks are taken in order, so that of several errors the first in the text is known when all have stopped.
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    let work = |_| {
        let mut counts = Counts::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(file, start)) = tasks.get(number) else { break };
            let counted = file.count_stretch(start, reading, specials, &mut counts);
            if let Err(error) = counted {
                next.store(tasks.len(), Ordering::Relaxed);
                let mut failed = failed.lock().expect("no thread panics here");
                if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                    *failed = Some((number, error));
                }
                break;
            }
            progress(reading.stretch.min(file.len - start) as u64);
        }
        counts
    };
    let threads = rayon::current_num_threads().min(tasks.len());
    let counts = (0..threads).into_par_iter().with_max_len(1).map(work).reduce(Counts::default, Counts::merge);
    match failed.into_inner().expect("no thread panics here") {
        Some((_, error)) => Err(error),
        None => Ok(counts),
    }
}

/// A file to be read in stretches, and its length when that was decided.
struct TextFile {
    path: PathBuf,
    len: usize,
    /// Where its lines hold documents.
    lines: Option<LineFormat>,
}

impl TextFile {
    fn open(path: &Path, lines: Option<LineFormat>) -> Result<TextFile> {
        let place = || format!("{}: cannot be read", shown_path(path));
        let meta = File::open(path).and_then(|file| file.metadata()).with_context(place)?;
        ensure!(!meta.is_dir(), "{}: found a directory, expected a text file", shown_path(path));
        ensure!(meta.is_file(), "{}: found a pipe or device, expected a regular file", shown_path(path));
        let lines = match lines {
            Some(format) if (format.is_of)(path)? => Some(format),
            _ => None,
        };
        Ok(TextFile { path: path.to_path_buf(), len: usize::try_from(meta.len())?, lines })
    }

    /// Counts the stretch that begins at the first cut after `nominal`, or at the beginning of the file.
    fn count_stretch(&self, nominal: usize, reading: Reading, specials: &Specials, counts: &mut Counts) -> Result<()> {
        let window = self.window(nominal, reading.stretch, specials)?;
        let bytes = &window.bytes[window.stretch.clone()];
        if bytes.is_empty() {
            return Ok(());
        }
        if let Some(format) = self.lines {
            let offset = (window.offset + window.stretch.start) as u64;
            for document in (format.documents)(bytes, &shown_path(&self.path), offset, reading.lossy)? {
                counts.add_text(&document, reading.pattern, specials);
            }
            return Ok(());
        }
        let text = match (std::str::from_utf8(bytes), reading.lossy) {
            (Ok(text), _) => Cow::Borrowed(text),
            (Err(_), true) => String::from_utf8_lossy(bytes),
            (Err(error), false) => {
                let at = error.valid_up_to();
                bail!(
                    "{}: found byte 0x{:02X} at offset {}, expected UTF-8 text (--lossy replaces what is not)",
                    shown_path(&self.path),
                    bytes[at],
                    window.offset + window.stretch.start + at
                );
            }
        };
        counts.add_text(&text, reading.pattern, specials);
        Ok(())
    }

    /// Reads what a stretch needs, and finds its ends.
    fn window(&self, nominal: usize, stretch: usize, specials: &Specials) -> Result<Window> {
        // Opened anew for each stretch: there may be more files than a process may hold open.
        let place = || format!("{}: cannot be read", shown_path(&self.path));
        let file = File::open(&self.path).with_context(place)?;
        let len = file.metadata().with_context(place)?.len();
        ensure!(
            len == self.len as u64,
            "{}: found {len} bytes, expected the {} of before",
            shown_path(&self.path),
            self.len
        );
        let offset = nominal.saturating_sub(look_behind(specials));
        let mut slack = 4096;
        loop {
            let end = self.len.min(nominal.saturating_add(stretch).saturating_add(slack));
            let mut bytes = vec![0; end - offset];
            file.read_exact_at(&mut bytes, offset as u64).with_context(place)?;
            let at_end = end == self.len;
            // The first place of the file is a cut; so is its end, where no other is left.
            let cut = |nominal: usize| {
                let from = (nominal - offset).min(bytes.len());
                let newline = || bytes[from..].iter().position(|&byte| byte == b'\n').map(|at| from + at + 1);
                match nominal {
                    0 => Some(0),
                    _ if self.lines.is_some() => newline().or(at_end.then_some(bytes.len())),
                    _ => next_cut(&bytes, from, specials).or(at_end.then_some(bytes.len())),
                }
            };
            // No cut up to the next stretch: what is here belongs to a stretch before.
            let Some(first) = cut(nominal) else { return Ok(Window { offset, stretch: 0..0, bytes }) };
            if let Some(last) = cut(nominal.saturating_add(stretch)) {
                return Ok(Window { offset, stretch: first..last, bytes });
            }
            slack *= 4;
        }
    }
}

struct Window {
    bytes: Vec<u8>,
    /// Where they begin in the file.
    offset: usize,
    /// The stretch within them.
    stretch: Range<usize>,
}

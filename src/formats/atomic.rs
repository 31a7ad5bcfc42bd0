//! Writing a file, a directory or a link so that its name always leads to something complete, old or new.
//!
//! The bytes go to a temporary file in the same directory, which is flushed to the disk, renamed over the old file, and the
//! directory is flushed too. A process that dies on the way leaves only a temporary file, which [`clean`] removes; a power
//! cut cannot leave a name that leads to bytes that never reached the disk. A directory is made in the same way: filled
//! under a temporary name, then renamed.

use crate::shown::shown_path;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};

/// Stands in every temporary name, between the name of the file and `PROCESS-NUMBER`.
const MARK: &str = ".tmp-";

/// Writes `path` with what `body` writes. On an error the old file is untouched and the temporary one is gone.
/// Error: the path and the reason, the system's or that of `body`.
pub fn write(path: &Path, body: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    write_sized(path, None, body)
}

/// As [`write`](fn@write), for a known number of bytes, which errors then name. Error: the path and the reason, the
/// system's or that of `body`.
pub fn write_sized(path: &Path, bytes: Option<u64>, body: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    survive_file_size_limit();
    let temporary = temporary_path(path).with_context(|| {
        format!("{}: cannot be written, expected a path that ends in a file name", shown_path(path))
    })?;
    let result = fill(&temporary, body).and_then(|()| rename(&temporary, path));
    result
        .inspect_err(|_| {
            // The reason for the failure matters more than whether the leftover could be removed.
            let _ = fs::remove_file(&temporary);
        })
        .with_context(|| match bytes {
            Some(bytes) => format!("{}: cannot be written ({bytes} bytes needed)", shown_path(path)),
            None => format!("{}: cannot be written", shown_path(path)),
        })
}

/// Makes the directory `path` with what `body` writes, by this module's functions, into the directory that it is given. One
/// that is there already goes when the new one is complete. On an error the old one is untouched and nothing is left of the new one. Error: the path
/// and the reason, the system's or that of `body`.
pub fn directory(path: &Path, body: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let place = || format!("{}: cannot be written", shown_path(path));
    let temporary = temporary_path(path).with_context(place)?;
    let fill = || -> Result<()> {
        fs::create_dir(&temporary)?;
        body(&temporary)?;
        remove(path)?;
        rename(&temporary, path)
    };
    fill()
        .inspect_err(|_| {
            let _ = remove(&temporary);
        })
        .with_context(place)
}

/// Makes `path` a link to `target`, in place of what it was before; a directory is not replaced. Error: the file system has
/// no links, or the path cannot be written.
pub fn link(path: &Path, target: &Path) -> Result<()> {
    let place = || format!("{}: cannot be made a link to {}", shown_path(path), shown_path(target));
    let temporary = temporary_path(path).with_context(place)?;
    std::os::unix::fs::symlink(target, &temporary).with_context(place)?;
    rename(&temporary, path)
        .inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })
        .with_context(place)
}

/// Makes a directory and those above it that are missing. Error: one of them cannot be made.
pub fn make_directories(path: &Path) -> Result<()> {
    let missing: Vec<&Path> =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    fs::create_dir_all(path).with_context(|| format!("{}: cannot be made", shown_path(path)))?;
    missing.iter().try_for_each(|made| flush(parent(made)))
}

/// Removes a file, a link, or a directory with all that is in it; what is not there is no error. Error: it cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    let removed = if meta.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.with_context(|| format!("{}: cannot be removed", shown_path(path)))
}

/// Removes what interrupted writes left in `directory`, not in directories below it. Call it where nothing else is writing
/// there. Error: the directory cannot be listed or something in it cannot be removed.
pub fn clean(directory: &Path) -> Result<()> {
    let place = || format!("{}: leftover temporary files cannot be removed", shown_path(directory));
    for entry in fs::read_dir(directory).with_context(place)? {
        let entry = entry.with_context(place)?;
        if entry.file_name().to_str().is_some_and(is_temporary) {
            remove(&entry.path()).with_context(place)?;
        }
    }
    Ok(())
}

/// Gives `from` the name `to`, for good.
fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)?;
    flush(parent(to))
}

/// Brings to the disk which names a directory holds.
fn flush(directory: &Path) -> Result<()> {
    Ok(File::open(directory)?.sync_all()?)
}

/// Creates the file, lets `body` write it, and flushes it to the disk.
fn fill(path: &Path, body: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    body(&mut file)?;
    let file = file.into_inner().map_err(|error| error.into_error())?;
    Ok(file.sync_all()?)
}

/// `DIR/.NAME.tmp-PROCESS-NUMBER`: hidden, recognisable, and no other write's, whether in this process or another.
fn temporary_path(path: &Path) -> Option<PathBuf> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name()?.to_string_lossy();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    Some(parent(path).join(format!(".{name}{MARK}{}-{number}", std::process::id())))
}

fn is_temporary(name: &str) -> bool {
    let number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    name.starts_with('.')
        && name.rsplit_once(MARK).and_then(|(_, end)| end.split_once('-')).is_some_and(|(a, b)| number(a) && number(b))
}

/// The directory of `path`: that of a bare name is the current one.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Past a limit on file sizes (`ulimit -f`) the system sends a signal that kills by default. Caught, the write fails with an
/// error instead, and the error can be reported.
fn survive_file_size_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Where it cannot be caught, the limit kills as it would have anyway.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    });
}

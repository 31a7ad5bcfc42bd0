//! Every reader of a file against damaged ones: real files, changed at random from a printed seed. Whatever is in a file, a
//! reader returns in time, in little memory, and with an error of one line or something that can be used.
//!
//! `FUZZ_INPUTS` sets how many inputs each reader gets, `FUZZ_SEED` the seed. The file that a reader was given last lies in
//! the directory that is printed first; it stays there if the process ends without a word.

mod data_files;
mod found;
mod json_files;
mod mutate;
mod tensors;
mod training;

use anyhow::Result;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Inputs for each reader, unless another number is asked for.
const INPUTS: usize = 1000;
const SLOW: Duration = Duration::from_secs(2);
/// A JSON value takes 72 bytes, in a list twice as many while it grows, and two letters can be one.
const BYTES_OF_MEMORY_A_BYTE: usize = 160;
/// Characters; the longest errors list several names.
const LONGEST_ERROR: usize = 8000;

struct Counting;

thread_local! {
    /// Bytes that live and have lived at most, of those that this thread asked for.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends has no counters any more.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call goes on to the system's allocator with the same arguments; only numbers are kept besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises about `layout` are those that System asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `pointer` came from System with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A directory for files, in memory where there is such a place.
fn scratch() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}: found {text}")))
}

/// A reader, and what it costs beside what its files do.
struct Reader<'a> {
    name: &'a str,
    /// Of the number of inputs that others get it gets 1/share, where it is slow.
    share: usize,
    /// MiB of memory that it takes whatever its file is: a buffer for writing, a cache of pieces.
    mib: usize,
    /// The file that it reads.
    file: &'a Path,
    load: &'a dyn Fn() -> Result<()>,
}

/// Gives a reader damaged versions of `originals`, one after another in its file.
fn fuzz(reader: &Reader, originals: &[Vec<u8>]) {
    let &Reader { name, share, file, .. } = reader;
    // What works in parallel does so on this thread, whose time and memory are looked at.
    let _pool = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
    let seed = number("FUZZ_SEED").unwrap_or_else(rand::random);
    let inputs = number("FUZZ_INPUTS").map_or(INPUTS, |inputs| inputs as usize).div_ceil(share);
    println!("{name}: {inputs} inputs of FUZZ_SEED={seed} in {}", file.display());
    for (number, original) in originals.iter().enumerate() {
        check(&format!("{name}: original {number}"), original, reader);
    }
    let (mut accepted, start) = (0, Instant::now());
    for number in 0..inputs {
        let mut rng = ChaCha8Rng::seed_from_u64(seed.wrapping_add(number as u64));
        let input = mutate::damaged(originals, &mut rng);
        accepted += usize::from(check(&format!("{name}: FUZZ_SEED={seed}, input {number}"), &input, reader));
    }
    println!("{name}: {accepted} of {inputs} accepted, {:.1} s", start.elapsed().as_secs_f64());
}

/// Gives one input to a reader, and checks how it fares; whether it was accepted.
fn check(place: &str, input: &[u8], reader: &Reader) -> bool {
    let &Reader { file, load, mib, .. } = reader;
    std::fs::write(file, input).unwrap();
    let before = LIVE.get();
    PEAK.set(before);
    let start = Instant::now();
    let outcome = catch_unwind(AssertUnwindSafe(load));
    let (time, memory) = (start.elapsed(), (PEAK.get() - before).max(0) as usize);
    let outcome = outcome.unwrap_or_else(|_| panic!("{place}: {} panicked; {}", file.display(), kept(file, input)));
    let most = BYTES_OF_MEMORY_A_BYTE * input.len() + (mib << 20);
    assert!(time < SLOW, "{place}: {time:?}; {}", kept(file, input));
    assert!(memory <= most, "{place}: {memory} bytes of memory for {} of file; {}", input.len(), kept(file, input));
    let Err(error) = outcome else { return true };
    let message = format!("{error:#}");
    let length = message.chars().count();
    assert!(!message.chars().any(char::is_control), "{place}: {message:?}; {}", kept(file, input));
    assert!(length <= LONGEST_ERROR, "{place}: {length} characters in {message}; {}", kept(file, input));
    false
}

/// Keeps an input that something was found with.
fn kept(file: &Path, input: &[u8]) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let path: PathBuf = std::env::temp_dir().join(format!("fuzz-{}-{name}", std::process::id()));
    std::fs::write(&path, input).unwrap();
    format!("the input is kept in {}", path.display())
}

//! Puts the emulator in the driver's place: a process uses either a card or the emulator.
//!
//! cudarc asks the loader for `libcuda.so`, then for `libcuda.so.1`. A library that is loaded by its path beforehand answers to
//! its soname, `libcuda.so.1`. Where a real driver is installed with its link `libcuda.so`, only `LD_LIBRARY_PATH` decides,
//! and the loader reads that when a process starts. Then [`load`] fails, unless the program did beforehand what [`restart`]
//! says: that is for its `main` alone to do.

use crate::shown::shown_path;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

/// The variable that names the library, where it does not lie beside the program.
pub const VARIABLE: &str = "HANDGRAD_EMULATOR_LIBRARY";
const LIBRARY: &str = "libcuda_emulator.so";
/// The function that only the emulator has.
const REPORT: &[u8] = b"cuEmulatorReport\0";
type Report = unsafe extern "C" fn(*mut u8, usize, *mut usize, u32) -> i32;

static LOADED: OnceLock<std::result::Result<Library, String>> = OnceLock::new();

/// Loads the emulator, if it is not loaded yet, before cudarc looks for a driver.
///
/// Errors: the library is not there, with how to build it; it cannot be loaded; an installed driver would be found first.
pub fn load() -> Result<()> {
    match LOADED.get_or_init(|| try_load().map_err(|error| format!("{error:#}"))) {
        Ok(_) => Ok(()),
        Err(message) => bail!("{message}"),
    }
}

/// What a program that is to use the emulator has to become, before it does anything else: itself, started with the
/// emulator in front of the installed driver. None where that would change nothing: no driver is in the way, or the
/// emulator's library is not there, which `load` says.
pub fn restart() -> Option<Command> {
    if !matches!(Found::now(), Found::Driver) {
        return None;
    }
    let library = find().ok()?;
    let (folder, paths) = (folder(&library), env::var_os("LD_LIBRARY_PATH").unwrap_or_default());
    if env::split_paths(&paths).next().is_some_and(|first| first == folder) {
        return None; // it was started so, and the loader looked elsewhere first
    }
    links(&library, &folder).ok()?;
    let paths = env::join_paths([folder].into_iter().chain(env::split_paths(&paths))).ok()?;
    let mut command = Command::new(env::current_exe().ok()?);
    command.args(env::args_os().skip(1)).env("LD_LIBRARY_PATH", paths);
    Some(command)
}

/// What the loader finds as `libcuda.so`.
enum Found {
    Nothing,
    /// The emulator, because `LD_LIBRARY_PATH` says so.
    Emulator(Library),
    Driver,
}

impl Found {
    fn now() -> Found {
        // SAFETY: loading a driver runs its initialisers only.
        let Ok(library) = (unsafe { Library::open(Some("libcuda.so"), RTLD_NOW) }) else { return Found::Nothing };
        // SAFETY: the symbol is only looked for.
        match unsafe { library.get::<Report>(REPORT) }.is_ok() {
            true => Found::Emulator(library),
            false => Found::Driver,
        }
    }
}

fn try_load() -> Result<Library> {
    let path = match Found::now() {
        Found::Emulator(library) => return Ok(library),
        Found::Nothing => find()?,
        Found::Driver => {
            let path = find()?;
            let folder = folder(&path);
            links(&path, &folder)?;
            bail!(
                "emulator: found an installed driver (libcuda.so) in front of it, expected LD_LIBRARY_PATH={} from this program's start on; a test may use the card instead: HANDGRAD_TEST_DEVICE=cuda",
                shown_path(folder)
            );
        }
    };
    // SAFETY: the emulator's initialisers do nothing.
    unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.with_context(|| shown_path(path))
}

/// Where the links to a library are.
fn folder(library: &Path) -> PathBuf {
    library.parent().unwrap_or(Path::new(".")).join("emulated")
}

/// The library that `VARIABLE` names, or the one beside this program (`target/release`, or `deps` of a test).
fn find() -> Result<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE).map(PathBuf::from) {
        if !path.is_file() {
            bail!("{VARIABLE}: found no file {}, expected {LIBRARY}", shown_path(path));
        }
        // The loader looks for a bare name in its own folders, and a link is relative to where it lies.
        return std::path::absolute(&path).with_context(|| format!("{VARIABLE}: {}", shown_path(path)));
    }
    let program = env::current_exe().context("this program's path")?;
    let folder = program.parent().unwrap_or(Path::new(".")).to_path_buf();
    let candidates = [folder.join(LIBRARY), folder.join("deps").join(LIBRARY)];
    match candidates.into_iter().find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => bail!(
            "emulator: found no {LIBRARY} in {}, expected one: run cargo build --release -p cuda-emulator, or set {VARIABLE}",
            shown_path(folder)
        ),
    }
}

/// Links to the library in `folder`, under the names by which programs look for a driver.
fn links(library: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| shown_path(folder))?;
    for name in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|to| to == library) {
            continue;
        }
        // Two processes may do this at once: the link is made under a name of its own and moved.
        let fresh = folder.join(format!("{name}.{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(library, &fresh).with_context(|| shown_path(&fresh))?;
        std::fs::rename(&fresh, &link).with_context(|| shown_path(&link))?;
    }
    Ok(())
}

/// What the emulator counted in this process so far, as JSON; none where the driver is not the emulator.
pub fn report() -> Option<serde_json::Value> {
    let library = LOADED.get()?.as_ref().ok()?;
    // SAFETY: this is the signature that the emulator documents.
    let report: Symbol<Report> = unsafe { library.get(REPORT) }.ok()?;
    let (mut text, mut needed) = (vec![], 0);
    // Another thread's launch may make the report longer before it is written.
    while text.len() <= needed {
        text = vec![0u8; needed + 4096];
        // SAFETY: `text` has the room that is told; what does not fit is not written.
        unsafe { report(text.as_mut_ptr(), text.len(), &mut needed, 1) };
    }
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    serde_json::from_slice(&text[..end]).ok()
}

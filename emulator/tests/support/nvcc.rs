//! Compiles CUDA C++ to PTX with the first nvcc of release 13 or newer: `NVCC`, `CUDA_HOME/bin`, `CUDA_PATH/bin`, the
//! `PATH`, or `.cuda/bin` of the repository, where `scripts/setup_nvcc.sh` puts one. Results are kept in `target/tmp`.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub const O3: &[&str] = &["-arch=compute_80", "-O3"];
pub const FAST_MATH: &[&str] = &["-arch=compute_80", "-O3", "-use_fast_math"];
pub const ADA: &[&str] = &["-arch=compute_89", "-O3"];
pub const HOPPER: &[&str] = &["-arch=compute_90", "-O3"];
/// Calls and local memory instead of inlined code and registers.
pub const O1: &[&str] = &["-arch=compute_80", "-Xcicc", "-O1"];
pub const DEBUG: &[&str] = &["-arch=compute_80", "-G"];
pub const ALL_FLAGS: [&[&str]; 6] = [O3, FAST_MATH, ADA, HOPPER, O1, DEBUG];

/// A file of the tests' directory, such as `kernels/scan.cu`.
pub fn source_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// The PTX of a file of the tests' directory.
pub fn ptx(name: &str, flags: &[&str]) -> String {
    let source = source_path(name);
    let nvcc = nvcc();
    let mut hash = DefaultHasher::new();
    (&nvcc.version, &source, flags, fs::read(&source).expect(name)).hash(&mut hash);
    for header in headers(source.parent().unwrap()) {
        fs::read(header).unwrap().hash(&mut hash);
    }
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let stem = source.file_stem().unwrap().to_str().unwrap();
    let kept = cache.join(format!("{stem}.{:016x}.ptx", hash.finish()));
    if let Ok(text) = fs::read_to_string(&kept) {
        return text;
    }

    // Written under a name of its own first: tests run side by side.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    fs::create_dir_all(cache).unwrap();
    let fresh = cache.join(format!("{stem}.{}.{}.ptx", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let mut command = Command::new(&nvcc.path);
    command.args(["-ptx", "-std=c++17"]).args(flags).arg(&source).arg("-o").arg(&fresh);
    if !flags.contains(&"-G") {
        command.arg("-lineinfo");
    }
    let output = command.output().unwrap_or_else(|e| panic!("{}: {e}", nvcc.path.display()));
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&fresh).unwrap();
    fs::rename(&fresh, &kept).unwrap();
    text
}

fn headers(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut headers: Vec<_> = files.filter(|path| path.extension().is_some_and(|e| e == "cuh")).collect();
    headers.sort();
    headers
}

struct Nvcc {
    path: PathBuf,
    version: String,
}

fn nvcc() -> &'static Nvcc {
    static FOUND: OnceLock<Nvcc> = OnceLock::new();
    FOUND.get_or_init(|| {
        let found = candidates().into_iter().find_map(|path| {
            let output = Command::new(&path).arg("--version").output().ok()?;
            let version = String::from_utf8(output.stdout).ok()?;
            (release(&version)? >= 13).then_some(Nvcc { path, version })
        });
        found.expect("no nvcc of release 13 or newer was found: run scripts/setup_nvcc.sh, or set NVCC to one")
    })
}

/// 13 of "… release 13.0, V13.0.88".
fn release(version: &str) -> Option<u32> {
    version.split("release ").nth(1)?.split('.').next()?.parse().ok()
}

fn candidates() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = env::var_os("NVCC").map(PathBuf::from).into_iter().collect();
    for home in ["CUDA_HOME", "CUDA_PATH"] {
        paths.extend(env::var_os(home).map(|home| Path::new(&home).join("bin/nvcc")));
    }
    if let Some(path) = env::var_os("PATH") {
        paths.extend(env::split_paths(&path).map(|directory| directory.join("nvcc")));
    }
    paths.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cuda/bin/nvcc"));
    paths
}

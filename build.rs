//! Packs the project's own guide and sources into the built-in corpus, so that training runs without any file.
//!
//! `OUT_DIR/shared.rs` holds the numbers that kernels and launches share, from `kernels/shared.h`.
//! `OUT_DIR/corpus.rs` is one Rust expression: a slice of (path, text) pairs, sorted by path.
//! `src/data/corpus.rs` includes it. With the feature `cuda`, `build/kernels.rs` compiles the kernels.

#[cfg(feature = "cuda")]
#[path = "build/kernels.rs"]
mod kernels;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Folders that the corpus takes files from, and which.
const FOLDERS: [(&str, &[&str]); 3] = [("docs", &["md"]), ("src", &["rs"]), ("kernels", &["cu", "cuh", "h"])];

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), String> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    let mut files = Vec::new();
    // A path that does not exist would make every build run this again, so only what is there is watched.
    for root in ["README.md"].into_iter().chain(FOLDERS.map(|(folder, _)| folder)).map(Path::new) {
        if root.exists() {
            println!("cargo:rerun-if-changed={}", root.display());
        }
        if root.is_file() {
            files.push(root.to_path_buf());
        }
    }
    for (folder, endings) in FOLDERS {
        collect(Path::new(folder), endings, &mut files).map_err(|e| format!("{folder}: cannot be listed: {e}"))?;
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR: not set, expected cargo to set it")?);
    fs::write(out.join("corpus.rs"), pack(&mut files)?).map_err(|e| format!("corpus.rs: cannot be written: {e}"))?;
    let shared =
        fs::read_to_string("kernels/shared.h").map_err(|e| format!("kernels/shared.h: cannot be read: {e}"))?;
    fs::write(out.join("shared.rs"), constants(&shared)).map_err(|e| format!("shared.rs: cannot be written: {e}"))?;
    #[cfg(feature = "cuda")]
    kernels::compile(&files, &out)?;
    Ok(())
}

/// Adds every file below `folder` with one of the `endings`. A folder that is not there has none.
fn collect(folder: &Path, endings: &[&str], files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, endings, files)?;
        } else if path.extension().is_some_and(|ending| endings.iter().any(|e| ending == *e)) {
            files.push(path);
        }
    }
    Ok(())
}

/// The corpus as a Rust expression. Debug formatting of a string is a string literal of the same value.
fn pack(files: &mut [PathBuf]) -> Result<String, String> {
    // As text, so that the order does not depend on how a system compares paths.
    files.sort_by_key(|path| path.to_string_lossy().into_owned());
    let mut packed = String::from("&[\n");
    for path in files {
        let text = fs::read_to_string(&*path).map_err(|e| format!("{}: cannot be read: {e}", path.display()))?;
        // Writing to a string cannot fail.
        let _ = writeln!(packed, "({:?}, {text:?}),", path.to_string_lossy());
    }
    packed.push_str("]\n");
    Ok(packed)
}

/// Every `constexpr int NAME = VALUE;` as a Rust constant.
fn constants(header: &str) -> String {
    let mut text = String::new();
    for definition in header.lines().filter_map(|line| line.strip_prefix("constexpr int ")) {
        if let Some((name, value)) = definition.split(';').next().and_then(|definition| definition.split_once(" = ")) {
            let _ = writeln!(text, "pub const {name}: usize = {value};");
        }
    }
    text
}

//! Where the tests find the shared library, and a folder that offers it under a driver's names.

use std::path::{Path, PathBuf};

/// The library that was built together with this test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test's path");
    let library = test.parent().expect("target/PROFILE/deps").join("libcuda_emulator.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

/// A folder with `libcuda.so` and `libcuda.so.1`, as `scripts/emulated` makes one; each test has its own.
pub fn driver_folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{test}"));
    std::fs::create_dir_all(&folder).expect("a folder for the links");
    for name in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(library(), link).expect("a link to the library");
    }
    folder
}

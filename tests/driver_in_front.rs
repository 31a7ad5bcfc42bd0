//! What a driver that is installed, too old or without a card does to the program: stand-ins for `libcuda.so`, in a folder
//! of their own, in front of which only `LD_LIBRARY_PATH` decides.
#![cfg(feature = "cuda")]

use handgrad::Device;
use std::path::Path;
use std::process::{Command, Output};

/// A driver without a card.
const NO_CARD: &str = r#"
int cuInit(unsigned flags) { return 100; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_NO_DEVICE"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "no CUDA-capable device is detected"; return 0; }
"#;
/// Drivers that have all of the emulator's functions, but for these.
const TOO_OLD: &str = r#"
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuModuleLoadData(void **module, const void *image) { return 222; }
"#;
const NO_BINARY: &str = "int cuModuleLoadData(void **module, const void *image) { return 209; }";

/// A folder with `source` as `libcuda.so`; with the emulator behind it, if it asks for that.
fn driver(source: &str, emulator: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (file, library) = (folder.path().join("driver.c"), folder.path().join("libcuda.so"));
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&file);
    if emulator {
        let link = folder.path().join("libcuda.so.1");
        std::os::unix::fs::symlink(emulator_library(), &link).unwrap();
        compiler.arg("-Wl,--no-as-needed").arg(link).arg(format!("-Wl,-rpath,{}", folder.path().display()));
    }
    assert!(compiler.status().expect("cc").success());
    folder
}

/// It was built together with this test.
fn emulator_library() -> std::path::PathBuf {
    let library = std::env::current_exe().unwrap().with_file_name("libcuda_emulator.so");
    assert!(library.exists(), "{} is missing", library.display());
    library
}

fn handgrad(folder: &Path, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    program.args(arguments).env("LD_LIBRARY_PATH", folder).output().unwrap()
}

/// The one line on standard error of a program that failed.
fn refused(folder: &Path, device: &str) -> String {
    let output = handgrad(folder, &["gradcheck", "--op", "add", "--device", device]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.trim_end().lines().count()), (Some(1), 1), "{said}");
    said
}

#[test]
fn the_program_starts_itself_anew_with_the_emulator_in_front() {
    let folder = driver(NO_CARD, false);
    for device in [&["--device", "emulator"][..], &["--device=emulator"]] {
        let output = handgrad(folder.path(), &[&["gradcheck", "--op", "add"], device].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
    }
    let output = handgrad(folder.path(), &["kernels", "--kernel", "scale_bf16", "--card", "rtx4090"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("scale_bf16"));
}

/// Says to the test below that it is the other program.
const CHILD: &str = "HANDGRAD_TEST_CHILD";

/// Other programs than `handgrad`, such as tests, are not started anew: they are told what to set. The other program is this
/// test, run once more.
#[test]
fn a_library_s_caller_is_told_what_to_set() {
    if std::env::var_os(CHILD).is_some() {
        return match Device::open("emulator") {
            Ok(device) => println!("opened {device}"),
            Err(error) => println!("error: {error:#}"),
        };
    }
    let open_in = |search: &Path| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "a_library_s_caller_is_told_what_to_set", "--nocapture"]);
        let output = child.env("LD_LIBRARY_PATH", search).env(CHILD, "1").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let folder = driver(NO_CARD, false);
    let said = open_in(folder.path());
    assert!(said.contains("error: emulator: found an installed driver"), "{said}");
    let set = said.split("expected LD_LIBRARY_PATH=").nth(1).and_then(|rest| rest.split(' ').next()).expect(&said);
    assert!(said.contains("HANDGRAD_TEST_DEVICE=cuda"), "{said}");
    // And that is enough.
    let said = open_in(Path::new(set));
    assert!(said.contains("opened NVIDIA GeForce RTX 4090 (emulated)"), "{said}");
}

#[test]
fn without_a_card_other_devices_are_named() {
    let folder = driver(NO_CARD, false);
    let said = refused(folder.path(), "cuda");
    assert!(said.contains("CUDA_ERROR_NO_DEVICE") && said.contains("--device emulator or cpu"), "{said}");
}

#[test]
fn a_card_that_is_not_there_is_answered_with_those_that_are() {
    let folder = driver("int nothing;", true);
    let said = refused(folder.path(), "cuda:7");
    let expected = "cuda:7: found 1 card(s), expected one of cuda:0 (NVIDIA GeForce RTX 4090 (emulated))";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn an_old_driver_and_a_card_without_kernels_are_told_the_way_out() {
    let said = refused(driver(TOO_OLD, true).path(), "cuda");
    for part in ["found a driver for CUDA 12.4", "NVCC= of a toolkit of release 12.x", "UNSUPPORTED_PTX_VERSION"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let said = refused(driver(NO_BINARY, true).path(), "cuda");
    assert!(said.contains("found compute capability 8.9") && said.contains("CUDA_COMPUTE_CAP=89"), "{said}");
}

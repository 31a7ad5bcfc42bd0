//! C programs against hand-declared prototypes, linked with `-lcuda` and run with `LD_LIBRARY_PATH`.

mod library;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// Compiles `tests/c/NAME.c` and runs it, in a folder of the test's own.
fn run(test: &str, name: &str, arguments: &[PathBuf], variables: &[(&str, &str)]) -> Output {
    let folder = library::driver_folder(test);
    let program = folder.join(name);
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_string());
    let compiled = Command::new(compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&program)
        .arg(file("c").join(name).with_extension("c"))
        .arg("-L")
        .arg(&folder)
        .args(["-lcuda", "-pthread"])
        .output()
        .expect("a C compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut command = Command::new(program);
    command
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .args(arguments)
        .env("LD_LIBRARY_PATH", folder)
        .envs(variables.iter().copied());
    command.output().expect("the program")
}

fn succeeds(test: &str, name: &str, arguments: &[PathBuf], variables: &[(&str, &str)]) -> (String, String) {
    let output = run(test, name, arguments, variables);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
    (out, err)
}

#[test]
fn saxpy_from_every_kind_of_image() {
    for fatbin in ["size", "speed", "none"] {
        let fatbin = file("fatbin").join(fatbin).with_extension("fatbin");
        let (out, err) = succeeds("saxpy", "saxpy", &[file("saxpy.ptx"), fatbin], &[]);
        assert_eq!((out.as_str(), err.as_str()), ("NVIDIA GeForce RTX 4090 (emulated): 0 failures\n", ""));
    }
}

#[test]
fn bad_input_is_an_error_code_with_a_diagnosis() {
    let (out, err) = succeeds("bad_input", "bad_input", &[file("saxpy.ptx"), file("fatbin/sm89.fatbin")], &[]);
    assert!(out.ends_with("\n0 failures\n"), "{out}");
    assert!(err.contains("cuda-emulator: cuMemAlloc: dptr is a null pointer\n"), "{err}");
    assert!(!err.contains("cuNoSuchThing"), "to ask for a name is no finding: {err}");
}

#[test]
fn a_host_without_room_is_an_error() {
    let (out, err) = succeeds("limited", "limited", &[file("saxpy.ptx")], &[]);
    assert!(out.ends_with("\n0 failures\n"), "{out}");
    assert!(
        err.contains("cuda-emulator: cuModuleLoadData: out of memory: the host has no 1200000000 bytes\n"),
        "{err}"
    );
}

#[test]
fn streams_threads_and_host_memory_come_and_go() {
    let (out, _) = succeeds("lifetimes", "lifetimes", &[file("saxpy.ptx")], &[]);
    assert!(out.ends_with("\n0 failures\n"), "{out}");
}

#[test]
fn a_forked_child_gets_errors_and_writes_no_report() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fork.json");
    let _ = std::fs::remove_file(&path);
    let (out, _) = succeeds("fork", "fork", &[], &[("HANDGRAD_EMULATOR_REPORT", "fork.json")]);
    assert!(out.ends_with("\n0 failures\n"), "{out}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(report["kernels"][0]["launches"], 3);
}

#[test]
fn a_report_through_a_pipe_is_one() {
    let pipe = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.pipe");
    let _ = std::fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::read_to_string(pipe).unwrap()
    });
    let variables = [("HANDGRAD_EMULATOR_STEPS", "10000"), ("HANDGRAD_EMULATOR_REPORT", pipe.to_str().unwrap())];
    succeeds("pipe", "report", &[], &variables);
    let report: serde_json::Value = serde_json::from_str(&reader.join().unwrap()).unwrap();
    assert_eq!(report["kernels"][0]["kernel"], "nothing");
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&std::fs::symlink_metadata(pipe).unwrap().file_type()));
}

#[test]
fn order_between_streams_and_the_host() {
    let (out, _) = succeeds("streams", "streams", &[file("saxpy.ptx")], &[]);
    assert!(out.ends_with("\n0 failures\n"), "{out}");
}

#[test]
fn a_hang_a_leak_and_the_report_of_both() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.json");
    let _ = std::fs::remove_file(&path);
    let variables = [("HANDGRAD_EMULATOR_STEPS", "10000"), ("HANDGRAD_EMULATOR_REPORT", path.to_str().unwrap())];
    let (out, err) = succeeds("report", "report", &[], &variables);
    assert!(out.ends_with("\n0 failures\n"), "{out}");
    assert!(err.contains("cuda-emulator: leak: ") && err.contains("321 bytes"), "{err}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(report["kernels"][0]["kernel"], "nothing");
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().any(|found| found["code"] == 702 && found["count"] == 1), "{findings:?}");
    assert!(findings.iter().any(|found| found["code"] == 401), "{findings:?}");
}

#[test]
fn quiet_says_nothing_on_standard_error() {
    let variables = [("HANDGRAD_EMULATOR_STEPS", "10000"), ("HANDGRAD_EMULATOR_QUIET", "1")];
    let (out, err) = succeeds("quiet", "report", &[], &variables);
    assert!(out.ends_with("\n0 failures\n"), "{out}");
    assert_eq!(err, "");
}

#[test]
fn a_variable_that_is_no_number_is_named() {
    let output = run("number", "report", &[], &[("HANDGRAD_EMULATOR_STEPS", "many")]);
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(err.contains("HANDGRAD_EMULATOR_STEPS=\"many\": expected a whole number"), "{err}");
}

#[test]
fn the_script_says_how_it_is_used() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/emulated");
    let output = Command::new(&script).output().expect("scripts/emulated");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: scripts/emulated PROGRAM"));
    let output = Command::new(&script).arg("no-such-program-anywhere").output().expect("scripts/emulated");
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "emulated: no-such-program-anywhere: no such program\n");
}

#[test]
fn the_script_works_through_a_link() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("link");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/emulated").canonicalize().unwrap();
    std::os::unix::fs::symlink(&script, folder.join("linked")).unwrap();
    // Stands in for cargo: says where it was started and names a library.
    let cargo = folder.join("cargo");
    let text = format!("#!/bin/sh\npwd >&2\necho '\"{}/libcuda_emulator.so\"'\n", folder.display());
    std::fs::write(&cargo, text).unwrap();
    std::fs::set_permissions(&cargo, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let paths = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let output = Command::new(folder.join("linked")).arg("true").env("PATH", paths).output().expect("the link");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    assert_eq!(Path::new(err.trim_end()), script.parent().unwrap().parent().unwrap());
}

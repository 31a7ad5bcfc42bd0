//! `handgrad bench`: what it prints and writes; how fast it is no test asks.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn bench(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    command.arg("bench").args(args).current_dir(dir).env("RUST_BACKTRACE", "0").output().unwrap()
}

/// Runs a bench that must succeed; what it prints, and the numbers in its file.
fn measured(args: &[&str]) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &[args, &["--json", "numbers.json"]].concat());
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let numbers = std::fs::read(dir.path().join("numbers.json")).unwrap();
    (String::from_utf8(output.stdout).unwrap(), serde_json::from_slice(&numbers).unwrap())
}

/// A median between what a tenth is below and above.
fn is_spread(numbers: &Value, median: &str) {
    let get = |key: &str| numbers[key].as_f64().unwrap();
    assert!(0.0 < get("p10") && get("p10") <= get(median) && get(median) <= get("p90"), "{numbers}");
}

#[test]
fn speeds_are_medians_in_a_file() {
    let small = ["--preset", "chapter8", "--batch-size", "2", "--seq-len", "80", "--accumulate", "2", "--steps", "3"];
    let (text, numbers) = measured(&[&["train"][..], &small].concat());
    assert!(text.contains("2 × 2 × 80 tokens a step"), "a longer window than the preset's context: {text}");
    is_spread(&numbers, "tokens_per_s");
    for cache in [&[][..], &["--no-cache"]] {
        let decode = ["decode", "--preset", "chapter8", "--prompt-len", "100", "--max-new", "3"];
        let (text, numbers) = measured(&[&decode[..], cache].concat());
        assert!(text.contains("prompt of 100 tokens") && numbers["cache"] == cache.is_empty(), "{text}");
        assert!(numbers["prefill_ms"].as_f64().unwrap() > 0.0);
        is_spread(&numbers, "ms_per_token");
    }
}

#[test]
fn the_table_has_a_row_for_each_prompt_and_the_report_s_figures() {
    let (text, numbers) = measured(&["kv-cache", "--preset", "chapter8", "--lengths", "5,200"]);
    assert!(text.contains("speed-up") && !text.contains('['), "the report's figures are of its own model: {text}");
    let rows = numbers["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["prompt_len"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 200]);
    rows.iter().for_each(|row| is_spread(row, "ms_per_token"));
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (status, args, part) in [
        (2, &["train", "--preset", "chapter9"][..], "chapter8"),
        (2, &["train", "--preset", "chapter8", "--accumulate", "0"], "--accumulate: found 0"),
        (2, &["train", "--steps", "0"], "0"),
        (2, &["decode", "--prompt-len", "0"], "0"),
        (2, &["fly"], "fly"),
        (1, &["decode", "--preset", "chapter8", "--dtype", "bf16"], "bf16"),
        (1, &["train", "--preset", "chapter8", "--batch-size", "100000000"], "memory"),
    ] {
        let output = bench(dir.path(), args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(status) && error.contains(part), "{args:?}: {error}");
    }
}

//! The command line with CUDA: `handgrad kernels`, and devices that are not there.
#![cfg(feature = "cuda")]

use serde_json::Value;
use std::process::{Command, Output};

fn handgrad(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handgrad")).args(args).output().expect("handgrad runs")
}

/// What went to standard error, which has to be one line; and the exit status.
fn refused(args: &[&str], status: i32) -> String {
    let output = handgrad(args);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    said
}

#[test]
fn kernels_as_json_for_each_card() {
    let output = handgrad(&["kernels", "--kernel", "scale", "--json"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |card: &str| rows.iter().filter(|row| row["card"] == card).collect::<Vec<_>>();
    let (ada, hopper) = (of("NVIDIA GeForce RTX 4090"), of("NVIDIA H200"));
    assert_eq!((ada.len(), hopper.len(), rows.len()), (2, 2, 4), "{text}");
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
        assert!((8.0..=255.0).contains(&number("registers")) && number("spill_bytes") == 0.0, "{row}");
        assert!(number("occupancy_percent") > 0.0 && number("coalescing_percent") <= 100.0, "{row}");
        assert!(row["instructions"]["by_class"].as_object().is_some_and(|classes| !classes.is_empty()), "{row}");
    }
    let aligned = ada.iter().find(|row| row["kernel"] == "scale_f32").unwrap();
    assert_eq!((&aligned["coalescing_percent"], &aligned["bank_conflicts"]), (&100.0.into(), &0.into()));
}

#[test]
fn kernels_as_a_table_of_one_card() {
    let output = handgrad(&["kernels", "--kernel", "scale_bf16", "--card", "rtx4090"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("NVIDIA GeForce RTX 4090: registers and spills from ptxas"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("scale_bf16")).count(), 1, "{text}");
}

#[test]
fn names_that_do_not_exist() {
    let said = refused(&["kernels", "--kernel", "nonsense"], 2);
    assert!(said.contains("found nonsense") && said.contains("attention_forward"), "{said}");
    let said = refused(&["kernels", "--card", "rtx9999"], 2);
    assert!(said.contains("found rtx9999, expected one of rtx4090, h200"), "{said}");
}

#[test]
fn a_card_that_is_not_there_is_named() {
    // Without a driver that is what is missing; with one, this card.
    let said = refused(&["gradcheck", "--op", "add", "--device", "cuda:77"], 1);
    assert!(
        said.contains("found no NVIDIA driver") || said.contains("cuda:77") || said.contains("does not start"),
        "{said}"
    );
}

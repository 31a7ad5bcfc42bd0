//! Damage that was too much once: small files, and what each is refused with now.

use crate::tensors::{classic, small};
use crate::{Reader, check, scratch};
use handgrad::formats::{config_json, model_dir};
use handgrad::nn::ModelConfig;
use handgrad::tokenizer::Tokenizer;
use std::path::Path;

/// Refused with these words, in little memory.
#[track_caller]
fn refused(file: &Path, input: &[u8], load: &dyn Fn() -> anyhow::Result<()>, words: &str) {
    let reader = Reader { name: "found", share: 1, mib: 1, file, load };
    assert!(!check("found", input, &reader), "accepted");
    let said = format!("{:#}", load().unwrap_err());
    assert!(said.contains(words), "{said}");
}

/// The table of positions is a matrix as well, though no product has it.
#[test]
fn a_position_table_that_the_file_cannot_fill() {
    let dir = scratch();
    model_dir::save(dir.path(), &small(), &Tokenizer::bytes(true), 3).unwrap();
    let path = dir.path().join("config.json");
    let load = || model_dir::load(dir.path()).map(|_| ());
    let config = ModelConfig { max_seq_len: 1 << 22, ..classic() };
    let json = config_json::to_json(&config).to_string();
    refused(&path, json.as_bytes(), &load, "expected at least 2 for each of the 33");
}

/// A layer of almost no weights still takes kilobytes.
#[test]
fn more_layers_than_the_file_has_tensors() {
    let dir = scratch();
    model_dir::save(dir.path(), &small(), &Tokenizer::bytes(true), 3).unwrap();
    let path = dir.path().join("config.json");
    let load = || model_dir::load(dir.path()).map(|_| ());
    let tiny = ModelConfig { n_embd: 1, n_head: 1, n_kv_head: 1, head_dim: 1, n_ff: 1, n_layer: 400, ..classic() };
    let json = config_json::to_json(&ModelConfig { vocab_size: 1, ..tiny }).to_string();
    refused(&path, json.as_bytes(), &load, "layers");
}

//! Model files: what is written comes back, what other programs write is understood, what is damaged is refused.

mod atomic_writes;
mod configs;
mod generation;
mod model_weights;
mod rope;
mod tensor_files;
mod tokenizers;
mod words;

use handgrad::formats::{atomic, config_json, model_dir, rope_layout, safetensors, tokenizer_json, weights};
use handgrad::nn::config::{FeedForwardKind, Init, ModelConfig, NormKind, NormPosition, Positions};
use handgrad::ops::RopeScaling;
use handgrad::tokenizer::{END_OF_TEXT, Tokenizer};
use handgrad::{DType, Tensor};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The error as the program shows it; always one line.
fn message<T>(result: anyhow::Result<T>) -> String {
    let message = format!("{:#}", result.err().expect("an error"));
    assert!(!message.contains('\n'), "{message}");
    message
}

#[track_caller]
fn assert_says<T>(result: anyhow::Result<T>, parts: &[&str]) {
    let message = message(result);
    for part in parts {
        assert!(message.contains(part), "'{part}' in: {message}");
    }
}

/// A directory of its own and a file name in it.
fn place(name: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    (dir, path)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn f32s(data: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_vec(data.to_vec(), shape).unwrap()
}

fn iota(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((0..n).map(|i| i as f32).collect(), shape).unwrap()
}

fn named(tensors: &[(&str, Tensor)]) -> Vec<(String, Tensor)> {
    tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect()
}

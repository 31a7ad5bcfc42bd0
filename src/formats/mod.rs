//! Files of the ecosystem: what a model directory holds, in the formats that other programs read and write.
//!
//! | file | here |
//! |---|---|
//! | `config.json`       | [`config_json`]: Hugging Face keys of Qwen3 and Llama, and our own for the rest |
//! | `generation_config.json`, `tokenizer_config.json` | [`generation_config`]: special tokens, where others look for them |
//! | `model.safetensors` | [`weights`], over [`safetensors`] and [`rope_layout`] |
//! | `tokenizer.json`    | [`tokenizer_json`] |
//! | tiktoken's ranks    | [`tiktoken`] |
//!
//! Everything is written through [`atomic`]: a file is its old self or its new self, whatever happens meanwhile. [`lock`]
//! keeps two processes from writing one directory.

pub mod atomic;
pub mod config_json;
pub(crate) mod foreign;
pub mod generation_config;
pub mod lock;
pub mod model_dir;
pub mod rope_layout;
pub mod safetensors;
pub mod tiktoken;
pub mod tokenizer_json;
pub mod weights;

use crate::shown::{json_error, shown_path};
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Reads a JSON file. Errors, each with the path: the file cannot be read; it is not JSON, with what it is instead or
/// the line and column.
pub fn read_json(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).with_context(|| format!("{}: cannot be read", shown_path(path)))?;
    serde_json::from_slice(&bytes).map_err(|error| match foreign::recognised(&bytes) {
        Some(kind) => anyhow!("{}: found {kind}", shown_path(path)),
        None => anyhow!("{}: not valid JSON: {}", shown_path(path), json_error(&error)),
    })
}

/// Writes a JSON file, indented, atomically. Error: the file cannot be written.
pub fn write_json(path: &Path, value: &Value) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    atomic::write_sized(path, Some(text.len() as u64), |file| Ok(file.write_all(&text)?))
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

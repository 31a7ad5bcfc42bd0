//! `generation_config.json` and `tokenizer_config.json`: the special tokens, where other programs look for them.
//!
//! Ids that end a text stand in `generation_config.json`, or else in `config.json`, one or a list. `tokenizer_config.json`
//! names the class that takes our `tokenizer.json` as it is: without it, `transformers` builds the tokenizer that goes with
//! the `model_type`, which cuts text in its own way.

use super::{config_json, read_json, write_json};
use crate::shown::{shown, shown_path};
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value, json};
use std::path::Path;

const FILE: &str = "generation_config.json";

/// What other programs make of a model's numbers, which here are flags of `handgrad generate`.
const NOT_APPLIED: [&str; 9] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "suppress_tokens",
    "forced_eos_token_id",
];

/// `bos_token_id` and `eos_token_id` as the files have them; `null` keeps a class from taking its own default.
pub fn special_ids(tokenizer: &Tokenizer) -> [(&'static str, Option<u32>); 2] {
    [("bos_token_id", tokenizer.begin_of_text()), ("eos_token_id", tokenizer.end_of_text())]
}

/// Writes both files. Errors: a file that cannot be written; a special token without a text.
pub fn write(dir: &Path, tokenizer: &Tokenizer, max_seq_len: usize) -> Result<()> {
    let ids: Map<String, Value> =
        special_ids(tokenizer).map(|(key, id)| (key.to_string(), json!(id))).into_iter().collect();
    write_json(&dir.join(FILE), &Value::Object(ids))?;
    write_tokenizer_config(dir, tokenizer, Some(max_seq_len))
}

/// Writes `tokenizer_config.json`, with the texts of the tokens that begin and end a text; what else stands there stays.
/// Errors: as [`write()`]; a file that is there and no JSON.
pub fn write_tokenizer_config(dir: &Path, tokenizer: &Tokenizer, max_seq_len: Option<usize>) -> Result<()> {
    let path = dir.join("tokenizer_config.json");
    let mut json = if path.exists() { read_json(&path)? } else { json!({}) };
    ensure!(json.is_object(), "{}: found {}, expected an object", shown_path(&path), shown(&json));
    json["tokenizer_class"] = json!("PreTrainedTokenizerFast");
    json["clean_up_tokenization_spaces"] = json!(false);
    if let Some(length) = max_seq_len {
        json["model_max_length"] = json!(length);
    }
    for (key, id) in special_ids(tokenizer) {
        let text =
            id.map(|id| String::from_utf8(tokenizer.decode(&[id])?).context("a special token that is not UTF-8"));
        json[key.trim_end_matches("_id")] = json!(text.transpose()?);
    }
    write_json(&path, &json)
}

/// The ids that end a text of the model in `dir`: those of its files, or else the tokenizer's. `warn` is told of settings
/// that are left to flags. Errors: a file that is not JSON; something else than ids.
pub fn end_of_text_ids(dir: &Path, tokenizer: &Tokenizer, warn: &mut dyn FnMut(&str)) -> Result<Vec<u32>> {
    let path = dir.join(FILE);
    let mut found = None;
    if path.exists() {
        let json = read_json(&path)?;
        found = ids(&json["eos_token_id"]).with_context(|| shown_path(&path))?;
        let left: Vec<String> = NOT_APPLIED
            .iter()
            .filter(|key| !json[**key].is_null())
            .map(|key| format!("{key} {}", shown(&json[*key])))
            .collect();
        if !left.is_empty() {
            warn(&format!("{}: not applied, flags set what there is: {}", shown_path(&path), left.join(", ")));
        }
    }
    if found.is_none() {
        let path = dir.join("config.json");
        let json = read_json(&path)?;
        let id = json.get("eos_token_id").cloned().unwrap_or_else(|| config_json::default_end_of_text(&json));
        found = ids(&id).with_context(|| shown_path(&path))?;
    }
    Ok(found.unwrap_or_else(|| tokenizer.end_of_text().into_iter().collect()))
}

/// One id or a list; `None` of `null`.
fn ids(value: &Value) -> Result<Option<Vec<u32>>> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let found = match value {
        Value::Null => return Ok(None),
        Value::Array(values) => values.iter().map(id).collect::<Option<Vec<u32>>>(),
        one => id(one).map(|id| vec![id]),
    };
    let found =
        found.with_context(|| format!("eos_token_id: found {}, expected an id or a list of ids", shown(value)))?;
    Ok(Some(found))
}

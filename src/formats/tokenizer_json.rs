//! `tokenizer.json`: a tokenizer in the format of Hugging Face's `tokenizers` library.
//!
//! Characters and bytes are written as byte-pair models that merge nothing: a vocabulary of single characters. For
//! bytes those are the 256 printable characters by which the format stands for bytes, see [`printable`](fn@printable),
//! and the text passes through its `ByteLevel` step on the way in and out. End-of-text is an added special token.
//! Byte-pair tokenizers proper are in `bpe`. The library gives the same ids for the same text, except that it also
//! turns a special token's text quoted in a text into the special token, as [`Tokenizer::encode`] does.

mod bpe;
mod steps;

pub use crate::tokenizer::bpe::printable::printable;

use super::{read_json, write_json};
use crate::shown::{quoted, shown, shown_path};
use crate::tokenizer::bpe::{Matching, SpecialToken};
use crate::tokenizer::{ByteTokenizer, CharTokenizer, END_OF_TEXT, Tokenizer};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::path::Path;

const KNOWN: [&str; 5] = ["version", "added_tokens", "pre_tokenizer", "decoder", "model"];
/// What programs do to batches of texts, which no text on its own shows.
const NOT_APPLIED: [&str; 2] = ["truncation", "padding"];

/// Reads a tokenizer. Errors, each with the file: it cannot be read; it is not JSON; what [`from_json`] refuses.
pub fn read(path: &Path) -> Result<Tokenizer> {
    read_with(path, &mut |_| ())
}

/// Reads a tokenizer; `warn` is told of what is not applied. The token that ends a document is the one that a
/// `tokenizer_config.json` beside it names. Errors: as [`read`].
pub fn read_with(path: &Path, warn: &mut dyn FnMut(&str)) -> Result<Tokenizer> {
    let json = read_json(path)?;
    for key in NOT_APPLIED.into_iter().filter(|key| !json[key].is_null()) {
        warn(&format!("{}: {key} is not applied, which is for batches of texts", shown_path(path)));
    }
    let mut tokenizer = from_json(&json).with_context(|| shown_path(path))?;
    let config = path.with_file_name("tokenizer_config.json");
    if path.ends_with("tokenizer.json") && config.exists() {
        let json = read_json(&config)?;
        let end = json.get("eos_token").map(|end| end.get("content").unwrap_or(end));
        let text = end.and_then(Value::as_str);
        if end.is_some_and(|end| text.is_some() || end.is_null())
            && let Err(error) = tokenizer.set_end_of_text(text)
        {
            warn(&format!("{}: eos_token is left aside: {error:#}", shown_path(&config)));
        }
    }
    Ok(tokenizer)
}

/// Writes a tokenizer atomically. Errors: a special token that the format cannot tell from an ordinary one; the file
/// cannot be written.
pub fn write(path: &Path, tokenizer: &Tokenizer) -> Result<()> {
    if let Tokenizer::Bpe(tokenizer) = tokenizer {
        bpe::check(tokenizer).with_context(|| shown_path(path))?;
    }
    write_json(path, &to_json(tokenizer))
}

/// The step before or after a byte model that turns text into printable bytes or back.
fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false})
}

/// The file's content for a tokenizer.
pub fn to_json(tokenizer: &Tokenizer) -> Value {
    let (tokens, pre_tokenizer, decoder): (Vec<char>, Value, Value) = match tokenizer {
        Tokenizer::Char(chars) => (chars.chars().to_vec(), Value::Null, json!({"type": "Fuse"})),
        Tokenizer::Bytes(_) => ((0..=255).map(printable).collect(), byte_level(), byte_level()),
        Tokenizer::Bpe(tokenizer) => return bpe::to_json(tokenizer),
    };
    let vocab: Map<String, Value> = tokens.iter().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let end_of_text = tokenizer.end_of_text().map(|id| added_token(&SpecialToken::new(id, END_OF_TEXT)));
    file(Vec::from_iter(end_of_text), Value::Null, pre_tokenizer, Value::Null, decoder, model(vocab, Vec::new(), false))
}

/// A number that tells tokenizers apart: FNV-1a over the file's content, and over the token that ends documents where it is
/// another than by its name, 64 bits. It is the same on every machine.
pub fn fingerprint(tokenizer: &Tokenizer) -> u64 {
    let mut text = to_json(tokenizer).to_string();
    if let Tokenizer::Bpe(tokenizer) = tokenizer
        && tokenizer.end_of_text() != tokenizer.end_by_name()
    {
        text.push_str(&format!("{:?}", tokenizer.end_of_text()));
    }
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

fn added_token(token: &SpecialToken) -> Value {
    let Matching { single_word, lstrip, rstrip, normalized } = token.matching;
    json!({
        "id": token.id, "content": token.text, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
        "normalized": normalized, "special": token.special,
    })
}

fn model(vocab: Map<String, Value>, merges: Vec<Value>, ignore_merges: bool) -> Value {
    json!({
        "type": "BPE",
        "dropout": null,
        "unk_token": null,
        "continuing_subword_prefix": null,
        "end_of_word_suffix": null,
        "fuse_unk": false,
        "byte_fallback": false,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": merges,
    })
}

fn file(
    added: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Value,
) -> Value {
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    })
}

/// The tokenizer in a file's content. Error: anything that would make other ids than the three kinds of tokenizer make.
pub fn from_json(json: &Value) -> Result<Tokenizer> {
    let json = object(json, "tokenizer")?;
    let is_bpe = bpe::is_bpe(json);
    let steps: &[&str] = if is_bpe { &["normalizer", "post_processor"] } else { &[] };
    let known = |key: &str| KNOWN.contains(&key) || NOT_APPLIED.contains(&key) || steps.contains(&key);
    // Other steps change the text or the ids, whatever they are called: none may be there.
    for (key, value) in json.iter().filter(|(key, _)| !known(key)) {
        ensure!(
            value.is_null(),
            "{}: found {}, expected null: this step is not supported",
            shown(key),
            shown_json(value)
        );
    }
    if is_bpe {
        return Ok(Tokenizer::Bpe(Box::new(bpe::from_json(json)?)));
    }
    let tokens = vocabulary(json.get("model").unwrap_or(&Value::Null))?;
    let added = json.get("added_tokens").unwrap_or(&Value::Null);
    let pre_tokenizer = json.get("pre_tokenizer").unwrap_or(&Value::Null);
    let decoder = json.get("decoder").unwrap_or(&Value::Null);
    if pre_tokenizer.is_null() {
        ensure!(decoder["type"] == "Fuse", "decoder: found {}, expected Fuse for characters", shown_json(decoder));
        let end_of_text = end_of_text(added, tokens.len())?;
        return Ok(Tokenizer::Char(CharTokenizer::from_chars(tokens, end_of_text)?));
    }
    check_byte_level(pre_tokenizer, decoder)?;
    check_bytes(&tokens)?;
    Ok(Tokenizer::Bytes(ByteTokenizer::new(end_of_text(added, tokens.len())?)))
}

/// The characters of a model that merges nothing, by id.
fn vocabulary(model: &Value) -> Result<Vec<char>> {
    let model = object(model, "model")?;
    let kind = model.get("type").unwrap_or(&Value::Null);
    ensure!(kind == "BPE", "model.type: found {}, expected BPE", shown_json(kind));
    let merges = model.get("merges").and_then(Value::as_array).context("model.merges: missing, expected a list")?;
    ensure!(merges.is_empty(), "model.merges: found {} merges, expected none: merges are not supported", merges.len());
    let plain = |value: &Value| value.is_null() || value == &json!(false) || value == "" || value == &json!(0.0);
    for (key, value) in
        model.iter().filter(|(key, _)| !["type", "merges", "vocab", "ignore_merges"].contains(&key.as_str()))
    {
        ensure!(plain(value), "model.{}: found {}, expected it switched off", shown(key), shown_json(value));
    }
    let vocab = object(model.get("vocab").unwrap_or(&Value::Null), "model.vocab")?;
    let mut tokens = vec![None; vocab.len()];
    for (token, id) in vocab {
        let mut chars = token.chars();
        let (Some(c), None) = (chars.next(), chars.next()) else {
            bail!("model.vocab: found token {}, expected single characters", quoted(token));
        };
        let place = id.as_u64().and_then(|id| tokens.get_mut(usize::try_from(id).ok()?));
        let found = || format!("model.vocab: found id {} of {}", shown_json(id), quoted(token));
        let place = place.with_context(|| format!("{}, expected 0 to {}", found(), vocab.len() - 1))?;
        if let Some(other) = place.replace(c) {
            bail!("model.vocab: found id {id} for both {other:?} and {c:?}, expected each id once");
        }
    }
    // As many different ids as there are places: none is empty.
    Ok(tokens.into_iter().flatten().collect())
}

/// Whether the file adds end-of-text, the only token that may be added. Its id follows those of the vocabulary.
fn end_of_text(added: &Value, id: usize) -> Result<bool> {
    for token in added.as_array().into_iter().flatten() {
        let (content, found) = (&token["content"], &token["id"]);
        ensure!(content == END_OF_TEXT, "added_tokens: found {}, expected only {END_OF_TEXT}", shown_json(content));
        ensure!(found == &json!(id), "added_tokens: found id {} for {END_OF_TEXT}, expected {id}", shown_json(found));
    }
    let count = added.as_array().map_or(0, Vec::len);
    ensure!(count <= 1, "added_tokens: found {END_OF_TEXT} {count} times, expected it once");
    Ok(count == 1)
}

/// Refuses steps that would split or change the text.
fn check_byte_level(pre_tokenizer: &Value, decoder: &Value) -> Result<()> {
    for (key, step) in [("pre_tokenizer", pre_tokenizer), ("decoder", decoder)] {
        ensure!(step["type"] == "ByteLevel", "{key}: found {}, expected ByteLevel", shown_json(step));
    }
    // The library's own default is true, so an absent key means true.
    let prefix = pre_tokenizer.get("add_prefix_space").unwrap_or(&Value::Bool(true));
    ensure!(prefix == &json!(false), "pre_tokenizer.add_prefix_space: found {}, expected false", shown_json(prefix));
    Ok(())
}

/// Refuses other ids than the bytes' own values.
fn check_bytes(tokens: &[char]) -> Result<()> {
    ensure!(
        tokens.len() == ByteTokenizer::BYTES,
        "model.vocab: found {} tokens, expected the {} bytes",
        tokens.len(),
        ByteTokenizer::BYTES
    );
    for (byte, &token) in (0..=255).zip(tokens) {
        let expected = printable(byte);
        ensure!(token == expected, "model.vocab: found {token:?} at id {byte}, expected {expected:?}");
    }
    Ok(())
}

fn object<'a>(value: &'a Value, key: &str) -> Result<&'a Map<String, Value>> {
    value.as_object().with_context(|| format!("{key}: found {}, expected an object", shown_json(value)))
}

/// A value as errors show it: of an object its type.
fn shown_json(value: &Value) -> String {
    match value.get("type") {
        Some(Value::String(kind)) => shown(kind),
        _ => shown(value),
    }
}

//! Byte-pair tokenizers in `tokenizer.json`: GPT-2's, Qwen2's and Qwen3's, Llama 3's, and our own.
//!
//! ```text
//! normalizer      none, or NFC                                   in `steps`
//! pre_tokenizer   ByteLevel, with splits before it               in `steps`
//! added_tokens    with their conditions; they may be ordinary tokens too
//! model           BPE over printable characters; added tokens stand in its vocabulary too, so that their ids need not be last
//! post_processor  none, ByteLevel, or a TemplateProcessing that puts one token before the text
//! decoder         ByteLevel
//! ```
//!
//! Anything else would change ids, and is an error that names it.

use super::{added_token, byte_level, file, model, object, shown_json, steps};
use crate::shown::{quoted, shown};
use crate::tokenizer::bpe::printable::{bytes_of, text_of};
use crate::tokenizer::bpe::{BpeParts, BpeTokenizer, Matching, SpecialToken};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// Whether a file holds byte pairs, and not one of the two simpler kinds that merge nothing and split nothing.
pub fn is_bpe(json: &Map<String, Value>) -> bool {
    let absent = Value::Null;
    let step = json.get("pre_tokenizer").unwrap_or(&absent);
    match step["type"].as_str() {
        Some("Sequence") => true,
        Some("ByteLevel") => {
            let merges = json.get("model").and_then(|model| model["merges"].as_array());
            step["use_regex"] != false || merges.is_some_and(|merges| !merges.is_empty())
        }
        _ => false,
    }
}

/// Checks that the format can hold a tokenizer. Error: an added token whose text is that of another ordinary token in
/// the file.
pub fn check(tokenizer: &BpeTokenizer) -> Result<()> {
    for token in tokenizer.specials().tokens() {
        let id = bytes_of(&token.text).and_then(|bytes| tokenizer.id_of(&bytes));
        if let Some(id) = id.filter(|id| *id != token.id) {
            bail!("special token {}: found the ordinary token {id} written in the same way", quoted(&token.text));
        }
    }
    Ok(())
}

pub fn to_json(tokenizer: &BpeTokenizer) -> Value {
    let parts = tokenizer.parts();
    let specials = &parts.specials; // by id
    let texts = parts.tokens.iter().map(|token| token.as_deref().map(text_of));
    let ordinary = (0..).zip(texts).filter_map(|(id, text)| Some((id, text?)));
    let special = specials.iter().map(|token| (token.id, token.text.clone()));
    let mut vocab: Vec<(u32, String)> = ordinary.chain(special).collect();
    vocab.sort();
    vocab.dedup(); // an added token may be an ordinary one, too
    let text = |id: u32| parts.tokens[id as usize].as_deref().map(text_of).unwrap_or_default();
    let merges = parts.merges.iter().map(|&(left, right)| json!(format!("{} {}", text(left), text(right))));
    let begin = parts.begin.and_then(|id| tokenizer.specials().get(id));
    file(
        specials.iter().map(added_token).collect(),
        if parts.nfc { json!({"type": "NFC"}) } else { Value::Null },
        steps::pre_tokenizer(&parts.splits),
        begin.map_or(Value::Null, template),
        byte_level(),
        model(vocab.into_iter().map(|(id, text)| (text, json!(id))).collect(), merges.collect(), parts.whole_pieces),
    )
}

/// One token before each text.
fn template(begin: &SpecialToken) -> Value {
    let (id, text) = (begin.id, &begin.text);
    let token = |kind: u32| json!({"SpecialToken": {"id": text, "type_id": kind}});
    let sequence = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
    json!({
        "type": "TemplateProcessing",
        "single": [token(0), sequence("A", 0)],
        "pair": [token(0), sequence("A", 0), token(1), sequence("B", 1)],
        "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}},
    })
}

/// The tokenizer in a file's content. Errors, each with the key, what was found and what was expected: a step that
/// would make other ids; parts that [`BpeTokenizer::new`] refuses.
pub fn from_json(json: &Map<String, Value>) -> Result<BpeTokenizer> {
    let get = |key: &str| json.get(key).unwrap_or(&Value::Null);
    let nfc = steps::nfc(get("normalizer"))?;
    let splits = steps::splits(get("pre_tokenizer"))?;
    let decoder = get("decoder");
    ensure!(decoder["type"] == "ByteLevel", "decoder: found {}, expected ByteLevel", shown_json(decoder));
    let specials = added_tokens(get("added_tokens"))?;
    let model = object(get("model"), "model")?;
    let whole_pieces = check_model(model)?;
    let (tokens, merges) = vocabulary(model, &specials)?;
    let begin = begin(get("post_processor"), &specials)?;
    let parts = BpeParts { splits, nfc, whole_pieces, tokens, merges, specials, begin };
    BpeTokenizer::new(parts).context("model")
}

fn added_tokens(added: &Value) -> Result<Vec<SpecialToken>> {
    let token = |token: &Value| {
        let text = token["content"].as_str().with_context(|| {
            format!("added_tokens: found content {}, expected a text", shown_json(&token["content"]))
        })?;
        let id = id_of(&token["id"])
            .with_context(|| format!("added_tokens: found id {} of {}", shown_json(&token["id"]), quoted(text)))?;
        let is = |key: &str| token[key] == true;
        let (single_word, lstrip, rstrip) = (is("single_word"), is("lstrip"), is("rstrip"));
        let matching = Matching { single_word, lstrip, rstrip, normalized: is("normalized") };
        Ok(SpecialToken { id, text: text.to_string(), special: is("special"), matching })
    };
    added.as_array().into_iter().flatten().map(token).collect()
}

fn id_of(value: &Value) -> Result<u32> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < u32::MAX);
    id.context("expected a whole number below 4294967295")
}

/// Refuses what is not plain BPE; whether pieces that are tokens skip the merges.
fn check_model(model: &Map<String, Value>) -> Result<bool> {
    let kind = model.get("type").unwrap_or(&Value::Null);
    // Old files do not say; they have merges all the same.
    ensure!(kind == "BPE" || kind.is_null(), "model.type: found {}, expected BPE", shown_json(kind));
    let plain = |value: &Value| value.is_null() || value == &json!(false) || value == "" || value == &json!(0.0);
    // With a token for every byte nothing is unknown.
    let free = ["type", "vocab", "merges", "ignore_merges", "unk_token", "fuse_unk"];
    for (key, value) in model.iter().filter(|(key, _)| !free.contains(&key.as_str())) {
        ensure!(plain(value), "model.{}: found {}, expected it switched off", shown(key), shown_json(value));
    }
    Ok(model.get("ignore_merges") == Some(&Value::Bool(true)))
}

type Vocabulary = (Vec<Option<Vec<u8>>>, Vec<(u32, u32)>);

/// The ordinary tokens by id, and the merges.
fn vocabulary(model: &Map<String, Value>, specials: &[SpecialToken]) -> Result<Vocabulary> {
    let vocab = object(model.get("vocab").unwrap_or(&Value::Null), "model.vocab")?;
    let merges = model.get("merges").and_then(Value::as_array).context("model.merges: missing, expected a list")?;
    let merged = |(rank, merge): (usize, &Value)| {
        two_texts(merge)
            .map(|(left, right)| (left.to_string(), right.to_string()))
            .with_context(|| format!("model.merges: found {} as merge {rank}, expected two tokens", shown_json(merge)))
    };
    let merges = merges.iter().enumerate().map(merged).collect::<Result<Vec<_>>>()?;
    let tokens = ordinary_tokens(vocab, &merges, specials)?;
    let id = |text: &str, rank: usize| {
        let id = vocab.get(text).and_then(|id| id_of(id).ok());
        id.with_context(|| {
            format!("model.merges: found {} in merge {rank}, expected a token of the vocabulary", quoted(text))
        })
    };
    let merge = |(rank, (left, right)): (usize, &(String, String))| Ok((id(left, rank)?, id(right, rank)?));
    let merges = merges.iter().enumerate().map(merge).collect::<Result<_>>()?;
    Ok((tokens, merges))
}

/// The bytes of each id of the vocabulary. An added token that stands in it is an ordinary one only if it is a byte or
/// merges make or use it.
fn ordinary_tokens(
    vocab: &Map<String, Value>,
    merges: &[(String, String)],
    specials: &[SpecialToken],
) -> Result<Vec<Option<Vec<u8>>>> {
    let special: HashMap<&str, u32> = specials.iter().map(|token| (token.text.as_str(), token.id)).collect();
    let of_merge = |(left, right): &(String, String)| [left.clone(), right.clone(), format!("{left}{right}")];
    let merged: HashSet<String> =
        merges.iter().flat_map(of_merge).filter(|text| special.contains_key(text.as_str())).collect();
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    for (text, id) in vocab {
        let id = id_of(id).with_context(|| format!("model.vocab: found id {} of {}", shown_json(id), quoted(text)))?;
        if let Some(added) = special.get(text.as_str()) {
            ensure!(
                *added == id,
                "added_tokens: found id {added} of {}, expected {id}, as in model.vocab",
                quoted(text)
            );
            if text.chars().nth(1).is_some() && !merged.contains(text) {
                continue;
            }
        }
        let bytes = bytes_of(text).with_context(|| {
            format!("model.vocab: found {}, expected only the 256 characters that stand for bytes", quoted(text))
        })?;
        let place = id as usize;
        // A file names each token, so ids far beyond their number would only waste memory.
        ensure!(
            place < 16 * (vocab.len() + 1024),
            "model.vocab: found id {id} of {}, expected fewer gaps",
            quoted(text)
        );
        if place >= tokens.len() {
            tokens.resize(place + 1, None);
        }
        if tokens[place].replace(bytes).is_some() {
            bail!("model.vocab: found id {id} twice, expected each id once");
        }
    }
    Ok(tokens)
}

/// `"a b"`, as all files had it once, or `["a", "b"]`.
fn two_texts(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => text.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        Value::Array(parts) => match parts.as_slice() {
            [left, right] => Some((left.as_str()?, right.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

/// The token that a post-processor puts before a text. `ByteLevel` moves offsets, which are no concern here.
fn begin(step: &Value, specials: &[SpecialToken]) -> Result<Option<u32>> {
    match step["type"].as_str() {
        None if step.is_null() => Ok(None),
        Some("ByteLevel") => Ok(None),
        Some("Sequence") => {
            let steps = step["processors"].as_array().map_or(&[][..], Vec::as_slice);
            let all = steps.iter().map(|step| begin(step, specials)).collect::<Result<Vec<_>>>()?;
            let mut found = all.into_iter().flatten();
            let first = found.next();
            ensure!(found.next().is_none(), "post_processor: found two tokens before the text, expected one");
            Ok(first)
        }
        Some("TemplateProcessing") => {
            let single = step["single"].as_array().map_or(&[][..], Vec::as_slice);
            let begin = match single {
                [text] if text["Sequence"]["id"] == "A" => return Ok(None),
                [token, text] if text["Sequence"]["id"] == "A" => token["SpecialToken"]["id"].as_str(),
                _ => None,
            };
            let id = begin.and_then(|text| specials.iter().find(|token| token.text == text)).map(|token| token.id);
            let found = || format!("post_processor: found a TemplateProcessing of {}", shown_json(&step["single"]));
            Ok(Some(id.with_context(|| format!("{}, expected one added token and the text", found()))?))
        }
        _ => bail!("post_processor: found {}, expected ByteLevel, TemplateProcessing or null", shown_json(step)),
    }
}

//! Byte-pair tokenizers in `tokenizer.json`: GPT-2's, Qwen2's and Qwen3's, Llama 3's, and our own.
//!
//! ```text
//! normalizer      none, or NFC
//! pre_tokenizer   ByteLevel with its own regular expression, which is GPT-2's; or a Sequence of Split, with a known one, and ByteLevel
//! model           BPE over printable characters; special tokens stand in its vocabulary too, so that their ids need not be last
//! post_processor  none, ByteLevel, or a TemplateProcessing that puts one token before the text
//! decoder         ByteLevel
//! ```
//!
//! Anything else would change ids, and is an error that names it.

use super::{added_token, byte_level, file, model, object, shown_json};
use crate::shown::{quoted, shown};
use crate::tokenizer::bpe::printable::{bytes_of, text_of};
use crate::tokenizer::bpe::{BpeParts, BpeTokenizer, Pattern, SpecialToken};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

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

/// Checks that the format can hold a tokenizer. Error: a special token whose text is that of an ordinary token in the
/// file.
pub fn check(tokenizer: &BpeTokenizer) -> Result<()> {
    for token in tokenizer.specials().tokens() {
        let id = bytes_of(&token.text).and_then(|bytes| tokenizer.id_of(&bytes));
        if let Some(id) = id {
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
    let text = |id: u32| parts.tokens[id as usize].as_deref().map(text_of).unwrap_or_default();
    let merges = parts.merges.iter().map(|&(left, right)| json!(format!("{} {}", text(left), text(right))));
    let begin = parts.begin.and_then(|id| tokenizer.specials().get(id));
    file(
        specials.iter().map(|token| added_token(token.id, &token.text, token.hidden)).collect(),
        if parts.nfc { json!({"type": "NFC"}) } else { Value::Null },
        pre_tokenizer(parts.pattern),
        begin.map_or(Value::Null, template),
        byte_level(),
        model(vocab.into_iter().map(|(id, text)| (text, json!(id))).collect(), merges.collect(), parts.whole_pieces),
    )
}

fn pre_tokenizer(pattern: Pattern) -> Value {
    if pattern == Pattern::Gpt2 {
        return json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    }
    let regex = pattern.regex();
    let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    json!({"type": "Sequence", "pretokenizers": [split, byte_level()]})
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
    let known = ["version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"];
    for (key, value) in json.iter().filter(|(key, _)| !known.contains(&key.as_str())) {
        ensure!(
            value.is_null(),
            "{}: found {}, expected null: this step is not supported",
            shown(key),
            shown_json(value)
        );
    }
    let normalizer = get("normalizer");
    let nfc = match normalizer["type"].as_str() {
        Some("NFC") => true,
        _ if normalizer.is_null() => false,
        _ => bail!("normalizer: found {}, expected NFC or null", shown_json(normalizer)),
    };
    let pattern = pattern(get("pre_tokenizer"))?;
    let decoder = get("decoder");
    ensure!(decoder["type"] == "ByteLevel", "decoder: found {}, expected ByteLevel", shown_json(decoder));
    let specials = added_tokens(get("added_tokens"), nfc)?;
    let model = object(get("model"), "model")?;
    let whole_pieces = check_model(model)?;
    let (tokens, merges) = vocabulary(model, &specials)?;
    let begin = begin(get("post_processor"), &specials)?;
    let parts = BpeParts { pattern, nfc, whole_pieces, tokens, merges, specials, begin };
    BpeTokenizer::new(parts).context("model")
}

fn pattern(step: &Value) -> Result<Pattern> {
    if step["type"] == "ByteLevel" {
        check_byte_level(step, "pre_tokenizer")?;
        let regex = &step["use_regex"];
        ensure!(
            *regex != false,
            "pre_tokenizer.use_regex: found false, expected true: merges across words are not supported"
        );
        return Ok(Pattern::Gpt2);
    }
    let steps = step["pretokenizers"].as_array().map_or(&[][..], Vec::as_slice);
    let [split, byte_level] = steps else {
        let kinds: Vec<String> = steps.iter().take(4).map(shown_json).collect();
        let found = shown(kinds.join(", "));
        bail!("pre_tokenizer: found a Sequence of [{found}], expected Split and ByteLevel");
    };
    ensure!(split["type"] == "Split", "pre_tokenizer.pretokenizers: found {}, expected Split first", shown_json(split));
    ensure!(
        byte_level["type"] == "ByteLevel",
        "pre_tokenizer.pretokenizers: found {}, expected ByteLevel second",
        shown_json(byte_level)
    );
    check_byte_level(byte_level, "pre_tokenizer.pretokenizers")?;
    let uses_regex = &byte_level["use_regex"];
    ensure!(
        *uses_regex == false,
        "ByteLevel.use_regex: found {}, expected false after a Split",
        shown_json(uses_regex)
    );
    let (behavior, invert) = (&split["behavior"], &split["invert"]);
    ensure!(behavior == "Isolated", "Split.behavior: found {}, expected Isolated", shown_json(behavior));
    ensure!(invert != &json!(true), "Split.invert: found true, expected false");
    let regex = &split["pattern"]["Regex"];
    let known = Pattern::ALL.into_iter().find(|pattern| regex == pattern.regex());
    known.with_context(|| {
        format!("Split.pattern: found {}, expected that of GPT-2, Qwen2 or Llama 3", shown_json(&split["pattern"]))
    })
}

/// Refuses what would put a blank before the text. The library's own default is to do it.
fn check_byte_level(step: &Value, place: &str) -> Result<()> {
    let prefix = step.get("add_prefix_space").unwrap_or(&Value::Bool(true));
    ensure!(prefix == &json!(false), "{place}.add_prefix_space: found {}, expected false", shown_json(prefix));
    Ok(())
}

fn added_tokens(added: &Value, nfc: bool) -> Result<Vec<SpecialToken>> {
    let token = |token: &Value| {
        let text = token["content"].as_str().with_context(|| {
            format!("added_tokens: found content {}, expected a text", shown_json(&token["content"]))
        })?;
        let id = id_of(&token["id"])
            .with_context(|| format!("added_tokens: found id {} of {}", shown_json(&token["id"]), quoted(text)))?;
        for key in ["single_word", "lstrip", "rstrip"] {
            ensure!(token[key] != true, "added_tokens: found {} with {key}, expected it switched off", quoted(text));
        }
        // Whether a text is normalised before it is searched makes no difference where nothing is.
        ensure!(
            !nfc || token["normalized"] != true,
            "added_tokens: found {} normalized, expected it not to be",
            quoted(text)
        );
        Ok(SpecialToken { id, text: text.to_string(), hidden: token["special"] == true })
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
    let mut tokens: Vec<Option<Vec<u8>>> = Vec::new();
    for (text, id) in vocab {
        let id = id_of(id).with_context(|| format!("model.vocab: found id {} of {}", shown_json(id), quoted(text)))?;
        if specials.iter().any(|special| special.id == id && special.text == *text) {
            continue;
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
    let merges = model.get("merges").and_then(Value::as_array).context("model.merges: missing, expected a list")?;
    let id = |text: &str, rank: usize| {
        let id = vocab.get(text).and_then(|id| id_of(id).ok());
        id.with_context(|| {
            format!("model.merges: found {} in merge {rank}, expected a token of the vocabulary", quoted(text))
        })
    };
    let merge = |(rank, merge): (usize, &Value)| {
        let (left, right) = two_texts(merge).with_context(|| {
            format!("model.merges: found {} as merge {rank}, expected two tokens", shown_json(merge))
        })?;
        Ok((id(left, rank)?, id(right, rank)?))
    };
    let merges = merges.iter().enumerate().map(merge).collect::<Result<_>>()?;
    Ok((tokens, merges))
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

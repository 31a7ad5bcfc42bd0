//! The steps before a byte-pair model in `tokenizer.json`: what a text is made into, and how it is cut.
//!
//! | in the file | here |
//! |---|---|
//! | `Sequence` | its steps in a row |
//! | normalizer `NFC` | yes; every other is refused |
//! | `ByteLevel` with `use_regex` | GPT-2's pattern; it stands last, as it turns text into printable characters |
//! | `Split` by `Regex` or `String` | a known pattern or a [`RegexSplit`] |
//! | `Digits` | a split at `\p{N}` |
//! | `Punctuation` | a split at ASCII's signs and `\p{P}` |

use super::{byte_level, shown_json};
use crate::shown::shown;
use crate::tokenizer::bpe::split::{Behavior, RegexSplit};
use crate::tokenizer::bpe::{Pattern, Split};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Whether text is brought into the form NFC. Error: another normaliser.
pub fn nfc(normalizer: &Value) -> Result<bool> {
    match normalizer["type"].as_str() {
        None if normalizer.is_null() => Ok(false),
        Some("NFC") => Ok(true),
        Some("Sequence") => {
            let steps = list(normalizer, "normalizers").iter().map(nfc).collect::<Result<Vec<bool>>>()?;
            Ok(steps.contains(&true))
        }
        _ => bail!("normalizer: found {}, expected NFC or null", shown_json(normalizer)),
    }
}

/// The splits of a pre-tokenizer. Errors: a step that would drop or change text, or that is not known; a `ByteLevel` that is
/// missing, or not the last step, or puts a blank before the text.
pub fn splits(pre_tokenizer: &Value) -> Result<Vec<Split>> {
    let mut steps = Vec::new();
    flatten(pre_tokenizer, &mut steps);
    let byte_level = steps.pop().unwrap_or(&Value::Null);
    ensure!(
        byte_level["type"] == "ByteLevel",
        "pre_tokenizer: found {}, expected ByteLevel as the last step",
        shown_json(byte_level)
    );
    // The library's own default is to put a blank before the text.
    let prefix = byte_level.get("add_prefix_space").unwrap_or(&Value::Bool(true));
    ensure!(prefix == false, "pre_tokenizer.add_prefix_space: found {}, expected false", shown_json(prefix));
    let mut splits = steps.into_iter().map(split).collect::<Result<Vec<_>>>()?;
    if byte_level["use_regex"] != false {
        splits.push(Split::Known(Pattern::Gpt2));
    }
    Ok(splits)
}

fn flatten<'a>(step: &'a Value, steps: &mut Vec<&'a Value>) {
    match step["type"] == "Sequence" {
        true => list(step, "pretokenizers").iter().for_each(|step| flatten(step, steps)),
        false => steps.push(step),
    }
}

fn list<'a>(step: &'a Value, key: &str) -> &'a [Value] {
    step[key].as_array().map_or(&[], Vec::as_slice)
}

fn split(step: &Value) -> Result<Split> {
    let regex = |source: &str, behavior: Behavior| RegexSplit::new(source, behavior, false).map(Split::Regex);
    match step["type"].as_str() {
        Some("Split") => pattern_split(step),
        Some("Digits") => {
            let each = step["individual_digits"] == true;
            regex(r"\p{N}", if each { Behavior::Isolated } else { Behavior::Contiguous })
        }
        Some("Punctuation") => {
            let behavior = behavior(step, "Punctuation")?;
            ensure!(
                behavior != Behavior::Removed,
                "Punctuation.behavior: found Removed, expected one that keeps the text"
            );
            regex(r"[!-/:-@\[-`{-~\p{P}]", behavior)
        }
        _ => bail!("pre_tokenizer: found {}, expected Split, Digits, Punctuation and ByteLevel", shown_json(step)),
    }
}

fn pattern_split(step: &Value) -> Result<Split> {
    let (behavior, invert) = (behavior(step, "Split")?, step["invert"] == true);
    ensure!(behavior != Behavior::Removed || invert, "Split.behavior: found Removed, expected one that keeps the text");
    let pattern = &step["pattern"];
    let source = match (&pattern["Regex"], &pattern["String"]) {
        (Value::String(regex), Value::Null) => regex.clone(),
        (Value::Null, Value::String(text)) if !text.is_empty() => fancy_regex::escape(text).into_owned(),
        _ => bail!("Split.pattern: found {}, expected a Regex or a String", shown(pattern)),
    };
    // These match all of any text: there are no gaps to keep or to leave out.
    if let Some(known) = Pattern::of_regex(&source)
        && matches!((behavior, invert), (Behavior::Isolated, _) | (Behavior::Removed, true))
    {
        return Ok(Split::Known(known));
    }
    Ok(Split::Regex(RegexSplit::new(&source, behavior, invert).context("Split.pattern")?))
}

fn behavior(step: &Value, place: &str) -> Result<Behavior> {
    let found = step.get("behavior").unwrap_or(&Value::Null);
    let known = Behavior::ALL.into_iter().find(|behavior| found == behavior.name());
    let names = Behavior::ALL.map(Behavior::name).join(", ");
    known.with_context(|| format!("{place}.behavior: found {}, expected one of {names}", shown_json(found)))
}

/// The pre-tokenizer of a file.
pub fn pre_tokenizer(splits: &[Split]) -> Value {
    if splits == [Split::Known(Pattern::Gpt2)] {
        return json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    }
    let step = |split: &Split| {
        let (regex, behavior, invert) = match split {
            Split::Known(pattern) => (pattern.regex(), Behavior::Isolated, false),
            Split::Regex(split) => (split.source(), split.behavior(), split.invert()),
        };
        json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior.name(), "invert": invert})
    };
    let steps: Vec<Value> = splits.iter().map(step).chain([byte_level()]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}

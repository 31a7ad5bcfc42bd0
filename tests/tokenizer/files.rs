//! `tokenizer.json` of byte pairs: what other programs write is read, what would change ids is refused and named.

use super::{allowing, bpe, message, wrapped};
use handgrad::formats::tokenizer_json::{from_json, to_json};
use handgrad::tokenizer::bpe::printable::{bytes_of, printable, text_of};
use handgrad::tokenizer::bpe::{BpeParts, BpeTokenizer, Pattern, SpecialToken, Split};
use handgrad::tokenizer::{SpecialText, Tokenizer};
use serde_json::{Value, json};

/// `ab` and ` ab` as merges, with the ids that GPT-2's family gives: characters in the order of the printable alphabet.
fn gpt2_like() -> Value {
    let mut alphabet: Vec<char> = (0..=255).map(printable).collect();
    alphabet.sort();
    let mut vocab: serde_json::Map<String, Value> =
        alphabet.iter().enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    for (id, token) in [(256, "ab"), (257, "Ġab")] {
        vocab.insert(token.to_string(), json!(id));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 258, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true},
        "model": {"dropout": null, "unk_token": "<|endoftext|>", "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": false, "vocab": vocab, "merges": ["a b", "Ġ ab"]},
    })
}

fn newer(pattern: Pattern) -> Value {
    let mut json = gpt2_like();
    let split =
        json!({"type": "Split", "pattern": {"Regex": pattern.regex()}, "behavior": "Isolated", "invert": false});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [split, byte_level]});
    json["model"]["type"] = json!("BPE");
    json["model"]["byte_fallback"] = json!(false);
    json["model"]["merges"] = json!([["a", "b"], ["Ġ", "ab"]]);
    json["added_tokens"][0]["normalized"] = json!(false);
    json
}

fn qwen_like() -> Value {
    let mut json = newer(Pattern::Qwen2);
    json["normalizer"] = json!({"type": "NFC"});
    let tool = json!({"id": 260, "content": "<tool_call>", "special": false, "normalized": false});
    json["added_tokens"].as_array_mut().unwrap().push(tool);
    json
}

fn llama_like() -> Value {
    let mut json = newer(Pattern::Llama3);
    json["model"]["ignore_merges"] = json!(true);
    json["added_tokens"][0]["content"] = json!("<|begin_of_text|>");
    let token = json!({"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}});
    let template = json!({"type": "TemplateProcessing",
        "single": [token, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}});
    json["post_processor"] = json!({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]});
    json
}

fn loaded(json: &Value) -> BpeTokenizer {
    match from_json(json).unwrap() {
        Tokenizer::Bpe(tokenizer) => *tokenizer,
        other => panic!("byte pairs, not {other:?}"),
    }
}

#[test]
fn gpt2_files_of_all_ages_are_read() {
    let mut json = gpt2_like();
    let tokenizer = loaded(&json);
    // '!' is the first of the alphabet, and the blank its 221st: after 94 of ASCII, 12, 82 of Latin-1 and 32 control
    // characters.
    assert_eq!(allowing(&tokenizer, "! ab<|endoftext|>ab"), [0, 257, 258, 256]);
    assert_eq!(allowing(&tokenizer, " "), [220]);
    assert_eq!(tokenizer.end_of_text(), Some(258));
    json["model"]["merges"] = json!([["a", "b"], ["Ġ", "ab"]]);
    assert_eq!(loaded(&json), tokenizer);
    json["pre_tokenizer"]["use_regex"] = json!(true);
    assert_eq!(loaded(&json), tokenizer);
}

#[test]
fn qwen_files_normalise_and_split_digits() {
    let tokenizer = loaded(&qwen_like());
    let parts = tokenizer.parts();
    assert_eq!(
        (&parts.splits[..], parts.nfc, parts.whole_pieces, parts.begin),
        (&[Split::Known(Pattern::Qwen2)][..], true, false, None)
    );
    assert_eq!(tokenizer.vocab_size(), 261);
    assert_eq!(allowing(&tokenizer, "e\u{301}"), allowing(&tokenizer, "é"));
    assert_eq!(allowing(&tokenizer, "ab<tool_call>"), [256, 260]);
    assert!(message(wrapped(&tokenizer).decode(&[259])).contains("259"));
}

#[test]
fn llama_files_skip_merges_for_whole_pieces_and_begin_prompts() {
    let tokenizer = loaded(&llama_like());
    assert_eq!(tokenizer.parts().splits, [Split::Known(Pattern::Llama3)]);
    assert!(tokenizer.parts().whole_pieces);
    let prompt = wrapped(&tokenizer).encode_prompt("<|begin_of_text|> ab", SpecialText::Allow).unwrap();
    assert_eq!(prompt, [258, 257]);
}

#[test]
fn what_is_written_is_read_again() {
    for json in [gpt2_like(), qwen_like(), llama_like()] {
        let tokenizer = loaded(&json);
        let written = to_json(&wrapped(&tokenizer));
        assert_eq!(loaded(&written), tokenizer);
        assert_eq!(to_json(&wrapped(&loaded(&written))), written);
    }
}

#[test]
fn a_special_token_that_looks_like_an_ordinary_one_is_not_written() {
    let parts = bpe(&[("t", "h")], &[]).parts().clone();
    let special = SpecialToken::new(257, "th");
    let tokenizer = BpeTokenizer::new(BpeParts { specials: vec![special], ..parts }).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let error = message(handgrad::formats::tokenizer_json::write(&path, &wrapped(&tokenizer)));
    assert!(error.contains("\"th\"") && error.contains("256") && !path.exists(), "{error}");
}

#[test]
fn what_would_change_ids_is_refused_and_named() {
    let (old, new) = (gpt2_like(), qwen_like());
    let added = |key: &str, value: Value| {
        let mut token = json!({"id": 258, "content": "<s>"});
        token[key] = value;
        json!([token])
    };
    let split = |key: &str, value: Value| {
        let mut step = new["pre_tokenizer"].clone();
        step["pretokenizers"][0][key] = value;
        step
    };
    let template = |single: Value| json!({"type": "TemplateProcessing", "single": single});
    let token = json!({"SpecialToken": {"id": "<|endoftext|>"}});
    let text = json!({"Sequence": {"id": "A"}});
    for (json, pointer, value, parts) in [
        (&new, "/model/type", json!("WordPiece"), ["model.type", "WordPiece"]),
        (&new, "/model", json!({"type": "Unigram"}), ["model.type", "Unigram"]),
        (&old, "/model/dropout", json!(0.1), ["model.dropout", "0.1"]),
        (&new, "/model/byte_fallback", json!(true), ["model.byte_fallback", "true"]),
        (&old, "/model/continuing_subword_prefix", json!("##"), ["model.continuing_subword_prefix", "##"]),
        (&old, "/model/end_of_word_suffix", json!("</w>"), ["model.end_of_word_suffix", "</w>"]),
        (&old, "/model/merges", json!(["a b c"]), ["model.merges", "a b c"]),
        (&old, "/model/merges", json!(["a x y"]), ["model.merges", "merge 0"]),
        (&old, "/model/merges", json!(["a b", "zz b"]), ["model.merges", "\"zz\" in merge 1"]),
        (&old, "/model/merges", json!(["b a"]), ["merge 0", "\"ba\""]),
        (&old, "/model/merges", json!([3]), ["model.merges", "found 3"]),
        (&old, "/model/vocab/ab", json!(7), ["model.vocab", "id 7 twice"]),
        (&old, "/model/vocab/ab", json!(-1), ["model.vocab", "-1"]),
        (&old, "/model/vocab/ab", json!(3_000_000_000u64), ["model.vocab", "3000000000"]),
        (&old, "/model/vocab", json!({"a": 0, "中": 1}), ["model.vocab", "中"]),
        (&old, "/model/vocab", json!({"a": 0, "b": 1, "ab": 2, "Ġ": 3, "Ġab": 4}), ["vocabulary", "byte 0x00"]),
        (&old, "/normalizer", json!({"type": "NFKC"}), ["normalizer", "NFKC"]),
        (&old, "/decoder", json!({"type": "Metaspace"}), ["decoder", "Metaspace"]),
        (&old, "/pre_tokenizer/add_prefix_space", json!(true), ["pre_tokenizer.add_prefix_space", "true"]),
        (&new, "/pre_tokenizer", split("pattern", json!({"Regex": "(a"})), ["Split.pattern", "(a"]),
        (&new, "/pre_tokenizer", split("pattern", json!({"String": ""})), ["Split.pattern", "String"]),
        (&new, "/pre_tokenizer", split("behavior", json!("Removed")), ["Split.behavior", "Removed"]),
        (&new, "/pre_tokenizer", split("behavior", json!("isolated")), ["Split.behavior", "isolated"]),
        (&new, "/pre_tokenizer", split("type", json!("Whitespace")), ["pre_tokenizer", "Whitespace"]),
        (&new, "/pre_tokenizer", split("type", json!("ByteLevel")), ["pre_tokenizer", "ByteLevel"]),
        (&new, "/pre_tokenizer/pretokenizers/1/add_prefix_space", json!(true), ["add_prefix_space", "true"]),
        (&new, "/pre_tokenizer/pretokenizers", json!([{"type": "Digits"}]), ["pre_tokenizer", "Digits"]),
        (&old, "/added_tokens", added("id", json!(97)), ["<s>", "id 97"]),
        (&old, "/added_tokens", added("content", json!(3)), ["added_tokens", "3"]),
        (&old, "/added_tokens", json!([{"id": 300, "content": "ab"}]), ["id 300 of \"ab\"", "expected 256"]),
        (&old, "/post_processor", json!({"type": "BertProcessing"}), ["post_processor", "BertProcessing"]),
        (&old, "/post_processor", template(json!([text, token])), ["post_processor", "TemplateProcessing"]),
        (&old, "/post_processor", template(json!([{"SpecialToken": {"id": "<x>"}}, text])), ["post_processor", "<x>"]),
    ] {
        let mut json = json.clone();
        *json.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        let message = message(from_json(&json));
        assert!(!message.contains('\n') && parts.iter().all(|part| message.contains(part)), "{message}: {parts:?}");
    }
}

#[test]
fn printable_characters_stand_for_bytes_and_back() {
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(bytes_of(&text_of(&all)), Some(all));
    assert_eq!(text_of(b" a\n\0"), "ĠaĊĀ");
    for no_byte in [" ", "\n", "\u{7f}", "\u{ad}", "\u{144}", "中", "a b"] {
        assert_eq!(bytes_of(no_byte), None, "{no_byte:?}");
    }
}

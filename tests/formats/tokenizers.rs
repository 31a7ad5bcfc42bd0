//! `tokenizer.json`, and what would change ids.

use super::*;

fn all() -> Vec<Tokenizer> {
    let odd = "a b\n\r\t\0\"\\#é\u{301}\u{1F600}<|";
    [false, true].into_iter().flat_map(|eot| [Tokenizer::bytes(eot), Tokenizer::chars_of([odd], eot)]).collect()
}

#[test]
fn tokenizers_round_trip() {
    let (_dir, path) = place("tokenizer.json");
    for tokenizer in all() {
        tokenizer_json::write(&path, &tokenizer).unwrap();
        assert_eq!(tokenizer_json::read(&path).unwrap(), tokenizer);
    }
}

#[test]
fn bytes_stand_as_printable_characters() {
    let expected = [
        (0x00, 0x100),
        (0x09, 0x109),
        (0x0A, 0x10A),
        (0x0D, 0x10D),
        (0x20, 0x120),
        (0x7F, 0x121),
        (0x80, 0x122),
        (0x9F, 0x141),
        (0xA0, 0x142),
        (0xAD, 0x143),
        (0xFF, 0xFF),
    ];
    for (byte, code) in expected {
        assert_eq!(tokenizer_json::printable(byte) as u32, code, "{byte:02X}");
    }
    for byte in (0x21..=0x7E).chain(0xA1..=0xAC).chain(0xAE..=0xFF) {
        assert_eq!(tokenizer_json::printable(byte) as u32, u32::from(byte));
    }
    let all: std::collections::HashSet<char> = (0..=255).map(tokenizer_json::printable).collect();
    assert_eq!(all.len(), 256);
}

#[test]
fn what_would_change_ids_is_refused_and_named() {
    let chars = tokenizer_json::to_json(&Tokenizer::chars_of(["abc"], true));
    let bytes = tokenizer_json::to_json(&Tokenizer::bytes(true));
    let added = |content: &str, id: u32| json!([{"content": content, "id": id}]);
    for (json, pointer, value, parts) in [
        (&chars, "/model/merges", json!([["a", "b"]]), ["model.merges", "1 merges"]),
        (&chars, "/model/type", json!("WordLevel"), ["model.type", "WordLevel"]),
        (&chars, "/model/unk_token", json!("a"), ["model.unk_token", "\"a\""]),
        (&chars, "/model/byte_fallback", json!(true), ["model.byte_fallback", "true"]),
        (&chars, "/model/vocab", json!({"a": 0, "bc": 1}), ["model.vocab", "\"bc\""]),
        (&chars, "/model/vocab", json!({"a": 0, "b": 2}), ["model.vocab", "id 2"]),
        (&chars, "/model/vocab", json!({"a": 0, "b": 0}), ["model.vocab", "id 0"]),
        (&chars, "/model", json!(3), ["model", "found 3"]),
        (&chars, "/normalizer", json!({"type": "NFC"}), ["normalizer", "NFC"]),
        (&chars, "/post_processor", json!({"type": "TemplateProcessing"}), ["post_processor", "TemplateProcessing"]),
        (&chars, "/decoder", Value::Null, ["decoder", "null"]),
        (&chars, "/added_tokens", added("<s>", 3), ["added_tokens", "<s>"]),
        (&chars, "/added_tokens", added(END_OF_TEXT, 4), ["added_tokens", "id 4"]),
        (&bytes, "/pre_tokenizer", json!({"type": "Whitespace"}), ["pre_tokenizer", "Whitespace"]),
        (&bytes, "/pre_tokenizer/add_prefix_space", json!(true), ["pre_tokenizer.add_prefix_space", "true"]),
        (&bytes, "/model/vocab", json!({"a": 0}), ["model.vocab", "1 tokens"]),
        (&bytes, "/model/vocab/!", json!(34), ["model.vocab", "34"]),
    ] {
        let mut json = json.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        assert_says(tokenizer_json::from_json(&json), &parts);
    }
    for mut json in [chars, bytes] {
        json["spelling"] = json!({"type": "Corrected"});
        assert_says(tokenizer_json::from_json(&json), &["spelling", "Corrected"]);
    }
    assert_says(tokenizer_json::from_json(&json!({})), &["model: found null, expected an object"]);
}

//! Ids of Hugging Face's `tokenizers` and of tiktoken, kept in files by `scripts/tokenizer_peers.py --golden`.

use handgrad::formats::{read_json, tiktoken, tokenizer_json};
use handgrad::tokenizer::{SpecialText, Tokenizer};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizer").join(name)
}

fn text() -> String {
    std::fs::read_to_string(golden("text.txt")).unwrap()
}

#[test]
fn ids_are_those_of_other_libraries() {
    let ids = read_json(&golden("ids.json")).unwrap();
    for name in ["gpt2", "qwen2", "llama3"] {
        let tokenizer = tokenizer_json::read(&golden(&format!("{name}.json"))).unwrap();
        let expected: Vec<u32> = serde_json::from_value(ids[name].clone()).unwrap();
        let found = tokenizer.encode(&text()).unwrap();
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert!(found == expected, "{name}: differs at token {differs:?}");
        assert_eq!(tokenizer.decode(&found).unwrap(), text().as_bytes());
    }
}

/// Splits with every behaviour, sequences of them, and added tokens with every condition, special or not.
#[test]
fn ids_of_every_form_of_the_file_are_those_of_the_library() {
    let (forms, file) = (read_json(&golden("forms.json")).unwrap(), read_json(&golden("gpt2.json")).unwrap());
    let text = forms["text"].as_str().unwrap();
    let all: &Vec<Value> = forms["forms"].as_array().unwrap();
    assert_eq!(all.len(), 91);
    for form in all {
        let mut json = file.clone();
        for key in ["normalizer", "pre_tokenizer", "added_tokens"] {
            json[key] = form[key].clone();
        }
        let tokenizer = tokenizer_json::from_json(&json).unwrap();
        let again = tokenizer_json::from_json(&tokenizer_json::to_json(&tokenizer)).unwrap();
        assert_eq!(again, tokenizer, "{}", form["name"]);
        for (key, specials) in [("allow", SpecialText::Allow), ("text", SpecialText::Text)] {
            let expected: Vec<u32> = serde_json::from_value(form[key].clone()).unwrap();
            assert_eq!(tokenizer.encode_as(text, specials).unwrap(), expected, "{}, {key}", form["name"]);
        }
    }
}

#[test]
fn exported_ranks_are_those_that_tiktoken_read() {
    let Tokenizer::Bpe(tokenizer) = tokenizer_json::read(&golden("gpt2.json")).unwrap() else { panic!("byte pairs") };
    let expected = std::fs::read_to_string(golden("gpt2.tiktoken")).unwrap();
    assert_eq!(tiktoken::ranks(&tokenizer).unwrap(), expected);
}

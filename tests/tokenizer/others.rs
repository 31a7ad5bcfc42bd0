//! `tokenizer.json` as other programs leave it: vocabulary entries that were added once more, sections for batches, splits
//! in several spellings, and regular expressions in the dialect of Oniguruma.

use super::{allowing, bpe, message, ordinary, wrapped};
use handgrad::formats::tokenizer_json::{from_json, read_with, to_json};
use handgrad::tokenizer::bpe::split::{Behavior, RegexSplit, pieces};
use handgrad::tokenizer::bpe::{BpeParts, BpeTokenizer, Matching, Pattern, SpecialToken, Split};
use handgrad::tokenizer::{SpecialText, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// `ab` and `abc` over bytes, as a file.
fn file() -> Value {
    to_json(&wrapped(&bpe(&[("a", "b"), ("ab", "c")], &[])))
}

fn loaded(json: &Value) -> BpeTokenizer {
    match from_json(json).unwrap() {
        Tokenizer::Bpe(tokenizer) => *tokenizer,
        other => panic!("byte pairs, not {other:?}"),
    }
}

fn with_added(id: u32, text: &str, special: bool) -> BpeTokenizer {
    let mut json = file();
    json["added_tokens"] = json!([{"id": id, "content": text, "special": special}]);
    let tokenizer = loaded(&json);
    assert_eq!(loaded(&to_json(&wrapped(&tokenizer))), tokenizer);
    tokenizer
}

#[test]
fn an_ordinary_token_may_be_added_once_more() {
    // As a pad token that is a byte, which stays that byte where special tokens are text.
    let byte = with_added(33, "!", true);
    assert_eq!(allowing(&byte, "xabc!ab"), [120, 257, 33, 256]);
    assert_eq!(ordinary(&byte, "xabc!ab"), [120, 257, 33, 256]);
    assert!(byte.encode("a!", SpecialText::Forbid).is_err());
    // A merged one, which now also ends the piece before it; it counts whatever is asked for, as it is not special.
    let merged = with_added(256, "ab", false);
    for tokenizer in [allowing(&merged, "xabc ab"), ordinary(&merged, "xabc ab")] {
        assert_eq!(tokenizer, [120, 256, 99, 32, 256]);
    }
    assert_eq!(merged.encode("ab", SpecialText::Forbid).unwrap(), [256]);
    assert_eq!(wrapped(&merged).decode(&[256, 257]).unwrap(), b"ababc");
    // A special one that merges make stays theirs where special tokens are text.
    assert_eq!(ordinary(&with_added(256, "ab", true), "xabc ab"), [120, 257, 32, 256]);
}

#[test]
fn what_no_merge_makes_is_no_ordinary_token_though_the_vocabulary_has_it() {
    let mut json = file();
    json["model"]["vocab"]["<|x|>"] = json!(258);
    json["model"]["ignore_merges"] = json!(true);
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]});
    assert_eq!(ordinary(&loaded(&json), "<|x|>"), [258], "a token like any other");
    json["added_tokens"] = json!([{"id": 258, "content": "<|x|>", "special": true, "normalized": true}]);
    let tokenizer = loaded(&json);
    assert_eq!(allowing(&tokenizer, "abc<|x|>"), [257, 258]);
    assert_eq!(ordinary(&tokenizer, "<|x|>"), [60, 124, 120, 124, 62], "text that quotes it");
}

#[test]
fn sections_for_batches_are_noted_and_not_applied() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    let mut json = file();
    json["truncation"] = json!({"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    json["padding"] = json!({"strategy": {"Fixed": 8}, "pad_id": 0, "pad_token": "a"});
    std::fs::write(&path, json.to_string()).unwrap();
    let mut notes = vec![];
    let tokenizer = read_with(&path, &mut |note| notes.push(note.to_string())).unwrap();
    assert_eq!(tokenizer.encode("abc abc").unwrap(), [257, 32, 257]);
    assert!(notes.len() == 2 && notes[0].contains("truncation") && notes[1].contains("padding"), "{notes:?}");
    json["truncation"] = Value::Null;
    json["padding"] = Value::Null;
    assert_eq!(from_json(&json).unwrap(), tokenizer);
}

fn step(regex: &str, behavior: &str, invert: bool) -> Value {
    let split = json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
    json!({"type": "Sequence", "pretokenizers": [{"type": "Sequence", "pretokenizers": [split]}, byte_level]})
}

fn splits(pre_tokenizer: Value) -> Vec<Split> {
    let mut json = file();
    json["pre_tokenizer"] = pre_tokenizer;
    loaded(&json).parts().splits.clone()
}

#[test]
fn known_patterns_are_known_in_every_spelling() {
    let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
    let spellings = Pattern::ALL.map(|pattern| (pattern, pattern.regex())).into_iter().chain([(Pattern::Gpt2, gpt2)]);
    for (pattern, regex) in spellings {
        for (behavior, invert) in [("Isolated", false), ("Isolated", true), ("Removed", true)] {
            assert_eq!(splits(step(regex, behavior, invert)), [Split::Known(pattern)], "{behavior} {invert}");
        }
        assert_ne!(splits(step(regex, "Contiguous", false)), [Split::Known(pattern)]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn known_patterns_cut_as_their_expressions_do(text in super::texts()) {
        for (known, regex) in SPELLINGS.with(Clone::clone) {
            prop_assert_eq!(pieces(&[regex], &text).unwrap(), pieces(&[known], &text).unwrap());
        }
    }
}

thread_local! {
    static SPELLINGS: Vec<(Split, Split)> = {
        let spellings = [(Behavior::Isolated, false), (Behavior::Isolated, true), (Behavior::Removed, true)];
        let of = |pattern: Pattern| spellings.map(|(behavior, invert)| {
            let regex = RegexSplit::new(pattern.regex(), behavior, invert).unwrap();
            (Split::Known(pattern), Split::Regex(regex))
        });
        Pattern::ALL.into_iter().flat_map(of).collect()
    };
}

#[track_caller]
fn assert_cut(regex: &str, behavior: Behavior, invert: bool, text: &str, expected: &str) {
    let split = Split::Regex(RegexSplit::new(regex, behavior, invert).unwrap());
    assert_eq!(pieces(&[split], text).unwrap().join("|"), expected, "{regex} {behavior:?} {invert}");
}

#[test]
fn matches_and_gaps_are_joined_as_the_behaviour_says() {
    let text = "a--b-";
    for (behavior, plain, inverted) in [
        (Behavior::Isolated, "a|-|-|b|-", "a|-|-|b|-"),
        (Behavior::Removed, "a|b", "-|-|-"),
        (Behavior::MergedWithPrevious, "a-|-|b-", "a|-|-b|-"),
        (Behavior::MergedWithNext, "a|-|-b|-", "a-|-|b-"),
        (Behavior::Contiguous, "a|--|b|-", "a|--|b|-"),
    ] {
        assert_cut("-", behavior, false, text, plain);
        assert_cut("-", behavior, true, text, inverted);
    }
    assert_eq!(pieces(&[], "a b").unwrap(), ["a b"]);
    assert!(pieces(&[], "").unwrap().is_empty());
}

#[test]
fn expressions_mean_what_oniguruma_makes_of_them() {
    // A line's end is an end, and a superscript is a word outside of brackets only.
    assert_cut(r"\s+$", Behavior::Isolated, false, "a  \nb ", "a|  |\nb| ");
    assert_cut(r"^.", Behavior::Isolated, false, "ab\ncd", "a|b\n|c|d");
    assert_cut(r"\w+", Behavior::Isolated, false, ".a²_\u{301}", ".|a²_\u{301}");
    assert_cut(r"[\w]+", Behavior::Isolated, false, ".a²_", ".|a|²|_");
    assert_cut(r"\W", Behavior::Isolated, false, "a.²", "a|.|²");
    assert_cut(r"[^\W]", Behavior::Isolated, false, "a.²", "a|.²");
    assert_cut(r"a{2}|\p{L}+", Behavior::Isolated, false, "baab", "baab");
    for (regex, part) in [
        (r"\p{N}{1,3}+", "never gives back"),
        (r"\bx", r"\\b"),
        (r"[[:alpha:]]", "[:"),
        (r"(?m:.)", "'m'"),
        (r"a{,3}", "{,"),
        (r"(a", "regular expression"),
    ] {
        let error = message(RegexSplit::new(regex, Behavior::Isolated, false));
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn an_expression_that_gives_up_is_an_error() {
    let parts = bpe(&[], &[]).parts().clone();
    let split = RegexSplit::new(r"(a|a?)+(?=c)b", Behavior::Isolated, false).unwrap();
    let tokenizer = BpeTokenizer::new(BpeParts { splits: vec![Split::Regex(split)], ..parts }).unwrap();
    let error = message(tokenizer.encode(&"a".repeat(60), SpecialText::Text));
    assert!(error.contains("gave up on a text of 60 bytes") && !error.contains('\n'), "{error}");
}

/// Conditions at the place of a cut: tokens that mind their neighbours are not cut off from them.
#[test]
fn no_cut_changes_which_tokens_are_found() {
    let parts = bpe(&[], &[]).parts().clone();
    for flags in 0..16 {
        let bit = |i: u32| flags >> i & 1 == 1;
        let matching = Matching { single_word: bit(0), lstrip: bit(1), rstrip: bit(2), normalized: bit(3) };
        let token = |id: u32, text: &str| SpecialToken { matching, ..SpecialToken::new(id, text) };
        let specials = vec![token(256, "ab"), token(257, "<1"), token(258, "e\u{301}!")];
        for nfc in [false, true] {
            let parts = BpeParts { specials: specials.clone(), nfc, ..parts.clone() };
            let tokenizer = BpeTokenizer::new(parts).unwrap();
            let text = "ab_ xab ab  <1 <1_ 1<1  e\u{301}! é!ab a1 ".repeat(3);
            let whole = allowing(&tokenizer, &text);
            let mut from = 0;
            while let Some(cut) = tokenizer.next_cut(text.as_bytes(), from) {
                let halves = [allowing(&tokenizer, &text[..cut]), allowing(&tokenizer, &text[cut..])];
                assert_eq!(halves.concat(), whole, "{matching:?}, nfc {nfc}, cut at {cut}");
                from = cut;
            }
        }
    }
}

//! Special tokens: the longest wins, texts are literal, and text from outside cannot smuggle them in.

use super::{allowing, bpe, message, ordinary, wrapped};
use handgrad::tokenizer::bpe::{BpeParts, BpeTokenizer, SpecialToken};
use handgrad::tokenizer::{SpecialText, Tokenizer};

#[test]
fn longest_special_token_wins_whatever_the_order() {
    let (one, two) = ("<|end|>", "<|end|><|end|>");
    let text = "a<|end|><|end|>b<|end|>";
    for (specials, ids) in [([one, two], [97, 257, 98, 256]), ([two, one], [97, 256, 98, 257])] {
        let tokenizer = bpe(&[], &specials);
        assert_eq!(allowing(&tokenizer, text), ids);
        assert_eq!(wrapped(&tokenizer).decode(&ids).unwrap(), text.as_bytes());
    }
}

#[test]
fn special_texts_are_no_patterns() {
    assert_eq!(allowing(&bpe(&[], &["<|x|>"]), "a<b>x|"), [97, 60, 98, 62, 120, 124]);
    assert_eq!(allowing(&bpe(&[], &["<s>", "</s>"]), "<s>hi</s>"), [256, 104, 105, 257]);
    assert_eq!(allowing(&bpe(&[], &["a.c"]), "abc"), [97, 98, 99]);
}

#[test]
fn quoted_special_token_is_token_text_or_error_as_asked() {
    let tokenizer = bpe(&[("e", "n")], &["<|endoftext|>"]);
    let text = "a<|endoftext|>";
    assert_eq!(allowing(&tokenizer, text), [97, 256]);
    let as_text = [97, 60, 124, 257, 100, 111, 102, 116, 101, 120, 116, 124, 62];
    assert_eq!(ordinary(&tokenizer, text), as_text);
    let message = message(tokenizer.encode(text, SpecialText::Forbid));
    assert!(message.contains("<|endoftext|>") && message.contains("byte 1,"), "{message}");
    // Documents are text from outside, and end with the token itself.
    let documents = [text.to_string()];
    let ids = wrapped(&tokenizer).encode_documents(&documents).unwrap();
    assert_eq!(ids, [&as_text[..], &[256]].concat());
}

#[test]
fn special_token_is_a_boundary_of_pieces() {
    // Alone, the blanks of each side are whole runs at the end of a text, and " b" keeps its blank.
    let tokenizer = bpe(&[(" ", " "), (" ", "b")], &["<X>"]);
    assert_eq!(allowing(&tokenizer, "a  <X>  b"), [97, 257, 256, 32, 258]);
}

fn with_begin() -> Tokenizer {
    let parts = bpe(&[], &["<s>"]).parts().clone();
    Tokenizer::Bpe(Box::new(BpeTokenizer::new(BpeParts { begin: Some(256), ..parts }).unwrap()))
}

#[test]
fn begin_of_text_stands_once_before_a_prompt() {
    let tokenizer = with_begin();
    assert_eq!(tokenizer.encode_prompt("<s>a", SpecialText::Allow).unwrap(), [256, 97]);
    assert_eq!(tokenizer.encode_prompt("a", SpecialText::Allow).unwrap(), [256, 97]);
    // As text, the quoted marker is a text after the true one.
    assert_eq!(tokenizer.encode_prompt("<s>a", SpecialText::Text).unwrap(), [256, 60, 115, 62, 97]);
    assert_eq!(tokenizer.encode_ordinary("a").unwrap(), [97]);
    // A model that wants none gets none.
    assert_eq!(wrapped(&bpe(&[], &["<s>"])).encode_prompt("a", SpecialText::Allow).unwrap(), [97]);
}

#[test]
fn end_of_text_goes_by_its_known_names() {
    assert_eq!(bpe(&[], &["<s>", "<|endoftext|>"]).end_of_text(), Some(257));
    assert_eq!(bpe(&[], &["<|end_of_text|>"]).end_of_text(), Some(256));
    assert_eq!(bpe(&[], &["<s>"]).end_of_text(), None);
    assert_eq!(bpe(&[], &["<s>", "<|endoftext|>"]).vocab_size(), 258);
}

#[test]
fn special_tokens_that_cannot_be_are_refused() {
    let parts = bpe(&[], &[]).parts().clone();
    let special = SpecialToken::new;
    for (specials, part) in [
        (vec![special(256, "")], "empty"),
        (vec![special(256, "<s>"), special(257, "<s>")], "twice"),
        (vec![special(256, "<s>"), special(256, "<t>")], "id 256 for both"),
        (vec![special(97, "<s>")], "id 97"),
    ] {
        let message = message(BpeTokenizer::new(BpeParts { specials, ..parts.clone() }));
        assert!(message.contains(part), "{message}");
    }
    assert!(message(BpeTokenizer::new(BpeParts { begin: Some(97), ..parts })).contains("97"));
}

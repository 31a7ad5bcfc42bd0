//! Tokenizers: characters, bytes, byte pairs.

mod cli;
mod encoding;
mod files;
mod golden;
mod others;
mod pattern;
mod plain;
mod special;
mod training;

use handgrad::tokenizer::bpe::{BpeParts, BpeTokenizer, Pattern, SpecialToken, Split};
use handgrad::tokenizer::{SpecialText, Tokenizer};

fn message<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().expect("an error"))
}

/// Byte pairs with these merges, each of two tokens written as text. Ids: bytes, specials in their order, merges.
fn bpe(merges: &[(&str, &str)], specials: &[&str]) -> BpeTokenizer {
    let mut tokens: Vec<Option<Vec<u8>>> = (0..=255).map(|byte| Some(vec![byte])).collect();
    tokens.extend(specials.iter().map(|_| None));
    let mut pairs = Vec::new();
    for (left, right) in merges {
        let id = |text: &str| tokens.iter().position(|token| token.as_deref() == Some(text.as_bytes())).unwrap() as u32;
        pairs.push((id(left), id(right)));
        tokens.push(Some([left.as_bytes(), right.as_bytes()].concat()));
    }
    let special = |(id, text): (u32, &&str)| SpecialToken::new(id, text);
    BpeTokenizer::new(BpeParts {
        splits: vec![Split::Known(Pattern::Gpt2)],
        nfc: false,
        whole_pieces: false,
        tokens,
        merges: pairs,
        specials: (256..).zip(specials).map(special).collect(),
        begin: None,
    })
    .unwrap()
}

fn wrapped(tokenizer: &BpeTokenizer) -> Tokenizer {
    Tokenizer::Bpe(Box::new(tokenizer.clone()))
}

fn ordinary(tokenizer: &BpeTokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, SpecialText::Text).unwrap()
}

fn allowing(tokenizer: &BpeTokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, SpecialText::Allow).unwrap()
}

/// Text in which everything that pre-tokenizers treat differently is likely.
fn texts() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::*;
    let piece = prop_oneof![
        4 => "[a-zA-Z]{1,6}",
        2 => "[ab ]{1,5}",
        2 => "[ ]{1,3}",
        2 => "['’][a-zA-ZſK]{1,2}",
        2 => "[\\n\\r\\t ]{1,4}",
        1 => "\\r\\n|\\r|\\n\\n",
        1 => "[0-9²½Ⅷ٣१]{1,5}",
        2 => "[!-/:-@\\[-`{-~]{1,3}",
        // Blanks of all kinds, and what is none: NEL, no-break, ideographic, line separator; zero-width, Mongolian,
        // BOM.
        2 => "[\u{85}\u{a0}\u{3000}\u{2028}\u{2029}\u{1680}\u{200a}\u{b}\u{c}\u{1c}\u{1f}\u{200b}\u{180e}\u{feff}]{1,3}",
        // Marks that combine, joiners, emoji, Greek, Cyrillic, Chinese, Hangul, title case, modifiers, private and
        // unassigned.
        2 => "[e\u{301}\u{308}\u{20dd}\u{93f}\u{200d}\u{fe0f}😀👩🇩жΣς中文한ǅʰ\u{e000}\u{378}\u{e0fff}\u{10ffff}]{1,4}",
        1 => Just("\0".to_string()),
        1 => Just("<|endoftext|>".to_string()),
        1 => any::<String>(),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

//! Special tokens: texts that are one token wherever they are recognised, and that no merge makes or crosses.

use crate::shown::quoted;
use crate::tokenizer::END_OF_TEXT;
use anyhow::{Result, ensure};

/// A token beside the merged ones, such as end-of-text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    pub id: u32,
    /// Taken letter by letter: nothing in it is a pattern.
    pub text: String,
    /// Whether other programs leave it out of what they decode for people; it makes no difference to ids.
    pub hidden: bool,
}

/// The special tokens of a tokenizer. Where several match, the longest does, whatever order they were given in.
#[derive(Clone, Debug, PartialEq)]
pub struct Specials {
    /// Longest first; of equal length by text.
    tokens: Vec<SpecialToken>,
    /// Whether a token begins with this byte.
    begins: Box<[bool; 256]>,
}

impl Specials {
    /// Errors: a token that is empty, two with the same text or the same id.
    pub fn new(mut tokens: Vec<SpecialToken>) -> Result<Specials> {
        for (i, token) in tokens.iter().enumerate() {
            let text = &token.text;
            ensure!(!text.is_empty(), "special token: found an empty text, expected at least one character");
            for other in &tokens[..i] {
                ensure!(other.text != *text, "special token {}: found twice, expected once", quoted(text));
                ensure!(
                    other.id != token.id,
                    "special tokens {} and {}: found id {} for both",
                    quoted(&other.text),
                    quoted(text),
                    token.id
                );
            }
        }
        tokens.sort_by(|a, b| b.text.len().cmp(&a.text.len()).then_with(|| a.text.cmp(&b.text)));
        let mut begins = Box::new([false; 256]);
        for token in &tokens {
            begins[usize::from(token.text.as_bytes()[0])] = true;
        }
        Ok(Specials { tokens, begins })
    }

    /// End-of-text alone, where it has an id, or none at all.
    pub fn end_of_text(id: Option<u32>) -> Specials {
        let tokens: Vec<SpecialToken> =
            id.into_iter().map(|id| SpecialToken { id, text: END_OF_TEXT.to_string(), hidden: true }).collect();
        let mut begins = Box::new([false; 256]);
        begins[usize::from(END_OF_TEXT.as_bytes()[0])] = !tokens.is_empty();
        Specials { tokens, begins }
    }

    /// Longest first.
    pub fn tokens(&self) -> &[SpecialToken] {
        &self.tokens
    }

    /// Length of the longest text in bytes; 0 without tokens.
    pub fn longest(&self) -> usize {
        self.tokens.first().map_or(0, |token| token.text.len())
    }

    /// The special token with an id; `None` if no special token has it.
    pub fn get(&self, id: u32) -> Option<&SpecialToken> {
        self.tokens.iter().find(|token| token.id == id)
    }

    /// The special token written as `text`; `None` if there is none.
    pub fn by_text(&self, text: &str) -> Option<&SpecialToken> {
        self.tokens.iter().find(|token| token.text == text)
    }

    /// The first special token in `text` and where it begins; `None` if the text has none.
    pub fn first_in(&self, text: &str) -> Option<(usize, &SpecialToken)> {
        let text = text.as_bytes();
        let mut from = 0;
        while let Some(skipped) = text[from..].iter().position(|&byte| self.begins[usize::from(byte)]) {
            let at = from + skipped;
            if let Some(token) = self.tokens.iter().find(|token| text[at..].starts_with(token.text.as_bytes())) {
                return Some((at, token));
            }
            from = at + 1;
        }
        None
    }

    /// Calls `ordinary` for each stretch of text between special tokens and `special` for each of those, in order, with
    /// the place where it begins.
    pub fn split<'a>(
        &self,
        text: &'a str,
        mut ordinary: impl FnMut(&'a str),
        mut special: impl FnMut(usize, &SpecialToken),
    ) {
        let mut start = 0;
        if !self.tokens.is_empty() {
            while let Some((at, token)) = self.first_in(&text[start..]) {
                ordinary(&text[start..start + at]);
                special(start + at, token);
                start += at + token.text.len();
            }
        }
        ordinary(&text[start..]);
    }

    /// Whether a special token's text stands in `text` across the place `at`.
    pub fn cross(&self, text: &[u8], at: usize) -> bool {
        self.tokens.iter().any(|token| {
            let first = (at + 1).saturating_sub(token.text.len());
            (first..at).any(|start| text[start..].starts_with(token.text.as_bytes()))
        })
    }
}

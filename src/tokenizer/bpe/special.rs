//! Added tokens: texts that are one token wherever they are recognised, and that no merge makes or crosses.
//!
//! Most are special, as end-of-text is: what a text quotes of them counts only where [`SpecialText`] says so. The others
//! are words that somebody added, and always count. Both come from files with the conditions of [`Matching`].

use crate::shown::quoted;
use crate::tokenizer::{END_OF_TEXT, SpecialText};
use aho_corasick::{AhoCorasick, MatchKind};
use anyhow::{Result, ensure};
use regex_syntax::is_word_character;
use unicode_normalization::UnicodeNormalization;

/// A token beside the merged ones, such as end-of-text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialToken {
    pub id: u32,
    /// Taken letter by letter: nothing in it is a pattern.
    pub text: String,
    /// Whether [`SpecialText`] decides over it; other programs leave it out of what they decode for people.
    pub special: bool,
    pub matching: Matching,
}

/// Where an added token's text counts, and what it takes with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matching {
    /// Only where no letter, digit or underscore touches it.
    pub single_word: bool,
    /// The whitespace before it belongs to it: those bytes have no ids of their own.
    pub lstrip: bool,
    /// The same behind it.
    pub rstrip: bool,
    /// It is looked for in the normalised text, and only where no other token has been found.
    pub normalized: bool,
}

impl SpecialToken {
    /// A special token without conditions.
    pub fn new(id: u32, text: &str) -> SpecialToken {
        SpecialToken { id, text: text.to_string(), special: true, matching: Matching::default() }
    }
}

/// The text that a search goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// As it is.
    Raw,
    /// Normalised, between the tokens that were found in the raw text.
    Normalised,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stretch<'a> {
    Text(&'a str),
    /// A token, and the byte where it begins.
    Token(usize, &'a SpecialToken),
}

/// The added tokens of a tokenizer. Where several match, the longest does, whatever order they were given in.
#[derive(Clone, Debug)]
pub struct Specials {
    /// Longest first; of equal length by text.
    tokens: Vec<SpecialToken>,
    /// One for each [`Stage`].
    searches: [Search; 2],
}

#[derive(Clone, Debug)]
struct Search {
    texts: AhoCorasick,
    /// The place of each text's token among all.
    tokens: Vec<usize>,
    /// Whether some token counts even where special ones are text.
    always: bool,
}

impl Search {
    fn new(tokens: &[SpecialToken], stage: Stage, nfc: bool) -> Result<Search> {
        let normalized = stage == Stage::Normalised;
        let places: Vec<usize> = (0..tokens.len()).filter(|&i| tokens[i].matching.normalized == normalized).collect();
        let text = |&i: &usize| match normalized && nfc {
            true => tokens[i].text.nfc().collect(),
            false => tokens[i].text.clone(),
        };
        let texts = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(places.iter().map(text))?;
        let always = places.iter().any(|&i| !tokens[i].special);
        Ok(Search { texts, tokens: places, always })
    }
}

impl Specials {
    /// `nfc` tells whether text is normalised. Errors: a token that is empty, two with the same text or the same id.
    pub fn new(mut tokens: Vec<SpecialToken>, nfc: bool) -> Result<Specials> {
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
        let searches = [Search::new(&tokens, Stage::Raw, nfc)?, Search::new(&tokens, Stage::Normalised, nfc)?];
        Ok(Specials { tokens, searches })
    }

    /// End-of-text alone, where it has an id, or none at all.
    pub fn end_of_text(id: Option<u32>) -> Specials {
        let tokens = id.map(|id| SpecialToken::new(id, END_OF_TEXT));
        Specials::new(Vec::from_iter(tokens), false).expect("one token is no other")
    }

    /// Longest first.
    pub fn tokens(&self) -> &[SpecialToken] {
        &self.tokens
    }

    /// Length of the longest text in bytes; 0 without tokens.
    pub fn longest(&self) -> usize {
        self.tokens.first().map_or(0, |token| token.text.len())
    }

    /// The added token with an id; `None` if none has it.
    pub fn get(&self, id: u32) -> Option<&SpecialToken> {
        self.tokens.iter().find(|token| token.id == id)
    }

    /// The added token written as `text`; `None` if there is none.
    pub fn by_text(&self, text: &str) -> Option<&SpecialToken> {
        self.tokens.iter().find(|token| token.text == text)
    }

    /// Whether some token is looked for in normalised text that is no ASCII: then nobody knows where it begins in the text.
    pub fn are_normalised(&self) -> bool {
        self.tokens.iter().any(|token| token.matching.normalized && !token.text.is_ascii())
    }

    /// The tokens in `text` and the stretches between them, none of which is empty, in order. Where special tokens are
    /// text, one that is found stays text as a whole.
    pub fn split<'a>(&'a self, text: &'a str, stage: Stage, specials: SpecialText) -> Vec<Stretch<'a>> {
        let search = &self.searches[stage as usize];
        let (mut stretches, mut end) = (Vec::new(), 0);
        let wanted = !search.tokens.is_empty() && (specials != SpecialText::Text || search.always);
        for found in search.texts.find_iter(text).take_while(|_| wanted) {
            let token = &self.tokens[search.tokens[found.pattern().as_usize()]];
            let (before, after) = (&text[..found.start()], &text[found.end()..]);
            let touches = before.ends_with(is_word_character) || after.starts_with(is_word_character);
            if token.special && specials == SpecialText::Text || token.matching.single_word && touches {
                continue;
            }
            let start = if token.matching.lstrip { end.max(before.trim_end().len()) } else { found.start() };
            if end < start {
                stretches.push(Stretch::Text(&text[end..start]));
            }
            stretches.push(Stretch::Token(start, token));
            end = if token.matching.rstrip { text.len() - after.trim_start().len() } else { found.end() };
        }
        if end < text.len() {
            stretches.push(Stretch::Text(&text[end..]));
        }
        stretches
    }

    /// Whether a cut of `text` at the place `at` could change which tokens are found: one stands across it, or touches it and
    /// minds what stands beside it.
    pub fn cross(&self, text: &[u8], at: usize) -> bool {
        self.tokens.iter().any(|token| {
            let (len, minds) = (token.text.len(), token.matching.single_word || token.matching.rstrip);
            let (first, last) =
                if minds { (at.saturating_sub(len), at + 1) } else { ((at + 1).saturating_sub(len), at) };
            (first..last).any(|start| text[start..].starts_with(token.text.as_bytes()))
        })
    }
}

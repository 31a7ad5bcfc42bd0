//! A token per character: the vocabulary is small and every id can be read, but a new character cannot be encoded.

use anyhow::{Result, bail, ensure};
use std::collections::{BTreeSet, HashMap};

/// Id `i` is the `i`-th character of a list; see [`Tokenizer::chars_of`](super::Tokenizer::chars_of).
#[derive(Clone, Debug, PartialEq)]
pub struct CharTokenizer {
    chars: Vec<char>,
    ids: HashMap<char, u32>,
    end_of_text: bool,
}

impl CharTokenizer {
    /// The distinct characters of `documents`, by code point.
    pub fn of<'a>(documents: impl IntoIterator<Item = &'a str>, end_of_text: bool) -> CharTokenizer {
        let distinct: BTreeSet<char> = documents.into_iter().flat_map(str::chars).collect();
        CharTokenizer::index(distinct.into_iter().collect(), end_of_text)
    }

    /// A given list, in which a character's place is its id. Error: a character occurs twice.
    pub fn from_chars(chars: Vec<char>, end_of_text: bool) -> Result<CharTokenizer> {
        let tokenizer = CharTokenizer::index(chars, end_of_text);
        for (i, c) in tokenizer.chars.iter().enumerate() {
            // The index keeps a repeated character's last place.
            let last = tokenizer.ids[c];
            ensure!(last as usize == i, "vocabulary: found {c:?} at ids {i} and {last}, expected it once");
        }
        Ok(tokenizer)
    }

    fn index(chars: Vec<char>, end_of_text: bool) -> CharTokenizer {
        let ids = chars.iter().zip(0..).map(|(&c, id)| (c, id)).collect();
        CharTokenizer { chars, ids, end_of_text }
    }

    /// The characters in the order of their ids.
    pub fn chars(&self) -> &[char] {
        &self.chars
    }

    pub fn has_end_of_text(&self) -> bool {
        self.end_of_text
    }

    /// The ids of `text`, which begins `start` bytes into what errors speak of. Error: a character that the tokenizer
    /// does not know, with its byte offset.
    pub(super) fn encode(&self, text: &str, start: usize) -> Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(text.len());
        for (offset, c) in text.char_indices() {
            match self.ids.get(&c) {
                Some(&id) => ids.push(id),
                None => bail!(
                    "encode: found character {c:?} (U+{:04X}) at byte {offset}, expected one of the {} characters that the \
                     tokenizer knows",
                    c as u32,
                    self.chars.len(),
                    offset = start + offset
                ),
            }
        }
        Ok(ids)
    }

    /// Appends the UTF-8 bytes of `id`; `false` where the id is not that of a character.
    pub(super) fn push_token(&self, id: u32, bytes: &mut Vec<u8>) -> bool {
        let Some(c) = self.chars.get(id as usize) else { return false };
        bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
        true
    }
}

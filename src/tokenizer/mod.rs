//! Tokenizers: text to token ids and back.
//!
//! | variant | one token is | vocabulary |
//! |---|---|---|
//! | [`Tokenizer::Char`]  | a character | the distinct characters of a text (chapter 8's small examples) |
//! | [`Tokenizer::Bytes`] | a byte of the UTF-8 text | 256; every text can be encoded |
//! | [`Tokenizer::Bpe`]   | bytes that often stand together | as large as one likes; every text can be encoded |
//!
//! The first two may have one token more, [`END_OF_TEXT`], which stands between documents and has the last id. In
//! byte-pair encoding ([`bpe`]) it is one of any number of special tokens.
//!
//! [`StreamDecoder`] turns ids into text one at a time, for printing while generating.

pub mod bpe;
mod bytes;
mod chars;
mod stream;

pub use bpe::{BpeParts, BpeTokenizer};
pub use bytes::ByteTokenizer;
pub use chars::CharTokenizer;
pub use stream::StreamDecoder;

use anyhow::{Context, Result, bail};
use bpe::special::{Stage, Stretch};
use bpe::{Specials, cuts, no_such_end};
use rayon::prelude::*;
use std::borrow::Cow;

/// The text of the token that ends a document (report §4.1).
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Any tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub enum Tokenizer {
    Char(CharTokenizer),
    Bytes(ByteTokenizer),
    Bpe(Box<BpeTokenizer>),
}

/// What becomes of a special token's text within a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialText {
    /// It is text like any other, so that no text can end a document by what it says.
    Text,
    /// It is the special token.
    Allow,
    /// It is an error.
    Forbid,
}

impl Tokenizer {
    /// A token for each distinct character of `documents`, by code point; then end-of-text if asked for.
    pub fn chars_of<'a>(documents: impl IntoIterator<Item = &'a str>, end_of_text: bool) -> Tokenizer {
        Tokenizer::Char(CharTokenizer::of(documents, end_of_text))
    }

    /// Ids 0 to 255 are the bytes themselves; 256 is end-of-text if asked for.
    pub fn bytes(end_of_text: bool) -> Tokenizer {
        Tokenizer::Bytes(ByteTokenizer::new(end_of_text))
    }

    /// Number of ids, special tokens included: ids are `0..vocab_size`, of which a file's byte-pair vocabulary may
    /// leave some out.
    pub fn vocab_size(&self) -> usize {
        match self {
            Tokenizer::Char(t) => t.chars().len() + usize::from(t.has_end_of_text()),
            Tokenizer::Bytes(t) => ByteTokenizer::BYTES + usize::from(t.has_end_of_text()),
            Tokenizer::Bpe(t) => t.vocab_size(),
        }
    }

    /// The id of the token that ends a document, if there is one.
    pub fn end_of_text(&self) -> Option<u32> {
        match self {
            Tokenizer::Char(t) => t.has_end_of_text().then(|| t.chars().len() as u32),
            Tokenizer::Bytes(t) => t.has_end_of_text().then_some(ByteTokenizer::BYTES as u32),
            Tokenizer::Bpe(t) => t.end_of_text(),
        }
    }

    /// Makes the added token written as `text` the one that ends documents; `None`: none does. Errors: no such token; none
    /// where characters or bytes are the tokens, which have theirs or not.
    pub fn set_end_of_text(&mut self, text: Option<&str>) -> Result<()> {
        match self {
            Tokenizer::Bpe(t) => t.set_end_of_text(text),
            _ if text == self.end_of_text().map(|_| END_OF_TEXT) => Ok(()),
            _ => bail!(no_such_end(text.unwrap_or("none"))),
        }
    }

    /// The id of the token that begins a prompt or a document, if the model wants one.
    pub fn begin_of_text(&self) -> Option<u32> {
        match self {
            Tokenizer::Char(_) | Tokenizer::Bytes(_) => None,
            Tokenizer::Bpe(t) => t.begin_of_text(),
        }
    }

    /// The special tokens.
    pub fn specials(&self) -> Cow<'_, Specials> {
        match self {
            Tokenizer::Bpe(t) => Cow::Borrowed(t.specials()),
            Tokenizer::Char(_) | Tokenizer::Bytes(_) => Cow::Owned(Specials::end_of_text(self.end_of_text())),
        }
    }

    /// The ids of `text`, in which the texts of special tokens become those tokens, the longest first. For text whose
    /// every word is trusted; see [`encode_ordinary`](Self::encode_ordinary).
    /// Error: a character that the tokenizer does not know, with its byte offset.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_as(text, SpecialText::Allow)
    }

    /// The ids of `text`, all of which is ordinary: an end-of-text marker that the text quotes becomes the tokens of
    /// its characters, never the special token, so no text can end a document by what it says.
    /// Error: as [`Tokenizer::encode`].
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_as(text, SpecialText::Text)
    }

    /// The ids of `text`. Error: as [`Tokenizer::encode`]; a special token where they are forbidden, with its byte
    /// offset.
    pub fn encode_as(&self, text: &str, specials: SpecialText) -> Result<Vec<u32>> {
        match self {
            Tokenizer::Bpe(t) => t.encode_parallel(text, specials),
            Tokenizer::Char(_) | Tokenizer::Bytes(_) if specials == SpecialText::Text => self.encode_plain(text, 0),
            Tokenizer::Char(_) | Tokenizer::Bytes(_) => self.encode_around_ends(text, specials),
        }
    }

    /// The ids of a prompt: the token that begins one, if the model wants it and the text does not begin with it
    /// already. Error: as [`encode_as`](Self::encode_as).
    pub fn encode_prompt(&self, text: &str, specials: SpecialText) -> Result<Vec<u32>> {
        let mut ids = self.encode_as(text, specials)?;
        if let Some(begin) = self.begin_of_text().filter(|begin| ids.first() != Some(begin)) {
            ids.insert(0, begin);
        }
        Ok(ids)
    }

    /// The ids of each text, on all threads. Error: as [`encode_as`](Self::encode_as), with the text's number counted
    /// from 1.
    pub fn encode_batch(&self, texts: &[impl AsRef<str> + Sync], specials: SpecialText) -> Result<Vec<Vec<u32>>> {
        let encode = |(i, text): (usize, &_)| {
            let place = || format!("document {} of {}", i + 1, texts.len());
            self.encode_as(AsRef::<str>::as_ref(text), specials).with_context(place)
        };
        let all: Vec<Result<_>> = texts.par_iter().enumerate().map(encode).collect();
        all.into_iter().collect() // of several errors the first
    }

    /// The ids of all documents in a row, each of them ordinary text. Each begins and ends with the tokens for that if
    /// the tokenizer has them; otherwise they just touch.
    /// Error: as [`Tokenizer::encode`], with the document's number counted from 1.
    pub fn encode_documents(&self, documents: &[String]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for document in self.encode_batch(documents, SpecialText::Text)? {
            ids.extend(self.begin_of_text());
            ids.extend(document);
            ids.extend(self.end_of_text());
        }
        Ok(ids)
    }

    /// The ids of ordinary text that begins at byte `start` of what errors speak of.
    fn encode_plain(&self, text: &str, start: usize) -> Result<Vec<u32>> {
        match self {
            Tokenizer::Char(t) => t.encode(text, start),
            Tokenizer::Bytes(t) => Ok(t.encode(text)),
            Tokenizer::Bpe(t) => t.encode(text, SpecialText::Text),
        }
    }

    /// [`encode_as`](Self::encode_as) where end-of-text is the only special token.
    fn encode_around_ends(&self, text: &str, specials: SpecialText) -> Result<Vec<u32>> {
        let (mut ids, mut start) = (Vec::new(), 0);
        for stretch in self.specials().split(text, Stage::Raw, specials) {
            match stretch {
                Stretch::Token(at, _) if specials == SpecialText::Forbid => {
                    bail!("encode: found the special token {END_OF_TEXT:?} at byte {at}, expected ordinary text")
                }
                Stretch::Token(at, token) => {
                    ids.push(token.id);
                    start = at + token.text.len();
                }
                Stretch::Text(text) => ids.extend(self.encode_plain(text, start)?),
            }
        }
        Ok(ids)
    }

    /// The first place after `from` where `text` may be cut in two without other ids than those of both parts; `None` if
    /// there is none, or one so close to the text's end that more text could change the answer. The text need not be
    /// UTF-8.
    pub fn next_cut(&self, text: &[u8], from: usize) -> Option<usize> {
        match self {
            Tokenizer::Bpe(t) => t.next_cut(text, from),
            Tokenizer::Char(_) | Tokenizer::Bytes(_) => cuts::next_cut(text, from, &self.specials()),
        }
    }

    /// The bytes of `ids`: UTF-8 unless ids cut a character apart. A special token becomes its own text.
    /// Error: an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(4 * ids.len());
        for &id in ids {
            self.push_token(id, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Appends the bytes of one token.
    fn push_token(&self, id: u32, bytes: &mut Vec<u8>) -> Result<()> {
        let known = match self {
            Tokenizer::Char(t) => t.push_token(id, bytes),
            Tokenizer::Bytes(t) => t.push_token(id, bytes),
            Tokenizer::Bpe(t) => t.push_token(id, bytes),
        };
        if known {
            return Ok(());
        }
        let size = self.vocab_size();
        if (id as usize) < size && self.end_of_text() != Some(id) {
            bail!(
                "decode: found token id {id}, expected one that a token has: this one is a gap in the vocabulary of {size}"
            );
        }
        if self.end_of_text() != Some(id) {
            bail!("decode: found token id {id}, expected an id below {size} (the vocabulary's size)");
        }
        bytes.extend(END_OF_TEXT.bytes());
        Ok(())
    }
}

//! Tokenizers: text to token ids and back.
//!
//! | variant | one token is | vocabulary |
//! |---|---|---|
//! | [`Tokenizer::Char`]  | a character | the distinct characters of a text (chapter 8's small examples) |
//! | [`Tokenizer::Bytes`] | a byte of the UTF-8 text | 256; every text can be encoded |
//!
//! Either may have one token more, [`END_OF_TEXT`], which stands between documents. It always has the last id.
//!
//! [`StreamDecoder`] turns ids into text one at a time, for printing while generating.

mod bytes;
mod chars;
mod stream;

pub use bytes::ByteTokenizer;
pub use chars::CharTokenizer;
pub use stream::StreamDecoder;

use anyhow::{Context, Result, bail};

/// The text of the token that ends a document (report §4.1).
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// Any tokenizer.
#[derive(Clone, Debug, PartialEq)]
pub enum Tokenizer {
    Char(CharTokenizer),
    Bytes(ByteTokenizer),
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

    /// Number of ids, end-of-text included: ids are `0..vocab_size`.
    pub fn vocab_size(&self) -> usize {
        self.ordinary() + usize::from(self.end_of_text().is_some())
    }

    /// The id of the token that ends a document, if there is one.
    pub fn end_of_text(&self) -> Option<u32> {
        let has = match self {
            Tokenizer::Char(t) => t.has_end_of_text(),
            Tokenizer::Bytes(t) => t.has_end_of_text(),
        };
        has.then_some(self.ordinary() as u32)
    }

    /// Number of tokens that stand for text, end-of-text not counted.
    fn ordinary(&self) -> usize {
        match self {
            Tokenizer::Char(t) => t.chars().len(),
            Tokenizer::Bytes(_) => ByteTokenizer::BYTES,
        }
    }

    /// The ids of `text`. All of it is ordinary text: an end-of-text marker that the text quotes becomes the tokens of
    /// its characters, never the special token, so no text can end a document by what it says.
    /// Error: a character that the tokenizer does not know, with its byte offset.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Tokenizer::Char(t) => t.encode(text),
            Tokenizer::Bytes(t) => Ok(t.encode(text)),
        }
    }

    /// The ids of all documents in a row. Each ends with end-of-text if the tokenizer has it; otherwise they just touch.
    /// Error: as [`Tokenizer::encode`], with the document's number counted from 1.
    pub fn encode_documents(&self, documents: &[String]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for (i, document) in documents.iter().enumerate() {
            ids.extend(self.encode(document).with_context(|| format!("document {} of {}", i + 1, documents.len()))?);
            ids.extend(self.end_of_text());
        }
        Ok(ids)
    }

    /// The bytes of `ids`: UTF-8 unless ids cut a character apart. End-of-text becomes its own text.
    /// Error: an id outside the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(ids.len());
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
        };
        if known {
            return Ok(());
        }
        if self.end_of_text() != Some(id) {
            bail!("decode: found token id {id}, expected an id below {} (the vocabulary's size)", self.vocab_size());
        }
        bytes.extend(END_OF_TEXT.bytes());
        Ok(())
    }
}

//! Decoding one token at a time, as text that can be printed at once.

use super::Tokenizer;
use anyhow::Result;

/// Turns ids into text as they come. A token may end inside a character: such bytes wait for the next token, while bytes
/// that no continuation could make valid come out as U+FFFD straight away. All pieces joined are the lossy decoding of all bytes.
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The beginning of a character, at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl<'a> StreamDecoder<'a> {
    pub fn new(tokenizer: &'a Tokenizer) -> StreamDecoder<'a> {
        StreamDecoder { tokenizer, pending: Vec::new() }
    }

    /// The text that token `id` makes certain; empty while a character is unfinished.
    /// Error: an id outside the vocabulary.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.tokenizer.push_token(id, &mut self.pending)?;
        let mut text = String::new();
        let mut waiting = 0;
        let mut chunks = self.pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            // Only at the very end can more bytes still come.
            if chunks.peek().is_none() && is_unfinished(invalid) {
                waiting = invalid.len();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - waiting);
        Ok(text)
    }

    /// The end of the stream: one U+FFFD if a character was left unfinished. The decoder can be used again.
    pub fn flush(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        text
    }
}

/// Whether `bytes` begin a character that further bytes could finish.
fn is_unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

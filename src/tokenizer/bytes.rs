//! A token per byte: nothing to learn and no text that it cannot encode.

/// Ids 0 to 255 are bytes; see [`Tokenizer::bytes`](super::Tokenizer::bytes).
#[derive(Clone, Debug, PartialEq)]
pub struct ByteTokenizer {
    end_of_text: bool,
}

impl ByteTokenizer {
    /// Number of tokens that stand for a byte.
    pub const BYTES: usize = 256;

    pub fn new(end_of_text: bool) -> ByteTokenizer {
        ByteTokenizer { end_of_text }
    }

    pub fn has_end_of_text(&self) -> bool {
        self.end_of_text
    }

    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    /// Appends the byte of `id`; `false` where the id is not that of a byte.
    pub(super) fn push_token(&self, id: u32, bytes: &mut Vec<u8>) -> bool {
        let byte = u8::try_from(id);
        bytes.extend(byte);
        byte.is_ok()
    }
}

//! tiktoken's file of ranks: a line for each token, its bytes in base 64 and its id.
//!
//! tiktoken merges the two neighbours whose bytes together have the lowest id, so the ids of merges must ascend in the
//! order of learning. Special tokens and the regular expression are not in the file; they are arguments of
//! `tiktoken.Encoding`.

use super::atomic;
use crate::tokenizer::BpeTokenizer;
use anyhow::{Result, ensure};
use std::path::Path;

/// Writes the ranks atomically. Errors: those of [`ranks`]; the file cannot be written.
pub fn write(path: &Path, tokenizer: &BpeTokenizer) -> Result<()> {
    let text = ranks(tokenizer)?;
    atomic::write_sized(path, Some(text.len() as u64), |file| Ok(file.write_all(text.as_bytes())?))
}

/// The file's content. Errors: a tokenizer that normalises text; ids that are not in the order of merges.
pub fn ranks(tokenizer: &BpeTokenizer) -> Result<String> {
    let parts = tokenizer.parts();
    ensure!(!parts.nfc, "ranks: found a tokenizer that normalises text, which tiktoken does not");
    let mut last = None;
    for (rank, id) in tokenizer.merged_ids().enumerate() {
        ensure!(
            last <= Some(id),
            "ranks: found id {id} for merge {rank} and {} for the one before, expected ids in the order of merges",
            last.unwrap_or(0)
        );
        last = Some(id);
    }
    let mut text = String::new();
    for (id, token) in parts.tokens.iter().enumerate() {
        if let Some(token) = token {
            text.push_str(&format!("{} {id}\n", base64(token)));
        }
    }
    Ok(text)
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let place = (bits >> (18 - 6 * digit)) as usize & 63;
            text.push(if digit <= three.len() { DIGITS[place] as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_as_the_rfc_has_it() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(super::base64(bytes.as_bytes()), text);
        }
    }
}

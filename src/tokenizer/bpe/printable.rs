//! GPT-2's alphabet: a printable character for each byte, so that tokens can be written into text files.

/// The printable character that stands for a byte: itself where it is visible in Latin-1, otherwise the next unused one
/// from U+0100 on, so that no token in a file contains a blank or a control character.
pub fn printable(byte: u8) -> char {
    if is_visible(byte) {
        return char::from(byte);
    }
    let hidden_before = (0..byte).filter(|&b| !is_visible(b)).count() as u32;
    // At most 255 characters above U+0100: all of them exist.
    char::from_u32(0x100 + hidden_before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes that a text of printable characters stands for; `None` if it has any other character.
pub fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(byte_of).collect()
}

/// Bytes as printable characters.
pub fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| printable(byte)).collect()
}

fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(c) {
        Ok(byte) => is_visible(byte).then_some(byte),
        // The rest stands from U+0100 on in the order of the bytes.
        Err(_) => (0..=255).filter(|&byte| !is_visible(byte)).nth((c as usize).checked_sub(0x100)?),
    }
}

fn is_visible(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

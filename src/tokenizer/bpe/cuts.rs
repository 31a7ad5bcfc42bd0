//! Places where a text can be cut in two without any piece changing, so that the parts can be worked on apart.
//!
//! Every [`Pattern`](super::Pattern) ends a piece where a run of letters or of digits ends, whatever follows; none
//! looks back, and only whitespace looks ahead. So a place is safe between a letter and anything that is no letter, or
//! a number and anything that is no number, as long as no special token's text stands across it.

use super::special::Specials;
use super::unicode::{CharClass, char_classes};

/// The first safe place after `from`; `None` if the text has none, or one so close to its end that more text could
/// change the answer. The bytes need not be UTF-8: what is invalid is neither letter nor number.
pub fn next_cut(text: &[u8], from: usize, specials: &Specials) -> Option<usize> {
    let ahead = specials.longest().max(4); // a character is 4 bytes at most
    let mut at = from;
    let mut before = None;
    while at + ahead <= text.len() {
        let here = char_at(text, at);
        let class = here.map(|c| char_classes().of(c));
        let ends =
            before.is_some_and(|b| matches!(b, CharClass::Letter | CharClass::Number) && class.is_some_and(|k| k != b));
        if ends && !specials.cross(text, at) {
            return Some(at);
        }
        before = class;
        at += here.map_or(1, char::len_utf8);
    }
    None
}

/// How far before a cut [`next_cut`] reads.
pub fn look_behind(specials: &Specials) -> usize {
    specials.longest()
}

/// The character that begins at `at`, if one does.
fn char_at(text: &[u8], at: usize) -> Option<char> {
    let chunk = text[at..text.len().min(at + 4)].utf8_chunks().next()?;
    chunk.valid().chars().next()
}

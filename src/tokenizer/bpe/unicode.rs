//! The four classes of character that pre-tokenizers tell apart, looked up in a table.
//!
//! The table is made at first use from the Unicode data of `regex-syntax`, which is also what `fancy-regex` reads: the
//! scanner and the regular expressions agree on every code point, and will after an update of either.

use regex_syntax::hir::{Class, HirKind};
use std::sync::LazyLock;

/// What a character is to a pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CharClass {
    /// None of the others: `[^\s\p{L}\p{N}]`, combining marks and unassigned code points among them.
    Other,
    /// `\p{L}`
    Letter,
    /// `\p{N}`
    Number,
    /// `\s`
    Space,
}

/// The class of every code point.
pub struct CharClasses(Box<[CharClass]>);

const CODE_POINTS: usize = char::MAX as usize + 1;

/// The table; 1.1 MB, of which a text touches the blocks of its scripts.
pub fn char_classes() -> &'static CharClasses {
    static CLASSES: LazyLock<CharClasses> = LazyLock::new(|| {
        let mut classes = vec![CharClass::Other; CODE_POINTS].into_boxed_slice();
        for (pattern, class) in
            [(r"\p{L}", CharClass::Letter), (r"\p{N}", CharClass::Number), (r"\s", CharClass::Space)]
        {
            for (first, last) in ranges(pattern) {
                classes[first as usize..=last as usize].fill(class);
            }
        }
        CharClasses(classes)
    });
    &CLASSES
}

impl CharClasses {
    #[inline]
    pub fn of(&self, c: char) -> CharClass {
        self.0[c as usize]
    }

    /// Class and length in bytes of the character that begins at `text[at]`; `None` at the end. `text` is UTF-8 and
    /// `at` a boundary of its characters; otherwise the answer means nothing, but there is one.
    #[inline]
    pub fn at(&self, text: &[u8], at: usize) -> Option<(CharClass, usize)> {
        let first = *text.get(at)?;
        if first < 0x80 {
            return Some((self.0[first as usize], 1));
        }
        Some(self.beyond_ascii(&text[at..]))
    }

    fn beyond_ascii(&self, text: &[u8]) -> (CharClass, usize) {
        let low = |i: usize| text.get(i).map_or(0, |byte| usize::from(byte & 0x3F));
        let first = usize::from(text[0]);
        let (code, len) = match first {
            0..0xE0 => ((first & 0x1F) << 6 | low(1), 2),
            0xE0..0xF0 => ((first & 0x0F) << 12 | low(1) << 6 | low(2), 3),
            _ => ((first & 0x07) << 18 | low(1) << 12 | low(2) << 6 | low(3), 4),
        };
        (self.0.get(code).copied().unwrap_or(CharClass::Other), len)
    }
}

/// The ranges of code points of a class, ends included.
fn ranges(class: &str) -> Vec<(char, char)> {
    let class = regex_syntax::parse(class).expect("a valid class");
    let HirKind::Class(Class::Unicode(class)) = class.kind() else { unreachable!("a class of characters") };
    class.ranges().iter().map(|range| (range.start(), range.end())).collect()
}

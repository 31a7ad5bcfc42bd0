//! Pre-tokenization (report §4.1): text falls into pieces, and no token crosses from one into the next.
//!
//! Each [`Pattern`] is a regular expression, whose matches in a row are the pieces. [`Pattern::pieces`] finds the same
//! pieces by hand: one look at the first one or two characters decides which alternative matches, and a loop finds
//! where it ends. `tests/tokenizer` holds it against `fancy-regex` on arbitrary text.
//!
//! No alternative looks back, so that the rest of a text can be split without what stands before; and nothing but a run
//! of whitespace looks ahead, of which all but the last character is one piece if something follows, so that a word
//! takes one blank with it.

use super::unicode::{CharClass, CharClasses, char_classes};

/// How text is cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// GPT-2's, which the report uses.
    Gpt2,
    /// Qwen2's and Qwen3's: every digit alone, a word takes any one sign with it, newlines follow signs.
    Qwen2,
    /// Llama 3's: as Qwen2's, but up to three digits together.
    Llama3,
}

impl Pattern {
    pub const ALL: [Pattern; 3] = [Pattern::Gpt2, Pattern::Qwen2, Pattern::Llama3];

    /// The name by which the command line knows it.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Gpt2 => "gpt2",
            Pattern::Qwen2 => "qwen2",
            Pattern::Llama3 => "llama3",
        }
    }

    /// The regular expression, letter for letter as model files carry it.
    pub fn regex(self) -> &'static str {
        match self {
            Pattern::Gpt2 => r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            Pattern::Qwen2 => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            }
            Pattern::Llama3 => {
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            }
        }
    }

    /// The pattern of a regular expression as files spell it; `None` for any other.
    pub fn of_regex(regex: &str) -> Option<Pattern> {
        /// GPT-2's as its authors wrote it.
        const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
        let known = Pattern::ALL.into_iter().find(|pattern| pattern.regex() == regex);
        known.or((regex == GPT2).then_some(Pattern::Gpt2))
    }

    /// The pieces of `text`, in order; joined they are the text again.
    pub fn pieces(self, text: &str) -> Pieces<'_> {
        Pieces { scanner: Scanner::new(self, text), text, start: 0 }
    }
}

/// An iterator over pieces.
pub struct Pieces<'a> {
    scanner: Scanner<'a>,
    text: &'a str,
    start: usize,
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let start = self.start;
        self.start = self.scanner.end_of_piece(start)?;
        Some(&self.text[start..self.start])
    }
}

/// Finds where pieces end.
pub struct Scanner<'a> {
    pattern: Pattern,
    text: &'a [u8],
    classes: &'static CharClasses,
}

impl<'a> Scanner<'a> {
    pub fn new(pattern: Pattern, text: &'a str) -> Scanner<'a> {
        Scanner { pattern, text: text.as_bytes(), classes: char_classes() }
    }

    /// Where the piece that begins at `start` ends; `None` at the end of the text.
    #[inline]
    pub fn end_of_piece(&self, start: usize) -> Option<usize> {
        let (class, len) = self.classes.at(self.text, start)?;
        Some(match self.pattern {
            Pattern::Gpt2 => self.gpt2(start, class, len),
            Pattern::Qwen2 => self.newer(start, class, len, 1),
            Pattern::Llama3 => self.newer(start, class, len, 3),
        })
    }

    #[inline]
    fn gpt2(&self, start: usize, class: CharClass, len: usize) -> usize {
        let first = self.text[start];
        if first == b' ' {
            return match self.classes.at(self.text, start + 1) {
                None | Some((CharClass::Space, _)) => self.whitespace(start),
                Some((class, len)) => self.run(start + 1 + len, class),
            };
        }
        match class {
            CharClass::Space => self.whitespace(start),
            _ if first == b'\'' => self.contraction(start).unwrap_or_else(|| self.run(start + 1, class)),
            _ => self.run(start + len, class),
        }
    }

    /// Qwen2's and Llama 3's, which differ in how many digits stay together.
    #[inline]
    fn newer(&self, start: usize, class: CharClass, len: usize, digits: usize) -> usize {
        let first = self.text[start];
        match class {
            CharClass::Letter => return self.run(start + len, CharClass::Letter),
            CharClass::Number => return self.up_to(start + len, CharClass::Number, digits - 1),
            CharClass::Other | CharClass::Space => {}
        }
        if first == b'\''
            && let Some(end) = self.folded_contraction(start)
        {
            return end;
        }
        match self.classes.at(self.text, start + len) {
            Some((CharClass::Letter, letter)) if !is_newline(first) => {
                self.run(start + len + letter, CharClass::Letter)
            }
            Some((CharClass::Other, sign)) if first == b' ' => {
                self.newlines(self.run(start + len + sign, CharClass::Other))
            }
            _ if class == CharClass::Other => self.newlines(self.run(start + len, CharClass::Other)),
            _ => self.lines_or_whitespace(start),
        }
    }

    /// Where the run of characters of one class ends.
    #[inline]
    fn run(&self, mut at: usize, class: CharClass) -> usize {
        while let Some((found, len)) = self.classes.at(self.text, at) {
            if found != class {
                break;
            }
            at += len;
        }
        at
    }

    /// As [`run`](Self::run), over `most` characters and no more.
    fn up_to(&self, mut at: usize, class: CharClass, most: usize) -> usize {
        for _ in 0..most {
            match self.classes.at(self.text, at) {
                Some((found, len)) if found == class => at += len,
                _ => break,
            }
        }
        at
    }

    /// `[\r\n]*`
    fn newlines(&self, at: usize) -> usize {
        at + self.text[at..].iter().take_while(|&&byte| is_newline(byte)).count()
    }

    /// `\s+(?!\S)|\s+`: a run that ends the text is whole; otherwise all but its last character, if that leaves any.
    fn whitespace(&self, start: usize) -> usize {
        let end = self.run(start, CharClass::Space);
        if end == self.text.len() {
            return end;
        }
        let last = (start..end).rev().find(|&at| !is_continuation(self.text[at])).unwrap_or(start);
        if last == start { end } else { last }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`: up to the last line break of the run, if there is one.
    fn lines_or_whitespace(&self, start: usize) -> usize {
        let end = self.run(start, CharClass::Space);
        match self.text[start..end].iter().rposition(|&byte| is_newline(byte)) {
            Some(last) => start + last + 1,
            None => self.whitespace(start),
        }
    }

    /// `'(?:[sdmt]|ll|ve|re)` at an apostrophe.
    fn contraction(&self, start: usize) -> Option<usize> {
        match self.text[start + 1..] {
            [b's' | b'd' | b'm' | b't', ..] => Some(start + 2),
            [b'l', b'l', ..] | [b'v', b'e', ..] | [b'r', b'e', ..] => Some(start + 3),
            _ => None,
        }
    }

    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)` at an apostrophe. The long s, U+017F, is an s whose case is folded.
    fn folded_contraction(&self, start: usize) -> Option<usize> {
        let after = &self.text[start + 1..];
        let letter = |i: usize| after.get(i).map_or(0, u8::to_ascii_lowercase);
        match (letter(0), letter(1)) {
            (b's' | b'd' | b'm' | b't', _) => Some(start + 2),
            (b'l', b'l') | (b'v', b'e') | (b'r', b'e') => Some(start + 3),
            _ if after.starts_with("ſ".as_bytes()) => Some(start + 3),
            _ => None,
        }
    }
}

fn is_newline(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

//! Text to tokens.
//!
//! A word keeps its dots, so that `ld.global.L2::128B.f32` and `%tid.x` are one token each; a directive (`.reg`) does
//! not, so that `.reg.b32` is two. Nothing is an error here: what is no token is `Bad`, and the parser says what it
//! expected.
//! (PTX ISA, "Source Format", "Identifiers", "Constants".)

/// What a token is. The text of all but `Text` is what the source says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// An identifier, with the dotted parts that follow it directly.
    Word,
    /// A dot and a name; the token's text is the name alone.
    Directive,
    /// A number, its digits not yet checked.
    Number,
    /// What stands between two quotes, escapes untouched.
    Text,
    /// One character of punctuation.
    Mark(u8),
    /// A character that begins no token, or a comment or text without its end.
    Bad,
    End,
}

#[derive(Debug, Clone, Copy)]
pub struct Token<'t> {
    pub kind: TokenKind,
    pub text: &'t str,
    /// From 1.
    pub line: u32,
    /// The token's first byte.
    pub start: usize,
}

pub struct Lexer<'t> {
    text: &'t str,
    at: usize,
    line: u32,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$'
}

impl<'t> Lexer<'t> {
    pub fn new(text: &'t str) -> Lexer<'t> {
        Lexer { text, at: 0, line: 1 }
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn skip_while(&mut self, test: impl Fn(u8) -> bool) {
        while self.at < self.text.len() && test(self.byte(0)) {
            self.at += 1;
        }
    }

    /// Skips blanks and comments; false if a comment has no end.
    fn skip_blank(&mut self) -> bool {
        loop {
            match (self.byte(0), self.byte(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r' | 0x0b | 0x0c, _) => self.at += 1,
                (b'/', b'/') => self.skip_while(|byte| byte != b'\n'),
                (b'/', b'*') => match self.text[self.at + 2..].find("*/") {
                    Some(length) => {
                        let end = self.at + 2 + length + 2;
                        self.line +=
                            self.text.as_bytes()[self.at..end].iter().filter(|&&byte| byte == b'\n').count() as u32;
                        self.at = end;
                    }
                    None => return false,
                },
                _ => return true,
            }
        }
    }

    pub fn next(&mut self) -> Token<'t> {
        let ended = self.skip_blank();
        let (start, line) = (self.at, self.line);
        let token = |kind, text| Token { kind, text, line, start };
        if !ended {
            self.at = self.text.len();
            return token(TokenKind::Bad, &self.text[start..]);
        }
        let Some(first) = self.text[start..].chars().next() else { return token(TokenKind::End, "") };
        let kind = match first {
            'a'..='z' | 'A'..='Z' | '_' | '$' => self.word(),
            '%' if is_name(self.byte(1)) => self.word(),
            '0'..='9' => self.number(),
            '.' if self.byte(1).is_ascii_digit() => self.number(),
            '.' if is_name(self.byte(1)) => {
                self.at += 1;
                self.skip_while(is_name);
                return token(TokenKind::Directive, &self.text[start + 1..self.at]);
            }
            '"' => return self.quoted(token(TokenKind::Text, "")),
            '{' | '}' | '[' | ']' | '(' | ')' | '<' | '>' | ',' | ';' | ':' | '=' | '@' | '!' | '|' | '&' | '^'
            | '+' | '-' | '*' | '/' | '~' | '?' | '%' => {
                self.at += 1;
                TokenKind::Mark(first as u8)
            }
            _ => {
                self.at += first.len_utf8();
                TokenKind::Bad
            }
        };
        token(kind, &self.text[start..self.at])
    }

    fn word(&mut self) -> TokenKind {
        self.at += 1;
        loop {
            self.skip_while(is_name);
            if self.byte(0) == b'.' && is_name(self.byte(1)) {
                self.at += 2;
            } else if self.byte(0) == b':' && self.byte(1) == b':' && is_name(self.byte(2)) {
                self.at += 3;
            } else {
                return TokenKind::Word;
            }
        }
    }

    /// Digits, letters and a decimal point; an exponent's sign where the number is a decimal.
    fn number(&mut self) -> TokenKind {
        let start = self.at;
        let bytes = self.text.as_bytes();
        self.skip_while(|byte| byte.is_ascii_digit());
        if self.byte(0) == b'.' {
            self.at += 1;
            self.skip_while(|byte| byte.is_ascii_digit());
        }
        let coded = bytes[start] == b'0' && matches!(self.byte(0) | 0x20, b'x' | b'f' | b'd');
        if !coded && self.byte(0) | 0x20 == b'e' && matches!(self.byte(1), b'+' | b'-') {
            self.at += 2;
        }
        self.skip_while(is_name);
        TokenKind::Number
    }

    fn quoted(&mut self, mut token: Token<'t>) -> Token<'t> {
        self.at += 1;
        let first = self.at;
        loop {
            self.skip_while(|byte| !matches!(byte, b'"' | b'\\' | b'\n'));
            match (self.byte(0), self.byte(1)) {
                (b'"', _) => break,
                // What follows may be the first byte of a longer character, which the next round goes over.
                (b'\\', second) if second != b'\n' && self.at + 1 < self.text.len() => {
                    self.at += 1;
                    self.at += self.text[self.at..].chars().next().map_or(0, char::len_utf8);
                }
                _ => {
                    token.kind = TokenKind::Bad;
                    token.text = &self.text[first - 1..self.at];
                    return token;
                }
            }
        }
        token.text = &self.text[first..self.at];
        self.at += 1;
        token
    }
}

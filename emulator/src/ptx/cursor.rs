//! Where the parser stands in the text: the token at hand and the one after it, and the errors that name them.

use super::lexer::{Lexer, Token, TokenKind};
use crate::fault::{Code, Fault, Result, shown};

pub struct Cursor<'t> {
    text: &'t str,
    lexer: Lexer<'t>,
    pub token: Token<'t>,
    pub ahead: Token<'t>,
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t str) -> Cursor<'t> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next();
        let ahead = lexer.next();
        Cursor { text, lexer, token, ahead }
    }

    /// The token at hand; the next one takes its place.
    pub fn take(&mut self) -> Token<'t> {
        let taken = self.token;
        self.token = self.ahead;
        self.ahead = self.lexer.next();
        taken
    }

    pub fn at(&self, mark: u8) -> bool {
        self.token.kind == TokenKind::Mark(mark)
    }

    /// Takes a mark if it is the token at hand.
    pub fn eat(&mut self, mark: u8) -> bool {
        let found = self.at(mark);
        if found {
            self.take();
        }
        found
    }

    pub fn expect(&mut self, mark: u8) -> Result<()> {
        match self.eat(mark) {
            true => Ok(()),
            false => self.expected(&format!("{:?}", (mark as char).to_string())),
        }
    }

    /// The directive at hand, without its dot.
    pub fn directive(&self) -> Option<&'t str> {
        (self.token.kind == TokenKind::Directive).then_some(self.token.text)
    }

    /// Takes a directive if it is the one named.
    pub fn eat_directive(&mut self, name: &str) -> bool {
        let found = self.directive() == Some(name);
        if found {
            self.take();
        }
        found
    }

    /// A name without dots: of a variable, function, register or label.
    pub fn name(&mut self, what: &str) -> Result<&'t str> {
        match self.token.kind {
            TokenKind::Word if !self.token.text.contains(['.', ':']) => Ok(self.take().text),
            _ => self.expected(what),
        }
    }

    pub fn quoted(&mut self, what: &str) -> Result<&'t str> {
        match self.token.kind {
            TokenKind::Text => Ok(self.take().text),
            _ => self.expected(what),
        }
    }

    /// An error at the token at hand: what stands there is not what must.
    pub fn expected<T>(&self, what: &str) -> Result<T> {
        let found = match self.token.kind {
            TokenKind::End => "the end of the text".to_string(),
            TokenKind::Directive => format!("\"{}\"", shown(&format!(".{}", self.token.text))),
            _ => format!("\"{}\"", shown(self.token.text)),
        };
        self.fail(self.token, &format!("found {found}, expected {what}"))
    }

    /// The error for a directive that PTX has and the emulator does not run.
    pub fn refuse<T>(&self, what: &str) -> Result<T> {
        self.fail(self.token, &format!("{what} is not supported"))
    }

    pub fn fail<T>(&self, place: Token, message: &str) -> Result<T> {
        self.fail_as(Code::InvalidPtx, place, message)
    }

    pub fn fail_as<T>(&self, code: Code, place: Token, message: &str) -> Result<T> {
        let line = self.line_of(place);
        let shown = if line.is_empty() { String::new() } else { format!(", in \"{line}\"") };
        Err(Fault::new(code, format!("PTX line {}: {message}{shown}", place.line)))
    }

    /// The line of text that a token begins on.
    fn line_of(&self, place: Token) -> String {
        let begin = self.text[..place.start].rfind('\n').map_or(0, |newline| newline + 1);
        shown(self.text[begin..].lines().next().unwrap_or("").trim())
    }
}

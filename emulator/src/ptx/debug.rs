//! Debug directives: `.file`, `.loc` and `.section`. (PTX ISA, "Debugging Directives".)
//!
//! `inlined_at FILE LINE COLUMN` names an earlier `.loc`. nvcc writes the whole chain of calls, outermost first,
//! before a location's first use in a function, so of several with that file, line and column the last one is meant.

use std::sync::Arc;

use super::ast::Location;
use super::lexer::TokenKind;
use super::module::Parser;
use crate::fault::Result;

/// Calls of a chain that are kept; recursion that was inlined into itself would grow it without end.
const MAX_CHAIN: u32 = 64;

impl<'t> Parser<'t> {
    /// `.file 1 "/path/name.cu"`, with time and size in old texts.
    pub fn file(&mut self) -> Result<()> {
        let place = self.cursor.take();
        let number = self.cursor.count_u32("a file's number")?;
        let path = unescape(self.cursor.quoted("a file's path")?);
        for what in ["a time", "a size"] {
            if self.cursor.eat(b',') {
                self.cursor.count(what)?;
            }
        }
        match self.file_numbers.insert(number) {
            true => self.module.files.push((number, path.into())),
            false => return self.cursor.fail(place, &format!("file {number} is declared twice")),
        }
        Ok(())
    }

    /// `.loc 1 24 3`, `.loc 2 7 3, function_name $L__info_string0+4, inlined_at 1 27 3`
    pub fn location(&mut self) -> Result<()> {
        self.cursor.take();
        let (file, line, column) = self.position()?;
        let mut location = Location { file, line, column, function: None, inlined_at: None };
        let mut length = 1;
        if self.cursor.eat(b',') {
            self.attribute("function_name")?;
            let label = self.cursor.name("a label of .debug_str")?.to_string();
            let offset = if self.cursor.eat(b'+') { self.cursor.count_u32("an offset")? } else { 0 };
            location.function = Some((label, offset));
            self.cursor.expect(b',')?;
            let place = self.cursor.token;
            self.attribute("inlined_at")?;
            let call = self.position()?;
            let Some((caller, callers)) = self.locations.latest.get(&call) else {
                let (file, line, column) = call;
                return self.cursor.fail(place, &format!("no .loc {file} {line} {column} stands before"));
            };
            length = callers + 1;
            location.inlined_at = Some(caller.clone());
        } else if let (0, Some((last, last_length))) = (line, &self.locations.last_line) {
            length = last_length + 1;
            location.inlined_at = Some(last.clone());
        }
        if length > MAX_CHAIN {
            location.inlined_at =
                location.inlined_at.map(|caller| Arc::new(Location { inlined_at: None, ..(*caller).clone() }));
            length = 2;
        }
        let location = Arc::new(location);
        self.locations.latest.insert((file, line, column), (location.clone(), length));
        if line != 0 {
            self.locations.last_line = Some((location.clone(), length));
        }
        self.locations.current = Some(location);
        Ok(())
    }

    fn position(&mut self) -> Result<(u32, u32, u32)> {
        let file = self.cursor.count_u32("a file's number")?;
        let line = self.cursor.count_u32("a line")?;
        Ok((file, line, self.cursor.count_u32("a column")?))
    }

    fn attribute(&mut self, name: &str) -> Result<()> {
        match self.cursor.token.kind == TokenKind::Word && self.cursor.token.text == name {
            true => {
                self.cursor.take();
                Ok(())
            }
            false => self.cursor.expected(name),
        }
    }

    /// `.section .debug_str { … }`; other sections are skipped.
    pub fn section(&mut self) -> Result<()> {
        self.cursor.take();
        let Some(name) = self.cursor.directive() else { return self.cursor.expected("a section such as .debug_str") };
        self.cursor.take();
        if name == "debug_str" {
            return self.strings();
        }
        self.cursor.expect(b'{')?;
        loop {
            match self.cursor.token.kind {
                TokenKind::Mark(b'}') => break,
                TokenKind::Mark(b'{') | TokenKind::Bad | TokenKind::End => {
                    return self.cursor.expected("\"}\" after a section");
                }
                _ => self.cursor.take(),
            };
        }
        self.cursor.expect(b'}')
    }

    /// Labels, each with its bytes: `$L__info_string0: .b8 95,90,53,0`. More than one string may follow a label; the
    /// NUL between them is kept.
    fn strings(&mut self) -> Result<()> {
        self.cursor.expect(b'{')?;
        let mut label: Option<&str> = None;
        let mut bytes = Vec::new();
        loop {
            let ends = self.cursor.at(b'}');
            if ends || self.cursor.token.kind == TokenKind::Word {
                if let Some(label) = label {
                    let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
                    self.module.strings.push((label.to_string(), String::from_utf8_lossy(text).into_owned()));
                }
                bytes.clear();
                if ends {
                    return self.cursor.expect(b'}');
                }
                label = Some(self.cursor.name("a label")?);
                self.cursor.expect(b':')?;
                continue;
            }
            if !self.cursor.eat_directive("b8") {
                return self.cursor.expected("a label, .b8 or \"}\"");
            }
            loop {
                let place = self.cursor.token;
                let value = self.cursor.count("a byte")?;
                match u8::try_from(value) {
                    Ok(byte) => bytes.push(byte),
                    Err(_) => return self.cursor.fail(place, &format!("found {value}, expected a byte")),
                }
                if !self.cursor.eat(b',') {
                    break;
                }
            }
        }
    }
}

/// A path with its escapes replaced: `\"`, `\\`, and bytes as `\303`.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let octal = bytes.get(at + 1..at + 4).filter(|digits| digits.iter().all(|digit| matches!(digit, b'0'..=b'7')));
        match (bytes[at], octal, bytes.get(at + 1)) {
            (b'\\', Some(digits), _) => {
                path.push(digits.iter().fold(0u8, |value, digit| (value << 3) | (digit - b'0')));
                at += 4;
            }
            (b'\\', None, Some(&escaped @ (b'\\' | b'"'))) => {
                path.push(escaped);
                at += 2;
            }
            (byte, ..) => {
                path.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&path).into_owned()
}

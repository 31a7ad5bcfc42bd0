//! Operands of instructions. (PTX ISA, "Operands", "Addresses as Operands", "Vectors as Operands".)

use super::ast::Operand;
use super::constants::Constant;
use super::cursor::Cursor;
use super::lexer::TokenKind;
use super::module::Parser;
use crate::fault::Result;

impl<'t> Parser<'t> {
    /// Operands up to the semicolon. Only a call has lists in parentheses; elsewhere those begin a constant.
    pub fn operands(&mut self, call: bool) -> Result<Vec<Operand>> {
        let mut operands = Vec::new();
        if self.cursor.at(b';') {
            return Ok(operands);
        }
        loop {
            operands.push(match call && self.cursor.at(b'(') {
                true => Operand::List(self.cursor.group(b')')?),
                false => self.cursor.operand()?,
            });
            if !self.cursor.eat(b',') {
                return Ok(operands);
            }
        }
    }
}

impl<'t> Cursor<'t> {
    fn operand(&mut self) -> Result<Operand> {
        match self.token.kind {
            TokenKind::Mark(b'[') => self.address(),
            TokenKind::Mark(b'{') => Ok(Operand::Vector(self.group(b'}')?)),
            TokenKind::Mark(b'!') => {
                self.take();
                Ok(Operand::Not(self.word("a predicate")?))
            }
            _ => self.scalar(),
        }
    }

    /// A name, a pair of names or a constant.
    fn scalar(&mut self) -> Result<Operand> {
        if self.at_constant() {
            return Ok(match self.constant()? {
                Constant::Int(value) => Operand::Int(value),
                Constant::F32(bits) => Operand::F32(bits),
                Constant::F64(bits) => Operand::F64(bits),
            });
        }
        let name = self.word("an operand")?;
        if self.eat(b'|') {
            return Ok(Operand::Pair(name, self.word("a second destination")?));
        }
        match self.at(b'+') || self.at(b'-') {
            true => self.refuse("an address with an offset outside brackets"),
            false => Ok(Operand::Name(name)),
        }
    }

    /// A name, with the parts of a special register's: `%tid.x`.
    fn word(&mut self, what: &str) -> Result<String> {
        match self.token.kind {
            TokenKind::Word if !self.token.text.contains(':') => Ok(self.take().text.to_string()),
            _ => self.expected(what),
        }
    }

    /// Scalars between braces or parentheses.
    fn group(&mut self, end: u8) -> Result<Vec<Operand>> {
        self.take();
        let mut elements = Vec::new();
        if self.eat(end) {
            return Ok(elements);
        }
        loop {
            elements.push(self.scalar()?);
            if !self.eat(b',') {
                break;
            }
        }
        self.expect(end)?;
        Ok(elements)
    }

    /// `[%rd1+16]`, `[%rd1+-16]`, `[name+4]`, `[4096]`.
    fn address(&mut self) -> Result<Operand> {
        self.take();
        let mut base = None;
        let mut offset = 0;
        if self.token.kind == TokenKind::Word {
            base = Some(self.name("an address")?.to_string());
            if self.eat(b'+') {
                offset = self.integer("an offset")?;
            }
        } else if self.at_constant() {
            offset = self.integer("an address")?;
        } else {
            return self.expected("an address");
        }
        match self.at(b',') {
            true => self.refuse("an address with coordinates"),
            false => self.expect(b']').map(|()| Operand::Address { base, offset }),
        }
    }
}

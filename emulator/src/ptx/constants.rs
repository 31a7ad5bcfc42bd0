//! Numbers and constant expressions: `0x1F`, `0f3F800000`, `1.5`, `(1+2)*4`. (PTX ISA, "Constants".)

use super::cursor::Cursor;
use super::lexer::TokenKind;
use crate::fault::Result;

/// Parentheses inside parentheses.
const MAX_DEPTH: u32 = 32;

/// A constant's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Constant {
    /// Two's complement; integers are 64 bits wide.
    Int(i64),
    /// A single's bits.
    F32(u32),
    /// A double's bits.
    F64(u64),
}

/// The value of a number's text, `None` if it is malformed or wider than 64 bits.
pub fn number(text: &str) -> Option<Constant> {
    let code = text.get(..2).filter(|code| code.starts_with('0')).map_or(0, |code| code.as_bytes()[1] | 0x20);
    let digits = text.get(2..).unwrap_or("");
    let hex_digits = |count| digits.len() == count && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    match code {
        b'f' if hex_digits(8) => return u32::from_str_radix(digits, 16).ok().map(Constant::F32),
        b'd' if hex_digits(16) => return u64::from_str_radix(digits, 16).ok().map(Constant::F64),
        b'x' => return integer(digits, 16),
        b'b' => return integer(digits, 2),
        _ => {}
    }
    if text.contains(['.', 'e', 'E']) {
        let value: f64 = text.parse().ok()?;
        return value.is_finite().then_some(Constant::F64(value.to_bits()));
    }
    match text.strip_prefix('0').filter(|rest| !matches!(*rest, "" | "U")) {
        Some(octal) => integer(octal, 8),
        None => integer(text, 10),
    }
}

fn integer(digits: &str, radix: u32) -> Option<Constant> {
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    if digits.starts_with('+') {
        return None;
    }
    u64::from_str_radix(digits, radix).ok().map(|value| Constant::Int(value as i64))
}

impl<'t> Cursor<'t> {
    /// Whether a constant can begin at the token at hand.
    pub fn at_constant(&self) -> bool {
        matches!(self.token.kind, TokenKind::Number | TokenKind::Mark(b'-' | b'+' | b'~' | b'('))
    }

    /// A number or an expression of integers with `+ - * ~` and parentheses.
    pub fn constant(&mut self) -> Result<Constant> {
        self.sum(0)
    }

    /// A constant that must be an integer.
    pub fn integer(&mut self, what: &str) -> Result<i64> {
        let place = self.token;
        match self.constant()? {
            Constant::Int(value) => Ok(value),
            _ => self.fail(place, &format!("found a floating-point number, expected {what}")),
        }
    }

    /// A plain number without sign, such as a line number or a count.
    pub fn count(&mut self, what: &str) -> Result<u64> {
        match (self.token.kind, number(self.token.text)) {
            (TokenKind::Number, Some(Constant::Int(value))) => {
                self.take();
                Ok(value as u64)
            }
            _ => self.expected(what),
        }
    }

    pub fn count_u32(&mut self, what: &str) -> Result<u32> {
        let place = self.token;
        let value = self.count(what)?;
        u32::try_from(value).or_else(|_| self.fail(place, &format!("found {value}, expected {what} below 2^32")))
    }

    fn sum(&mut self, depth: u32) -> Result<Constant> {
        let mut left = self.product(depth)?;
        while self.at(b'+') || self.at(b'-') {
            let minus = self.take().text == "-";
            let right = self.product(depth)?;
            left = self.combine(left, right, if minus { i64::wrapping_sub } else { i64::wrapping_add })?;
        }
        Ok(left)
    }

    fn product(&mut self, depth: u32) -> Result<Constant> {
        let mut left = self.signed(depth)?;
        while self.eat(b'*') {
            let right = self.signed(depth)?;
            left = self.combine(left, right, i64::wrapping_mul)?;
        }
        Ok(left)
    }

    fn combine(&self, left: Constant, right: Constant, operator: fn(i64, i64) -> i64) -> Result<Constant> {
        match (left, right) {
            (Constant::Int(left), Constant::Int(right)) => Ok(Constant::Int(operator(left, right))),
            _ => self.refuse("arithmetic on floating-point constants"),
        }
    }

    /// Signs before a number. They are gathered in a loop, as their effect on x is always a·x + b with a = ±1.
    fn signed(&mut self, depth: u32) -> Result<Constant> {
        let (mut a, mut b) = (1i64, 0i64);
        let mut plain = true;
        loop {
            // −x and ~x = −x−1 are applied to x before the signs already read.
            if self.eat(b'-') {
                a = a.wrapping_neg();
            } else if self.eat(b'~') {
                b = b.wrapping_sub(a);
                a = a.wrapping_neg();
                plain = false;
            } else if !self.eat(b'+') {
                break;
            }
        }
        let place = self.token;
        match self.primary(depth)? {
            Constant::Int(value) => Ok(Constant::Int(a.wrapping_mul(value).wrapping_add(b))),
            Constant::F64(bits) if plain => Ok(Constant::F64(if a < 0 { bits ^ 1 << 63 } else { bits })),
            constant if plain && a == 1 => Ok(constant),
            _ => self.fail(place, "a sign before a floating-point number given by its bits is not supported"),
        }
    }

    fn primary(&mut self, depth: u32) -> Result<Constant> {
        if self.at(b'(') {
            if depth == MAX_DEPTH {
                return self.fail(self.token, &format!("found parentheses more than {MAX_DEPTH} deep"));
            }
            self.take();
            let value = self.sum(depth + 1)?;
            self.expect(b')')?;
            return Ok(value);
        }
        match (self.token.kind, number(self.token.text)) {
            (TokenKind::Number, Some(value)) => {
                self.take();
                Ok(value)
            }
            (TokenKind::Number, None) => self.expected("a number of at most 64 bits"),
            _ => self.expected("a number"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(text: &str) -> Result<Constant> {
        let mut cursor = Cursor::new(text);
        let value = cursor.constant()?;
        match cursor.token.kind {
            TokenKind::End => Ok(value),
            _ => cursor.expected("the end"),
        }
    }

    #[test]
    fn integers_in_every_base() {
        for (text, value) in [
            ("0", 0),
            ("0U", 0),
            ("42", 42),
            ("42U", 42),
            ("0x1f", 31),
            ("0XFFFFFFFFFFFFFFFFU", -1),
            ("077", 63),
            ("0b101", 5),
            ("0B11U", 3),
            ("9223372036854775808", i64::MIN),
            ("18446744073709551615", -1),
            ("-16", -16),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(constant(text).unwrap(), Constant::Int(value), "{text}");
        }
    }

    #[test]
    fn floating_point_numbers() {
        assert_eq!(constant("0f3F800000").unwrap(), Constant::F32(1.0f32.to_bits()));
        assert_eq!(constant("0Fff800000").unwrap(), Constant::F32(f32::NEG_INFINITY.to_bits()));
        assert_eq!(constant("0d3FF0000000000000").unwrap(), Constant::F64(1.0f64.to_bits()));
        for (text, value) in
            [("1.5", 1.5), ("1.", 1.0), (".5", 0.5), ("1e3", 1e3), ("2.5E-3", 2.5e-3), ("-0.0", -0.0), ("--1.0", 1.0)]
        {
            assert_eq!(constant(text).unwrap(), Constant::F64(f64::to_bits(value)), "{text}");
        }
    }

    #[test]
    fn expressions_follow_precedence() {
        for (text, value) in [
            ("1-2", -1),
            ("10-3-4", 3),
            ("2+3*4", 14),
            ("(2+3)*4", 20),
            ("-(1+2)", -3),
            ("~5", -6),
            ("-~5", 6),
            ("~-5", 4),
            ("~~7", 7),
            ("~+-~3", -5),
            ("+-16", -16),
            ("0x7FFFFFFFFFFFFFFF+1", i64::MIN),
        ] {
            assert_eq!(constant(text).unwrap(), Constant::Int(value), "{text}");
        }
    }

    #[test]
    fn malformed_numbers_are_errors() {
        for text in [
            "",
            "08",
            "0x",
            "0xG",
            "12ab",
            "0b2",
            "0f3F80000",
            "0f3F8000000",
            "0d3FF",
            "18446744073709551616",
            "1e999",
            "-",
            "(1",
            "1+",
            "1.5.5",
            "~1.5",
            "-0f3F800000",
            "1.5+2",
            "%r1",
            "1 2",
            "42u",
        ] {
            assert!(constant(text).is_err(), "{text}: {:?}", constant(text));
        }
        let deep = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(constant(&deep).unwrap_err().message.contains("32 deep"));
        let signs = format!("{}1", "-".repeat(100_001));
        assert_eq!(constant(&signs).unwrap(), Constant::Int(-1));
    }
}

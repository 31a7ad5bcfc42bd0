//! What a kernel's `printf` prints: C's format with the arguments as nvcc packs them.
//!
//! The argument buffer is a struct of the promoted arguments: `int` and `unsigned` 4 bytes, `long`, `long long`, `size_t`,
//! pointers and `double` 8, each at its natural alignment. `short` and `char` come promoted to `int`, `float` to `double`;
//! a `*` takes an `int`. Conversions d i u x X o c s f F e E g G a A p %, flags `-+ #0`, width, precision, and the
//! modifiers hh h l ll j z t L. What can't be converted is printed as it stands in the format, as the device does.
//! (CUDA C++ Programming Guide, "Formatted Output"; C17 7.21.6.1.)

/// `string` gives the text at an address, without its NUL. An argument that the buffer does not hold reads as 0.
pub fn format(format: &[u8], arguments: &[u8], string: &dyn Fn(u64) -> Option<Vec<u8>>) -> Vec<u8> {
    let mut output = Vec::new();
    let mut arguments = Arguments { bytes: arguments, offset: 0 };
    let mut rest = format;
    while let Some(percent) = rest.iter().position(|&byte| byte == b'%') {
        output.extend_from_slice(&rest[..percent]);
        rest = &rest[percent..];
        match ConversionSpecification::parse(rest, &mut arguments) {
            Some((conversion, length)) => {
                output.extend_from_slice(&conversion.convert(&mut arguments, string));
                rest = &rest[length..];
            }
            None => {
                output.push(b'%');
                rest = &rest[1..];
            }
        }
    }
    output.extend_from_slice(rest);
    output
}

struct Arguments<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl Arguments<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let begin = self.offset.next_multiple_of(N);
        self.offset = begin + N;
        self.bytes.get(begin..begin + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn int(&mut self) -> i32 {
        i32::from_le_bytes(self.take())
    }

    fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    fn double(&mut self) -> f64 {
        f64::from_le_bytes(self.take())
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Size {
    Char,
    Short,
    Int,
    Long,
}

/// One `%…`.
#[derive(Debug)]
struct ConversionSpecification {
    left: bool,
    plus: bool,
    space: bool,
    alternative: bool,
    zeros: bool,
    width: usize,
    precision: Option<usize>,
    size: Size,
    letter: u8,
}

/// Wider fields are cut to this: a kernel's mistake must not take all memory.
const MOST_WIDTH: usize = 4096;

impl ConversionSpecification {
    /// The conversion at the start of `text`, and its length; `*` takes its argument at once.
    fn parse(text: &[u8], arguments: &mut Arguments) -> Option<(ConversionSpecification, usize)> {
        let end = 1 + text[1..].iter().position(|byte| !b"-+ #0123456789.*hlLjzt".contains(byte))?;
        let letter = text[end];
        if !b"diuxXocsfFeEgGaAp%".contains(&letter) {
            return None;
        }
        let middle = &text[1..end];
        let flags = middle.iter().take_while(|byte| b"-+ #0".contains(byte)).count();
        let has = |flag: u8| middle[..flags].contains(&flag);
        let mut conversion = ConversionSpecification {
            left: has(b'-'),
            plus: has(b'+'),
            space: has(b' '),
            alternative: has(b'#'),
            zeros: has(b'0'),
            width: 0,
            precision: None,
            size: Size::Int,
            letter,
        };
        let mut rest = &middle[flags..];
        if let Some(width) = number(&mut rest, arguments) {
            conversion.left |= width < 0;
            conversion.width = (width.unsigned_abs() as usize).min(MOST_WIDTH);
        }
        if let Some(after) = rest.strip_prefix(b".") {
            rest = after;
            // Without a number it is 0; a negative one is as if it were not there.
            let precision = number(&mut rest, arguments).unwrap_or(0);
            conversion.precision = usize::try_from(precision).ok().map(|precision| precision.min(MOST_WIDTH));
        }
        conversion.size = match rest {
            b"" => Size::Int,
            b"hh" => Size::Char,
            b"h" => Size::Short,
            b"l" | b"ll" | b"j" | b"z" | b"t" | b"L" => Size::Long,
            _ => return None,
        };
        Some((conversion, end + 1))
    }

    fn convert(&self, arguments: &mut Arguments, string: &dyn Fn(u64) -> Option<Vec<u8>>) -> Vec<u8> {
        match self.letter {
            b'%' => vec![b'%'],
            b'd' | b'i' => {
                let value = self.signed(arguments);
                self.integer(value.unsigned_abs().to_string(), value < 0, "")
            }
            b'u' => self.integer(self.unsigned(arguments).to_string(), false, ""),
            b'o' => {
                let digits = format!("{:o}", self.unsigned(arguments));
                let prefix = if self.alternative && !digits.starts_with('0') { "0" } else { "" };
                self.integer(digits, false, prefix)
            }
            b'x' | b'X' => {
                let value = self.unsigned(arguments);
                let prefix = if self.alternative && value != 0 { "0x" } else { "" };
                self.cased(self.integer(format!("{value:x}"), false, prefix))
            }
            b'p' => match arguments.long() {
                0 => self.padded("(nil)".into(), 0, false),
                address => self.padded(format!("{address:#x}").into(), 2, false),
            },
            b'c' => self.padded(vec![arguments.int() as u8], 0, false),
            b's' => {
                let address = arguments.long();
                let mut text = string(address).unwrap_or_else(|| b"(null)".to_vec());
                text.truncate(self.precision.unwrap_or(usize::MAX));
                self.padded(text, 0, false)
            }
            _ => self.cased(self.float(arguments.double())),
        }
    }

    /// Upper case for `X`, `F`, `E`, `G`, `A`.
    fn cased(&self, mut text: Vec<u8>) -> Vec<u8> {
        if self.letter.is_ascii_uppercase() {
            text.make_ascii_uppercase();
        }
        text
    }

    fn signed(&self, arguments: &mut Arguments) -> i64 {
        match self.size {
            Size::Char => arguments.int() as i8 as i64,
            Size::Short => arguments.int() as i16 as i64,
            Size::Int => arguments.int() as i64,
            Size::Long => arguments.long() as i64,
        }
    }

    fn unsigned(&self, arguments: &mut Arguments) -> u64 {
        match self.size {
            Size::Char => arguments.int() as u8 as u64,
            Size::Short => arguments.int() as u16 as u64,
            Size::Int => arguments.int() as u32 as u64,
            Size::Long => arguments.long(),
        }
    }

    /// A sign where there is one: only signed conversions ask.
    fn sign(&self, negative: bool) -> &'static str {
        match negative {
            true => "-",
            false if self.plus => "+",
            false if self.space => " ",
            false => "",
        }
    }

    fn integer(&self, digits: String, negative: bool, prefix: &str) -> Vec<u8> {
        let mut digits = digits;
        if self.precision == Some(0) && digits == "0" {
            digits.clear();
        }
        // An octal prefix is one of the digits that the precision counts.
        let (octal, prefix) = if prefix == "0" { (1, "") } else { (0, prefix) };
        let digits_wanted = self.precision.unwrap_or(0).max(digits.len() + octal);
        let octal_zero = self.letter == b'o' && self.alternative && digits.is_empty();
        let zeros = "0".repeat(digits_wanted.max(octal_zero as usize) - digits.len());
        let sign = if matches!(self.letter, b'd' | b'i') { self.sign(negative) } else { "" };
        let head = sign.len() + prefix.len();
        self.padded(format!("{sign}{prefix}{zeros}{digits}").into(), head, self.zeros && self.precision.is_none())
    }

    fn float(&self, value: f64) -> Vec<u8> {
        let sign = self.sign(value.is_sign_negative());
        let magnitude = value.abs();
        if !magnitude.is_finite() {
            let name = if magnitude.is_nan() { "nan" } else { "inf" };
            return self.padded(format!("{sign}{name}").into(), 0, false);
        }
        let precision = self.precision.unwrap_or(6);
        let (prefix, body) = match self.letter.to_ascii_lowercase() {
            b'f' => ("", self.fixed(magnitude, precision)),
            b'e' => ("", self.scientific(magnitude, precision)),
            b'g' => ("", self.general(magnitude, precision.max(1))),
            _ => ("0x", self.hexadecimal(magnitude)),
        };
        self.padded(format!("{sign}{prefix}{body}").into(), sign.len() + prefix.len(), self.zeros)
    }

    fn fixed(&self, value: f64, precision: usize) -> String {
        let point = if self.alternative && precision == 0 { "." } else { "" };
        format!("{value:.precision$}{point}")
    }

    fn scientific(&self, value: f64, precision: usize) -> String {
        let text = format!("{value:.precision$e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let point = if self.alternative && precision == 0 { "." } else { "" };
        let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
        format!("{digits}{point}e{sign}{exponent:0>2}")
    }

    /// `%g`: P significant digits; scientific if the exponent is below −4 or at least P; without trailing zeros.
    fn general(&self, value: f64, precision: usize) -> String {
        let rounded = format!("{value:.*e}", precision - 1);
        let exponent: i32 = rounded.rsplit_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
        let scientific = exponent < -4 || exponent >= precision as i32;
        let text = match scientific {
            true => self.scientific(value, precision - 1),
            false => self.fixed(value, (precision as i32 - 1 - exponent) as usize),
        };
        let (digits, tail) = match text.find('e') {
            Some(at) => text.split_at(at),
            None => (text.as_str(), ""),
        };
        if self.alternative || !digits.contains('.') {
            return text;
        }
        format!("{}{tail}", digits.trim_end_matches('0').trim_end_matches('.'))
    }

    /// `%a` without its prefix: one hexadecimal digit, a point, the fraction, a binary exponent.
    fn hexadecimal(&self, value: f64) -> String {
        const FRACTION: u64 = (1 << 52) - 1;
        let bits = value.to_bits();
        let (mut lead, mut exponent) = ((bits >> 52 != 0) as u64, (bits >> 52) as i64 - 1023);
        if lead == 0 {
            exponent = if value == 0.0 { 0 } else { -1022 };
        }
        let mut fraction = format!("{:013x}", bits & FRACTION);
        match self.precision {
            None => fraction.truncate(fraction.trim_end_matches('0').len()),
            Some(digits) if digits < 13 => {
                // To nearest, ties to even, at the digit asked for.
                let drop = 4 * (13 - digits as u32);
                let all = lead << 52 | bits & FRACTION;
                let (kept, rest, half) = (all >> drop, all & ((1 << drop) - 1), 1 << (drop - 1));
                let kept = kept + (rest > half || rest == half && kept & 1 == 1) as u64;
                lead = kept >> (52 - drop);
                fraction = format!("{:013x}", (kept << drop) & FRACTION)[..digits].to_string();
            }
            Some(digits) => fraction = format!("{fraction:0<digits$}"),
        }
        let point = if fraction.is_empty() && !self.alternative { "" } else { "." };
        format!("{lead}{point}{fraction}p{exponent:+}")
    }

    /// Fills to the width: spaces, or zeros after the first `head` bytes.
    fn padded(&self, text: Vec<u8>, head: usize, zeros: bool) -> Vec<u8> {
        let missing = self.width.saturating_sub(text.len());
        match (self.left, zeros) {
            (true, _) => [text, vec![b' '; missing]].concat(),
            (false, true) => [&text[..head], &vec![b'0'; missing], &text[head..]].concat(),
            (false, false) => [vec![b' '; missing], text].concat(),
        }
    }
}

/// Decimal digits, or the `int` that `*` stands for; moves `text` behind it.
fn number(text: &mut &[u8], arguments: &mut Arguments) -> Option<i32> {
    if let Some(after) = text.strip_prefix(b"*") {
        *text = after;
        return Some(arguments.int());
    }
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = text.split_at(digits);
    *text = after;
    match digits {
        0 => None,
        _ => Some(number.iter().fold(0i32, |n, digit| n.saturating_mul(10).saturating_add((digit - b'0') as i32))),
    }
}

#[cfg(test)]
mod tests;

//! Damages bytes: what a disk, a network or a curious person may do to a file that was good.

use super::Rng;

/// Marks and words that mean something to a reader of PTX.
const PIECES: [&str; 36] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    "<",
    ">",
    ",",
    ";",
    ":",
    "=",
    "@",
    "!",
    "|",
    "+",
    "-",
    "~",
    "\"",
    "\\",
    "/*",
    "*/",
    "//",
    ".reg",
    ".loc",
    ".global",
    ".shared",
    ".param",
    ".extern",
    ".b8",
    ".v4",
    "é",
    "\0",
    "\n",
    "\u{1b}[2J",
    "call ",
];

const NUMBERS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "255",
    "65536",
    "2147483648",
    "4294967295",
    "1099511627776",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999999999",
    "1e308",
];

/// One to four changes. `other` is a file to take pieces from.
pub fn mutate(bytes: &[u8], other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..1 + rng.below(4) {
        change(&mut bytes, other, rng);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let at = rng.below(bytes.len() + 1);
    let end = at + rng.below((bytes.len() - at).min(200) + 1);
    match rng.below(16) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
        1 if at < bytes.len() => bytes[at] = rng.below(256) as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => bytes[at..end].reverse(),
        5 => repeat(bytes, at, end, rng),
        6 => insert(bytes, at, PIECES[rng.below(PIECES.len())].as_bytes()),
        7 => nest(bytes, at, rng),
        8 => insert(bytes, at, &piece_of(other, rng)),
        9 => replace_word(bytes, at, rng, |_, rng| piece_of(other, rng)),
        10 => replace_word(bytes, at, rng, |old, rng| old.repeat(1 + rng.below(40_000 / old.len() + 1))),
        11 | 12 => replace_word(bytes, at, rng, |_, rng| NUMBERS[rng.below(NUMBERS.len())].into()),
        13 => swap_words(bytes, at, rng),
        14 => field(bytes, at, rng),
        _ => move_range(bytes, at, end, rng),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, piece: &[u8]) {
    bytes.splice(at..at, piece.iter().copied());
}

fn repeat(bytes: &mut Vec<u8>, at: usize, end: usize, rng: &mut Rng) {
    let piece = bytes[at..end].repeat(1 + rng.below(20_000 / (end - at + 1) + 1));
    insert(bytes, at, &piece);
}

/// Nests deeper than any stack holds.
fn nest(bytes: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let mark = ["{", "(", "[", "-", "~(", "{ {", "[[", "mov {", "((1)+"][rng.below(9)];
    insert(bytes, at, mark.repeat(1 + rng.below(20_000)).as_bytes());
}

fn piece_of(other: &[u8], rng: &mut Rng) -> Vec<u8> {
    let begin = rng.below(other.len());
    let end = begin + rng.below((other.len() - begin).min(400) + 1);
    other[begin..end].to_vec()
}

/// The word at or behind a place: a run of what names and numbers are made of.
fn word(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"_$%.".contains(byte);
    let begin = at + bytes[at..].iter().position(inside)?;
    let length = bytes[begin..].iter().position(|byte| !inside(byte)).unwrap_or(bytes.len() - begin);
    Some((begin, begin + length))
}

fn replace_word(bytes: &mut Vec<u8>, at: usize, rng: &mut Rng, new: impl Fn(&[u8], &mut Rng) -> Vec<u8>) {
    if let Some((begin, end)) = word(bytes, at) {
        let new = new(&bytes[begin..end], rng);
        bytes.splice(begin..end, new);
    }
}

fn swap_words(bytes: &mut Vec<u8>, at: usize, rng: &mut Rng) {
    let place = rng.below(bytes.len() + 1);
    if let (Some((begin, end)), Some((first, last))) = (word(bytes, at), word(bytes, place)) {
        let new = bytes[first..last].to_vec();
        bytes.splice(begin..end, new);
    }
}

/// A field of 1 to 8 bytes becomes a number near one that matters.
fn field(bytes: &mut [u8], at: usize, rng: &mut Rng) {
    let near = [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 1 << 20, 1 << 30, (1 << 31) - 1, u32::MAX as u64, 1 << 40, u64::MAX];
    let value = near[rng.below(near.len())].wrapping_add(rng.below(3) as u64).wrapping_sub(1).to_le_bytes();
    let width = [1, 2, 4, 8][rng.below(4)];
    for (to, from) in bytes[at..].iter_mut().zip(&value[..width]) {
        *to = *from;
    }
}

fn move_range(bytes: &mut Vec<u8>, at: usize, end: usize, rng: &mut Rng) {
    let piece: Vec<u8> = bytes.drain(at..end).collect();
    let to = rng.below(bytes.len() + 1);
    insert(bytes, to, &piece);
}

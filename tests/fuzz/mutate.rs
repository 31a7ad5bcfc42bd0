//! Damage: what disks, editors, broken downloads and other programs do to a file.

use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;

const NUMBERS: [&str; 14] = [
    "0",
    "1",
    "-1",
    "2",
    "255",
    "65536",
    "4294967295",
    "4294967296",
    "268435456",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "1e308",
    "1e999",
];
const WORDS: [&[u8]; 16] = [
    b"\0",
    b"\xFF",
    b"\xC0\x80",
    b"\xED\xA0\x80",
    b"\xF4\x90\x80\x80",
    b"\n",
    b"\r\n",
    b"\x1B[2J",
    b"\"",
    b"\\",
    b"\\ud83d",
    b"null",
    b"[]",
    b"{}",
    b"true",
    b"\xE2\x80\xA8",
];

/// One of the originals, changed in one to four ways.
pub fn damaged(originals: &[Vec<u8>], rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut bytes = originals.choose(rng).cloned().unwrap_or_default();
    for _ in 0..rng.random_range(1..=4) {
        change(&mut bytes, originals, rng);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, originals: &[Vec<u8>], rng: &mut ChaCha8Rng) {
    let (at, piece) = (place(bytes, rng), slice(bytes, rng));
    match rng.random_range(0..100) {
        0..15 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.random_range(0..8);
            }
        }
        15..20 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = rng.random();
            }
        }
        20..26 => bytes.truncate(at),
        26..34 => drop(bytes.drain(piece)),
        34..42 => {
            let copy = bytes[piece].to_vec();
            insert(bytes, at, &copy);
        }
        42..52 => insert(bytes, at, WORDS.choose(rng).unwrap()),
        52..70 => replace_number(bytes, rng),
        70..82 => exchange_strings(bytes, rng),
        82..86 => {
            let other = originals.choose(rng).cloned().unwrap_or_default();
            let range = slice(&other, rng);
            insert(bytes, at, &other[range]);
        }
        86..89 => {
            let random: Vec<u8> = (0..rng.random_range(1..20)).map(|_| rng.random()).collect();
            insert(bytes, at, &random);
        }
        89..91 => {
            let deep = [&b"["[..], b"{\"a\":", b"[{\"\":"].choose(rng).unwrap().repeat(rng.random_range(100..20_000));
            insert(bytes, at, &deep);
        }
        91..93 => {
            let once = bytes[piece].iter().copied().take(64).collect::<Vec<u8>>();
            let times = rng.random_range(2..100_000) / once.len().max(1);
            insert(bytes, at, &once.repeat(times));
        }
        93..95 => insert(bytes, at, &b"x".repeat(rng.random_range(100..100_000))),
        _ => fix_length(bytes, rng),
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, new: &[u8]) {
    drop(bytes.splice(at..at, new.iter().copied()));
}

fn place(bytes: &[u8], rng: &mut ChaCha8Rng) -> usize {
    // Headers decide the most: every third place is near the beginning.
    let most = if rng.random_range(0..3) == 0 { bytes.len().min(64) } else { bytes.len() };
    rng.random_range(0..=most)
}

fn slice(bytes: &[u8], rng: &mut ChaCha8Rng) -> Range<usize> {
    let start = rng.random_range(0..=bytes.len());
    let most = if rng.random() { 16 } else { 1000 };
    start..start + rng.random_range(0..=most.min(bytes.len() - start))
}

/// A number in decimal digits becomes another one.
fn replace_number(bytes: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    let start = place(bytes, rng);
    let Some(first) = bytes[start..].iter().position(u8::is_ascii_digit) else { return };
    let first = start + first;
    let end = bytes[first..].iter().position(|byte| !byte.is_ascii_digit()).map_or(bytes.len(), |len| first + len);
    let new = NUMBERS.choose(rng).unwrap().bytes();
    drop(bytes.splice(first..end, new));
}

/// A string in quotes takes the place of another one.
fn exchange_strings(bytes: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    let mut string = || {
        let start = place(bytes, rng);
        let open = start + bytes[start..].iter().position(|&byte| byte == b'"')?;
        let close = open + 1 + bytes[open + 1..].iter().position(|&byte| byte == b'"')?;
        Some(open..close + 1)
    };
    let (Some(from), Some(to)) = (string(), string()) else { return };
    let new = bytes[from].to_vec();
    drop(bytes.splice(to, new));
}

/// The first eight bytes become a length that fits what follows, up to the last brace, so that a changed header is read.
fn fix_length(bytes: &mut [u8], rng: &mut ChaCha8Rng) {
    let Some(rest) = bytes.len().checked_sub(8) else { return };
    let brace = bytes.iter().rposition(|&byte| byte == b'}').map_or(rest, |brace| (brace + 1).saturating_sub(8));
    let length = if rng.random_range(0..4) == 0 { rng.random_range(0..=rest) } else { brace };
    bytes[..8].copy_from_slice(&(length as u64).to_le_bytes());
}

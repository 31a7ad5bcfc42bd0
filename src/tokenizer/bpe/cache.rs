//! Pieces that were merged before, with a bound on memory.
//!
//! Text repeats its words: most pieces cost one look into a table. Short ones with few tokens stand in a table of fixed
//! size, in which a newcomer takes the place of an old one; their bytes are the key, read as one number. Longer ones
//! stand in a hash table that is emptied when it is full. What a cache holds never changes a result.

use super::tables::{WordMap, mix};

/// Longest piece of the first table, in bytes: a key of 16 bytes holds them and their number.
const SHORT: usize = 15;
/// Most tokens of an entry of the first table.
const FEW: usize = 3;
/// Entries of the first table, 32 bytes each.
const ENTRIES: usize = 1 << 16;
/// Longest piece of the second table: what is longer seldom comes again.
const LONG: usize = 256;
/// When the second table's pieces or their tokens are as many bytes, it is emptied.
const LONG_BYTES: usize = 1 << 20;

pub struct WordCache {
    short: Vec<CachedPiece>,
    long: WordMap,
    /// Where the tokens of each long piece end.
    long_ends: Vec<usize>,
    long_ids: Vec<u32>,
}

#[derive(Clone, Copy)]
struct CachedPiece {
    /// The bytes, and their number on top; 0 is free, since no piece is empty.
    key: u128,
    ids: [u32; FEW],
    count: u32,
}

impl WordCache {
    pub fn new() -> WordCache {
        WordCache {
            short: vec![CachedPiece { key: 0, ids: [0; FEW], count: 0 }; ENTRIES],
            long: WordMap::default(),
            long_ends: Vec::new(),
            long_ids: Vec::new(),
        }
    }

    /// Appends the tokens of `text[start..end]` to `out`; `encode` makes them where they are not at hand.
    #[inline]
    pub fn push(
        &mut self,
        text: &[u8],
        (start, end): (usize, usize),
        out: &mut Vec<u32>,
        encode: impl FnOnce(&[u8], &mut Vec<u32>),
    ) {
        let len = end - start;
        if len > SHORT {
            return self.push_long(&text[start..end], out, encode);
        }
        let key = short_key(text, start, len);
        let slot = mix(key as u64, (key >> 64) as u64) as usize % ENTRIES;
        // Two places for each key, of one cache line; the first holds the one that was used last.
        let (first, second) = (slot, slot ^ 1);
        if self.short[first].key != key {
            if self.short[second].key == key {
                self.short.swap(first, second);
            } else {
                let from = out.len();
                encode(&text[start..end], out);
                return self.keep(first, second, key, &out[from..]);
            }
        }
        let entry = &self.short[first];
        out.push(entry.ids[0]);
        if entry.count > 1 {
            out.extend_from_slice(&entry.ids[1..entry.count as usize]);
        }
    }

    fn keep(&mut self, first: usize, second: usize, key: u128, tokens: &[u32]) {
        if (1..=FEW).contains(&tokens.len()) {
            self.short[second] = self.short[first];
            let mut ids = [0; FEW];
            ids[..tokens.len()].copy_from_slice(tokens);
            self.short[first] = CachedPiece { key, ids, count: tokens.len() as u32 };
        }
    }

    fn push_long(&mut self, word: &[u8], out: &mut Vec<u32>, encode: impl FnOnce(&[u8], &mut Vec<u32>)) {
        if word.len() > LONG {
            return encode(word, out);
        }
        if let Some(number) = self.long.find(word) {
            let start = if number == 0 { 0 } else { self.long_ends[number - 1] };
            return out.extend_from_slice(&self.long_ids[start..self.long_ends[number]]);
        }
        let from = out.len();
        encode(word, out);
        if self.long.total_bytes() + word.len() > LONG_BYTES || 4 * self.long_ids.len() > LONG_BYTES {
            self.long.clear();
            self.long_ends.clear();
            self.long_ids.clear();
        }
        self.long.insert(word);
        self.long_ids.extend_from_slice(&out[from..]);
        self.long_ends.push(self.long_ids.len());
    }
}

/// At most [`SHORT`] bytes and how many they are, as one number.
#[inline]
fn short_key(text: &[u8], start: usize, len: usize) -> u128 {
    let bytes = match text[start..].first_chunk::<16>() {
        Some(sixteen) => u128::from_le_bytes(*sixteen) & ((1 << (8 * len)) - 1),
        None => {
            let mut sixteen = [0; 16];
            sixteen[..len].copy_from_slice(&text[start..start + len]);
            u128::from_le_bytes(sixteen)
        }
    };
    bytes | (len as u128) << 120
}

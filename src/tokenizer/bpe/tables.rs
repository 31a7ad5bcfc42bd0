//! Two hash tables that BPE spends its time in: byte strings to numbers, and pairs of ids to numbers.
//!
//! Both are open addressing over a power of two, at most half full, never shrink and never forget single keys. What is
//! hashed comes from the text that is being read, so a text could be made to collide: it would be slow, not wrong.

/// Spreads two words over 64 bits: the halves of their 128-bit product, folded.
#[inline]
pub fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x9E37_79B9_7F4A_7C15) * u128::from(b ^ 0xD6E8_FEB8_6659_FD93);
    (product as u64) ^ (product >> 64) as u64
}

/// The hash of a byte string.
#[inline]
pub fn hash(bytes: &[u8]) -> u64 {
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |eight| u64::from_le_bytes(*eight));
    let half = |at: usize| bytes[at..].first_chunk().map_or(0, |four| u64::from(u32::from_le_bytes(*four)));
    let len = bytes.len();
    match len {
        0 => 0,
        1..4 => {
            let [first, middle, last] = [0, len / 2, len - 1].map(|at| u64::from(bytes[at]));
            mix(first | middle << 8 | last << 16, len as u64)
        }
        4..8 => mix(half(0) | half(len - 4) << 32, len as u64),
        8..=16 => mix(word(0), word(len - 8).rotate_left(32) ^ len as u64),
        _ => {
            let body = (0..len - 8).step_by(8).fold(len as u64, |all, at| mix(all, word(at)));
            mix(body, word(len - 8))
        }
    }
}

/// Distinct byte strings, numbered in the order of their first insertion. The bytes lie in one buffer.
#[derive(Clone, Debug, Default)]
pub struct WordMap {
    /// 0: free; else the number of the string plus 1, with the upper half of its hash above.
    slots: Vec<u64>,
    /// Where each string ends in `bytes`.
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl WordMap {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all strings together.
    pub fn total_bytes(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub fn get(&self, number: usize) -> &[u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.bytes[start..self.ends[number]]
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|number| self.get(number))
    }

    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.fill(0);
        self.ends.clear();
        self.bytes.clear();
    }

    /// The number of `word`, if it is here.
    #[inline]
    pub fn find(&self, word: &[u8]) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        self.probe(word, hash(word)).ok()
    }

    /// The number of `word`, which is added if it is new: then it is the last.
    #[inline]
    pub fn insert(&mut self, word: &[u8]) -> usize {
        if 2 * self.ends.len() >= self.slots.len() {
            self.grow();
        }
        let hash = hash(word);
        self.probe(word, hash).unwrap_or_else(|slot| {
            let number = self.ends.len();
            assert!(number < u32::MAX as usize, "more than 4 billion distinct strings");
            self.slots[slot] = tag(hash) | (number as u64 + 1);
            self.bytes.extend_from_slice(word);
            self.ends.push(self.bytes.len());
            number
        })
    }

    /// The number of `word`, or the free slot where it belongs.
    #[inline]
    fn probe(&self, word: &[u8], hash: u64) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots[slot];
            if entry == 0 {
                return Err(slot);
            }
            let number = entry as u32 as usize - 1;
            if tag(entry) == tag(hash) && self.get(number) == word {
                return Ok(number);
            }
            slot = (slot + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let size = (2 * self.slots.len()).max(64);
        self.slots = vec![0; size];
        for number in 0..self.len() {
            let hash = hash(self.get(number));
            let mut slot = hash as usize & (size - 1);
            while self.slots[slot] != 0 {
                slot = (slot + 1) & (size - 1);
            }
            self.slots[slot] = tag(hash) | (number as u64 + 1);
        }
    }
}

/// The part of a hash that a slot keeps.
fn tag(hash: u64) -> u64 {
    hash & 0xFFFF_FFFF_0000_0000
}

/// A number for each pair of ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairMap {
    /// Pair and number; [`FREE`] where there is none.
    slots: Vec<(u64, u32)>,
    len: usize,
}

/// No pair: ids stay below `u32::MAX`.
const FREE: u64 = u64::MAX;

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl PairMap {
    /// The number of a pair; `None` if it has none.
    #[inline]
    pub fn get(&self, left: u32, right: u32) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let key = key(left, right);
        let (found, number) = self.slots[self.probe(key)];
        (found == key).then_some(number)
    }

    /// The number of a pair, for reading and changing; a new pair gets `new`.
    pub fn entry(&mut self, left: u32, right: u32, new: u32) -> &mut u32 {
        if 2 * self.len >= self.slots.len() {
            self.grow();
        }
        let key = key(left, right);
        let slot = self.probe(key);
        if self.slots[slot].0 == FREE {
            self.slots[slot] = (key, new);
            self.len += 1;
        }
        &mut self.slots[slot].1
    }

    /// The slot that holds `key`, or the free one where it belongs.
    #[inline]
    fn probe(&self, key: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = mix(key, 0) as usize & mask;
        while self.slots[slot].0 != key && self.slots[slot].0 != FREE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        let size = (2 * self.slots.len()).max(64);
        let old = std::mem::replace(&mut self.slots, vec![(FREE, 0); size]);
        for (key, number) in old.into_iter().filter(|(key, _)| *key != FREE) {
            let slot = self.probe(key);
            self.slots[slot] = (key, number);
        }
    }
}

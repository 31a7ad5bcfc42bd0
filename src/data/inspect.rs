//! Looking at what a model will learn from (report §10.3): counts, documents at random, and what seldom belongs into
//! text.

use super::shard::ShardSet;
use crate::tokenizer::Tokenizer;
use anyhow::Result;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Ids that are looked at together; a document may be longer.
const BLOCK: usize = 1 << 16;
/// How many of the longest words are kept.
const WORDS: usize = 10;
/// Bytes of a document that are shown, and of a word.
const SHOWN: usize = 400;

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    pub tokens: u64,
    pub documents: u64,
    /// Bytes of text, without what begins and ends documents.
    pub bytes: u64,
    /// Documents that are equal to one before them, and those without any token.
    pub duplicates: u64,
    pub empty: u64,
    /// Ids of the vocabulary that occur.
    pub used_ids: usize,
    /// The longest distinct words, longest first, with their lengths in bytes.
    pub longest_words: Vec<(usize, String)>,
    /// Control characters, U+FFFD, invisible and private ones, most frequent first.
    pub unusual: Vec<(char, u64)>,
    /// Beginnings of documents drawn at random.
    pub samples: Vec<String>,
}

/// Reads all shards once. `samples` documents are drawn with `seed`. `progress` hears how many ids have been read since
/// it was last called. Errors: an id that the tokenizer does not know; a file that cannot be read any more.
pub fn inspect(
    shards: &ShardSet,
    tokenizer: &Tokenizer,
    samples: usize,
    seed: u64,
    progress: &dyn Fn(u64),
) -> Result<Findings> {
    let mut look = Look::new(tokenizer, samples, seed);
    let mut ids = Vec::with_capacity(BLOCK);
    let mut at = 0;
    while at < shards.len() {
        let end = shards.len().min(at + BLOCK);
        ids.clear();
        shards.read(at..end, &mut ids)?;
        look.block(&ids)?;
        progress((end - at) as u64);
        at = end;
    }
    Ok(look.finish())
}

/// The state between blocks.
struct Look<'a> {
    tokenizer: &'a Tokenizer,
    found: Findings,
    used: Vec<bool>,
    /// How often each fingerprint of a document was seen.
    seen: HashMap<u64, u32>,
    unusual: BTreeMap<char, u64>,
    words: BTreeSet<(Reverse<usize>, String)>,
    rng: ChaCha8Rng,
    samples: usize,
    /// The document that is being read: its fingerprint, ids, beginning, and bytes that are not yet a whole word.
    hash: u64,
    ids: usize,
    head: Vec<u8>,
    rest: Vec<u8>,
}

const NO_HASH: u64 = 0xCBF2_9CE4_8422_2325;

impl<'a> Look<'a> {
    fn new(tokenizer: &'a Tokenizer, samples: usize, seed: u64) -> Look<'a> {
        Look {
            tokenizer,
            found: Findings::default(),
            used: vec![false; tokenizer.vocab_size()],
            seen: HashMap::new(),
            unusual: BTreeMap::new(),
            words: BTreeSet::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
            samples,
            hash: NO_HASH,
            ids: 0,
            head: Vec::new(),
            rest: Vec::new(),
        }
    }

    fn block(&mut self, ids: &[u32]) -> Result<()> {
        let (begin, end) = (self.tokenizer.begin_of_text(), self.tokenizer.end_of_text());
        self.found.tokens += ids.len() as u64;
        let mut start = 0;
        for (i, &id) in ids.iter().enumerate() {
            if let Some(used) = self.used.get_mut(id as usize) {
                *used = true;
            }
            if Some(id) == end || Some(id) == begin {
                self.text(&ids[start..i])?;
                start = i + 1;
                if Some(id) == end {
                    self.end_of_document();
                }
            }
        }
        self.text(&ids[start..])
    }

    /// A stretch of one document.
    fn text(&mut self, ids: &[u32]) -> Result<()> {
        let bytes = self.tokenizer.decode(ids)?;
        self.found.bytes += bytes.len() as u64;
        self.ids += ids.len();
        self.hash = ids
            .iter()
            .fold(self.hash, |hash, &id| (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01B3).rotate_left(23));
        self.head.extend(bytes.iter().take(SHOWN.saturating_sub(self.head.len())));
        self.rest.extend_from_slice(&bytes);
        // A word, or a character, may go on in the next block; what has no blank for long is a word of its own.
        let whole = self.rest.iter().rposition(u8::is_ascii_whitespace).map_or(0, |last| last + 1);
        let character = || self.rest.iter().rposition(|byte| byte & 0xC0 != 0x80).unwrap_or(self.rest.len());
        let whole = if self.rest.len() - whole > 16 * BLOCK { character() } else { whole };
        let rest = self.rest.split_off(whole);
        let words = std::mem::replace(&mut self.rest, rest);
        self.words(&words);
        Ok(())
    }

    fn words(&mut self, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        for c in text.chars().filter(|&c| is_unusual(c)) {
            *self.unusual.entry(c).or_default() += 1;
        }
        for word in text.split_whitespace() {
            let least = self.words.last().map_or(0, |(Reverse(len), _)| *len);
            if self.words.len() < WORDS || word.len() > least {
                let shown = beginning(word, SHOWN / 4);
                self.words.insert((Reverse(word.len()), shown));
                if self.words.len() > WORDS {
                    self.words.pop_last();
                }
            }
        }
    }

    fn end_of_document(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        self.words(&rest);
        let times = self.seen.entry(self.hash).or_default();
        *times += 1;
        self.found.duplicates += u64::from(*times > 1 && self.ids > 0);
        self.found.empty += u64::from(self.ids == 0);
        self.found.documents += 1;
        let head = std::mem::take(&mut self.head);
        // Each document so far is among the samples with the same probability.
        let place = if self.found.samples.len() < self.samples {
            self.found.samples.push(String::new());
            self.found.samples.len() - 1
        } else {
            self.rng.random_range(0..self.found.documents) as usize
        };
        if let Some(sample) = self.found.samples.get_mut(place) {
            *sample = String::from_utf8_lossy(&head).into_owned();
        }
        (self.hash, self.ids) = (NO_HASH, 0);
    }

    fn finish(mut self) -> Findings {
        if self.ids > 0 {
            self.end_of_document();
        }
        let mut found = self.found;
        found.used_ids = self.used.iter().filter(|used| **used).count();
        found.longest_words = self.words.into_iter().map(|(Reverse(len), word)| (len, word)).collect();
        found.unusual = self.unusual.into_iter().collect();
        found.unusual.sort_by_key(|&(c, count)| (Reverse(count), c));
        found
    }
}

/// What is seldom meant in a text: control characters, what stands for a damaged character, what is invisible or
/// nobody's.
fn is_unusual(c: char) -> bool {
    match c {
        '\n' | '\r' | '\t' => false,
        _ if c.is_control() => true,
        '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' => true,
        '\u{feff}' | '\u{fff0}'..='\u{ffff}' | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'.. => true,
        _ => false,
    }
}

/// At most `most` bytes of a text, not within a character.
fn beginning(text: &str, most: usize) -> String {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    text[..end].to_string()
}

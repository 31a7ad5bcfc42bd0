//! Learning a vocabulary (report §4.1): again and again, the pair of neighbouring tokens that occurs most often becomes
//! a token.
//!
//! ```text
//! ids        bytes 0 to 255, then the special tokens, then a token for each merge
//! count      of every place where the two tokens stand side by side, overlapping ones too: `aaa` has `a a` twice
//! ties       the greatest pair in byte order: of the left parts the greater, of equal ones the greater right part
//! end        when the vocabulary is full or no two tokens stand side by side
//! ```
//!
//! The text is reduced to its distinct pieces and their counts; a pair knows the places where it was seen. A merge
//! visits those places, and changes only the counts of pairs beside them. The heap is told of counts that grow only: a
//! pair whose count has fallen since is put back with its present count when it comes up.

pub use super::count::LineFormat;
use super::count::{Counts, Reading, count_files};
use super::pairs::Pairs;
use super::tables::WordMap;
use super::{BpeParts, BpeTokenizer, Pattern, SpecialToken, Specials, Split, printable};
use crate::shown::quoted;
use anyhow::{Result, ensure};
use std::path::PathBuf;

const BYTES: usize = 256;
/// Bytes that a thread reads at a time.
const STRETCH: usize = 1 << 22;
/// Stands between pieces, where no token is.
const BREAK: u32 = u32::MAX;

/// What to learn.
#[derive(Clone, Debug)]
pub struct BpeTrainer {
    /// Tokens in the end, bytes and special tokens included.
    pub vocab_size: usize,
    /// Texts that are boundaries while learning, and tokens afterwards, in the order of their ids.
    pub specials: Vec<String>,
    pub pattern: Pattern,
    /// Whether bytes of files that are not UTF-8 become U+FFFD instead of being an error.
    pub lossy: bool,
    /// Bytes that a thread reads at a time, about; changes nothing but speed and memory.
    pub stretch: usize,
    /// Files whose lines hold documents; without it every file is a text.
    pub lines: Option<LineFormat>,
}

/// Who watches a training.
pub trait Watcher: Sync {
    /// `bytes` more have been read.
    fn read(&self, _bytes: u64) {}
    /// `done` of at most `all` merges are learned.
    fn merged(&self, _done: usize, _all: usize) {}
}

/// Watches nothing.
pub struct Silent;
impl Watcher for Silent {}

impl BpeTrainer {
    pub fn new(vocab_size: usize) -> BpeTrainer {
        BpeTrainer {
            vocab_size,
            specials: Vec::new(),
            pattern: Pattern::Gpt2,
            lossy: false,
            stretch: STRETCH,
            lines: None,
        }
    }

    /// Learns from files, each a text of its own, or many in lines. With too little text the vocabulary comes out smaller.
    /// Errors: those of the settings, see [`check`](Self::check); a file that cannot be read or is not UTF-8, with its
    /// name; different pieces of 4 GiB and more together.
    pub fn files(&self, files: &[PathBuf], watcher: &dyn Watcher) -> Result<BpeTokenizer> {
        let specials = self.check()?;
        let reading = Reading { pattern: self.pattern, lossy: self.lossy, stretch: self.stretch, lines: self.lines };
        let counts = count_files(files, reading, &specials, &|bytes| watcher.read(bytes))?;
        self.learn(counts, watcher)
    }

    /// Learns from texts in memory. Errors: those of the settings, see [`check`](Self::check); different pieces of 4
    /// GiB and more together.
    pub fn texts<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Result<BpeTokenizer> {
        let specials = self.check()?;
        let mut counts = Counts::default();
        for text in texts {
            counts.add_text(text, self.pattern, &specials);
        }
        self.learn(counts, &Silent)
    }

    /// The special tokens with their ids. Errors: a special token that is empty, given twice, or written as an ordinary
    /// token is in a file, such as `a`; a vocabulary too small for bytes and special tokens, or too large for ids of 32
    /// bits.
    pub fn check(&self) -> Result<Specials> {
        let tokens = (BYTES as u32..).zip(&self.specials);
        let specials = Specials::new(tokens.map(|(id, text)| SpecialToken::new(id, text)).collect(), false)?;
        for text in &self.specials {
            // In tokenizer.json ordinary tokens are written in printable characters, beside special ones in their own.
            let ordinary = printable::bytes_of(text).is_some_and(|bytes| bytes.len() == 1 || bytes != text.as_bytes());
            ensure!(
                !ordinary,
                "special token {}: found what may be an ordinary token in tokenizer.json, expected another text",
                quoted(text)
            );
        }
        let needed = BYTES + self.specials.len();
        ensure!(
            self.vocab_size >= needed,
            "vocabulary size: found {}, expected at least {needed}: {BYTES} bytes and {} special tokens",
            self.vocab_size,
            self.specials.len()
        );
        ensure!(self.vocab_size < BREAK as usize, "vocabulary size: found {}, expected below {BREAK}", self.vocab_size);
        Ok(specials)
    }

    fn learn(&self, counts: Counts, watcher: &dyn Watcher) -> Result<BpeTokenizer> {
        let first = BYTES + self.specials.len();
        let mut learner = Learner::new(counts, first)?;
        let all = self.vocab_size - first;
        while learner.tokens.len() < self.vocab_size && learner.step() {
            watcher.merged(learner.tokens.len() - first, all);
        }
        let Learner { tokens, merges, .. } = learner;
        let special = (BYTES as u32..).zip(&self.specials);
        BpeTokenizer::new(BpeParts {
            splits: vec![Split::Known(self.pattern)],
            nfc: false,
            whole_pieces: false,
            tokens: tokens.into_iter().map(|token| (!token.is_empty()).then_some(token)).collect(),
            merges,
            specials: special.map(|(id, text)| SpecialToken::new(id, text)).collect(),
            begin: None,
        })
    }
}

/// The state between merges.
struct Learner {
    /// The bytes of every token by id; none for special tokens.
    tokens: Vec<Vec<u8>>,
    /// The ids of tokens by their bytes, for two merges that make the same bytes.
    ids: (WordMap, Vec<u32>),
    merges: Vec<(u32, u32)>,
    /// All pieces by length, [`BREAK`] before, between and after them. A token's id stands at its first byte and at its
    /// last; what stands between is never read.
    symbols: Vec<u32>,
    pieces: PieceCounts,
    pairs: Pairs,
}

impl Learner {
    /// `first`: the id of the first merge. Error: pieces of 4 GiB and more.
    fn new(counts: Counts, first: usize) -> Result<Learner> {
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        let mut ids = (WordMap::default(), (0..BYTES as u32).collect());
        for token in &tokens {
            ids.0.insert(token);
        }
        tokens.resize(first, Vec::new());
        let size = counts.words.total_bytes() + counts.words.len() + 1;
        ensure!(size < BREAK as usize, "training: found {size} bytes of distinct pieces, expected below 4 GiB");
        let (symbols, pieces) = lay_out(counts, size);
        let neighbours = |place: &usize| symbols[place - 1] != BREAK && symbols[*place] != BREAK;
        let mut pairs = Pairs::new((1..symbols.len()).filter(neighbours).count());
        for place in (1..symbols.len()).filter(neighbours) {
            pairs.gain(symbols[place - 1], symbols[place], place - 1, pieces.count_at(place - 1));
        }
        Ok(Learner { tokens, ids, merges: Vec::new(), symbols, pieces, pairs })
    }

    /// Learns one merge; `false` if no pair is left.
    fn step(&mut self) -> bool {
        let next = self.pairs.next(&self.tokens);
        next.inspect(|&pair| self.merge(pair)).is_some()
    }

    /// Makes the pair a token everywhere. Runs are merged from the left.
    fn merge(&mut self, pair: u32) {
        let (left, right) = self.pairs.tokens(pair);
        self.merges.push((left, right));
        let token = self.token(left, right);
        let (left_len, len) = (self.tokens[left as usize].len(), self.tokens[token as usize].len());
        let mut grown = Vec::new();
        for place in self.pairs.take_places(pair) {
            let place = place as usize;
            let middle = place + left_len;
            if self.symbols[place] != left || self.symbols[middle] != right {
                continue;
            }
            let end = place + len;
            let (before, after) = (self.symbols[place - 1], self.symbols[end]);
            // No token: what stood here once must not be taken for the beginning of one.
            self.symbols[middle] = BREAK;
            self.symbols[place] = token;
            self.symbols[end - 1] = token;
            let count = self.pieces.count_at(place);
            if before != BREAK {
                let first = place - self.tokens[before as usize].len();
                self.pairs.lose(before, left, count);
                grown.push(self.pairs.gain(before, token, first, count));
            }
            if after != BREAK {
                self.pairs.lose(right, after, count);
                grown.push(self.pairs.gain(token, after, place, count));
            }
        }
        self.pairs.forget(pair);
        grown.sort_unstable();
        grown.dedup();
        self.pairs.grown(&grown, &self.tokens);
    }

    /// The id of two tokens together: a new one, unless other parts have made the same bytes before.
    fn token(&mut self, left: u32, right: u32) -> u32 {
        let bytes = [&self.tokens[left as usize][..], &self.tokens[right as usize]].concat();
        let (words, ids) = &mut self.ids;
        let number = words.insert(&bytes);
        if number == ids.len() {
            ids.push(self.tokens.len() as u32);
            self.tokens.push(bytes);
        }
        ids[number]
    }
}

/// How often the piece at a place occurs. Pieces of one length stand together, so that a place tells its piece.
struct PieceCounts {
    lengths: Vec<Length>,
    counts: Vec<u64>,
}

/// The pieces of one length.
struct Length {
    /// Where the first of them begins, and its number.
    place: usize,
    number: usize,
    /// From one to the next: their length and the break.
    stride: usize,
}

impl PieceCounts {
    fn count_at(&self, place: usize) -> u64 {
        let after = self.lengths.partition_point(|length| length.place <= place);
        let length = &self.lengths[after - 1];
        self.counts[length.number + (place - length.place) / length.stride]
    }
}

/// All pieces of two bytes and more, by length, as symbols.
fn lay_out(counts: Counts, size: usize) -> (Vec<u32>, PieceCounts) {
    let Counts { words, counts } = counts;
    let mut order: Vec<usize> = (0..words.len()).filter(|&word| words.get(word).len() > 1).collect();
    order.sort_by_key(|&word| words.get(word).len());
    let mut symbols = Vec::with_capacity(size);
    symbols.push(BREAK);
    let mut lengths: Vec<Length> = Vec::new();
    for (number, &word) in order.iter().enumerate() {
        let word = words.get(word);
        let stride = word.len() + 1;
        if lengths.last().is_none_or(|length| length.stride != stride) {
            lengths.push(Length { place: symbols.len(), number, stride });
        }
        symbols.extend(word.iter().map(|&byte| u32::from(byte)));
        symbols.push(BREAK);
    }
    (symbols, PieceCounts { lengths, counts: order.iter().map(|&word| counts[word]).collect() })
}

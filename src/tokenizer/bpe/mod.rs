//! Byte-pair encoding (report §4.2): text is cut into pieces, the bytes of each piece are merged into tokens.
//!
//! | file | is |
//! |---|---|
//! | [`pattern`], `unicode` | pre-tokenization: where pieces end |
//! | [`split`](mod@split), `oniguruma` | pre-tokenization by other regular expressions, in steps |
//! | [`special`] | added tokens, which stand for themselves, the longest first |
//! | `merge`     | merging one piece, in O(n log n) |
//! | `cache`     | pieces merged before, with a bound on memory |
//! | [`cuts`]    | where text may be cut to be worked on in parallel |
//! | [`mod@train`], `count`, `pairs` | learning the merges from files |
//! | [`printable`] | bytes as characters, for files |
//! | `tables`    | the hash tables beneath |
//!
//! Any text and any bytes can be encoded, since every byte is a token, and decoding gives them back exactly, unless the
//! tokenizer's file asks for Unicode normalisation, as Qwen's do.

mod cache;
mod count;
pub mod cuts;
mod merge;
mod oniguruma;
mod pairs;
pub mod pattern;
pub mod printable;
pub mod special;
pub mod split;
mod tables;
pub mod train;
mod unicode;

pub use pattern::Pattern;
pub use special::{Matching, SpecialToken, Specials};
pub use split::Split;

use super::{END_OF_TEXT, SpecialText};
use crate::shown::quoted;
use anyhow::{Context, Result, anyhow, bail, ensure};
use cache::WordCache;
use merge::Merges;
use pattern::Scanner;
use printable::bytes_of;
use rayon::prelude::*;
use special::{Stage, Stretch};
use std::borrow::Cow;
use std::sync::Mutex;
use tables::WordMap;
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// Texts longer than this, in bytes, are encoded in parallel parts.
const PART: usize = 1 << 20;
/// Names of the token that ends a document where nobody says which does, ours first, then Llama 3's.
const ENDS: [&str; 2] = [END_OF_TEXT, "<|end_of_text|>"];

/// What a tokenizer is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct BpeParts {
    /// How text is cut into pieces: by one of the known patterns, or in steps as a file says; without any, not at all.
    pub splits: Vec<Split>,
    /// Whether text is brought into Unicode's form NFC first.
    pub nfc: bool,
    /// Whether a piece that is a token itself is that token, even where merging would not lead there.
    pub whole_pieces: bool,
    /// The bytes of each id; `None` for ids that only an added token has, and for those that are not used.
    pub tokens: Vec<Option<Vec<u8>>>,
    /// Ids of the left and the right part, in the order of learning.
    pub merges: Vec<(u32, u32)>,
    pub specials: Vec<SpecialToken>,
    /// The special token that begins a prompt.
    pub begin: Option<u32>,
}

/// A byte-pair tokenizer.
pub struct BpeTokenizer {
    parts: BpeParts,
    specials: Specials,
    /// The token that ends a document.
    end: Option<u32>,
    /// The id of each byte.
    bytes: Box<[u32; 256]>,
    merges: Merges,
    /// The ordinary tokens, and the id of each.
    vocabulary: WordMap,
    ids: Vec<u32>,
    caches: Caches,
}

impl BpeTokenizer {
    /// Checks that the parts fit together.
    ///
    /// Errors: a byte without a token; two ids of the same bytes; a merge of ids that are no tokens, or whose bytes
    /// together are none; an added token that is empty, occurs twice or has the id of an ordinary token that is written
    /// otherwise.
    pub fn new(mut parts: BpeParts) -> Result<BpeTokenizer> {
        // One form for one tokenizer, however it was made.
        parts.tokens.truncate(parts.tokens.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        parts.specials.sort_by_key(|token| token.id);
        let (vocabulary, ids) = index(&parts.tokens)?;
        let id_of = |bytes: &[u8]| vocabulary.find(bytes).map(|number| ids[number]);
        let mut bytes = Box::new([0; 256]);
        for byte in 0..=255 {
            bytes[usize::from(byte)] = id_of(&[byte])
                .with_context(|| format!("vocabulary: found no token for byte 0x{byte:02X}, expected all 256"))?;
        }
        let mut merges = Vec::with_capacity(parts.merges.len());
        for (rank, &(left, right)) in parts.merges.iter().enumerate() {
            let part = |id: u32| {
                let token = parts.tokens.get(id as usize).and_then(Option::as_deref);
                token.with_context(|| format!("merge {rank}: found id {id}, expected that of an ordinary token"))
            };
            let merged = [part(left)?, part(right)?].concat();
            let id = id_of(&merged).with_context(|| {
                format!("merge {rank}: found no token for {}", quoted(String::from_utf8_lossy(&merged)))
            })?;
            merges.push((left, right, id));
        }
        let specials = Specials::new(parts.specials.clone(), parts.nfc)?;
        for SpecialToken { id, text, .. } in specials.tokens() {
            let ordinary = parts.tokens.get(*id as usize).and_then(Option::as_ref);
            ensure!(
                ordinary.is_none() || ordinary == bytes_of(text).as_ref(),
                "special token {}: found id {id}, which an ordinary token has",
                quoted(text)
            );
        }
        if let Some(begin) = parts.begin {
            ensure!(specials.get(begin).is_some(), "begin: found id {begin}, expected that of a special token");
        }
        let merges = Merges::new(merges)?;
        let end = end_by_name(&specials);
        Ok(BpeTokenizer { parts, specials, end, bytes, merges, vocabulary, ids, caches: Caches::default() })
    }

    pub fn parts(&self) -> &BpeParts {
        &self.parts
    }

    /// The token of each merge, in the order of learning.
    pub fn merged_ids(&self) -> impl Iterator<Item = u32> {
        self.merges.list().iter().map(|&(_, _, id)| id)
    }

    pub fn specials(&self) -> &Specials {
        &self.specials
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        let special = self.specials.tokens().iter().map(|token| token.id as usize + 1).max();
        special.unwrap_or(0).max(self.parts.tokens.len())
    }

    /// The token that ends a document: that of [`set_end_of_text`](Self::set_end_of_text), or else one of a known name.
    pub fn end_of_text(&self) -> Option<u32> {
        self.end
    }

    /// The token of a known name that ends documents, where nobody says which does.
    pub fn end_by_name(&self) -> Option<u32> {
        end_by_name(&self.specials)
    }

    /// Makes the added token written as `text` the one that ends documents; `None`: none does. Error: no such token.
    pub fn set_end_of_text(&mut self, text: Option<&str>) -> Result<()> {
        let id = |text: &str| self.specials.by_text(text).map(|token| token.id);
        self.end = text.map(|text| id(text).with_context(|| no_such_end(text))).transpose()?;
        Ok(())
    }

    /// The special token that a prompt begins with, if the model wants one.
    pub fn begin_of_text(&self) -> Option<u32> {
        self.parts.begin
    }

    /// The id of an ordinary token; `None` if no such token has these bytes.
    pub fn id_of(&self, bytes: &[u8]) -> Option<u32> {
        self.vocabulary.find(bytes).map(|number| self.ids[number])
    }

    /// Appends the bytes of `id`; `false` where no token has it.
    pub(super) fn push_token(&self, id: u32, bytes: &mut Vec<u8>) -> bool {
        if let Some(Some(token)) = self.parts.tokens.get(id as usize) {
            bytes.extend_from_slice(token);
            return true;
        }
        let special = self.specials.get(id);
        bytes.extend(special.into_iter().flat_map(|token| token.text.bytes()));
        special.is_some()
    }

    /// The first place after `from` where `text` may be cut in two without other ids than those of both parts;
    /// `None` as [`cuts::next_cut`], and where nobody knows such places.
    pub fn next_cut(&self, text: &[u8], from: usize) -> Option<usize> {
        if !matches!(self.parts.splits[..], [Split::Known(_)]) || self.parts.nfc && self.specials.are_normalised() {
            return None;
        }
        let mut cut = cuts::next_cut(text, from, &self.specials)?;
        while self.parts.nfc && !text[cut].is_ascii() {
            cut = cuts::next_cut(text, cut, &self.specials)?; // what normalisation may join is not cut
        }
        Some(cut)
    }

    /// The ids of `text`, on this thread. Errors: a special token in it where they are forbidden; a regular expression
    /// that gave up.
    pub fn encode(&self, text: &str, specials: SpecialText) -> Result<Vec<u32>> {
        let mut out = Vec::with_capacity(text.len() / 3);
        let mut cache = self.caches.take();
        let pushed = self.push(text, Stage::Raw, specials, &mut cache, &mut out);
        self.caches.give_back(cache);
        pushed.map_err(|error| anyhow!("encode: {error}"))?;
        Ok(out)
    }

    /// The ids of any bytes: text as ordinary text, what is not UTF-8 as pieces of its own. Error: a regular expression
    /// that gave up.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        for chunk in bytes.utf8_chunks() {
            out.extend(self.encode(chunk.valid(), SpecialText::Text)?);
            self.push_piece(chunk.invalid(), &mut out);
        }
        Ok(out)
    }

    /// The ids that [`encode`](Self::encode) gives; a long text is cut into parts for all threads. Errors: as there.
    pub fn encode_parallel(&self, text: &str, specials: SpecialText) -> Result<Vec<u32>> {
        // Places in an error are those in the whole text.
        if text.len() <= PART || specials == SpecialText::Forbid {
            return self.encode(text, specials);
        }
        let (mut parts, mut start) = (Vec::new(), 0);
        while start < text.len() {
            let end = self.next_cut(text.as_bytes(), start + PART).unwrap_or(text.len());
            parts.push(&text[start..end]);
            start = end;
        }
        let ids: Vec<Vec<u32>> = parts.par_iter().map(|part| self.encode(part, specials)).collect::<Result<_>>()?;
        Ok(ids.concat())
    }

    /// Appends the ids of a text, or of a stretch of one in which no token was found before it was normalised.
    fn push(
        &self,
        text: &str,
        stage: Stage,
        specials: SpecialText,
        cache: &mut WordCache,
        out: &mut Vec<u32>,
    ) -> Result<()> {
        for stretch in self.specials.split(text, stage, specials) {
            match (stretch, stage) {
                (Stretch::Token(at, token), _) if token.special && specials == SpecialText::Forbid => {
                    bail!("found the special token {} at byte {at}, expected ordinary text", quoted(&token.text))
                }
                (Stretch::Token(_, token), _) => out.push(token.id),
                (Stretch::Text(text), Stage::Raw) => {
                    self.push(&self.normalised(text), Stage::Normalised, specials, cache, out)?;
                }
                (Stretch::Text(text), Stage::Normalised) => self.push_ordinary(text, cache, out)?,
            }
        }
        Ok(())
    }

    /// Appends the ids of normalised text without added tokens.
    fn push_ordinary(&self, text: &str, cache: &mut WordCache, out: &mut Vec<u32>) -> Result<()> {
        if let [Split::Known(pattern)] = self.parts.splits[..] {
            let scanner = Scanner::new(pattern, text);
            let mut start = 0;
            while let Some(end) = scanner.end_of_piece(start) {
                cache.push(text.as_bytes(), (start, end), out, |piece, out| self.push_piece(piece, out));
                start = end;
            }
            return Ok(());
        }
        for piece in split::pieces(&self.parts.splits, text)? {
            cache.push(piece.as_bytes(), (0, piece.len()), out, |piece, out| self.push_piece(piece, out));
        }
        Ok(())
    }

    fn normalised<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.parts.nfc || text.is_ascii() || is_nfc(text) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(text.nfc().collect())
    }

    /// Appends the ids of one piece.
    fn push_piece(&self, piece: &[u8], out: &mut Vec<u32>) {
        if self.parts.whole_pieces
            && let Some(id) = self.id_of(piece)
        {
            return out.push(id);
        }
        let mut ids: Vec<u32> = piece.iter().map(|&byte| self.bytes[usize::from(byte)]).collect();
        self.merges.apply(&mut ids);
        out.extend_from_slice(&ids);
    }
}

impl Clone for BpeTokenizer {
    fn clone(&self) -> BpeTokenizer {
        BpeTokenizer {
            parts: self.parts.clone(),
            specials: self.specials.clone(),
            end: self.end,
            bytes: self.bytes.clone(),
            merges: self.merges.clone(),
            vocabulary: self.vocabulary.clone(),
            ids: self.ids.clone(),
            caches: Caches::default(),
        }
    }
}

/// Short: the tables would fill pages.
impl std::fmt::Debug for BpeTokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (size, merges) = (self.vocab_size(), self.parts.merges.len());
        write!(f, "BpeTokenizer({:?}, {size} ids, {merges} merges)", self.parts.splits)
    }
}

/// All else follows from these.
impl PartialEq for BpeTokenizer {
    fn eq(&self, other: &BpeTokenizer) -> bool {
        self.parts == other.parts && self.end == other.end
    }
}

fn end_by_name(specials: &Specials) -> Option<u32> {
    ENDS.iter().find_map(|text| specials.by_text(text)).map(|token| token.id)
}

/// What to say where no added token is written as `text`.
pub(super) fn no_such_end(text: &str) -> String {
    format!("end of text: found {}, expected an added token of the tokenizer", quoted(text))
}

/// The ordinary tokens and their ids. Error: two ids of the same bytes, or one without any.
fn index(tokens: &[Option<Vec<u8>>]) -> Result<(WordMap, Vec<u32>)> {
    let (mut vocabulary, mut ids) = (WordMap::default(), Vec::new());
    for (id, token) in (0..).zip(tokens) {
        let Some(token) = token else { continue };
        ensure!(!token.is_empty(), "vocabulary: found no bytes at id {id}, expected at least one");
        let number = vocabulary.insert(token);
        ensure!(
            number == ids.len(),
            "vocabulary: found {} at ids {} and {id}, expected it once",
            quoted(String::from_utf8_lossy(token)),
            ids[number]
        );
        ids.push(id);
    }
    Ok((vocabulary, ids))
}

/// One cache for each thread that is encoding, kept for the next call.
#[derive(Default)]
struct Caches(Mutex<Vec<WordCache>>);

impl Caches {
    fn take(&self) -> WordCache {
        let idle = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop();
        idle.unwrap_or_else(WordCache::new)
    }

    fn give_back(&self, cache: WordCache) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(cache);
    }
}

//! A row of token ids, in memory or in shards, of which a part may be all that is seen.

use super::shard::ShardSet;
use crate::formats::hex;
use anyhow::Result;
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;

/// Ids of which [`Tokens::fingerprint`] hashes each piece alone.
const PIECE: usize = 1 << 20;

/// Ids that windows are cut from.
pub trait TokenRow {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the ids of `range`, which lies within the row. Error: a file that cannot be read any more.
    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) -> Result<()>;
}

impl TokenRow for [u32] {
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) -> Result<()> {
        out.extend_from_slice(&self[range]);
        Ok(())
    }
}

impl TokenRow for Vec<u32> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) -> Result<()> {
        out.extend_from_slice(&self[range]);
        Ok(())
    }
}

/// A row, or a part of one.
#[derive(Clone, Debug)]
pub struct Tokens {
    store: Store,
    range: Range<usize>,
}

#[derive(Clone, Debug)]
enum Store {
    Memory(Arc<Vec<u32>>),
    Shards(Arc<ShardSet>),
}

impl From<Vec<u32>> for Tokens {
    fn from(ids: Vec<u32>) -> Tokens {
        Tokens { range: 0..ids.len(), store: Store::Memory(Arc::new(ids)) }
    }
}

impl From<ShardSet> for Tokens {
    fn from(shards: ShardSet) -> Tokens {
        Tokens { range: 0..shards.len(), store: Store::Shards(Arc::new(shards)) }
    }
}

impl Tokens {
    /// The ids before `at` and those from there on.
    pub fn split_at(&self, at: usize) -> (Tokens, Tokens) {
        let middle = self.range.start + at;
        let part = |range: Range<usize>| Tokens { store: self.store.clone(), range };
        (part(self.range.start..middle), part(middle..self.range.end))
    }

    /// Tells rows apart: SHA-256 in hexadecimal, the same however the ids are stored. It is the hash of the hashes of
    /// pieces of 2^20 ids, 4 bytes little-endian each, so that all threads can work at it. Error: a file that cannot be
    /// read any more.
    pub fn fingerprint(&self) -> Result<String> {
        let piece = |start: usize| {
            let mut ids = Vec::new();
            self.read(start..self.len().min(start + PIECE), &mut ids)?;
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            Ok(<[u8; 32]>::from(Sha256::digest(&bytes)))
        };
        let hashes: Vec<[u8; 32]> =
            (0..self.len().div_ceil(PIECE)).into_par_iter().map(|n| piece(n * PIECE)).collect::<Result<_>>()?;
        Ok(hex(&Sha256::digest(hashes.as_flattened())))
    }
}

impl TokenRow for Tokens {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) -> Result<()> {
        let range = self.range.start + range.start..self.range.start + range.end;
        assert!(range.end <= self.range.end, "a range within the row");
        match &self.store {
            Store::Memory(ids) => ids.read(range, out),
            Store::Shards(shards) => shards.read(range, out),
        }
    }
}

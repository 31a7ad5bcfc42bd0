//! A row of token ids, in memory or in mapped shards, of which a part may be all that is seen.

use super::shard::ShardSet;
use std::ops::Range;
use std::sync::Arc;

/// Ids that windows are cut from.
pub trait TokenRow {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the ids of `range`, which lies within the row.
    fn read(&self, range: Range<usize>, out: &mut Vec<u32>);
}

impl TokenRow for [u32] {
    fn len(&self) -> usize {
        <[u32]>::len(self)
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) {
        out.extend_from_slice(&self[range]);
    }
}

impl TokenRow for Vec<u32> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) {
        out.extend_from_slice(&self[range]);
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
}

impl TokenRow for Tokens {
    fn len(&self) -> usize {
        self.range.len()
    }

    fn read(&self, range: Range<usize>, out: &mut Vec<u32>) {
        let range = self.range.start + range.start..self.range.start + range.end;
        assert!(range.end <= self.range.end, "a range within the row");
        match &self.store {
            Store::Memory(ids) => out.extend_from_slice(&ids[range]),
            Store::Shards(shards) => shards.read(range, out),
        }
    }
}

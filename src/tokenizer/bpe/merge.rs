//! Merging the bytes of one piece into tokens: always the pair that was learned first, and of its places the leftmost
//! (report §4.2).
//!
//! Short pieces are searched from end to end for each merge; long ones keep their candidates in a heap, which takes
//! O(n log n) for n bytes, whatever they are.

use super::tables::PairMap;
use anyhow::{Result, ensure};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Pieces up to this many bytes are searched from end to end: below it a heap costs more than it saves.
const SHORT: usize = 48;
/// Where a rank or an id would stand if there were one.
const NONE: u32 = u32::MAX;

/// What may be merged, in the order of learning.
#[derive(Clone, Debug, Default)]
pub struct Merges {
    /// The rank of each pair.
    ranks: PairMap,
    /// The pair of each rank, and the token that it becomes.
    list: Vec<(u32, u32, u32)>,
}

impl Merges {
    /// Error: a pair that occurs twice.
    pub fn new(list: Vec<(u32, u32, u32)>) -> Result<Merges> {
        let mut ranks = PairMap::default();
        for (rank, &(left, right, _)) in (0..).zip(&list) {
            let first = *ranks.entry(left, right, rank);
            ensure!(
                first == rank,
                "merge {rank}: found the pair of ids {left} and {right}, which is merge {first} already"
            );
        }
        Ok(Merges { ranks, list })
    }

    /// Left and right part and their token, by rank.
    pub fn list(&self) -> &[(u32, u32, u32)] {
        &self.list
    }

    /// Replaces `ids` by what they merge into.
    pub fn apply(&self, ids: &mut Vec<u32>) {
        if ids.len() <= SHORT {
            let len = self.apply_short(ids);
            ids.truncate(len);
        } else {
            self.apply_long(ids);
        }
    }

    fn rank(&self, left: u32, right: u32) -> u32 {
        self.ranks.get(left, right).unwrap_or(NONE)
    }

    /// At most [`SHORT`] ids; returns how many are left, at the beginning.
    fn apply_short(&self, ids: &mut [u32]) -> usize {
        let mut len = ids.len();
        let mut ranks = [NONE; SHORT]; // ranks[i] is that of ids[i] and ids[i + 1]
        for i in 1..len {
            ranks[i - 1] = self.rank(ids[i - 1], ids[i]);
        }
        while len > 1 {
            let (at, rank) = leftmost_least(&ranks[..len - 1]);
            if rank == NONE {
                break;
            }
            ids[at] = self.list[rank as usize].2;
            ids.copy_within(at + 2..len, at + 1);
            ranks.copy_within(at + 1..len, at);
            len -= 1;
            ranks[len - 1] = NONE;
            if at + 1 < len {
                ranks[at] = self.rank(ids[at], ids[at + 1]);
            }
            if at > 0 {
                ranks[at - 1] = self.rank(ids[at - 1], ids[at]);
            }
        }
        len
    }

    fn apply_long(&self, ids: &mut Vec<u32>) {
        let end = ids.len();
        assert!(end < NONE as usize, "a piece of 4 GiB");
        // Neighbours of each place that still holds a token; merged-away places hold NONE.
        let mut next: Vec<u32> = (1..=end as u32).collect();
        let mut previous: Vec<u32> = (0..end as u32).map(|i| i.wrapping_sub(1)).collect();
        let candidate = |left: u32, right: u32, at: u32| {
            let rank = self.rank(left, right);
            (rank != NONE).then_some(Reverse((rank, at)))
        };
        let all = (1..end).filter_map(|i| candidate(ids[i - 1], ids[i], i as u32 - 1));
        let mut heap: BinaryHeap<Reverse<(u32, u32)>> = all.collect();
        while let Some(Reverse((rank, at))) = heap.pop() {
            let (left, right, token) = self.list[rank as usize];
            let i = at as usize;
            let j = next[i] as usize;
            if ids[i] != left || j >= end || ids[j] != right {
                continue; // one of the two has been merged with another neighbour
            }
            (ids[i], ids[j]) = (token, NONE);
            next[i] = next[j];
            let (before, after) = (previous[i], next[i] as usize);
            if after < end {
                previous[after] = at;
                heap.extend(candidate(token, ids[after], at));
            }
            if before != NONE {
                heap.extend(candidate(ids[before as usize], token, before));
            }
        }
        ids.retain(|&id| id != NONE);
    }
}

/// The least rank and the first place where it stands.
fn leftmost_least(ranks: &[u32]) -> (usize, u32) {
    let mut least = (0, NONE);
    for (at, &rank) in ranks.iter().enumerate() {
        if rank < least.1 {
            least = (at, rank);
        }
    }
    least
}

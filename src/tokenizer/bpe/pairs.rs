//! The pairs that a training counts: how often and where each stands, and which is merged next.
//!
//! Most pairs are rare and will never be merged, so each takes little memory: its key is kept once, its places are
//! links in one pool whose free ones are used again, and the heap knows only pairs that are frequent enough to come up
//! soon.

use super::tables::mix;
use std::cmp::Ordering;

/// The end of a list of places.
const NIL: u32 = u32::MAX;

/// All pairs that stand or stood somewhere.
pub struct Pairs {
    pairs: Vec<Pair>,
    /// Open addressing over a power of two: the number of a pair plus 1; 0 is free.
    slots: Vec<u32>,
    places: Places,
    heap: Vec<QueuedPair>,
    /// The heap holds every pair that occurs at least as often.
    least: u64,
}

struct Pair {
    left: u32,
    right: u32,
    count: u64,
    /// A list of every place where the pair stands, and some where it stood; the last first.
    places: u32,
}

/// A pair and the count that it had when it was pushed.
#[derive(Clone, Copy)]
struct QueuedPair {
    count: u64,
    pair: u32,
}

impl Pairs {
    /// `places`: at how many places pairs will stand in the beginning.
    pub fn new(places: usize) -> Pairs {
        let places = Places { links: Vec::with_capacity(places), free: NIL };
        Pairs { pairs: Vec::new(), slots: vec![0; 1024], places, heap: Vec::new(), least: u64::MAX }
    }

    /// The pair stands at one place more, `count` times; its number.
    pub fn gain(&mut self, left: u32, right: u32, place: usize, count: u64) -> u32 {
        let number = match self.find(left, right) {
            Ok(number) => number,
            Err(slot) => self.add(left, right, slot),
        };
        let pair = &mut self.pairs[number as usize];
        pair.count += count;
        pair.places = self.places.link(place as u32, pair.places);
        number
    }

    /// The pair, which is known, stands no more at some place, where it did `count` times.
    pub fn lose(&mut self, left: u32, right: u32, count: u64) {
        let number = self.find(left, right).expect("a pair that stands somewhere is known");
        let pair = &mut self.pairs[number as usize];
        pair.count -= count;
        if pair.count == 0 {
            self.places.unlink(std::mem::replace(&mut pair.places, NIL), |_| ()); // all of them are past
        }
    }

    /// Left and right token of a pair.
    pub fn tokens(&self, number: u32) -> (u32, u32) {
        let Pair { left, right, .. } = self.pairs[number as usize];
        (left, right)
    }

    /// The places of a pair, ascending; from now on it has none.
    pub fn take_places(&mut self, number: u32) -> Vec<u32> {
        let mut places = Vec::new();
        let first = std::mem::replace(&mut self.pairs[number as usize].places, NIL);
        self.places.unlink(first, |place| places.push(place));
        places.reverse();
        // Within a merge places are found in order; a pair has been found in two if they made the same bytes.
        if !places.is_sorted() {
            places.sort_unstable();
        }
        places
    }

    /// The pair stands nowhere any more.
    pub fn forget(&mut self, number: u32) {
        self.pairs[number as usize].count = 0;
    }

    /// Tells the heap of pairs whose count has grown. A count that falls needs no telling.
    pub fn grown(&mut self, numbers: &[u32], tokens: &[Vec<u8>]) {
        for &pair in numbers {
            let count = self.pairs[pair as usize].count;
            if count >= self.least {
                self.push(QueuedPair { count, pair }, tokens);
            }
        }
    }

    /// The pair to merge next: the most frequent one, and of those the greatest by its tokens' bytes; `None` if no pair
    /// occurs any more.
    pub fn next(&mut self, tokens: &[Vec<u8>]) -> Option<u32> {
        loop {
            let Some(QueuedPair { count, pair }) = self.pop(tokens) else {
                if !self.refill(tokens) {
                    return None;
                }
                continue;
            };
            let now = self.pairs[pair as usize].count;
            if now == count {
                return Some(pair);
            }
            if now >= self.least {
                self.push(QueuedPair { count: now, pair }, tokens);
            }
        }
    }

    /// Fills the empty heap with the most frequent pairs; `false` if there are none.
    fn refill(&mut self, tokens: &[Vec<u8>]) -> bool {
        let most = self.pairs.iter().map(|pair| pair.count).max().unwrap_or(0);
        self.least = (most / 8).max(1);
        for pair in 0..self.pairs.len() as u32 {
            let count = self.pairs[pair as usize].count;
            if count >= self.least {
                self.push(QueuedPair { count, pair }, tokens);
            }
        }
        most > 0
    }

    /// The number of a pair, or the free slot where it belongs.
    fn find(&self, left: u32, right: u32) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut slot = mix(u64::from(left) << 32 | u64::from(right), 0) as usize & mask;
        loop {
            let Some(number) = self.slots[slot].checked_sub(1) else { return Err(slot) };
            let pair = &self.pairs[number as usize];
            if (pair.left, pair.right) == (left, right) {
                return Ok(number);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// A new pair, which belongs into the free `slot`; its number.
    fn add(&mut self, left: u32, right: u32, slot: usize) -> u32 {
        if self.pairs.len() == self.pairs.capacity() {
            self.pairs.reserve_exact(self.pairs.len() / 8 + 1024); // doubling would waste as much as it needs
        }
        self.pairs.push(Pair { left, right, count: 0, places: NIL });
        self.slots[slot] = self.pairs.len() as u32;
        if 4 * self.pairs.len() > 3 * self.slots.len() {
            self.slots = vec![0; 2 * self.slots.len()];
            for number in 0..self.pairs.len() {
                let Pair { left, right, .. } = self.pairs[number];
                let slot = self.find(left, right).expect_err("each pair once");
                self.slots[slot] = number as u32 + 1;
            }
        }
        self.pairs.len() as u32 - 1
    }

    /// Whether `a` is merged before `b`.
    fn before(&self, a: QueuedPair, b: QueuedPair, tokens: &[Vec<u8>]) -> bool {
        let bytes = |id: u32| &tokens[id as usize];
        let (x, y) = (&self.pairs[a.pair as usize], &self.pairs[b.pair as usize]);
        let order = a.count.cmp(&b.count);
        let order = order.then_with(|| bytes(x.left).cmp(bytes(y.left)));
        order.then_with(|| bytes(x.right).cmp(bytes(y.right))) == Ordering::Greater
    }

    // A binary heap, the best entry first. It is written out because what decides ties, the bytes, is not in the
    // entries.

    fn push(&mut self, entry: QueuedPair, tokens: &[Vec<u8>]) {
        let mut at = self.heap.len();
        self.heap.push(entry);
        while at > 0 && self.before(entry, self.heap[(at - 1) / 2], tokens) {
            self.heap[at] = self.heap[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        self.heap[at] = entry;
    }

    fn pop(&mut self, tokens: &[Vec<u8>]) -> Option<QueuedPair> {
        let last = self.heap.pop()?;
        let Some(&best) = self.heap.first() else { return Some(last) };
        let mut at = 0;
        loop {
            let mut child = 2 * at + 1;
            if child >= self.heap.len() {
                break;
            }
            if child + 1 < self.heap.len() && self.before(self.heap[child + 1], self.heap[child], tokens) {
                child += 1;
            }
            if !self.before(self.heap[child], last, tokens) {
                break;
            }
            self.heap[at] = self.heap[child];
            at = child;
        }
        self.heap[at] = last;
        Some(best)
    }
}

/// Lists of places in one pool.
struct Places {
    /// A place, and the link after it.
    links: Vec<(u32, u32)>,
    /// The first of the links that are free.
    free: u32,
}

impl Places {
    /// Puts a place before a list; the list.
    fn link(&mut self, place: u32, list: u32) -> u32 {
        if self.free == NIL {
            if self.links.len() == self.links.capacity() {
                self.links.reserve_exact(self.links.len() / 8 + 1024);
            }
            self.links.push((place, list));
            return self.links.len() as u32 - 1;
        }
        let link = self.free;
        self.free = self.links[link as usize].1;
        self.links[link as usize] = (place, list);
        link
    }

    /// Frees a list, and tells of its places from the first on.
    fn unlink(&mut self, mut list: u32, mut tell: impl FnMut(u32)) {
        while list != NIL {
            let (place, next) = self.links[list as usize];
            tell(place);
            self.links[list as usize].1 = self.free;
            self.free = list;
            list = next;
        }
    }
}

//! Which work is ordered before which, and accesses to the same memory that nothing orders.
//!
//! Work runs at the call that submits it, so a forgotten synchronisation never shows in the values. It shows here: the host
//! and every stream are actors with a vector clock (Fidge, Mattern). Submitting work to a stream orders it after what the
//! host has done or waited for and after the stream's earlier work; events and waits carry clocks between actors
//! (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution": streams, events, the default stream).
//! Two accesses that overlap, one of them a write, by different actors and not ordered are a missing synchronisation.

use std::collections::HashMap;
use std::sync::Arc;

/// The host, or a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Actor(usize);

pub const HOST: Actor = Actor(0);

/// For each actor, the number of its operations that come before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Clock(Vec<u64>);

impl Clock {
    fn of(&self, actor: Actor) -> u64 {
        self.0.get(actor.0).copied().unwrap_or(0)
    }

    pub fn join(&mut self, other: &Clock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn tick(&mut self, actor: Actor) -> u64 {
        if self.0.len() <= actor.0 {
            self.0.resize(actor.0 + 1, 0);
        }
        self.0[actor.0] += 1;
        self.0[actor.0]
    }

    /// Whether all of it comes before what another clock covers.
    pub fn within(&self, other: &Clock) -> bool {
        self.0.iter().enumerate().all(|(i, &time)| other.of(Actor(i)) >= time)
    }

    /// Whether an operation comes before.
    pub fn covers(&self, when: When) -> bool {
        self.of(when.actor) >= when.time
    }
}

/// An operation: the `time`th of its actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct When {
    pub actor: Actor,
    pub time: u64,
}

/// Memory: a device allocation, or host memory that streams use, by its first address. Device and host share one address
/// space, so mapped memory is one block however it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryBlock(pub u64);

/// A range of a block that an operation reads or writes.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    pub block: MemoryBlock,
    pub begin: u64,
    pub end: u64,
    pub written: bool,
}

struct PastAccess {
    when: When,
    begin: u64,
    end: u64,
    written: bool,
    /// "kernel saxpy on stream 2"
    what: Arc<str>,
}

impl PastAccess {
    fn continues_with(&self, next: &PastAccess) -> bool {
        self.when.actor == next.when.actor
            && self.written == next.written
            && self.begin <= next.end
            && next.begin <= self.end
            && self.what == next.what
    }
}

/// Two accesses that nothing orders.
#[derive(Debug, Clone, PartialEq)]
pub struct UseConflict {
    pub earlier: String,
    pub earlier_written: bool,
    pub block: MemoryBlock,
    pub begin: u64,
    pub end: u64,
}

pub struct Order {
    clocks: Vec<Clock>,
    /// For each actor, the last of its operations that another clock may cover.
    published: Vec<u64>,
    retired: Vec<Actor>,
    accesses: HashMap<MemoryBlock, Vec<PastAccess>>,
}

impl Default for Order {
    fn default() -> Order {
        Order { clocks: vec![Clock::default()], published: vec![0], retired: Vec::new(), accesses: HashMap::new() }
    }
}

impl Order {
    pub fn new_actor(&mut self) -> Actor {
        let host = &self.clocks[HOST.0];
        let covered = |actor: &Actor| host.covers(self.last(*actor));
        if let Some(index) = self.retired.iter().position(covered) {
            let actor = self.retired.swap_remove(index);
            // Its time goes on, so that old and new operations stay apart; what the old stream waited for is not the new one's.
            let time = self.last(actor).time;
            let mut clock = Clock(vec![0; actor.0 + 1]);
            clock.0[actor.0] = time;
            self.clocks[actor.0] = clock;
            return actor;
        }
        self.clocks.push(Clock::default());
        self.published.push(0);
        Actor(self.clocks.len() - 1)
    }

    /// The actor's number serves again once the host has waited for all its work: until then that work would count as the
    /// new stream's own past.
    pub fn retire(&mut self, actor: Actor) {
        self.retired.push(actor);
    }

    /// An actor's latest operation.
    fn last(&self, actor: Actor) -> When {
        When { actor, time: self.clocks[actor.0].of(actor) }
    }

    /// An actor's clock, for others to be ordered after.
    pub fn publish(&mut self, actor: Actor) -> Clock {
        self.published[actor.0] = self.last(actor).time;
        self.clocks[actor.0].clone()
    }

    pub fn clock(&self, actor: Actor) -> &Clock {
        &self.clocks[actor.0]
    }

    /// Orders the next operation of a stream after all that a clock covers. It is an operation itself, so that a clock which
    /// covers a stream's latest one covers all that the stream waited for.
    pub fn join(&mut self, actor: Actor, clock: &Clock) {
        self.clocks[actor.0].join(clock);
        self.clocks[actor.0].tick(actor);
    }

    /// Starts an operation of a stream: after what the host has done, and after the work of `others`.
    pub fn begin(&mut self, actor: Actor, others: &[Actor]) -> When {
        let mut clock = std::mem::take(&mut self.clocks[actor.0]);
        clock.join(&self.clocks[HOST.0]);
        for &other in others {
            let last = self.last(other);
            if !clock.covers(last) {
                clock.join(&self.clocks[other.0]);
                self.published[other.0] = last.time;
            }
        }
        let time = clock.tick(actor);
        self.clocks[actor.0] = clock;
        When { actor, time }
    }

    /// The host waits for all that a clock covers.
    pub fn wait(&mut self, clock: &Clock) {
        self.clocks[HOST.0].join(clock);
    }

    pub fn host_waited_for(&self, when: When) -> bool {
        self.clocks[HOST.0].covers(when)
    }

    /// Records an access and gives the first unordered one that it collides with.
    pub fn access(&mut self, when: When, used: Use, what: &Arc<str>) -> Option<UseConflict> {
        let clock = &self.clocks[when.actor.0];
        let host = &self.clocks[HOST.0];
        let accesses = self.accesses.entry(used.block).or_default();
        // What the host has waited for is before all later work: it can collide with nothing any more.
        accesses.retain(|old| !host.covers(old.when));
        let overlapping = |old: &&PastAccess| old.begin < used.end && used.begin < old.end;
        let conflict = accesses
            .iter()
            .filter(overlapping)
            .find(|old| (old.written || used.written) && !clock.covers(old.when))
            .map(|old| UseConflict {
                earlier: old.what.to_string(),
                earlier_written: old.written,
                block: used.block,
                begin: old.begin.max(used.begin),
                end: old.end.min(used.end),
            });
        // An older access that is ordered before this one and covered by it collides only where this one does too.
        accesses.retain(|old| {
            let covered = used.begin <= old.begin && old.end <= used.end && (used.written || !old.written);
            !(covered && clock.covers(old.when))
        });
        let access =
            PastAccess { when, begin: used.begin, end: used.end, written: used.written, what: Arc::clone(what) };
        // A run of copies to the parts of a block is one access as long as no one can have waited for a part of the run.
        let published = self.published[when.actor.0];
        match accesses.iter_mut().rev().find(|old| old.when.time > published && old.continues_with(&access)) {
            Some(old) => {
                old.when = when;
                old.begin = old.begin.min(used.begin);
                old.end = old.end.max(used.end);
            }
            None => accesses.push(access),
        }
        conflict
    }

    /// The block's memory is gone.
    pub fn forget(&mut self, block: MemoryBlock) {
        self.accesses.remove(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: MemoryBlock = MemoryBlock(0x1000);

    fn used(begin: u64, end: u64, written: bool) -> Use {
        Use { block: BLOCK, begin, end, written }
    }

    fn access(order: &mut Order, actor: Actor, others: &[Actor], used: Use) -> Option<UseConflict> {
        let when = order.begin(actor, others);
        order.access(when, used, &"x".into())
    }

    #[test]
    fn a_stream_is_ordered_in_itself() {
        let mut order = Order::default();
        let a = order.new_actor();
        assert_eq!(access(&mut order, a, &[], used(0, 8, true)), None);
        assert_eq!(access(&mut order, a, &[], used(0, 8, true)), None);
        assert_eq!(order.accesses[&BLOCK].len(), 1);
    }

    #[test]
    fn two_streams_are_not() {
        for (first, second, found) in
            [(true, true, true), (true, false, true), (false, true, true), (false, false, false)]
        {
            let mut order = Order::default();
            let (a, b) = (order.new_actor(), order.new_actor());
            access(&mut order, a, &[], used(0, 8, first));
            assert_eq!(access(&mut order, b, &[], used(4, 12, second)).is_some(), found);
            assert_eq!(access(&mut order, b, &[], used(12, 16, true)), None, "no overlap");
        }
    }

    #[test]
    fn events_and_waits_order() {
        let mut order = Order::default();
        let (a, b, c) = (order.new_actor(), order.new_actor(), order.new_actor());
        access(&mut order, a, &[], used(0, 8, true));
        let event = order.publish(a);
        order.join(b, &event);
        assert_eq!(access(&mut order, b, &[], used(0, 8, true)), None);
        assert!(access(&mut order, c, &[], used(0, 8, false)).is_some());
        let clock = order.clock(b).clone();
        order.wait(&clock);
        let c2 = order.new_actor();
        assert!(access(&mut order, c2, &[], used(0, 8, true)).is_some(), "the read on c is unordered");
        assert_eq!(access(&mut order, a, &[c, c2], used(0, 8, true)), None);
    }

    #[test]
    fn an_event_covers_only_what_came_before_it() {
        let mut order = Order::default();
        let (a, b) = (order.new_actor(), order.new_actor());
        let event = order.publish(a);
        access(&mut order, a, &[], used(0, 8, true));
        order.join(b, &event);
        assert!(access(&mut order, b, &[], used(0, 8, false)).is_some());
    }

    #[test]
    fn waited_accesses_are_dropped() {
        let mut order = Order::default();
        let a = order.new_actor();
        for i in 0..100 {
            access(&mut order, a, &[], used(2 * i, 2 * i + 1, true));
        }
        assert_eq!(order.accesses[&BLOCK].len(), 100);
        let clock = order.clock(a).clone();
        order.wait(&clock);
        access(&mut order, a, &[], used(0, 1, false));
        assert_eq!(order.accesses[&BLOCK].len(), 1);
    }

    #[test]
    fn a_number_serves_again_once_the_host_waited_for_its_work() {
        let mut order = Order::default();
        let (a, c) = (order.new_actor(), order.new_actor());
        access(&mut order, c, &[], used(8, 16, true));
        access(&mut order, a, &[], used(0, 8, true));
        let clock = order.publish(a);
        order.retire(a);
        let b = order.new_actor();
        assert_ne!(b, a);
        assert!(access(&mut order, b, &[], used(0, 8, false)).is_some(), "the old stream's work is not waited for");
        // A wait of the old stream, after its last work, is not the new one's.
        let other = order.publish(c);
        order.join(a, &other);
        order.wait(&clock);
        assert_ne!(order.new_actor(), a, "the wait is not covered");
        let last = order.last(a);
        order.clocks[HOST.0].tick(a);
        assert!(order.host_waited_for(last));
        assert_eq!(order.new_actor(), a);
        assert!(access(&mut order, a, &[], used(8, 16, false)).is_some());
        assert!(order.last(a).time > last.time);
    }

    #[test]
    fn a_run_of_neighbours_is_one_access() {
        let mut order = Order::default();
        let (a, b, c) = (order.new_actor(), order.new_actor(), order.new_actor());
        for i in 0..100 {
            access(&mut order, a, &[], used(8 * i, 8 * i + 8, true));
        }
        assert_eq!(order.accesses[&BLOCK].len(), 1);
        // What an event covers is not moved past the event.
        let event = order.publish(a);
        access(&mut order, a, &[], used(800, 808, true));
        assert_eq!(order.accesses[&BLOCK].len(), 2);
        order.join(b, &event);
        assert_eq!(access(&mut order, b, &[], used(0, 800, false)), None);
        assert!(access(&mut order, b, &[], used(800, 801, false)).is_some());
        // Nor what the default stream waited for.
        access(&mut order, c, &[], used(1000, 1008, true));
        let legacy = order.new_actor();
        order.begin(legacy, &[c]);
        access(&mut order, c, &[], used(1008, 1016, true));
        assert_eq!(access(&mut order, b, &[legacy], used(1000, 1008, true)), None);
    }

    #[test]
    fn a_stream_that_was_waited_for_still_passes_on_its_waits() {
        let mut order = Order::default();
        let (a, b, legacy) = (order.new_actor(), order.new_actor(), order.new_actor());
        order.begin(b, &[]);
        order.begin(legacy, &[b]);
        access(&mut order, a, &[], used(0, 8, true));
        let event = order.publish(a);
        order.join(b, &event);
        assert_eq!(access(&mut order, legacy, &[b], used(0, 8, true)), None);
    }
}

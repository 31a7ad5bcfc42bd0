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

/// Memory: device allocations, and host memory that streams use, by the first address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Block {
    Device(u64),
    Host(u64),
}

/// A range of a block that an operation reads or writes.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    pub block: Block,
    pub begin: u64,
    pub end: u64,
    pub written: bool,
}

struct Access {
    when: When,
    begin: u64,
    end: u64,
    written: bool,
    /// "kernel saxpy on stream 2"
    what: Arc<str>,
}

/// Two accesses that nothing orders.
#[derive(Debug, Clone, PartialEq)]
pub struct Conflict {
    pub earlier: String,
    pub earlier_written: bool,
    pub block: Block,
    pub begin: u64,
    pub end: u64,
}

pub struct Order {
    clocks: Vec<Clock>,
    unused: Vec<Actor>,
    accesses: HashMap<Block, Vec<Access>>,
}

impl Default for Order {
    fn default() -> Order {
        Order { clocks: vec![Clock::default()], unused: Vec::new(), accesses: HashMap::new() }
    }
}

impl Order {
    pub fn new_actor(&mut self) -> Actor {
        if let Some(actor) = self.unused.pop() {
            return actor;
        }
        self.clocks.push(Clock::default());
        Actor(self.clocks.len() - 1)
    }

    /// The actor's number serves again; its clock goes on, so that old and new operations stay apart.
    pub fn retire(&mut self, actor: Actor) {
        self.unused.push(actor);
    }

    pub fn clock(&self, actor: Actor) -> &Clock {
        &self.clocks[actor.0]
    }

    /// Orders the next operation of an actor after all that a clock covers.
    pub fn join(&mut self, actor: Actor, clock: &Clock) {
        self.clocks[actor.0].join(clock);
    }

    /// Starts an operation of a stream: after what the host has done, and after the work of `others`.
    pub fn begin(&mut self, actor: Actor, others: &[Actor]) -> When {
        let mut clock = std::mem::take(&mut self.clocks[actor.0]);
        clock.join(&self.clocks[HOST.0]);
        for other in others {
            clock.join(&self.clocks[other.0]);
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
    pub fn access(&mut self, when: When, used: Use, what: &Arc<str>) -> Option<Conflict> {
        let clock = &self.clocks[when.actor.0];
        let host = &self.clocks[HOST.0];
        let accesses = self.accesses.entry(used.block).or_default();
        // What the host has waited for is before all later work: it can collide with nothing any more.
        accesses.retain(|old| !host.covers(old.when));
        let overlapping = |old: &&Access| old.begin < used.end && used.begin < old.end;
        let conflict = accesses
            .iter()
            .filter(overlapping)
            .find(|old| (old.written || used.written) && !clock.covers(old.when))
            .map(|old| Conflict {
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
        accesses.push(Access { when, begin: used.begin, end: used.end, written: used.written, what: Arc::clone(what) });
        conflict
    }

    /// The block's memory is gone.
    pub fn forget(&mut self, block: Block) {
        self.accesses.remove(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Block = Block::Device(0x1000);

    fn used(begin: u64, end: u64, written: bool) -> Use {
        Use { block: BLOCK, begin, end, written }
    }

    fn access(order: &mut Order, actor: Actor, others: &[Actor], used: Use) -> Option<Conflict> {
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
        let event = order.clock(a).clone();
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
        let event = order.clock(a).clone();
        access(&mut order, a, &[], used(0, 8, true));
        order.join(b, &event);
        assert!(access(&mut order, b, &[], used(0, 8, false)).is_some());
    }

    #[test]
    fn waited_accesses_are_dropped() {
        let mut order = Order::default();
        let a = order.new_actor();
        for i in 0..100 {
            access(&mut order, a, &[], used(i, i + 1, true));
        }
        assert_eq!(order.accesses[&BLOCK].len(), 100);
        let clock = order.clock(a).clone();
        order.wait(&clock);
        access(&mut order, a, &[], used(0, 1, false));
        assert_eq!(order.accesses[&BLOCK].len(), 1);
    }

    #[test]
    fn a_retired_actor_starts_after_its_past() {
        let mut order = Order::default();
        let a = order.new_actor();
        let when = order.begin(a, &[]);
        order.retire(a);
        assert_eq!(order.new_actor(), a);
        assert!(order.begin(a, &[]).time > when.time);
        assert!(!order.host_waited_for(when));
    }
}

//! When an access happened, and whether another thread's access is ordered after it.
//!
//! Time is a counter that moves at every event that orders threads: a barrier, a fence, a change of block. Two accesses
//! of different threads are ordered if a chain of barriers leads from one to the other, or if the first thread fenced
//! after its access and the second made an atomic (or volatile) access after that fence. The second rule takes every
//! fence and atomic for the pair that belongs together: it can miss a race, it can't invent one.
//! (PTX ISA, "Memory Consistency Model": happens-before.)

use std::collections::HashMap;

/// A moment; 0 is before every launch.
pub type Time = u32;

/// The part of time that all blocks of a launch share.
#[derive(Debug, Default)]
pub struct LaunchClock {
    pub now: Time,
    /// When the launch began: older accesses are ordered by the launch itself.
    pub since: Time,
    /// (begin, block): which block ran from when on.
    slices: Vec<(Time, u32)>,
    /// Last fence and last atomic access of each block that made one.
    fences: HashMap<u32, Time>,
    strong: HashMap<u32, Time>,
}

/// The part of time that belongs to one block.
#[derive(Debug, Default)]
pub struct BlockClock {
    pub block: u32,
    /// The last barrier of the whole block.
    pub since: Time,
    /// The last `bar.warp.sync` of each whole warp.
    pub warp_since: Vec<Time>,
    /// Barriers of some of the threads, since `since`.
    partial: Vec<Partial>,
    /// Last fence and last atomic access of each thread; empty until there is one.
    fences: Vec<Time>,
    strong: Vec<Time>,
    threads: usize,
}

/// A barrier that some of the block's threads take part in.
#[derive(Debug)]
pub struct Partial {
    pub arrivals: Vec<Arrival>,
}

#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub warp: u32,
    pub lanes: u32,
    pub time: Time,
    /// `bar.arrive` goes on without waiting: it gives an order but takes none.
    pub waits: bool,
}

impl LaunchClock {
    /// A new launch: everything before is ordered before it.
    pub fn begin(&mut self) {
        self.now += 1;
        self.since = self.now;
        self.slices.clear();
        self.fences.clear();
        self.strong.clear();
    }

    /// From now on `block` runs.
    pub fn switch(&mut self, block: u32) {
        self.now += 1;
        self.slices.push((self.now, block));
    }

    pub fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    /// The block that ran at a time of this launch.
    #[inline(always)]
    pub fn block_of(&self, time: Time) -> u32 {
        match self.slices.last() {
            Some(&(begin, block)) if time >= begin => block,
            _ => {
                let after = self.slices.partition_point(|&(begin, _)| begin <= time);
                self.slices[after.saturating_sub(1)].1
            }
        }
    }

    /// Whether a fence could have ordered anything in this launch.
    pub fn fenced(&self) -> bool {
        !self.fences.is_empty()
    }
}

impl BlockClock {
    pub fn begin(&mut self, block: u32, threads: usize, now: Time) {
        self.block = block;
        self.since = now;
        self.threads = threads;
        self.warp_since.clear();
        self.warp_since.resize(threads.div_ceil(32), now);
        self.partial.clear();
        self.fences.clear();
        self.strong.clear();
    }

    /// All threads of the block met.
    pub fn block_barrier(&mut self, launch: &mut LaunchClock) {
        self.since = launch.tick();
        self.partial.clear();
        if !self.strong.is_empty() {
            // What one thread learned by an atomic access, all know after the barrier.
            let latest = self.strong.iter().copied().max().unwrap_or(0);
            self.strong.fill(latest);
        }
    }

    /// All lanes of a warp met.
    pub fn warp_barrier(&mut self, launch: &mut LaunchClock, warp: u32) {
        self.warp_since[warp as usize] = launch.tick();
    }

    /// Some threads met.
    pub fn partial_barrier(&mut self, launch: &mut LaunchClock, arrivals: Vec<Arrival>) {
        launch.tick();
        self.partial.push(Partial { arrivals });
    }

    pub fn fence(&mut self, launch: &mut LaunchClock, warp: u32, lanes: u32) {
        let now = launch.tick();
        launch.fences.insert(self.block, now);
        self.fences.resize(self.threads.next_multiple_of(32), 0);
        mark(&mut self.fences, warp, lanes, now);
    }

    pub fn strong_access(&mut self, launch: &mut LaunchClock, warp: u32, lanes: u32) {
        if self.strong.is_empty() {
            self.strong.resize(self.threads.next_multiple_of(32), 0);
        }
        launch.strong.insert(self.block, launch.now);
        mark(&mut self.strong, warp, lanes, launch.now);
    }

    /// Whether barriers of some threads, or fences, make the exact set of earlier readers matter.
    pub fn intricate(&self, launch: &LaunchClock) -> bool {
        !self.partial.is_empty() || launch.fenced()
    }

    /// Whether thread `me` of this block, now, comes after what `thread` did at `time` of this launch.
    #[inline(always)]
    pub fn ordered(&self, launch: &LaunchClock, time: Time, thread: u32, me: u32) -> bool {
        if launch.block_of(time) != self.block {
            return self.ordered_blocks(launch, time);
        }
        if thread == me || time < self.since {
            return true;
        }
        if thread / 32 == me / 32 && time < self.warp_since[(me / 32) as usize] {
            return true;
        }
        self.ordered_otherwise(time, thread, me)
    }

    fn ordered_blocks(&self, launch: &LaunchClock, time: Time) -> bool {
        let fence = launch.fences.get(&launch.block_of(time)).copied().unwrap_or(0);
        fence > time && launch.strong.get(&self.block).is_some_and(|&strong| strong >= fence)
    }

    fn ordered_otherwise(&self, time: Time, thread: u32, me: u32) -> bool {
        if let (Some(&fence), Some(&strong)) = (self.fences.get(thread as usize), self.strong.get(me as usize))
            && fence > time
            && strong >= fence
        {
            return true;
        }
        if self.partial.is_empty() {
            return false;
        }
        // The threads known to come after the access: it grows with each barrier that one of them took part in.
        let mut after: Vec<u32> = vec![0; self.warp_since.len()];
        after[(thread / 32) as usize] |= 1 << (thread % 32);
        for barrier in &self.partial {
            let joined = barrier.arrivals.iter().any(|a| a.time > time && after[a.warp as usize] & a.lanes != 0);
            if joined {
                for arrival in barrier.arrivals.iter().filter(|a| a.waits) {
                    after[arrival.warp as usize] |= arrival.lanes;
                }
            }
        }
        after[(me / 32) as usize] >> (me % 32) & 1 == 1 && thread != me
    }
}

fn mark(times: &mut [Time], warp: u32, lanes: u32, now: Time) {
    for lane in 0..32 {
        if lanes >> lane & 1 == 1 {
            times[(warp * 32 + lane) as usize] = now;
        }
    }
}

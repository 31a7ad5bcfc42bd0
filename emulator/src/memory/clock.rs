//! When an access happened, and whether another thread's access is ordered after it.
//!
//! Time is a counter that moves at every event that orders threads: a barrier, a fence, a change of block. Two accesses
//! of different threads are ordered if a chain of barriers leads from one to the other, or if the first thread fenced
//! after its access and the second made an atomic (or volatile) access after that fence. The second rule takes every
//! fence and atomic for the pair that belongs together: it can miss a race, it can't invent one.
//! (PTX ISA, "Memory Consistency Model": happens-before.)

use std::collections::HashMap;

use crate::program::LANES;

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
    /// Fences, and last atomic access, of each block that made one.
    fences: HashMap<u32, Vec<Time>>,
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
    /// What `bar.warp.sync` of some of a warp's lanes ordered; nothing for warps without one.
    known: Vec<Option<Box<Known>>>,
    /// Barriers of some of the threads, since `since`.
    partial: Vec<Partial>,
    /// Fences of each thread's warp, and each thread's last atomic access; empty until there is one. (until, when): the
    /// fence at `when` covers what the thread did before `until`: up to the fence for those that made it, up to their
    /// last meeting for other lanes of the warp.
    fences: Vec<Vec<(Time, Time)>>,
    strong: Vec<Time>,
    threads: usize,
}

/// For lane v of a warp: up to when the actions of each lane u come before what v does now.
type Known = [[Time; LANES]; LANES];

/// A barrier that some of the block's threads take part in.
#[derive(Debug)]
struct Partial {
    completed: Time,
    arrivals: Vec<Arrival>,
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
        self.known.clear();
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
        self.share_strong(&[(warp, u32::MAX)], &[(warp, u32::MAX)]);
    }

    /// Some lanes of a warp met: each comes after all that any of them came after.
    pub fn partial_warp_barrier(&mut self, launch: &mut LaunchClock, warp: u32, lanes: u32) {
        let now = launch.tick();
        self.known.resize_with(self.warp_since.len(), || None);
        let known = self.known[warp as usize].get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
        let mut joint = [0; LANES];
        for lane in each(lanes) {
            for (joint, &theirs) in joint.iter_mut().zip(&known[lane]) {
                *joint = theirs.max(*joint);
            }
        }
        each(lanes).for_each(|lane| joint[lane] = now);
        each(lanes).for_each(|lane| known[lane] = joint);
        self.share_strong(&[(warp, lanes)], &[(warp, lanes)]);
    }

    /// Some threads met at a barrier of the block.
    pub fn partial_barrier(&mut self, launch: &mut LaunchClock, arrivals: Vec<Arrival>) {
        let from: Vec<(u32, u32)> = arrivals.iter().map(|a| (a.warp, a.lanes)).collect();
        let to: Vec<(u32, u32)> = arrivals.iter().filter(|a| a.waits).map(|a| (a.warp, a.lanes)).collect();
        self.share_strong(&from, &to);
        self.partial.push(Partial { completed: launch.tick(), arrivals });
    }

    /// What one thread of `from` learned by an atomic access, those of `to` know after they met.
    fn share_strong(&mut self, from: &[(u32, u32)], to: &[(u32, u32)]) {
        if self.strong.is_empty() {
            return;
        }
        let threads = |sets: &[(u32, u32)]| -> Vec<usize> {
            sets.iter().flat_map(|&(warp, lanes)| each(lanes).map(move |lane| warp as usize * LANES + lane)).collect()
        };
        let latest = threads(from).into_iter().map(|thread| self.strong[thread]).max().unwrap_or(0);
        threads(to).into_iter().for_each(|thread| self.strong[thread] = latest);
    }

    pub fn fence(&mut self, launch: &mut LaunchClock, warp: u32, lanes: u32) {
        let now = launch.tick();
        remember(launch.fences.entry(self.block).or_default(), now);
        self.fences.resize_with(self.threads.next_multiple_of(LANES), Vec::new);
        let known = self.known.get(warp as usize).and_then(Option::as_ref);
        for lane in 0..LANES {
            let met = each(lanes).filter_map(|fencing| known.map(|known| known[fencing][lane])).max().unwrap_or(0);
            let until = if lanes >> lane & 1 == 1 { now } else { met.max(self.warp_since[warp as usize]) };
            remember(&mut self.fences[warp as usize * LANES + lane], (until, now));
        }
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
        !self.partial.is_empty() || !self.known.is_empty() || launch.fenced()
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
        let Some(fences) = launch.fences.get(&launch.block_of(time)) else { return false };
        let first = fences.get(fences.partition_point(|&fence| fence <= time));
        first.is_some_and(|fence| launch.strong.get(&self.block).is_some_and(|strong| strong >= fence))
    }

    fn ordered_otherwise(&self, time: Time, thread: u32, me: u32) -> bool {
        if let Some(fence) = self.fence_after(thread, time)
            && self.strong.get(me as usize).is_some_and(|&strong| strong >= fence)
        {
            return true;
        }
        if thread / 32 == me / 32
            && let Some(Some(known)) = self.known.get((me / 32) as usize)
            && known[(me % 32) as usize][(thread % 32) as usize] > time
        {
            return true;
        }
        let later = self.partial.partition_point(|barrier| barrier.completed <= time);
        if later == self.partial.len() {
            return false;
        }
        // The threads known to come after the access: it grows with each barrier that one of them took part in.
        let mut after: Vec<u32> = vec![0; self.warp_since.len()];
        after[(thread / 32) as usize] |= 1 << (thread % 32);
        for barrier in &self.partial[later..] {
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

impl BlockClock {
    /// The first fence that covers what a thread did at a time: its own, or that of a lane it met before.
    fn fence_after(&self, thread: u32, time: Time) -> Option<Time> {
        let fences = self.fences.get(thread as usize)?;
        fences.iter().rev().take_while(|&&(_, when)| when > time).filter(|(until, _)| *until > time).last().map(|f| f.1)
    }
}

/// Appends to a list that keeps its latest thousand or so.
fn remember<T>(list: &mut Vec<T>, item: T) {
    const KEPT: usize = 1024;
    if list.len() >= 2 * KEPT {
        list.drain(..KEPT);
    }
    list.push(item);
}

/// The lanes of a set.
fn each(lanes: u32) -> impl Iterator<Item = usize> {
    (0..LANES).filter(move |lane| lanes >> lane & 1 == 1)
}

fn mark(times: &mut [Time], warp: u32, lanes: u32, now: Time) {
    each(lanes).for_each(|lane| times[warp as usize * LANES + lane] = now);
}

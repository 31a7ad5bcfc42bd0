//! Who touched which word last: the record behind the race check.
//!
//! Each granule of memory (as wide as the kernel's narrowest access to that space) remembers its last write and its last
//! read: when, and by whom (program counter in 20 bits, thread in its block in 10, and two flag bits).

use super::clock::{BlockClock, LaunchClock, Time};
use super::room;
use crate::fault::Result;
use crate::program::LANES;

/// A program counter too large for a record.
pub const PC_UNKNOWN: u32 = (1 << 20) - 1;

/// An access: when and by whom.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    /// 0 is never.
    pub time: Time,
    who: u32,
}

/// Flags of a write: it was atomic or volatile.
const STRONG: u32 = 1;
/// Flags of a read: others read it too since the last barrier (in the same warp, in other warps, in other blocks). The
/// order matters: what is known of more readers is the greater number.
const SEVERAL_LANES: u32 = 1;
const SEVERAL_WARPS: u32 = 2;
const SEVERAL_BLOCKS: u32 = 3;
const FLAGS: u32 = 3;
/// One thread further, in `who`.
const NEXT_THREAD: u32 = 1 << 2;

impl Stamp {
    pub fn pc(self) -> u32 {
        self.who >> 12
    }

    #[inline(always)]
    pub fn thread(self) -> u32 {
        self.who >> 2 & 1023
    }

    #[inline(always)]
    fn flags(self) -> u32 {
        self.who & FLAGS
    }
}

/// Two accesses that nothing orders.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conflict {
    pub earlier: Stamp,
    /// Whether the earlier access was a write.
    pub wrote: bool,
    /// `earlier` is ordered, but others read the same since the last barrier.
    pub others: bool,
}

/// Who accesses now.
#[derive(Clone, Copy)]
pub struct Accessor<'a> {
    pub launch: &'a LaunchClock,
    pub block: &'a BlockClock,
    /// Thread in its block.
    pub thread: u32,
    pub pc: u32,
    /// Accesses before this time are ordered before this one: the last barrier (shared), the launch (global).
    pub floor: Time,
    pub strong: bool,
}

impl Accessor<'_> {
    #[inline(always)]
    fn who(&self, flags: u32) -> u32 {
        self.pc.min(PC_UNKNOWN) << 12 | self.thread << 2 | flags
    }
}

/// The last access of one kind to each granule.
#[derive(Debug, Default)]
struct Track {
    time: Vec<Time>,
    who: Vec<u32>,
}

impl Track {
    fn new(granules: usize) -> Result<Track> {
        Ok(Track { time: room::zeroed(granules)?, who: room::zeroed(granules)? })
    }

    #[inline(always)]
    fn stamp(&self, granule: usize) -> Stamp {
        Stamp { time: self.time[granule], who: self.who[granule] }
    }

    /// Whether one of the granules was accessed at or after `floor`.
    #[inline(always)]
    fn recent(&self, first: usize, end: usize, floor: Time) -> bool {
        // As signed numbers, which every machine's vectors compare; time stays below 2^31.
        let after = |times: &[Time]| times.iter().fold(false, |recent, &time| recent | (time as i32 >= floor as i32));
        match &self.time[first..end] {
            [time] => *time >= floor,
            times @ [_, _, _, _] => after(times),
            times => after(times),
        }
    }

    /// Whether a single granule was accessed last by this very thread, since the last barrier.
    #[inline(always)]
    fn mine(&self, first: usize, end: usize, access: &Accessor) -> bool {
        let last = self.stamp(first);
        // Shared memory alone: there the floor is the barrier, and the access is certainly this block's.
        end == first + 1 && access.floor == access.block.since && last.thread() == access.thread
    }

    #[inline(always)]
    fn fill(&mut self, first: usize, end: usize, time: Time, who: u32) {
        match (&mut self.time[first..end], &mut self.who[first..end]) {
            ([one], [by]) => (*one, *by) = (time, who),
            (times @ [_, _, _, _], by @ [_, _, _, _]) => {
                times.fill(time);
                by.fill(who);
            }
            (times, by) => {
                times.fill(time);
                by.fill(who);
            }
        }
    }
}

#[derive(Debug, Default)]
pub struct Shadow {
    /// log2 of the granule's bytes.
    pub shift: u32,
    write: Track,
    read: Track,
}

impl Shadow {
    /// Makes the record fit `bytes` of memory in granules of `1 << shift` bytes. A changed granule forgets everything.
    #[inline(always)]
    pub fn fit(&mut self, bytes: usize, shift: u32) -> Result<()> {
        let granules = (bytes >> shift) + 1;
        if self.shift == shift && self.write.time.len() == granules { Ok(()) } else { self.renew(granules, shift) }
    }

    #[cold]
    #[inline(never)]
    fn renew(&mut self, granules: usize, shift: u32) -> Result<()> {
        self.clear();
        *self = Shadow { shift, write: Track::new(granules)?, read: Track::new(granules)? };
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Shadow::default();
    }

    /// First and one past the last granule of a range.
    #[inline(always)]
    fn range(&self, offset: usize, bytes: usize) -> (usize, usize) {
        (offset >> self.shift, ((offset + bytes - 1) >> self.shift) + 1)
    }

    /// Notes that `bytes` at `offset` are read, and says which unordered write it meets.
    #[inline(always)]
    pub fn note_read(&mut self, offset: usize, bytes: usize, access: &Accessor) -> Option<Conflict> {
        let (first, end) = self.range(offset, bytes);
        let recent = self.write.recent(first, end, access.floor) && !self.write.mine(first, end, access);
        let conflict = if recent { self.unordered_write(first, end, access) } else { None };
        if access.strong {
            return conflict;
        }
        let (now, who) = (access.launch.now, access.who(0));
        if !self.read.recent(first, end, access.floor) {
            self.read.fill(first, end, now, who);
            return conflict;
        }
        for granule in first..end {
            let read = self.read.stamp(granule);
            let flags = if read.time < access.floor {
                0
            } else if read.flags() == SEVERAL_BLOCKS || read.flags() == SEVERAL_WARPS && read.time >= access.block.since
            {
                continue; // other warps (since the last barrier) or blocks read it too: one more makes no difference
            } else {
                several(read, access)
            };
            self.read.fill(granule, granule + 1, now, who | flags);
        }
        conflict
    }

    /// Notes that `bytes` at `offset` are written, and says which unordered read or write it meets.
    #[inline(always)]
    pub fn note_write(&mut self, offset: usize, bytes: usize, access: &Accessor) -> Option<Conflict> {
        let (first, end) = self.range(offset, bytes);
        let floor = access.floor;
        let recent = self.write.recent(first, end, floor) && !self.write.mine(first, end, access)
            || self.read.recent(first, end, floor);
        let conflict = match recent {
            true => self.unordered_write(first, end, access).or_else(|| self.unordered_read(first, end, access)),
            false => None,
        };
        self.write.fill(first, end, access.launch.now, access.who(access.strong as u32 * STRONG));
        conflict
    }

    /// The usual cases of a read of one granule, in a few instructions. Returns false, and notes nothing, where it takes
    /// more to tell.
    #[inline(always)]
    pub fn quick_read(&mut self, granule: usize, access: &Accessor) -> bool {
        let floor = access.floor;
        let (Some(&write), Some(time)) = (self.write.time.get(granule), self.read.time.get_mut(granule)) else {
            return false;
        };
        let Some(who) = self.read.who.get_mut(granule).filter(|_| write < floor) else { return false };
        if *time < floor {
            *time = access.launch.now;
            *who = access.who(0);
            return true;
        }
        // Several warps read it since the last barrier, and one more makes no difference.
        *time >= access.block.since && *who & FLAGS == SEVERAL_WARPS
    }

    /// The usual case of a whole warp whose lanes access `bytes` each, one after another from `offset`, with `access`
    /// that of lane 0. Returns false, and notes nothing, unless all of the range is untouched since the floor.
    #[inline(always)]
    pub fn note_run(&mut self, offset: usize, bytes: usize, access: &Accessor, writes: bool) -> bool {
        let (first, end) = self.range(offset, bytes * LANES);
        let floor = access.floor;
        if bytes < 1 << self.shift || self.write.recent(first, end, floor) || self.read.recent(first, end, floor) {
            return false;
        }
        let track = if writes { &mut self.write } else { &mut self.read };
        track.time[first..end].fill(access.launch.now);
        let each = bytes >> self.shift;
        let mut who = access.who((writes && access.strong) as u32 * STRONG);
        for lane in track.who[first..end].chunks_exact_mut(each) {
            lane.fill(who);
            who += NEXT_THREAD;
        }
        true
    }

    /// The first write of a range that is not ordered before the access.
    #[inline(never)]
    fn unordered_write(&self, first: usize, end: usize, access: &Accessor) -> Option<Conflict> {
        (first..end).map(|granule| self.write.stamp(granule)).find_map(|write| {
            let both_strong = write.flags() & STRONG != 0 && access.strong;
            let ordered = write.time < access.floor
                || both_strong
                || access.block.ordered(access.launch, write.time, write.thread(), access.thread);
            (!ordered).then_some(Conflict { earlier: write, wrote: true, others: false })
        })
    }

    /// The first read of a range that is not ordered before the access.
    #[inline(never)]
    fn unordered_read(&self, first: usize, end: usize, access: &Accessor) -> Option<Conflict> {
        (first..end).map(|granule| self.read.stamp(granule)).find_map(|read| {
            if read.time < access.floor {
                return None;
            }
            let ordered = access.block.ordered(access.launch, read.time, read.thread(), access.thread);
            let others = ordered && other_readers(read, access);
            (!ordered || others).then_some(Conflict { earlier: read, wrote: false, others })
        })
    }
}

/// The last reader is ordered; the flags tell of others since the last barrier.
fn other_readers(read: Stamp, access: &Accessor) -> bool {
    if read.flags() == 0 || access.block.intricate(access.launch) {
        return false;
    }
    let in_interval = read.time >= access.block.since;
    match read.flags() {
        SEVERAL_BLOCKS => true,
        SEVERAL_WARPS => in_interval,
        _ => {
            let warp = access.thread / 32;
            in_interval && read.thread() / 32 == warp && read.time >= access.block.warp_since[warp as usize]
        }
    }
}

/// The flags of a granule that was read before (in this interval, or this launch) and is read again.
#[inline(always)]
fn several(read: Stamp, access: &Accessor) -> u32 {
    // Shared memory: the floor is the block's last barrier, so the earlier read is this block's, in this interval.
    if access.floor == access.block.since { several_in_interval(read, access) } else { several_in_launch(read, access) }
}

/// The flags of a granule of global memory that is read again: the earlier read may be another block's, or lie before a
/// barrier.
fn several_in_launch(read: Stamp, access: &Accessor) -> u32 {
    if read.flags() == SEVERAL_BLOCKS || access.launch.block_of(read.time) != access.block.block {
        SEVERAL_BLOCKS
    } else if read.time < access.block.since {
        0
    } else {
        several_in_interval(read, access)
    }
}

#[inline(always)]
fn several_in_interval(read: Stamp, access: &Accessor) -> u32 {
    let warp = access.thread / 32;
    if read.flags() == SEVERAL_WARPS || read.thread() / 32 != warp {
        SEVERAL_WARPS
    } else if read.time < access.block.warp_since[warp as usize] {
        0
    } else if read.thread() == access.thread {
        read.flags()
    } else {
        SEVERAL_LANES
    }
}

//! Who touched which word last: the record behind the race check.
//!
//! Each granule of memory (as wide as the kernel's narrowest access to that space) has two stamps, of its last write and
//! its last read: time (32 bits), program counter (20), thread in its block (10) and two flag bits.

use super::clock::{BlockClock, LaunchClock, Time};

/// A program counter too large for a stamp.
pub const PC_UNKNOWN: u32 = (1 << 20) - 1;

/// The last access to a granule; 0 is none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp(u64);

/// Flags of a write: it was atomic or volatile.
const STRONG: u64 = 1;
/// Flags of a read: others read it too since the last barrier (in the same warp, in other warps, in other blocks).
const SEVERAL_LANES: u64 = 1;
const SEVERAL_WARPS: u64 = 2;
const SEVERAL_BLOCKS: u64 = 3;
const FLAGS: u64 = 3; // SEVERAL_BLOCKS is the greatest: comparisons rely on the order

impl Stamp {
    #[inline(always)]
    fn new(time: Time, pc: u32, thread: u32, flags: u64) -> Stamp {
        Stamp((time as u64) << 32 | (pc.min(PC_UNKNOWN) as u64) << 12 | (thread as u64) << 2 | flags)
    }

    #[inline(always)]
    pub fn time(self) -> Time {
        (self.0 >> 32) as Time
    }

    pub fn pc(self) -> u32 {
        (self.0 >> 12) as u32 & PC_UNKNOWN
    }

    #[inline(always)]
    pub fn thread(self) -> u32 {
        (self.0 >> 2) as u32 & 1023
    }

    #[inline(always)]
    fn flags(self) -> u64 {
        self.0 & FLAGS
    }
}

/// Two accesses that nothing orders.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conflict {
    pub earlier: Stamp,
    /// Whether the earlier access was a write.
    pub wrote: bool,
    /// Granule index.
    pub granule: usize,
}

/// Who accesses now.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    pub launch: &'a LaunchClock,
    pub block: &'a BlockClock,
    /// Thread in its block.
    pub thread: u32,
    pub pc: u32,
    /// Accesses before this time are ordered before this one: the last barrier (shared), the launch (global).
    pub floor: Time,
    pub strong: bool,
}

#[derive(Debug, Default)]
pub struct Shadow {
    /// log2 of the granule's bytes.
    pub shift: u32,
    write: Vec<Stamp>,
    read: Vec<Stamp>,
}

impl Shadow {
    /// Makes the record fit `bytes` of memory in granules of `1 << shift` bytes. A changed granule forgets everything.
    pub fn fit(&mut self, bytes: usize, shift: u32) {
        let granules = (bytes >> shift) + 1;
        if self.shift != shift || self.write.len() != granules {
            *self = Shadow { shift, write: vec![Stamp(0); granules], read: vec![Stamp(0); granules] };
        }
    }

    /// Forgets everything; for when time starts anew.
    pub fn clear(&mut self) {
        *self = Shadow::default();
    }

    /// Notes that `bytes` at `offset` are read, and says which unordered write it meets.
    #[inline(always)]
    pub fn note_read(&mut self, offset: usize, bytes: usize, access: &Access) -> Option<Conflict> {
        let (first, end) = (offset >> self.shift, ((offset + bytes - 1) >> self.shift) + 1);
        let (writes, reads) = (&self.write[first..end], &mut self.read[first..end]);
        let floor = (access.floor as u64) << 32;
        let newest = |stamps: &[Stamp]| stamps.iter().fold(0, |newest: u64, stamp| newest.max(stamp.0));
        let conflict = if newest(writes) >= floor { unordered_among(writes, first, access) } else { None };
        if access.strong {
            return conflict;
        }
        let stamp = Stamp::new(access.launch.now, access.pc, access.thread, 0);
        if newest(reads) < floor {
            reads.fill(stamp);
            return conflict;
        }
        for read in reads {
            if read.0 < floor {
                *read = stamp;
            } else if read.flags() < SEVERAL_WARPS || read.time() < access.block.since {
                *read = Stamp(stamp.0 | several(*read, access));
            }
            // Otherwise other warps or blocks read it too since the last barrier: one more makes no difference.
        }
        conflict
    }

    /// Notes that `bytes` at `offset` are written, and says which unordered read or write it meets.
    #[inline(always)]
    pub fn note_write(&mut self, offset: usize, bytes: usize, access: &Access) -> Option<Conflict> {
        let (first, end) = (offset >> self.shift, ((offset + bytes - 1) >> self.shift) + 1);
        let (writes, reads) = (&mut self.write[first..end], &self.read[first..end]);
        let floor = (access.floor as u64) << 32;
        let mut newest = 0;
        for (write, read) in writes.iter().zip(reads) {
            newest = newest.max(write.0).max(read.0);
        }
        let conflict = if newest >= floor {
            let read = || {
                let unordered = |read: &Stamp| read.time() >= access.floor && unordered_read(*read, access);
                let at = reads.iter().position(unordered)?;
                Some(Conflict { earlier: reads[at], wrote: false, granule: first + at })
            };
            unordered_among(writes, first, access).or_else(read)
        } else {
            None
        };
        writes.fill(Stamp::new(access.launch.now, access.pc, access.thread, access.strong as u64 * STRONG));
        conflict
    }
}

/// The first write of a range that is not ordered before the access.
#[inline(never)]
fn unordered_among(writes: &[Stamp], first: usize, access: &Access) -> Option<Conflict> {
    let unordered = |write: &Stamp| write.time() >= access.floor && unordered_write(*write, access);
    let at = writes.iter().position(unordered)?;
    Some(Conflict { earlier: writes[at], wrote: true, granule: first + at })
}

#[inline(always)]
fn unordered_write(write: Stamp, access: &Access) -> bool {
    if write.flags() & STRONG != 0 && access.strong {
        return false;
    }
    !access.block.ordered(access.launch, write.time(), write.thread(), access.thread)
}

#[inline(always)]
fn unordered_read(read: Stamp, access: &Access) -> bool {
    if !access.block.ordered(access.launch, read.time(), read.thread(), access.thread) {
        return true;
    }
    // The last reader is ordered; the flags tell of others since the last barrier.
    read.flags() != 0 && other_readers(read, access)
}

#[inline(never)]
fn other_readers(read: Stamp, access: &Access) -> bool {
    if access.block.intricate(access.launch) {
        return false;
    }
    let in_interval = read.time() >= access.block.since;
    match read.flags() {
        SEVERAL_BLOCKS => true,
        SEVERAL_WARPS => in_interval,
        SEVERAL_LANES => {
            let warp = access.thread / 32;
            in_interval && read.thread() / 32 == warp && read.time() >= access.block.warp_since[warp as usize]
        }
        _ => false,
    }
}

/// The flags of a granule that was read before (in this interval, or this launch) and is read again.
#[inline(always)]
fn several(read: Stamp, access: &Access) -> u64 {
    // Shared memory: the floor is the block's last barrier, so the earlier read is this block's, in this interval.
    if access.floor != access.block.since {
        return several_in_launch(read, access);
    }
    let warp = access.thread / 32;
    if read.thread() == access.thread {
        read.flags()
    } else if read.flags() == SEVERAL_WARPS || read.thread() / 32 != warp {
        SEVERAL_WARPS
    } else if read.time() < access.block.warp_since[warp as usize] {
        0
    } else {
        SEVERAL_LANES
    }
}

/// The same for global memory, where the earlier read may be another block's or lie before a barrier.
fn several_in_launch(read: Stamp, access: &Access) -> u64 {
    if read.flags() == SEVERAL_BLOCKS || access.launch.block_of(read.time()) != access.block.block {
        return SEVERAL_BLOCKS;
    }
    let warp = access.thread / 32;
    if read.time() < access.block.since {
        0
    } else if read.thread() == access.thread {
        read.flags()
    } else if read.flags() == SEVERAL_WARPS || read.thread() / 32 != warp {
        SEVERAL_WARPS
    } else if read.time() < access.block.warp_since[warp as usize] {
        0
    } else {
        SEVERAL_LANES
    }
}

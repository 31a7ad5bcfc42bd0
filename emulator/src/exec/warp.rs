//! A warp: 32 lanes with a program counter each, kept as groups of lanes that are at the same place.
//!
//! The group with the lowest counter runs first, so that groups meet again where the code does; a group that loops on
//! and on yields to the others after a while, so that lanes may wait for one another (a spin lock).

use super::taint::Taint;
use crate::program::{LANES, Mask, Registers};

/// What a group waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Ready,
    /// Other lanes of the warp, at a `.sync` instruction.
    Lanes,
    /// A barrier of the block, at which it has arrived, until that barrier's generation has passed.
    Barrier {
        id: u32,
        generation: u64,
    },
}

/// Lanes at the same place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    pub pc: u32,
    pub lanes: Mask,
    pub wait: Wait,
}

/// A `cp.async` on its way: what its lanes will write when they wait for it.
#[derive(Debug, Clone)]
pub struct Copy {
    pub pc: u32,
    pub bytes: u32,
    pub lanes: Mask,
    pub shared: [u32; LANES],
    pub data: [[u8; 16]; LANES],
    /// The lane's commit group.
    pub group: [u32; LANES],
}

#[derive(Debug, Default)]
pub struct Warp {
    pub index: u32,
    /// Lanes that exist: the last warp of a block may have fewer than 32.
    pub lanes: Mask,
    pub exited: Mask,
    pub registers: Registers,
    pub groups: Vec<Group>,
    /// Where registers are not initialised; none at all while this is `None`.
    pub taint: Option<Box<Taint>>,
    pub copies: Vec<Copy>,
    /// Commit groups closed by each lane.
    pub committed: [u32; LANES],
    /// Warp instructions run.
    pub steps: u64,
}

impl Warp {
    /// Lanes that have not exited.
    #[inline(always)]
    pub fn alive(&self) -> Mask {
        self.lanes & !self.exited
    }

    pub fn done(&self) -> bool {
        self.groups.is_empty()
    }

    pub fn ready(&self) -> bool {
        self.groups.iter().any(|group| group.wait == Wait::Ready)
    }

    /// Adds a group, or its lanes to the one that is at the same place. A group that waits for lanes looks again.
    pub fn put(&mut self, group: Group) {
        for other in &mut self.groups {
            if other.pc == group.pc
                && !matches!(other.wait, Wait::Barrier { .. })
                && !matches!(group.wait, Wait::Barrier { .. })
            {
                other.lanes |= group.lanes;
                other.wait = Wait::Ready;
                return;
            }
        }
        self.groups.push(group);
    }

    /// Takes out the ready group to run: the lowest, or with `after` the next one above that counter (wrapping around).
    pub fn take(&mut self, after: Option<u32>) -> Option<Group> {
        let ready = |g: &&(usize, &Group)| g.1.wait == Wait::Ready;
        let all: Vec<(usize, &Group)> = self.groups.iter().enumerate().collect();
        let lowest = || all.iter().filter(ready).min_by_key(|g| g.1.pc);
        let chosen = match after {
            Some(pc) => all.iter().filter(ready).filter(|g| g.1.pc > pc).min_by_key(|g| g.1.pc).or_else(lowest),
            None => lowest(),
        };
        let index = chosen?.0;
        Some(self.groups.swap_remove(index))
    }

    /// The lowest counter at or above `pc` at which another group stands and could be met.
    #[inline(always)]
    pub fn limit(&self, pc: u32) -> u32 {
        let mut limit = u32::MAX;
        for group in &self.groups {
            if group.pc >= pc && !matches!(group.wait, Wait::Barrier { .. }) {
                limit = limit.min(group.pc);
            }
        }
        limit
    }

    /// Lanes left: what others wait for may have changed.
    pub fn wake(&mut self) {
        for group in &mut self.groups {
            if group.wait == Wait::Lanes {
                group.wait = Wait::Ready;
            }
        }
    }
}

/// The lanes of a mask, lowest first.
#[inline(always)]
pub fn lanes(mut mask: Mask) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}

/// Lanes in words: "lane 3", "lanes 0-15, 20".
pub fn describe_lanes(mask: Mask) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut lane = 0;
    while lane < 32 {
        if mask >> lane & 1 == 0 {
            lane += 1;
            continue;
        }
        let run = (mask >> lane).trailing_ones();
        parts.push(if run == 1 { lane.to_string() } else { format!("{lane}-{}", lane + run - 1) });
        lane += run;
    }
    let plural = if mask.count_ones() == 1 { "lane" } else { "lanes" };
    format!("{plural} {}", parts.join(", "))
}

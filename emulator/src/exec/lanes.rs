//! `.sync` instructions: a lane waits until all lanes that its membermask names, and that have not exited, are there.
//! (PTX ISA, "shfl.sync", "bar.warp.sync": executing threads wait for the threads of membermask.)

use super::Ran;
use super::diagnose::Place;
use super::interpret::{Flow, Run, first};
use super::warp::{Group, Wait, Warp, describe_lanes, lanes};
use crate::fault::Code;
use crate::program::{LANES, Mask, Op, Reg};
use crate::warp_ops::{Members, WarpOp};

impl Run<'_> {
    /// Runs a warp operation for those lanes whose partners are all here; the others wait.
    #[inline(never)]
    pub fn warp_op(&mut self, warp: &mut Warp, op: &WarpOp, pc: u32, mask: Mask, active: Mask) -> Ran<Flow> {
        let at = Place { pc, warp: warp.index };
        let members = match op.members() {
            Members::Nobody => {
                self.vector.warp(op, &mut warp.registers, active);
                return Ok(Flow::Next);
            }
            Members::All => return self.whole_warp(warp, at, mask, active),
            Members::Register(members) => *warp.registers.get32(members),
        };
        let sets = self.complete_sets(warp, at, active, &members)?;
        let mut done = 0;
        for &set in &sets {
            if let Some((reader, source)) = op.invalid_source(&warp.registers, set) {
                let text = format!("lane {reader} reads from lane {source}, which does not take part");
                return Err(self.fault(Code::LaunchFailed, at, reader as u32, text));
            }
            self.vector.warp(op, &mut warp.registers, set);
            done |= set;
        }
        Ok(split(warp, pc, mask, active, done))
    }

    /// `bar.warp.sync`
    pub fn warp_barrier(&mut self, warp: &mut Warp, at: Place, mask: Mask, active: Mask, members: Reg) -> Ran<Flow> {
        let members = *warp.registers.get32(members);
        let sets = self.complete_sets(warp, at, active, &members)?;
        let mut done = 0;
        for &set in &sets {
            self.warp_met(warp, set);
            done |= set;
        }
        Ok(split(warp, at.pc, mask, active, done))
    }

    /// Lanes of a warp met at `bar.warp.sync`: what they did before is ordered before what they do next.
    fn warp_met(&mut self, warp: &Warp, set: Mask) {
        self.counters.barriers += 1;
        if set == warp.alive() {
            self.clock.warp_barrier(&mut self.memory.clock, warp.index);
        } else {
            self.clock.partial_warp_barrier(&mut self.memory.clock, warp.index, set);
        }
    }

    /// Splits the active lanes by membermask and returns the sets that are complete.
    fn complete_sets(&self, warp: &Warp, at: Place, active: Mask, members: &[u32; LANES]) -> Ran<Vec<Mask>> {
        let mut sets = Vec::new();
        let mut rest = active;
        while rest != 0 {
            let members_of_first = members[first(rest) as usize];
            let set =
                lanes(rest).filter(|&lane| members[lane] == members_of_first).fold(0, |set, lane| set | 1 << lane);
            rest &= !set;
            let strangers = set & !members_of_first;
            if strangers != 0 {
                let text = format!(
                    "{} not in the membermask {members_of_first:#010x} that it executes with",
                    describe_lanes(strangers)
                );
                return Err(self.fault(Code::LaunchFailed, at, first(strangers), text));
            }
            if members_of_first & warp.alive() & !set == 0 {
                sets.push(set);
            }
        }
        Ok(sets)
    }

    /// `mma.sync` needs all 32 lanes: waits for those that are alive, and fails if some can't come.
    fn whole_warp(&self, warp: &Warp, at: Place, mask: Mask, active: Mask) -> Ran<Flow> {
        if warp.alive() != Mask::MAX {
            let text = format!("needs a whole warp, but {} exited or never existed", describe_lanes(!warp.alive()));
            return Err(self.fault(Code::LaunchFailed, at, first(active), text));
        }
        if active != mask {
            let text = format!("needs a whole warp, but the guard of {} is false", describe_lanes(mask & !active));
            return Err(self.fault(Code::LaunchFailed, at, first(active), text));
        }
        Ok(Flow::Yield(Group { pc: at.pc, lanes: mask, wait: Wait::Lanes }))
    }

    /// No group of the warp can run. Lets go lanes that meet at `bar.warp.sync` in different places, and says whether
    /// there were any; lanes that can never meet are an error.
    pub fn resolve_lane_waits(&mut self, warp: &mut Warp) -> Ran<bool> {
        let waiting: Vec<Group> = warp.groups.iter().copied().filter(|g| g.wait == Wait::Lanes).collect();
        if waiting.is_empty() {
            return Ok(false);
        }
        let mut members = [0; LANES];
        let mut at_barrier: Mask = 0;
        for group in &waiting {
            if let Op::WarpBarrier { members: register } = self.program.code[group.pc as usize].op {
                at_barrier |= group.lanes;
                lanes(group.lanes).for_each(|lane| members[lane] = warp.registers.get32(register)[lane]);
            }
        }
        let place = Place { pc: waiting[0].pc, warp: warp.index };
        let met = self.complete_sets(warp, place, at_barrier, &members)?;
        if let Some(&set) = met.first() {
            self.warp_met(warp, set);
            for group in waiting.iter().filter(|g| g.lanes & set != 0) {
                warp.groups.retain(|g| g.pc != group.pc || g.wait != Wait::Lanes);
                let (gone, left) = (group.lanes & set, group.lanes & !set);
                warp.put(Group { pc: group.pc + 1, lanes: gone, wait: Wait::Ready });
                if left != 0 {
                    warp.put(Group { pc: group.pc, lanes: left, wait: Wait::Lanes });
                }
            }
            return Ok(true);
        }
        if warp.groups.iter().any(|g| matches!(g.wait, Wait::Barrier { .. })) {
            return Ok(false);
        }
        Err(self.never_meet(warp, &waiting))
    }

    /// All lanes of the warp wait for lanes that wait elsewhere.
    fn never_meet(&self, warp: &Warp, waiting: &[Group]) -> Box<crate::fault::Fault> {
        let group = waiting.iter().find(|g| matches!(self.program.code[g.pc as usize].op, Op::Barrier(_)));
        let group = group.unwrap_or(&waiting[0]);
        let others: Vec<String> = waiting
            .iter()
            .filter(|g| g.pc != group.pc)
            .map(|g| format!("{} at {}", describe_lanes(g.lanes), self.line(g.pc)))
            .collect();
        let elsewhere = if others.is_empty() {
            let missing = warp.alive() & !group.lanes;
            match missing {
                0 => "its predicate is false in some".to_string(),
                _ => format!("{} never come", describe_lanes(missing)),
            }
        } else {
            format!("others wait elsewhere: {}", others.join(", "))
        };
        let at = Place { pc: group.pc, warp: warp.index };
        let here = describe_lanes(group.lanes);
        let text = match self.program.code[group.pc as usize].op {
            Op::Barrier(_) => {
                format!("barrier in divergent code: {here} of warp {} wait here, {elsewhere}", warp.index)
            }
            _ => format!(
                "deadlock: {here} of warp {} wait here for the lanes of the membermask, {elsewhere}",
                warp.index
            ),
        };
        self.fault(Code::LaunchFailed, at, first(group.lanes), text)
    }
}

/// After a `.sync` instruction ran for `done` of the `active` lanes.
fn split(warp: &mut Warp, pc: u32, mask: Mask, active: Mask, done: Mask) -> Flow {
    let left = active & !done;
    if left == 0 {
        return Flow::Next;
    }
    if mask & !left != 0 {
        warp.put(Group { pc: pc + 1, lanes: mask & !left, wait: Wait::Ready });
    }
    Flow::Yield(Group { pc, lanes: left, wait: Wait::Lanes })
}

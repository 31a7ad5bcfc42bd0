//! The block's 16 barriers. (PTX ISA, "bar, barrier".)

use super::Ran;
use super::diagnose::Place;
use super::interpret::{Flow, Run, first};
use super::warp::{Group, Wait, Warp};
use crate::fault::Code;
use crate::memory::clock::Arrival;
use crate::program::{Barrier, BarrierKind, Mask, Op, Program};

/// Barriers of a block.
#[derive(Debug, Default)]
pub struct Barriers {
    states: [State; 16],
    /// Threads of the block that have not exited.
    pub alive: u32,
}

/// One barrier, since it last let threads go.
#[derive(Debug, Default, Clone)]
struct State {
    /// How often it has let threads go.
    generation: u64,
    arrivals: Vec<(u32, Arrival)>,
    /// Threads that have arrived; a warp counts as 32 where the barrier gives a number.
    arrived: u32,
    /// The number it gives.
    expected: Option<u32>,
    /// Threads whose predicate (`bar.red`) holds.
    holding: u32,
    /// Threads that gave a predicate.
    voters: u32,
    /// `holding` and `voters` when it last let threads go.
    result: (u32, u32),
}

impl Barriers {
    pub fn begin(&mut self, threads: u32) {
        *self = Barriers { alive: threads, ..Barriers::default() };
    }

    /// Every barrier at which threads wait, in words.
    pub fn waiting(&self) -> String {
        let one = |(id, state): (usize, &State)| {
            let expected = state.expected.unwrap_or(self.alive);
            format!("barrier {id} waits for {expected} threads, {} came", state.arrived)
        };
        let all: Vec<String> = self.states.iter().enumerate().filter(|(_, s)| s.arrived > 0).map(one).collect();
        all.join("; ")
    }
}

impl Run<'_> {
    /// A group arrives at a barrier.
    pub fn barrier(&mut self, warp: &mut Warp, at: Place, mask: Mask, active: Mask, barrier: &Barrier) -> Ran<Flow> {
        if active == 0 {
            return Ok(Flow::Next);
        }
        if barrier.aligned && active != warp.alive() {
            if active != mask {
                warp.put(Group { pc: at.pc + 1, lanes: mask & !active, wait: Wait::Ready });
            }
            return Ok(Flow::Yield(Group { pc: at.pc, lanes: active, wait: Wait::Lanes }));
        }
        self.counters.barriers += 1;
        let lane = first(active);
        let id = warp.registers.get32(barrier.id)[lane as usize];
        if id >= 16 {
            return Err(self.fault(Code::LaunchFailed, at, lane, format!("barrier {id}: expected 0 to 15")));
        }
        let expected = barrier.threads.map(|reg| warp.registers.get32(reg)[lane as usize]);
        self.check_arrival(at, lane, id, expected, barrier)?;
        let waits = barrier.kind != BarrierKind::Arrive;
        let time = self.memory.clock.tick();
        let state = &mut self.barriers.states[id as usize];
        let generation = state.generation;
        state.arrivals.push((at.pc, Arrival { warp: warp.index, lanes: active, time, waits }));
        state.arrived += if expected.is_some() && barrier.aligned { 32 } else { active.count_ones() };
        state.expected = expected;
        if let BarrierKind::Count { pred, negated, .. }
        | BarrierKind::All { pred, negated, .. }
        | BarrierKind::Any { pred, negated, .. } = barrier.kind
        {
            let pred = warp.registers.get_pred(pred);
            state.holding += ((if negated { !pred } else { pred }) & active).count_ones();
            state.voters += active.count_ones();
        }
        self.complete(id as usize);
        if !waits {
            return Ok(Flow::Next);
        }
        if active != mask {
            warp.put(Group { pc: at.pc + 1, lanes: mask & !active, wait: Wait::Ready });
        }
        Ok(Flow::Yield(Group { pc: at.pc, lanes: active, wait: Wait::Barrier { id, generation } }))
    }

    /// Refuses what can't belong together: other numbers, or `__syncthreads` of different places.
    fn check_arrival(&self, at: Place, lane: u32, id: u32, expected: Option<u32>, barrier: &Barrier) -> Ran<()> {
        if let Some(count) = expected
            && (count == 0 || count % 32 != 0)
        {
            let text = format!("barrier {id} for {count} threads: expected a multiple of 32");
            return Err(self.fault(Code::LaunchFailed, at, lane, text));
        }
        let state = &self.barriers.states[id as usize];
        let Some(&(other, arrival)) = state.arrivals.first() else { return Ok(()) };
        if state.expected != expected {
            let count = |n: Option<u32>| n.map_or("all".to_string(), |n| n.to_string());
            let text = format!(
                "barrier {id} for {} threads, but warp {} waits at it for {} at {}",
                count(expected),
                arrival.warp,
                count(state.expected),
                self.line(other)
            );
            return Err(self.fault(Code::LaunchFailed, at, lane, text));
        }
        if expected.is_none() && barrier.aligned && other != at.pc {
            let text = format!(
                "barrier in divergent code: warp {} waits here, warp {} at {}",
                at.warp,
                arrival.warp,
                self.line(other)
            );
            return Err(self.fault(Code::LaunchFailed, at, lane, text));
        }
        Ok(())
    }

    /// Lets the threads go if all have come.
    fn complete(&mut self, id: usize) {
        let alive = self.barriers.alive;
        let state = &mut self.barriers.states[id];
        if state.arrived == 0 || state.arrived < state.expected.unwrap_or(alive) {
            return;
        }
        state.generation += 1;
        state.result = (state.holding, state.voters);
        (state.arrived, state.holding, state.voters) = (0, 0, 0);
        state.expected = None;
        let arrivals: Vec<Arrival> = state.arrivals.drain(..).map(|(_, arrival)| arrival).collect();
        let threads: u32 = arrivals.iter().map(|a| a.lanes.count_ones()).sum();
        if threads >= alive && arrivals.iter().all(|a| a.waits) {
            self.clock.block_barrier(&mut self.memory.clock);
        } else {
            self.clock.partial_barrier(&mut self.memory.clock, arrivals);
        }
    }

    /// Threads exit: barriers of the whole block wait for them no longer.
    pub fn exit(&mut self, warp: &mut Warp, lanes: Mask) {
        warp.exited |= lanes;
        warp.wake();
        self.barriers.alive -= lanes.count_ones();
        for id in 0..16 {
            if self.barriers.states[id].expected.is_none() {
                self.complete(id);
            }
        }
    }
}

impl Warp {
    /// Lets go the groups whose barrier has let them go.
    pub fn release(&mut self, barriers: &Barriers, program: &Program) {
        while let Some(index) = self.groups.iter().position(|group| released(group, barriers)) {
            let group = self.groups.swap_remove(index);
            let Wait::Barrier { id, .. } = group.wait else { unreachable!("released") };
            let (holding, voters) = barriers.states[id as usize].result;
            if let Op::Barrier(barrier) = &program.code[group.pc as usize].op {
                let all = |yes: bool| if yes { Mask::MAX } else { 0 };
                match barrier.kind {
                    BarrierKind::Sync | BarrierKind::Arrive => {}
                    BarrierKind::Count { to, .. } => self.registers.set32(to, [holding; 32], group.lanes),
                    BarrierKind::All { to, .. } => self.registers.set_pred(to, all(holding == voters), group.lanes),
                    BarrierKind::Any { to, .. } => self.registers.set_pred(to, all(holding > 0), group.lanes),
                }
            }
            self.put(Group { pc: group.pc + 1, lanes: group.lanes, wait: Wait::Ready });
        }
    }
}

fn released(group: &Group, barriers: &Barriers) -> bool {
    matches!(group.wait, Wait::Barrier { id, generation } if barriers.states[id as usize].generation > generation)
}

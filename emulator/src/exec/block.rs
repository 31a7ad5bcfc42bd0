//! A block: its warps in turn, from barrier to barrier.

use super::Ran;
use super::barrier::Barriers;
use super::diagnose::{Place, coordinates};
use super::interpret::{Run, Stop, run_warp};
use super::taint::Taint;
use super::warp::{Group, Wait, Warp};
use crate::fault::{Code, Result};
use crate::memory::clock::BlockClock;
use crate::memory::room;
use crate::memory::shared::{Local, Shared};
use crate::program::{Class, LANES, Lanes32, Lanes64, Mask, Preset, Program, Special};
use crate::rng::Rng;

/// Everything that a block owns; used again for the next block.
#[derive(Debug, Default)]
pub struct Block {
    pub index: u32,
    pub coordinates: [u32; 3],
    pub warps: Vec<Warp>,
    pub shared: Shared,
    pub local: Local,
    pub clock: BlockClock,
    pub barriers: Barriers,
    /// The registers have been sized and filled for this launch; only what names the block changes.
    filled: bool,
}

/// What the launch is, as far as the special registers show it.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub dynamic_shared: u32,
    pub total_shared: u32,
    pub multiprocessors: u32,
    pub launch: u64,
}

impl Shape {
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }
}

/// Instructions a warp runs before another has its turn.
const SLICE: u64 = 20_000;

impl Block {
    /// Puts block `index` at its beginning.
    pub fn begin(&mut self, program: &Program, shape: &Shape, index: u32) -> Result<()> {
        self.index = index;
        self.coordinates = coordinates(index, shape.grid);
        let threads = shape.threads();
        self.local.reset(program.local_bytes as usize, threads as usize)?;
        self.barriers.begin(threads);
        self.warps.resize_with(threads.div_ceil(32) as usize, Warp::default);
        for (w, warp) in self.warps.iter_mut().enumerate() {
            let index = w as u32;
            let present = (threads - 32 * index).min(32);
            warp.lanes = if present == 32 { Mask::MAX } else { (1 << present) - 1 };
            (warp.index, warp.exited, warp.steps) = (index, 0, 0);
            warp.groups.clear();
            warp.groups.push(Group { pc: 0, lanes: warp.lanes, wait: Wait::Ready });
            warp.taint = Taint::of(program)?;
            warp.copies.clear();
            warp.committed = [0; LANES];
            fill_registers(warp, program, shape, self.coordinates, self.filled)?;
        }
        self.filled = true;
        Ok(())
    }

    pub fn done(&self) -> bool {
        self.warps.iter().all(Warp::done)
    }
}

/// Gives every register file its size and the constants their values; when `filled` already, those that name the block.
fn fill_registers(warp: &mut Warp, program: &Program, shape: &Shape, block: [u32; 3], filled: bool) -> Result<()> {
    if !filled {
        let files = program.registers;
        room::refill(&mut warp.registers.r32, files.r32 as usize)?;
        room::refill(&mut warp.registers.r64, files.r64 as usize)?;
        room::refill(&mut warp.registers.pred, files.pred as usize)?;
    }
    for &(class, reg, preset) in &program.presets {
        if filled && !matches!(preset, Preset::Special(Special::Ctaid(_) | Special::SmId)) {
            continue;
        }
        let mut values: Lanes64 = [0; LANES];
        for (lane, value) in values.iter_mut().enumerate() {
            *value = match preset {
                Preset::Bits(bits) => bits,
                Preset::Special(special) => special_value(special, warp.index, lane as u32, shape, block),
            };
        }
        let narrow: Lanes32 = values.map(|v| v as u32);
        match class {
            Class::R32 => warp.registers.r32[reg.0 as usize] = narrow,
            Class::R64 => warp.registers.r64[reg.0 as usize] = values,
            Class::Pred => warp.registers.pred[reg.0 as usize] = if values[0] != 0 { Mask::MAX } else { 0 },
        }
    }
    Ok(())
}

/// A special register in one lane. (PTX ISA, "Special Registers".)
fn special_value(special: Special, warp: u32, lane: u32, shape: &Shape, block: [u32; 3]) -> u64 {
    let value = match special {
        Special::Tid(axis) => coordinates(warp * 32 + lane, shape.block)[axis as usize],
        Special::Ntid(axis) => shape.block[axis as usize],
        Special::Ctaid(axis) => block[axis as usize],
        Special::Nctaid(axis) => shape.grid[axis as usize],
        Special::LaneId => lane,
        Special::WarpId => warp,
        Special::NWarpId => shape.threads().div_ceil(32),
        Special::SmId => block[0] % shape.multiprocessors,
        Special::NSmId => shape.multiprocessors,
        Special::GridId => return shape.launch,
        Special::LaneMaskEq => 1 << lane,
        Special::LaneMaskLe => (2u64.pow(lane + 1) - 1) as u32,
        Special::LaneMaskLt => (1 << lane) - 1,
        Special::LaneMaskGe => !((1 << lane) - 1),
        Special::LaneMaskGt => !(2u64.pow(lane + 1) - 1) as u32,
        Special::DynamicSharedBytes => shape.dynamic_shared,
        Special::TotalSharedBytes => shape.total_shared,
    };
    value as u64
}

/// Runs the block until it is done or has run `budget` instructions; returns how many it ran.
pub fn run_block(run: &mut Run, warps: &mut [Warp], rng: &mut Rng, budget: u64) -> Ran<u64> {
    let mut order: Vec<usize> = (0..warps.len()).collect();
    let mut steps = 0;
    loop {
        rng.shuffle(&mut order);
        let mut moved = false;
        for &w in &order {
            let warp = &mut warps[w];
            warp.release(run.barriers, run.program);
            if !warp.ready() {
                continue;
            }
            moved = true;
            let before = warp.steps;
            let slice = rng.slice(SLICE);
            // A warp whose lanes wait for one another only shows it when it is asked to run.
            let stop = run_warp(run, warp, slice)?;
            steps += warp.steps - before;
            debug_assert!(stop == Stop::Slice || !warp.ready(), "a blocked warp has no ready group");
        }
        if warps.iter().all(Warp::done) || steps >= budget {
            return Ok(steps);
        }
        if !moved {
            return Err(deadlock(run, warps));
        }
    }
}

/// No warp can go on, and not all are done.
fn deadlock(run: &Run, warps: &[Warp]) -> Box<crate::fault::Fault> {
    let waiting = warps.iter().find(|warp| !warp.done()).expect("not all are done");
    let group = waiting.groups[0];
    let text = format!("deadlock: no thread can go on: {}", run.barriers.waiting());
    run.fault(Code::LaunchTimeout, Place { pc: group.pc, warp: waiting.index }, group.lanes.trailing_zeros(), text)
}

//! The interpreter's loop: runs one warp until its time slice ends, it waits, or it has exited.

use std::sync::OnceLock;

use super::Ran;
use super::barrier::Barriers;
use super::diagnose::Place;
use super::taint::Uses;
use super::vector::Vector;
use super::warp::{Group, Wait, Warp};
use crate::alu::Alu;
use crate::counters::Counters;
use crate::fault::Code;
use crate::memory::clock::BlockClock;
use crate::memory::global::Memory;
use crate::memory::shared::{Local, Shared};
use crate::program::{LANES, Mask, Op, Program, Registers};
use crate::warp_ops::{Members, WarpOp};

/// Branches after which a looping group lets the warp's other groups run.
const FAIRNESS: u32 = 64;

/// Everything an instruction can reach: the launch and the running block.
pub struct Run<'a> {
    pub program: &'a Program,
    pub params: &'a [u8],
    pub grid: [u32; 3],
    pub block_dim: [u32; 3],
    /// The block's coordinates.
    pub block: [u32; 3],
    pub memory: &'a mut Memory,
    pub shared: &'a mut Shared,
    pub local: &'a mut Local,
    pub clock: &'a mut BlockClock,
    pub barriers: &'a mut Barriers,
    pub counters: &'a mut Counters,
    /// The allocation that each instruction met last.
    pub cache: &'a mut [u32],
    /// log2 of the kernel's narrowest global access.
    pub global_shift: u32,
    /// Registers each instruction uses, made when a register is first found uninitialised.
    pub uses: &'a OnceLock<Vec<Uses>>,
    pub vector: Vector,
    /// What the kernel printed.
    pub output: &'a mut Vec<u8>,
}

/// Why a warp stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Its time slice is over.
    Slice,
    /// All its lanes wait or have exited.
    Blocked,
}

/// What an instruction does to the flow of control.
pub enum Flow {
    Next,
    /// The group is to be put back as it is (waiting, or split), and another chosen.
    Yield(Group),
    Gone,
}

/// Runs `warp` for at most `budget` instructions.
pub fn run_warp(run: &mut Run, warp: &mut Warp, mut budget: u64) -> Ran<Stop> {
    let program = run.program;
    let mut fairness = FAIRNESS;
    let mut after = None;
    'group: loop {
        let Some(group) = warp.take(after.take()) else {
            if run.resolve_lane_waits(warp)? {
                continue 'group;
            }
            return Ok(Stop::Blocked);
        };
        let Group { mut pc, lanes: mask, .. } = group;
        let mut limit = warp.limit(pc);
        loop {
            if pc >= limit {
                warp.put(Group { pc, lanes: mask, wait: Wait::Ready });
                continue 'group;
            }
            if budget == 0 {
                warp.put(Group { pc, lanes: mask, wait: Wait::Ready });
                return Ok(Stop::Slice);
            }
            budget -= 1;
            warp.steps += 1;
            let Some(instruction) = program.code.get(pc as usize) else {
                // Past the last instruction: the same as `exit`.
                run.exit(warp, mask);
                continue 'group;
            };
            let mut active = mask;
            if let Some(guard) = instruction.guard {
                let pred = warp.registers.get_pred(guard.pred);
                active &= if guard.negated { !pred } else { pred };
            }
            run.counters.executed[pc as usize] += 1;
            run.counters.lanes[pc as usize] += active.count_ones() as u64;
            if warp.taint.is_some() {
                run.check_taint(warp, pc, mask, active)?;
            }
            match &instruction.op {
                Op::Alu(alu) => {
                    if active != 0 {
                        match alu {
                            Alu::Integer(op) => run.vector.integer(op, &mut warp.registers, active),
                            Alu::Float(op) => run.vector.float(op, &mut warp.registers, active),
                        }
                    }
                    pc += 1;
                }
                Op::Branch { target } => {
                    let fall = mask & !active;
                    // Lanes that do not jump took part in the decision.
                    run.counters.lanes[pc as usize] += fall.count_ones() as u64;
                    if active == 0 {
                        pc += 1;
                    } else if fall == 0 {
                        pc = *target;
                    } else {
                        run.counters.diverged[pc as usize] += 1;
                        warp.put(Group { pc: pc + 1, lanes: fall, wait: Wait::Ready });
                        warp.put(Group { pc: *target, lanes: active, wait: Wait::Ready });
                        fairness -= 1;
                        if fairness == 0 {
                            fairness = FAIRNESS;
                            after = Some(pc);
                        }
                        continue 'group;
                    }
                    if !warp.groups.is_empty() {
                        fairness -= 1;
                        if fairness == 0 {
                            fairness = FAIRNESS;
                            warp.put(Group { pc, lanes: mask, wait: Wait::Ready });
                            after = Some(pc);
                            continue 'group;
                        }
                        limit = warp.limit(pc);
                    }
                }
                Op::Warp(op) => {
                    if active == Mask::MAX && together(op, &warp.registers) {
                        run.vector.warp(op, &mut warp.registers, active);
                    } else if active != 0
                        && let Flow::Yield(group) = run.warp_op(warp, op, pc, mask, active)?
                    {
                        warp.put(group);
                        continue 'group;
                    }
                    pc += 1;
                }
                _ => match run.step(warp, pc, mask, active)? {
                    Flow::Next => pc += 1,
                    Flow::Yield(group) => {
                        warp.put(group);
                        continue 'group;
                    }
                    Flow::Gone => continue 'group,
                },
            }
        }
    }
}

impl Run<'_> {
    /// Every instruction but arithmetic and branches.
    #[inline(never)]
    fn step(&mut self, warp: &mut Warp, pc: u32, mask: Mask, active: Mask) -> Ran<Flow> {
        let program = self.program;
        let op = &program.code[pc as usize].op;
        if active == 0 && !matches!(op, Op::Barrier(_)) {
            return Ok(Flow::Next);
        }
        let at = Place { pc, warp: warp.index };
        match op {
            Op::Alu(_) | Op::Warp(_) | Op::Branch { .. } => unreachable!("run by the loop"),
            Op::Load { space, value, address, to, strong } => {
                self.load(warp, at, active, *space, *value, *address, to, *strong)?
            }
            Op::Store { space, value, address, from, strong } => {
                self.store(warp, at, active, *space, *value, *address, from, *strong)?
            }
            Op::Atomic { space, function, address, to, b, c } => {
                self.atomic(warp, at, active, *space, *function, *address, *to, *b, *c)?
            }
            Op::CopyAsync { shared, global, bytes, source_bytes } => {
                self.copy_async(warp, at, active, *shared, *global, *bytes, *source_bytes)?
            }
            Op::CopyAsyncCommit => warp.commit_copies(active),
            Op::CopyAsyncWait { pending } => self.copy_async_wait(warp, at, active, *pending)?,
            Op::LoadMatrix { address, to, transposed } => {
                if active != warp.alive() {
                    return Ok(Flow::Yield(Group { pc, lanes: mask, wait: Wait::Lanes }));
                }
                self.load_matrix(warp, at, *address, to, *transposed)?
            }
            Op::StoreMatrix { address, from, transposed } => {
                if active != warp.alive() {
                    return Ok(Flow::Yield(Group { pc, lanes: mask, wait: Wait::Lanes }));
                }
                self.store_matrix(warp, at, *address, from, *transposed)?
            }
            Op::Fence => self.clock.fence(&mut self.memory.clock, warp.index, active),
            Op::Barrier(barrier) => return self.barrier(warp, at, mask, active, barrier),
            Op::WarpBarrier { members } => return self.warp_barrier(warp, at, mask, active, *members),
            Op::BranchIndexed { index, targets } => {
                return self.branch_indexed(warp, at, mask, active, *index, targets);
            }
            Op::Exit => {
                self.exit(warp, active);
                let rest = mask & !active;
                if rest == 0 {
                    return Ok(Flow::Gone);
                }
                return Ok(Flow::Yield(Group { pc: pc + 1, lanes: rest, wait: Wait::Ready }));
            }
            Op::Trap => return Err(self.fault(Code::LaunchFailed, at, first(active), "trap executed".into())),
            Op::Printf { format, arguments, to } => self.printf(warp, at, active, *format, *arguments, *to)?,
            Op::AssertFail { message, file, line, function } => {
                return Err(self.assert_fail(warp, at, active, [*message, *file, *function], *line));
            }
            Op::ReadClock { to, wide } => self.read_clock(warp, active, *to, *wide),
            Op::IsSpace { space, to, from } => self.is_space(warp, active, *space, *to, *from),
            Op::Nop => {}
        }
        Ok(Flow::Next)
    }
}

/// Whether a full warp may run a `.sync` instruction at once: its membermask names every lane, in every lane.
#[inline(always)]
fn together(op: &WarpOp, registers: &Registers) -> bool {
    match op.members() {
        Members::Nobody | Members::All => true,
        Members::Register(members) => registers.get32(members) == &[Mask::MAX; LANES],
    }
}

/// The lowest lane of a mask.
pub fn first(mask: Mask) -> u32 {
    mask.trailing_zeros() & 31
}

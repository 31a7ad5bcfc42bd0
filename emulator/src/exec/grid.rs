//! A launch: its blocks, one after the other. A block that runs long lets others run too, so that blocks may wait for
//! one another if the card could hold them at once.

use std::collections::VecDeque;
use std::sync::OnceLock;

use super::block::{Block, Shape, run_block};
use super::diagnose::Place;
use super::interpret::Run;
use super::vector::Vector;
use crate::counters::Counters;
use crate::device::Launch;
use crate::fault::{Code, Fault, Result};
use crate::memory::global::Memory;
use crate::memory::room;
use crate::occupancy::shared_bytes;
use crate::program::{Op, Program};
use crate::ptx::ast::Space;
use crate::rng::Rng;

/// Warp instructions of a block after which another block has its turn.
const TURN: u64 = 2_000_000;

/// What the launch's surroundings decide.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub seed: u64,
    /// Warp instructions without a block finishing, after which the launch counts as hung.
    pub step_limit: u64,
    pub multiprocessors: u32,
    /// Blocks that the card holds at once.
    pub resident: u64,
    /// How many launches there were before.
    pub launch: u64,
}

/// Runs all blocks. What the kernel printed is appended to `output`, also when it fails.
pub fn run_grid(memory: &mut Memory, launch: &Launch, setting: Setting, output: &mut Vec<u8>) -> Result<Counters> {
    let program = launch.kernel;
    let total_shared = shared_bytes(program, launch.dynamic_shared);
    let shape = Shape {
        grid: launch.grid,
        block: launch.block,
        dynamic_shared: launch.dynamic_shared,
        total_shared,
        multiprocessors: setting.multiprocessors,
        launch: setting.launch,
    };
    let mut grid = Grid {
        launch,
        shape,
        shared_shift: granule(program, Space::Shared),
        global_shift: granule(program, Space::Global),
        asynchronous: program.code.iter().any(|i| matches!(i.op, Op::CopyAsync { .. })),
        counters: Counters::new(program.code.len()),
        cache: vec![u32::MAX; program.code.len()],
        uses: OnceLock::new(),
        vector: Vector::detect(),
        turn: TURN.min(setting.step_limit),
        rng: Rng::new(setting.seed),
    };
    memory.begin_launch(program.owner);
    let blocks: u64 = launch.grid.iter().map(|&n| n as u64).product();
    let mut order = BlockOrder::new(blocks, &mut grid.rng)?;
    let mut running: VecDeque<Block> = VecDeque::new();
    let mut spare: Option<Block> = None;
    let mut since_finished = 0;
    loop {
        let more = (running.len() as u64) < setting.resident;
        let mut block = match if more { order.next() } else { None } {
            Some(index) => {
                let mut block = spare.take().unwrap_or_default();
                grid.begin(&mut block, memory, index)?;
                block
            }
            None => match running.pop_front() {
                Some(block) => block,
                None => return Ok(grid.counters),
            },
        };
        since_finished += grid.run(memory, &mut block, output)?;
        if block.done() {
            since_finished = 0;
            spare = Some(block);
        } else if since_finished > setting.step_limit {
            return Err(grid.hung(memory, &mut block, output, setting.step_limit));
        } else {
            running.push_back(block);
        }
    }
}

struct Grid<'a> {
    launch: &'a Launch<'a>,
    shape: Shape,
    shared_shift: u32,
    global_shift: u32,
    asynchronous: bool,
    counters: Counters,
    cache: Vec<u32>,
    uses: OnceLock<Vec<super::taint::Uses>>,
    vector: Vector,
    /// Warp instructions a turn: with a smaller limit, a hang shows after as many.
    turn: u64,
    rng: Rng,
}

impl Grid<'_> {
    fn begin(&self, block: &mut Block, memory: &mut Memory, index: u32) -> Result<()> {
        memory.clock.switch(index);
        let now = memory.clock.now;
        block.shared.reset(self.shape.total_shared as usize, self.shared_shift, self.asynchronous)?;
        block.clock.begin(index, self.shape.threads() as usize, now);
        block.begin(self.launch.kernel, &self.shape, index)
    }

    fn run(&mut self, memory: &mut Memory, block: &mut Block, output: &mut Vec<u8>) -> Result<u64> {
        memory.clock.switch(block.index);
        let (mut rng, turn) = (self.rng.clone(), self.turn);
        let (mut run, warps) = self.running(memory, block, output);
        let ran = run_block(&mut run, warps, &mut rng, turn);
        self.rng = rng;
        ran.map_err(|fault| *fault)
    }

    fn running<'r>(
        &'r mut self,
        memory: &'r mut Memory,
        block: &'r mut Block,
        output: &'r mut Vec<u8>,
    ) -> (Run<'r>, &'r mut [super::warp::Warp]) {
        let run = Run {
            program: self.launch.kernel,
            params: self.launch.params,
            grid: self.shape.grid,
            block_dim: self.shape.block,
            block: block.coordinates,
            memory,
            shared: &mut block.shared,
            local: &mut block.local,
            clock: &mut block.clock,
            barriers: &mut block.barriers,
            counters: &mut self.counters,
            cache: &mut self.cache,
            global_shift: self.global_shift,
            uses: &self.uses,
            vector: self.vector,
            output,
        };
        (run, &mut block.warps)
    }

    /// The launch does not end.
    fn hung(&mut self, memory: &mut Memory, block: &mut Block, output: &mut Vec<u8>, limit: u64) -> Fault {
        let (run, warps) = self.running(memory, block, output);
        let warp = warps.iter().find(|warp| !warp.done()).expect("the block is not done");
        let group = warp.groups[0];
        let at = Place { pc: group.pc, warp: warp.index };
        let text = format!("hang: no block finished within {limit} warp instructions");
        *run.fault(Code::LaunchTimeout, at, group.lanes.trailing_zeros(), text)
    }
}

/// Block indices in the order in which they start.
enum BlockOrder {
    Rising { next: u64, blocks: u64 },
    Listed(std::vec::IntoIter<u32>),
}

impl BlockOrder {
    /// Grids of more than 16 million blocks keep launch order.
    fn new(blocks: u64, rng: &mut Rng) -> Result<BlockOrder> {
        if blocks > 1 << 24 {
            return Ok(BlockOrder::Rising { next: 0, blocks });
        }
        let mut list = room::zeroed(blocks as usize)?;
        list.iter_mut().zip(0u32..).for_each(|(block, index)| *block = index);
        rng.shuffle(&mut list);
        Ok(BlockOrder::Listed(list.into_iter()))
    }

    fn next(&mut self) -> Option<u32> {
        match self {
            BlockOrder::Rising { next, blocks } => {
                *next += 1;
                (*next <= *blocks).then(|| (*next - 1) as u32)
            }
            BlockOrder::Listed(list) => list.next(),
        }
    }
}

/// log2 of the narrowest access that a lane makes to a space, at most 4 (16 bytes). Accesses are aligned to their size.
fn granule(program: &Program, space: Space) -> u32 {
    let mut narrowest = 16;
    for instruction in &program.code {
        let (of, bytes) = match &instruction.op {
            Op::Load { space, value, to, .. } => (*space, value.bytes * to.len() as u32),
            Op::Store { space, value, from, .. } => (*space, value.bytes * from.len() as u32),
            Op::Atomic { space, function, .. } => (*space, function.ty.bytes() as u32),
            // From and to both spaces; a copy that takes only a part of its source is counted as whole.
            Op::CopyAsync { bytes, .. } => (Space::Generic, *bytes),
            _ => continue,
        };
        if of == space || of == Space::Generic {
            narrowest = narrowest.min(bytes);
        }
    }
    narrowest.trailing_zeros()
}

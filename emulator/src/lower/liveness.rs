//! Which registers are live where: the live ranges that register allocation packs.
//!
//! A thread follows its own path through the code and writes touch its own lane alone, so the usual data flow of a
//! scalar program holds: live_in(B) = used first in B ∪ (live_out(B) − written in B), live_out(B) = ∪ live_in of the
//! successors. A guarded write keeps the old value in lanes whose predicate is false: it does not end a range.

use crate::program::{Access, Class, Files, Instruction, Op, Reg};

/// Registers of the three files under one numbering: 32-bit, then 64-bit, then predicates.
#[derive(Debug, Clone, Copy)]
pub struct Numbering(pub Files);

impl Numbering {
    pub fn total(self) -> usize {
        self.0.r32 as usize + self.0.r64 as usize + self.0.pred as usize
    }

    pub fn number(self, class: Class, reg: Reg) -> usize {
        let first = match class {
            Class::R32 => 0,
            Class::R64 => self.0.r32,
            Class::Pred => self.0.r32 + self.0.r64,
        };
        first as usize + reg.0 as usize
    }

    pub fn register(self, number: usize) -> (Class, Reg) {
        let number = number as u32;
        if number < self.0.r32 {
            (Class::R32, Reg(number))
        } else if number < self.0.r32 + self.0.r64 {
            (Class::R64, Reg(number - self.0.r32))
        } else {
            (Class::Pred, Reg(number - self.0.r32 - self.0.r64))
        }
    }
}

/// Half-open, in half steps: instruction i reads at 2i and writes at 2i+1.
pub type Range = (u32, u32);

pub struct Liveness {
    /// Where each register is live: disjoint ranges in ascending order.
    pub ranges: Vec<Vec<Range>>,
    /// Live on entry to the code: some path reads them before it writes them.
    pub at_entry: Vec<usize>,
    /// The most 32-bit units that are live at once.
    pub pressure: u32,
}

struct BasicBlock {
    begin: usize,
    end: usize,
    predecessors: Vec<u32>,
    live_in: Vec<u32>,
    live_out: Vec<u32>,
}

/// The most entries of all live sets together, for each instruction and for any program. Real programs need 2 to 5 for each
/// instruction.
const LIVE_EACH: usize = 64;
const LIVE_ANYWAY: usize = 1 << 17;

/// The most targets of all indexed branches together: many of them may share one large table.
const TARGET_LIMIT: usize = 1 << 18;

/// Live ranges of every register for which `ignored` is false (constants).
pub fn analyse(code: &mut [Instruction], numbering: Numbering, ignored: &[bool]) -> Result<Liveness, String> {
    let targets: usize = code.iter().map(|instruction| successors(instruction).0.len()).sum();
    if targets > code.len() + TARGET_LIMIT {
        return Err(format!("the code is too large: its branches have {targets} targets"));
    }
    let mut blocks = split(code);
    let (upward, killed) = local_sets(code, &blocks, numbering, ignored);
    propagate(&mut blocks, &upward, &killed, LIVE_EACH * code.len() + LIVE_ANYWAY)?;
    let at_entry = blocks.first().map(|block| block.live_in.iter().map(|&v| v as usize).collect()).unwrap_or_default();
    let mut build = Build {
        numbering,
        ignored,
        open: vec![0; numbering.total()],
        ranges: vec![Vec::new(); numbering.total()],
        units: 0,
        pressure: 0,
    };
    for block in blocks.iter().rev() {
        build.block(block, code);
    }
    build.ranges.iter_mut().for_each(|ranges| ranges.reverse());
    Ok(Liveness { ranges: build.ranges, at_entry, pressure: build.pressure })
}

/// Where control may go after an instruction: the targets of a jump, and whether it may fall through.
fn successors(instruction: &Instruction) -> (&[u32], bool) {
    let guarded = instruction.guard.is_some();
    match &instruction.op {
        Op::Branch { target } => (std::slice::from_ref(target), guarded),
        Op::BranchIndexed { targets, .. } => (targets, guarded),
        Op::Exit | Op::Trap => (&[], guarded),
        _ => (&[], true),
    }
}

fn split(code: &[Instruction]) -> Vec<BasicBlock> {
    let mut leader = vec![false; code.len() + 1];
    leader[0] = true;
    for (index, instruction) in code.iter().enumerate() {
        let (targets, falls) = successors(instruction);
        targets.iter().for_each(|&target| leader[target as usize] = true);
        if !targets.is_empty() || !falls || matches!(instruction.op, Op::Exit | Op::Trap) {
            leader[index + 1] = true;
        }
    }
    let mut block_of = vec![0usize; code.len() + 1];
    let mut blocks: Vec<BasicBlock> = Vec::new();
    for index in 0..code.len() {
        if leader[index] {
            let block = BasicBlock {
                begin: index,
                end: index,
                predecessors: Vec::new(),
                live_in: Vec::new(),
                live_out: Vec::new(),
            };
            blocks.push(block);
        }
        let last = blocks.len() - 1;
        block_of[index] = last;
        blocks[last].end = index + 1;
    }
    for from in 0..blocks.len() {
        let end = blocks[from].end;
        let (targets, falls) = successors(&code[end - 1]);
        let next = if falls && end < code.len() { Some(end as u32) } else { None };
        let mut into: Vec<usize> = targets.iter().chain(&next).map(|&target| block_of[target as usize]).collect();
        into.sort_unstable();
        into.dedup();
        into.into_iter().for_each(|to| blocks[to].predecessors.push(from as u32));
    }
    blocks
}

/// For each register a list of blocks: those that read it before they write it, or those that surely write it.
type BlockSets = Vec<Vec<u32>>;

fn local_sets(
    code: &mut [Instruction],
    blocks: &[BasicBlock],
    numbering: Numbering,
    ignored: &[bool],
) -> (BlockSets, BlockSets) {
    let mut upward: BlockSets = vec![Vec::new(); numbering.total()];
    let mut killed: BlockSets = vec![Vec::new(); numbering.total()];
    for (number, block) in blocks.iter().enumerate() {
        let number = number as u32;
        for instruction in &mut code[block.begin..block.end] {
            let guarded = instruction.guard.is_some();
            instruction.visit(&mut |access, class, reg| {
                let v = numbering.number(class, *reg);
                if ignored[v] {
                    return;
                }
                let written = killed[v].last() == Some(&number);
                match access {
                    Access::Read if !written && upward[v].last() != Some(&number) => upward[v].push(number),
                    Access::Write if !written && !guarded => killed[v].push(number),
                    _ => {}
                }
            });
        }
    }
    (upward, killed)
}

/// From each block that needs a register, back along the predecessors to the blocks that write it.
fn propagate(blocks: &mut [BasicBlock], upward: &BlockSets, killed: &BlockSets, most: usize) -> Result<(), String> {
    let mut entries = 0usize;
    let mut stack: Vec<usize> = Vec::new();
    for v in 0..upward.len() {
        let mark = v as u32;
        for &block in &upward[v] {
            blocks[block as usize].live_in.push(mark);
            stack.push(block as usize);
        }
        while let Some(block) = stack.pop() {
            for index in 0..blocks[block].predecessors.len() {
                let from = blocks[block].predecessors[index] as usize;
                if blocks[from].live_out.last() == Some(&mark) {
                    continue;
                }
                blocks[from].live_out.push(mark);
                entries += 1;
                let writes = killed[v].binary_search(&(from as u32)).is_ok();
                if !writes && blocks[from].live_in.last() != Some(&mark) {
                    blocks[from].live_in.push(mark);
                    stack.push(from);
                }
            }
        }
        if entries > most {
            return Err("the code is too large: too many registers live over too many blocks".to_string());
        }
    }
    Ok(())
}

struct Build<'a> {
    numbering: Numbering,
    ignored: &'a [bool],
    /// End of the range that is open at this point of the backward walk; 0: not live.
    open: Vec<u32>,
    ranges: Vec<Vec<Range>>,
    units: u32,
    pressure: u32,
}

impl Build<'_> {
    fn block(&mut self, block: &BasicBlock, code: &mut [Instruction]) {
        self.units = 0;
        for &v in &block.live_out {
            self.start(v as usize, 2 * block.end as u32);
        }
        for index in (block.begin..block.end).rev() {
            self.instruction(index as u32, &mut code[index]);
        }
        for &v in &block.live_in {
            self.close(v as usize, 2 * block.begin as u32);
        }
    }

    fn instruction(&mut self, index: u32, instruction: &mut Instruction) {
        let guarded = instruction.guard.is_some();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let (numbering, ignored) = (self.numbering, self.ignored);
        instruction.visit(&mut |access, class, reg| {
            let v = numbering.number(class, *reg);
            match access {
                _ if ignored[v] => {}
                Access::Read => reads.push(v),
                Access::Write => writes.push(v),
            }
        });
        let dead: Vec<usize> = writes.iter().copied().filter(|&v| self.open[v] == 0).collect();
        for &v in &dead {
            if self.open[v] == 0 {
                self.start(v, 2 * index + 2);
            }
        }
        self.pressure = self.pressure.max(self.units);
        for &v in &writes {
            if self.open[v] != 0 && (!guarded || dead.contains(&v)) {
                self.close(v, 2 * index + 1);
            }
        }
        // With several results a source must outlive the first write: the executor may still read it.
        let last = if writes.len() > 1 || matches!(instruction.op, Op::Warp(_)) { 2 } else { 1 };
        for v in reads {
            if self.open[v] == 0 {
                self.start(v, 2 * index + last);
            }
        }
        self.pressure = self.pressure.max(self.units);
    }

    fn weight(&self, v: usize) -> u32 {
        match self.numbering.register(v).0 {
            Class::R32 => 1,
            Class::R64 => 2,
            Class::Pred => 0,
        }
    }

    fn start(&mut self, v: usize, end: u32) {
        self.open[v] = end;
        self.units += self.weight(v);
    }

    fn close(&mut self, v: usize, begin: u32) {
        let end = std::mem::replace(&mut self.open[v], 0);
        self.units -= self.weight(v);
        match self.ranges[v].last_mut() {
            Some(later) if later.0 <= end => later.0 = begin,
            _ => self.ranges[v].push((begin, end)),
        }
    }
}

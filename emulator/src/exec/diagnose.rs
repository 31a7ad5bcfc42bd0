//! Findings in words: kernel, place in the source, block, thread, and what happened.

use super::interpret::Run;
use crate::fault::{Code, Fault};
use crate::memory::shadow::{Conflict, PC_UNKNOWN};

/// An instruction of a warp.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub pc: u32,
    pub warp: u32,
}

impl Place {
    /// The lane's thread in its block.
    #[inline(always)]
    pub fn thread(self, lane: u32) -> u32 {
        self.warp * 32 + lane
    }
}

/// `(x,y,z)` of a linear index.
pub fn coordinates(index: u32, extent: [u32; 3]) -> [u32; 3] {
    [index % extent[0], index / extent[0] % extent[1], index / extent[0] / extent[1]]
}

pub fn triple(c: [u32; 3]) -> String {
    format!("({},{},{})", c[0], c[1], c[2])
}

impl Run<'_> {
    /// A finding of one lane.
    pub fn fault(&self, code: Code, at: Place, lane: u32, text: String) -> Box<Fault> {
        let thread = triple(coordinates(at.thread(lane), self.block_dim));
        let form = self.program.code.get(at.pc as usize).map_or("", |i| &self.program.lines[i.line as usize].form);
        Box::new(Fault::new(
            code,
            format!(
                "{text} [kernel {}, {}, block {}, thread {thread}, {form}]",
                self.program.name,
                self.line(at.pc),
                triple(self.block),
            ),
        ))
    }

    /// The user's line that an instruction comes from: `matmul.cu:88`.
    pub fn line(&self, pc: u32) -> String {
        match self.program.code.get(pc as usize) {
            Some(instruction) if pc != PC_UNKNOWN => self.program.lines[instruction.line as usize].to_string(),
            _ => "an unknown line".to_string(),
        }
    }

    /// Two accesses that nothing orders.
    pub fn race(&self, at: Place, lane: u32, writes: bool, place: &str, conflict: Conflict) -> Box<Fault> {
        let earlier = conflict.earlier;
        let block = self.memory.clock.block_of(earlier.time);
        let thread = triple(coordinates(earlier.thread(), self.block_dim));
        let (who, between) = if block == self.clock.block {
            let lanes = earlier.thread() / 32 == at.warp;
            (format!("thread {thread}"), if lanes { "no __syncwarp or barrier" } else { "no barrier" })
        } else {
            (format!("block {}, thread {thread}", triple(coordinates(block, self.grid))), "nothing")
        };
        let who = if conflict.others { "other threads too".to_string() } else { who };
        let (now, before) = (if writes { "writes" } else { "reads" }, if conflict.wrote { "wrote" } else { "read" });
        let text = format!(
            "race: {now} {place}, which {who} {before} at {}, with {between} between them",
            self.line(earlier.pc())
        );
        self.fault(Code::LaunchFailed, at, lane, text)
    }
}

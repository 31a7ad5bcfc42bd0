//! Where instructions come from: the table of a program's source lines, each once.

use std::collections::HashMap;
use std::sync::Arc;

use crate::program::{Frame, SourceLine};
use crate::ptx::ast::{Instruction, Location, Module};
use crate::ptx::source;

#[derive(Debug)]
pub struct Lines<'a> {
    module: &'a Module,
    pub table: Vec<SourceLine>,
    /// Numbers by instruction and by the calls it was inlined through; two such pairs seldom have equal lines.
    known: HashMap<(*const Instruction, u32), u32>,
    /// Frames by location and by the calls around it: the instructions of a location share them.
    frames: HashMap<(*const Location, u32), Arc<[Frame]>>,
    /// The chains of calls that instructions are inlined through.
    chains: Vec<Arc<[Frame]>>,
    chain_numbers: HashMap<Arc<[Frame]>, u32>,
}

/// Instructions of the kernel itself.
pub const NO_CALLS: u32 = 0;

impl<'a> Lines<'a> {
    pub fn new(module: &'a Module) -> Lines<'a> {
        Lines {
            module,
            table: Vec::new(),
            known: HashMap::new(),
            frames: HashMap::new(),
            chains: vec![Arc::default()],
            chain_numbers: HashMap::from([(Arc::default(), NO_CALLS)]),
        }
    }

    /// The number of an instruction's line, inlined through a chain of calls.
    pub fn add(&mut self, instruction: &'a Instruction, chain: u32) -> u32 {
        let key = (instruction as *const Instruction, chain);
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        let frames = self.frames(instruction.source.as_deref(), chain);
        let number = self.push(SourceLine { frames, ptx_line: instruction.line, form: instruction.form() });
        self.known.insert(key, number);
        number
    }

    pub fn push(&mut self, line: SourceLine) -> u32 {
        self.table.push(line);
        self.table.len() as u32 - 1
    }

    /// The number of the chain that ends in this call.
    pub fn chain(&mut self, call: &'a Instruction, outer: u32) -> u32 {
        let frames = self.frames(call.source.as_deref(), outer);
        let next = self.chains.len() as u32;
        *self.chain_numbers.entry(frames).or_insert_with_key(|frames| {
            self.chains.push(Arc::clone(frames));
            next
        })
    }

    /// Innermost first.
    fn frames(&mut self, location: Option<&'a Location>, chain: u32) -> Arc<[Frame]> {
        let outer = &self.chains[chain as usize];
        let Some(location) = location else { return Arc::clone(outer) };
        let known = self.frames.entry((location, chain));
        let frames = known.or_insert_with(|| {
            let mut frames = source::frames(self.module, location);
            frames.extend_from_slice(outer);
            frames.into()
        });
        Arc::clone(frames)
    }
}

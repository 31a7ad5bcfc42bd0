//! Where instructions come from: the table of a program's source lines, each once.

use std::collections::HashMap;

use crate::program::{Frame, SourceLine};
use crate::ptx::ast::{Instruction, Location, Module};
use crate::ptx::source;

#[derive(Debug)]
pub struct Lines<'a> {
    module: &'a Module,
    known: HashMap<SourceLine, u32>,
}

impl<'a> Lines<'a> {
    pub fn new(module: &'a Module) -> Lines<'a> {
        Lines { module, known: HashMap::new() }
    }

    /// The number of an instruction's line; `outer` are the frames of the calls it was inlined through.
    pub fn add(&mut self, instruction: &Instruction, outer: &[Frame]) -> u32 {
        let mut frames = self.frames(instruction.source.as_deref());
        frames.extend_from_slice(outer);
        self.insert(SourceLine { frames, ptx_line: instruction.line, form: instruction.form() })
    }

    pub fn insert(&mut self, line: SourceLine) -> u32 {
        let next = self.known.len() as u32;
        *self.known.entry(line).or_insert(next)
    }

    /// Innermost first.
    pub fn frames(&self, location: Option<&Location>) -> Vec<Frame> {
        location.map(|location| source::frames(self.module, location)).unwrap_or_default()
    }

    pub fn table(self) -> Vec<SourceLine> {
        let mut table: Vec<(u32, SourceLine)> = self.known.into_iter().map(|(line, number)| (number, line)).collect();
        table.sort_unstable_by_key(|&(number, _)| number);
        table.into_iter().map(|(_, line)| line).collect()
    }
}

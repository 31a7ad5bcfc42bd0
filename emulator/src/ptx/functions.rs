//! Kernels and device functions: their heads, and the directives between head and body.
//! (PTX ISA, "Kernel and Function Directives", "Performance-Tuning Directives", "Cluster Dimension Directives".)

use super::ast::Function;
use super::module::Parser;
use crate::fault::Result;

/// Threads of a block that a directive may name; a card's own limit is checked at the launch.
const MAX_THREADS: u64 = 1 << 31;

impl<'t> Parser<'t> {
    /// A function after `.entry` or `.func`.
    pub fn function(&mut self, entry: bool, line: u32) -> Result<Function> {
        if self.cursor.directive() == Some("attribute") {
            return self.cursor.refuse(".attribute");
        }
        let results = if !entry && self.cursor.at(b'(') { self.parameters()? } else { Vec::new() };
        let name = self.cursor.name("a function's name")?.to_string();
        let params = if self.cursor.at(b'(') { self.parameters()? } else { Vec::new() };
        let mut function = Function {
            name,
            entry,
            body: None,
            results,
            params,
            max_threads: None,
            required_threads: None,
            min_blocks: None,
            max_registers: None,
            line,
        };
        while self.tuning(&mut function)? {}
        if !self.cursor.eat(b';') {
            if !self.cursor.at(b'{') {
                return self.cursor.expected("a function's body or \";\"");
            }
            self.locations.current = None;
            self.locations.last_line = None;
            function.body = Some(self.body()?);
        }
        Ok(function)
    }

    /// One directive of a function's head; false if there is none.
    fn tuning(&mut self, function: &mut Function) -> Result<bool> {
        let Some(name) = self.cursor.directive() else { return Ok(false) };
        if name == "pragma" {
            return self.pragma().map(|()| true);
        }
        let place = self.cursor.token;
        match name {
            "maxntid" | "reqntid" | "reqnctapercluster" | "minnctapersm" | "maxnctapersm" | "maxnreg" => {
                self.cursor.take()
            }
            "maxclusterrank" | "noreturn" | "explicitcluster" | "blocksareclusters" => self.cursor.take(),
            "abi_preserve" | "abi_preserve_control" => self.cursor.take(),
            _ => return self.cursor.refuse(&format!("the directive .{name} of a function")),
        };
        match name {
            "maxntid" => function.max_threads = Some(self.extent()?),
            "reqntid" => function.required_threads = Some(self.extent()?),
            "reqnctapercluster" => _ = self.extent()?,
            "minnctapersm" => function.min_blocks = Some(self.cursor.count_u32("a number of blocks")?),
            "maxnreg" => function.max_registers = Some(self.cursor.count_u32("a number of registers")?),
            "maxnctapersm" | "maxclusterrank" => _ = self.cursor.count_u32("a number of blocks")?,
            "abi_preserve" | "abi_preserve_control" => _ = self.cursor.count_u32("a number of registers")?,
            _ => {}
        }
        match (function.max_registers, function.min_blocks) {
            (Some(0), _) | (_, Some(0)) => self.cursor.fail(place, "found 0, expected at least 1"),
            _ => Ok(true),
        }
    }

    /// `256`, `16, 16` or `8, 8, 4`.
    fn extent(&mut self) -> Result<[u32; 3]> {
        let place = self.cursor.token;
        let mut extent = [1; 3];
        for axis in &mut extent {
            *axis = self.cursor.count_u32("a size in x, y and z")?;
            if !self.cursor.eat(b',') {
                break;
            }
        }
        let threads = extent.iter().fold(1u64, |product, &axis| product.saturating_mul(axis as u64));
        match threads {
            1..=MAX_THREADS => Ok(extent),
            _ => self.cursor.fail(place, &format!("found {extent:?}, expected 1 to 2^31 in all")),
        }
    }
}

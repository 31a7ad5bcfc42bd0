//! The emulated device as a Rust program sees it; the driver interface stands on it.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use crate::card::Card;
use crate::exec::grid::{Setting, run_grid};
use crate::fault::{Code, Fault, Result};
use crate::lower::{self, ModuleVariable};
use crate::memory::global::Memory;
use crate::memory::room;
use crate::program::Program;
use crate::ptx::ast::Space;

/// How the device runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// Permutes the order of blocks and warps and the length of their time slices; 0 is launch order.
    pub seed: u64,
    /// Warp instructions after which a block counts as hung.
    pub step_limit: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { seed: 0, step_limit: 1_000_000_000 }
    }
}

pub struct Device {
    pub card: Card,
    pub options: Options,
    pub(crate) memory: Memory,
    launches: u64,
}

/// A module on the device.
pub struct Module {
    pub kernels: Vec<Arc<Program>>,
    /// Kernels that can't run here, and why.
    pub refused: HashMap<String, Fault>,
    /// `.global` and `.const` variables: name to address and bytes.
    pub variables: HashMap<String, (u64, u64)>,
}

#[derive(Debug, Clone)]
pub struct Launch<'a> {
    pub kernel: &'a Program,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub dynamic_shared: u32,
    /// What `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES` was set to: the opt-in above 48 KiB.
    pub dynamic_shared_limit: u32,
    /// The parameter buffer: `kernel.param_bytes` bytes, each parameter at its slot's offset.
    pub params: &'a [u8],
    /// All blocks must be resident at once.
    pub cooperative: bool,
}

/// What a launch did.
#[derive(Debug, Clone, Default)]
pub struct LaunchOutcome {
    pub counters: crate::counters::Counters,
    /// Global memory that the launch touched.
    pub touched: Vec<Touched>,
}

/// A range of an allocation that a launch read or wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touched {
    /// The allocation's first address.
    pub allocation: u64,
    /// First and one past the last address touched.
    pub begin: u64,
    pub end: u64,
    pub written: bool,
}

/// An allocation that was never freed.
#[derive(Debug, Clone, PartialEq)]
pub struct Leak {
    pub address: u64,
    pub bytes: u64,
    pub label: String,
}

impl Device {
    pub fn new(card: Card, options: Options) -> Device {
        let memory = Memory::new(card.memory_bytes);
        Device { card, options, memory, launches: 0 }
    }

    /// Device memory, uninitialised, for the context `owner`. Errors: no bytes, more than the card has.
    pub fn alloc(&mut self, owner: u32, bytes: u64) -> Result<u64> {
        self.memory.alloc(owner, bytes)
    }

    /// Device memory at a given address, which the host shares with the device, for the context `owner`.
    pub fn alloc_at(&mut self, owner: u32, address: u64, bytes: u64) -> Result<()> {
        self.memory.alloc_at(owner, address, bytes)
    }

    /// Frees what `alloc` gave. Errors: an address that is not the start of an allocation, one already freed, one of
    /// another context.
    pub fn free(&mut self, owner: u32, address: u64) -> Result<()> {
        self.memory.free(owner, address)
    }

    /// The allocation that an address lies in: its start and bytes.
    pub fn allocation(&self, address: u64) -> Result<(u64, u64)> {
        match self.memory.find(address, 1) {
            Some(index) => Ok((self.memory.allocations[index].base, self.memory.allocations[index].bytes)),
            None => Err(Fault::new(Code::InvalidValue, self.memory.explain(address, 1).1)),
        }
    }

    /// Host to device.
    pub fn write(&mut self, owner: u32, address: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let index = self.memory.host_find(owner, address, bytes.len() as u64)?;
        let found = &mut self.memory.allocations[index];
        let offset = (address - found.base) as usize;
        found.data[offset..offset + bytes.len()].copy_from_slice(bytes);
        found.initialised.set(offset, bytes.len());
        Ok(())
    }

    /// Device to host.
    pub fn read(&self, owner: u32, address: u64, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let found = &self.memory.allocations[self.memory.host_find(owner, address, bytes.len() as u64)?];
        let offset = (address - found.base) as usize;
        bytes.copy_from_slice(&found.data[offset..offset + bytes.len()]);
        Ok(())
    }

    /// Device to device; the ranges may overlap. What was not initialised stays so.
    pub fn copy(&mut self, owner: u32, to: u64, from: u64, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let source = &self.memory.allocations[self.memory.host_find(owner, from, bytes)?];
        let offset = (from - source.base) as usize;
        let data = room::copied(&source.data[offset..offset + bytes as usize])?;
        let written = source.initialised.record(offset, bytes as usize)?;
        let index = self.memory.host_find(owner, to, bytes)?;
        let target = &mut self.memory.allocations[index];
        let offset = (to - target.base) as usize;
        target.data[offset..offset + data.len()].copy_from_slice(&data);
        target.initialised.copy(offset, &written, target.bytes as usize)
    }

    /// Repeats a pattern of 1, 2 or 4 bytes `count` times.
    pub fn fill(&mut self, owner: u32, address: u64, pattern: &[u8], count: u64) -> Result<()> {
        let bytes = count.checked_mul(pattern.len() as u64).filter(|&bytes| bytes <= self.card.memory_bytes);
        let Some(bytes) = bytes else {
            let text = format!("fill of {count} × {} bytes: more than the card has", pattern.len());
            return Err(Fault::new(Code::InvalidValue, text));
        };
        if bytes == 0 {
            return Ok(());
        }
        if !address.is_multiple_of(pattern.len() as u64) {
            let text = format!("fill at {address:#x}: expected a multiple of {}", pattern.len());
            return Err(Fault::new(Code::InvalidValue, text));
        }
        let index = self.memory.host_find(owner, address, bytes)?;
        let found = &mut self.memory.allocations[index];
        let offset = (address - found.base) as usize;
        for chunk in found.data[offset..offset + bytes as usize].chunks_exact_mut(pattern.len()) {
            chunk.copy_from_slice(pattern);
        }
        found.initialised.set(offset, bytes as usize);
        Ok(())
    }

    /// Bytes free and in all.
    pub fn memory(&self) -> (u64, u64) {
        (self.memory.capacity - self.memory.used, self.memory.capacity)
    }

    /// Parses and lowers PTX, and places its variables. Kernels that can't run are in `Module::refused`, unless all are:
    /// then the first one's reason is the error.
    pub fn load(&mut self, owner: u32, ptx: &str) -> Result<Module> {
        let module = crate::ptx::parse(ptx)?;
        self.check_target(&module.target)?;
        let wanted = lower::module_variables(&module)?;
        let mut addresses = HashMap::new();
        let placed = self.place_variables(owner, &wanted, &mut addresses);
        let lowered = placed.and_then(|()| lower::lower_each(&module, &addresses));
        let placed = wanted.iter().filter_map(|v| Some((v.name.clone(), (*addresses.get(&v.name)?, v.bytes))));
        let mut module = Module { kernels: Vec::new(), refused: HashMap::new(), variables: placed.collect() };
        let mut first = None;
        for (name, kernel) in lowered.unwrap_or_else(|fault| vec![(String::new(), Err(fault))]) {
            match kernel {
                Ok(kernel) => module.kernels.push(Arc::new(Program { owner, ..kernel })),
                Err(fault) => {
                    first.get_or_insert(fault.clone());
                    module.refused.insert(name, fault);
                }
            }
        }
        // A module of which nothing can run is refused as a whole.
        if let Some(fault) = first
            && module.kernels.is_empty()
        {
            self.unload(&module);
            return Err(fault);
        }
        Ok(module)
    }

    /// Gives variables addresses and their initial values. Zeros are there already.
    fn place_variables(
        &mut self,
        owner: u32,
        variables: &[ModuleVariable],
        addresses: &mut HashMap<String, u64>,
    ) -> Result<()> {
        for variable in variables {
            let address = self.memory.alloc_variable(owner, variable.bytes, &variable.name)?;
            addresses.insert(variable.name.clone(), address);
        }
        for variable in variables {
            let base = addresses[&variable.name];
            for (offset, bytes) in &variable.init.pieces {
                self.write(owner, base + offset, bytes)?;
            }
            for (offset, symbol, addend) in &variable.init.addresses {
                let Some(&address) = addresses.get(symbol) else {
                    let text =
                        format!("variable {}: its initial value names {symbol}, which is not there", variable.name);
                    return Err(Fault::new(Code::InvalidPtx, text));
                };
                self.write(owner, base + offset, &address.wrapping_add_signed(*addend).to_le_bytes())?;
            }
            let index = self.memory.host_find(owner, base, 1)?;
            self.memory.allocations[index].constant = variable.space == Space::Const;
        }
        Ok(())
    }

    /// Frees a module's variables.
    pub fn unload(&mut self, module: &Module) {
        for &(address, _) in module.variables.values() {
            if let Some(index) = self.memory.find(address, 1) {
                self.memory.release(index);
            }
        }
    }

    /// Runs a kernel to its end; what it prints goes to standard output.
    pub fn launch(&mut self, launch: &Launch) -> Result<LaunchOutcome> {
        self.check_limits(launch)?;
        let program = launch.kernel;
        if launch.params.len() != program.param_bytes as usize {
            let text = format!(
                "kernel {}: {} bytes of parameters, expected {}",
                program.name,
                launch.params.len(),
                program.param_bytes
            );
            return Err(Fault::new(Code::InvalidValue, text));
        }
        self.launches += 1;
        let setting = Setting {
            seed: self.options.seed,
            step_limit: self.options.step_limit,
            multiprocessors: self.card.multiprocessors,
            resident: self.resident_blocks(launch),
            launch: self.launches,
        };
        let mut output = Vec::new();
        let ran = run_grid(&mut self.memory, launch, setting, &mut output);
        self.memory.end_launch();
        if !output.is_empty() {
            let mut stdout = std::io::stdout().lock();
            // A closed standard output is the program's affair, not the launch's.
            let _ = stdout.write_all(&output).and_then(|()| stdout.flush());
        }
        Ok(LaunchOutcome { counters: ran?, touched: self.touched() })
    }

    fn touched(&self) -> Vec<Touched> {
        let mut all = Vec::new();
        for found in &self.memory.allocations {
            for (range, written) in [(found.read, false), (found.written, true)] {
                if let Some((begin, end)) = range {
                    let (begin, end) = (found.base + begin, found.base + end);
                    all.push(Touched { allocation: found.base, begin, end, written });
                }
            }
        }
        all
    }

    /// What a context still holds, apart from its modules' variables; all its memory is freed.
    pub fn release(&mut self, owner: u32) -> Vec<Leak> {
        let mut leaks = Vec::new();
        for index in 0..self.memory.allocations.len() {
            let found = &self.memory.allocations[index];
            if found.freed || found.owner != owner {
                continue;
            }
            if !found.label.starts_with("variable ") {
                leaks.push(Leak { address: found.base, bytes: found.bytes, label: found.label.clone() });
            }
            self.memory.release(index);
        }
        leaks
    }
}

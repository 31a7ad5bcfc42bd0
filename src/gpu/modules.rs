//! The compiled kernels inside this program: PTX, machine code, and what ptxas said; and the functions loaded from them.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use cudarc::driver::{CudaFunction, sys};

use super::card::driver;
#[allow(unused_imports, reason = "the generated list names them")]
use super::{Entry, LaunchError, Limits, Param, Result};

/// One file of `kernels/`, compiled.
pub struct CompiledFile {
    /// The path below `kernels/` without its ending, such as `rms_norm` or `matmul/01_naive`.
    pub name: &'static str,
    pub ptx: &'static str,
    /// A fatbin with machine code for each of the capabilities.
    pub cubins: &'static [u8],
    /// What `ptxas -v` printed.
    pub ptxas: &'static str,
    pub entries: &'static [Entry],
}

pub struct Compiled {
    /// Compute capability × 10 of the machine code.
    pub capabilities: &'static [u32],
    /// nvcc's, such as `13.0`.
    pub release: &'static str,
    pub files: &'static [CompiledFile],
}

/// All kernels, sorted by file.
pub static COMPILED: Compiled = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// A kernel by its name, and the file it is in.
pub fn compiled(name: &str) -> Option<(&'static CompiledFile, &'static Entry)> {
    static NAMES: OnceLock<HashMap<&'static str, (&'static CompiledFile, &'static Entry)>> = OnceLock::new();
    let entries =
        || COMPILED.files.iter().flat_map(|file| file.entries.iter().map(move |entry| (entry.name, (file, entry))));
    NAMES.get_or_init(|| entries().collect()).get(name).copied()
}

/// What ptxas gave one kernel on one capability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    pub file: &'static str,
    pub kernel: String,
    /// Compute capability × 10.
    pub capability: u32,
    pub registers: u32,
    /// Bytes a thread.
    pub stack: u32,
    pub spill_stores: u32,
    pub spill_loads: u32,
    /// Bytes a block, known at compile time.
    pub static_shared: u32,
}

/// The resources of every kernel for every capability, in the order ptxas gave them.
pub fn resources() -> Vec<Resources> {
    COMPILED.files.iter().flat_map(|file| parse_ptxas(file.name, file.ptxas)).collect()
}

fn parse_ptxas(file: &'static str, text: &str) -> Vec<Resources> {
    let mut found: Vec<Resources> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let mut quoted = rest.split('\'');
            let kernel = quoted.next().unwrap_or_default().to_string();
            let capability = quoted.nth(1).and_then(|sm| sm.strip_prefix("sm_")?.parse().ok()).unwrap_or(0);
            let (registers, stack, spill_stores, spill_loads, static_shared) = (0, 0, 0, 0, 0);
            found.push(Resources {
                file,
                kernel,
                capability,
                registers,
                stack,
                spill_stores,
                spill_loads,
                static_shared,
            });
        }
        let Some(last) = found.last_mut() else { continue };
        if let Some(stack) = number_before(line, " bytes stack frame") {
            last.stack = stack;
            last.spill_stores = number_before(line, " bytes spill stores").unwrap_or(0);
            last.spill_loads = number_before(line, " bytes spill loads").unwrap_or(0);
        }
        if let Some(registers) = number_before(line, " registers") {
            last.registers = registers;
            last.static_shared = number_before(line, " bytes smem").unwrap_or(0);
        }
    }
    found
}

fn number_before(line: &str, what: &str) -> Option<u32> {
    line.split(what).next().filter(|head| head.len() < line.len())?.rsplit([' ', ',']).next()?.parse().ok()
}

/// A kernel of a loaded module, and how much shared memory it may already use.
pub(super) struct Function {
    pub function: CudaFunction,
    pub max_threads: u32,
    static_shared: usize,
    reserved: Mutex<usize>,
}

impl Function {
    pub fn new(name: &str, function: CudaFunction, limits: &Limits) -> Result<Function> {
        let static_shared = function.shared_size_bytes().map_err(driver(name))? as usize;
        let max_threads = function.max_threads_per_block().map_err(driver(name))? as u32;
        let reserved = Mutex::new(limits.shared_memory.saturating_sub(static_shared));
        Ok(Function { function, max_threads, static_shared, reserved })
    }

    /// Opts in to `dynamic` bytes where that is more than a block gets unasked. Error: more than the card has.
    pub fn reserve_shared(&self, name: &str, dynamic: usize, limits: &Limits) -> Result<()> {
        let requested = dynamic.saturating_add(self.static_shared);
        if requested > limits.shared_memory_optin {
            let limit = limits.shared_memory_optin;
            return Err(LaunchError::SharedMemory { kernel: name.to_string(), requested, limit });
        }
        let mut reserved = self.reserved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if dynamic > *reserved {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            self.function.set_attribute(attribute, dynamic as i32).map_err(driver(name))?;
            *reserved = dynamic;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ptxas_says_is_read() {
        let text = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'add_f32' for 'sm_89'\n\
            ptxas info    : Function properties for add_f32\n    \
            16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n\
            ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 376 bytes cmem[0]\n\
            ptxas info    : Compiling entry function 'mul' for 'sm_90'\n\
            ptxas info    : Used 12 registers, used 0 barriers\n";
        let [first, second] = &parse_ptxas("f", text)[..] else { panic!("two kernels") };
        assert_eq!((first.kernel.as_str(), first.capability, first.registers), ("add_f32", 89, 40));
        assert_eq!((first.stack, first.spill_stores, first.spill_loads, first.static_shared), (16, 8, 4, 1024));
        assert_eq!((second.kernel.as_str(), second.capability, second.registers), ("mul", 90, 12));
        assert_eq!((second.stack, second.spill_stores, second.static_shared), (0, 0, 0));
    }

    #[test]
    fn every_kernel_has_resources_for_every_capability() {
        let resources = resources();
        for file in COMPILED.files {
            let entries = file.entries.len();
            let found = resources.iter().filter(|r| r.file == file.name);
            assert!(
                found.clone().all(|r| r.registers > 0 && COMPILED.capabilities.contains(&r.capability)),
                "{}",
                file.name
            );
            assert_eq!(found.count(), entries * COMPILED.capabilities.len(), "{}", file.name);
        }
    }
}

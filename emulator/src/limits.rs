//! Whether a launch fits the card. (CUDA C++ Programming Guide, "Compute Capabilities".)

use crate::device::{Device, Launch};
use crate::fault::{Code, Fault, Result};
use crate::occupancy::{estimated_registers, occupancy, shared_bytes};

/// Registers are given to warps in units of 256: 8 a thread.
const REGISTER_UNIT: u32 = 8;

impl Device {
    /// PTX runs on cards of its target's compute capability or a greater one.
    pub fn check_target(&self, target: &str) -> Result<()> {
        let (major, minor) = self.card.compute_capability;
        let digits = target.trim_start_matches("sm_").trim_end_matches(|c: char| !c.is_ascii_digit());
        match digits.parse::<u32>() {
            Ok(wanted) if wanted <= 10 * major + minor => Ok(()),
            _ => {
                let text = format!("PTX for {target}, the card {} is an sm_{major}{minor}", self.card.name);
                Err(Fault::new(Code::NoBinaryForGpu, text))
            }
        }
    }

    /// Threads, grid, shared memory and registers against the card's limits.
    pub fn check_limits(&self, launch: &Launch) -> Result<()> {
        let name = &launch.kernel.name;
        let fail = |code, text: String| Err(Fault::new(code, format!("kernel {name}: {text}")));
        for axis in 0..3 {
            let (grid, block) = (launch.grid[axis], launch.block[axis]);
            let (most_grid, most_block) = (self.card.grid_limit[axis], self.card.block_limit[axis]);
            let letter = ["x", "y", "z"][axis];
            if grid == 0 || grid > most_grid {
                return fail(Code::InvalidValue, format!("grid.{letter} is {grid}, expected 1 to {most_grid}"));
            }
            if block == 0 || block > most_block {
                return fail(Code::InvalidValue, format!("block.{letter} is {block}, expected 1 to {most_block}"));
            }
        }
        let blocks: u64 = launch.grid.iter().map(|&n| n as u64).product();
        if blocks > u32::MAX as u64 {
            return fail(Code::InvalidValue, format!("{blocks} blocks, the emulator runs at most {}", u32::MAX));
        }
        let threads: u64 = launch.block.iter().map(|&n| n as u64).product();
        if threads > self.card.threads_per_block as u64 {
            let most = self.card.threads_per_block;
            return fail(Code::InvalidValue, format!("{threads} threads a block, the card allows {most}"));
        }
        self.check_bounds(launch, threads as u32)?;
        self.check_shared(launch)?;
        let registers = self.registers_per_block(launch);
        if registers > self.card.registers_per_block {
            let text = format!(
                "{threads} threads of about {} registers need {registers}, the card has {} for a block",
                estimated_registers(launch.kernel),
                self.card.registers_per_block
            );
            return fail(Code::LaunchOutOfResources, text);
        }
        let resident = self.resident_blocks(launch);
        if launch.cooperative && blocks > resident {
            let text = format!("cooperative launch of {blocks} blocks, the card holds {resident} at once");
            return fail(Code::CooperativeLaunchTooLarge, text);
        }
        Ok(())
    }

    /// `__launch_bounds__` and `.reqntid`.
    fn check_bounds(&self, launch: &Launch, threads: u32) -> Result<()> {
        let name = &launch.kernel.name;
        if let Some(required) = launch.kernel.required_threads
            && required != launch.block
        {
            let text = format!("kernel {name}: block {:?}, the kernel requires {required:?}", launch.block);
            return Err(Fault::new(Code::InvalidValue, text));
        }
        if let Some(most) = launch.kernel.max_threads {
            let most: u32 = most.iter().product();
            if threads > most {
                let text = format!("kernel {name}: {threads} threads a block, its launch bounds allow {most}");
                return Err(Fault::new(Code::InvalidValue, text));
            }
        }
        Ok(())
    }

    fn check_shared(&self, launch: &Launch) -> Result<()> {
        let program = launch.kernel;
        let (fixed, dynamic) = (program.static_shared, launch.dynamic_shared);
        if fixed > self.card.shared_per_block {
            let most = self.card.shared_per_block;
            let text =
                format!("kernel {}: {fixed} bytes of static shared memory, the card allows {most}", program.name);
            return Err(Fault::new(Code::InvalidValue, text));
        }
        let total = shared_bytes(program, dynamic);
        let most = self.card.shared_per_block_optin;
        if total > most {
            let text = format!(
                "kernel {}: {total} bytes of shared memory ({fixed} static, {dynamic} dynamic), the card allows {most}",
                program.name
            );
            return Err(Fault::new(Code::InvalidValue, text));
        }
        let without = self.card.shared_per_block;
        if total > without && dynamic > launch.dynamic_shared_limit {
            let text = format!(
                "kernel {}: {dynamic} bytes of dynamic shared memory, but above {without} in all the kernel needs the \
                 attribute MAX_DYNAMIC_SHARED_SIZE_BYTES, which is {}",
                program.name, launch.dynamic_shared_limit
            );
            return Err(Fault::new(Code::InvalidValue, text));
        }
        Ok(())
    }

    /// Registers that a block takes. With launch bounds the compiler keeps within them.
    fn registers_per_block(&self, launch: &Launch) -> u32 {
        let threads: u32 = launch.block.iter().product();
        if launch.kernel.max_threads.is_some() || launch.kernel.required_threads.is_some() {
            return 0;
        }
        threads.next_multiple_of(32) * estimated_registers(launch.kernel).next_multiple_of(REGISTER_UNIT)
    }

    /// Blocks of this launch that the card holds at once.
    pub fn resident_blocks(&self, launch: &Launch) -> u64 {
        let threads: u32 = launch.block.iter().product();
        let shared = shared_bytes(launch.kernel, launch.dynamic_shared);
        let blocks =
            occupancy(&self.card, threads, estimated_registers(launch.kernel), shared).blocks_per_multiprocessor;
        blocks.max(1) as u64 * self.card.multiprocessors as u64
    }
}

//! How many blocks of a kernel a multiprocessor holds at once, from what ptxas gave it.
//!
//! Threads, blocks, registers (given to warps in units of 256, a quarter of the file to each scheduler's warps) and shared
//! memory (in units of 128 bytes) each set a limit. (CUDA C++ Programming Guide, "Multiprocessor Level"; the CUDA Occupancy
//! Calculator.)

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUdevice_attribute as Attribute;

use super::Multiprocessor;

/// Blocks and warps at once, and what allows no more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Occupancy {
    pub blocks: u32,
    pub percent: f64,
    pub limit: &'static str,
}

impl Multiprocessor {
    pub(super) fn of(context: &CudaContext) -> std::result::Result<Multiprocessor, cudarc::driver::DriverError> {
        let get = |attribute| context.attribute(attribute).map(|value| value as u32);
        Ok(Multiprocessor {
            threads: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            blocks: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            registers: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            shared: get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            shared_reserved: get(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
        })
    }

    /// Of blocks of `threads` threads with `registers` each, and `shared` bytes.
    pub fn occupancy(&self, threads: u32, registers: u32, shared: u32) -> Occupancy {
        let warps = threads.div_ceil(32).max(1);
        let warp_registers = (registers.max(1) * 32).next_multiple_of(256);
        let limits = [
            (self.threads / 32 / warps, "threads"),
            (self.blocks, "blocks"),
            (self.registers / 4 / warp_registers * 4 / warps, "registers"),
            (self.shared / (shared + self.shared_reserved).next_multiple_of(128).max(1), "shared memory"),
        ];
        let (blocks, limit) = limits.into_iter().min_by_key(|&(blocks, _)| blocks).unwrap_or((0, "nothing"));
        let percent = 100.0 * f64::from(blocks * warps) / f64::from((self.threads / 32).max(1));
        Occupancy { blocks, percent, limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_in_turn() {
        let ada =
            Multiprocessor { threads: 1536, blocks: 24, registers: 65_536, shared: 102_400, shared_reserved: 1024 };
        let case = |threads, registers, shared| {
            let found = ada.occupancy(threads, registers, shared);
            (found.blocks, found.limit)
        };
        assert_eq!(case(256, 32, 0), (6, "threads"));
        assert_eq!(case(32, 16, 0), (24, "blocks"));
        assert_eq!(case(128, 128, 0), (4, "registers"));
        assert_eq!(case(256, 255, 0), (1, "registers"));
        assert_eq!(case(128, 64, 48 << 10), (2, "shared memory"));
        assert_eq!(case(128, 64, 101_376), (1, "shared memory"));
        assert_eq!(ada.occupancy(512, 32, 1000).percent, 100.0);
    }
}

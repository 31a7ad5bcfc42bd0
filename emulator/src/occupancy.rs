//! Blocks that a multiprocessor holds at once, limited by threads, blocks, registers (given to warps in units of 256, a
//! quarter of the file to each scheduler's warps) and shared memory (in units of 128 bytes).
//! (CUDA C++ Programming Guide, "Multiprocessor Level"; the CUDA Occupancy Calculator.)

use serde::Serialize;

use crate::card::Card;
use crate::program::Program;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Occupancy {
    pub blocks_per_multiprocessor: u32,
    pub warps_per_multiprocessor: u32,
    /// `warps_per_multiprocessor` in percent of the warps that a multiprocessor can hold.
    pub percent: f64,
    /// What allows no more: `threads`, `blocks`, `registers`, `shared memory`.
    pub limit: &'static str,
}

/// Registers a thread: what is live at once, within what the compiler may use. ptxas decides in the end.
pub fn estimated_registers(program: &Program) -> u32 {
    program.live_registers.min(program.max_registers.unwrap_or(255)).clamp(16, 255)
}

/// Static and dynamic shared memory of a block.
pub fn shared_bytes(program: &Program, dynamic: u32) -> u32 {
    match dynamic {
        0 => program.static_shared,
        dynamic => program.dynamic_shared.saturating_add(dynamic),
    }
}

/// How many blocks of so many threads, registers a thread and bytes of shared memory fit a multiprocessor.
pub fn occupancy(card: &Card, threads: u32, registers: u32, shared: u32) -> Occupancy {
    let warps = threads.div_ceil(32).max(1);
    let warp_registers = (registers.max(1) * 32).next_multiple_of(256);
    let warps_by_registers = card.registers_per_multiprocessor / 4 / warp_registers * 4;
    let block_shared = (shared + card.shared_reserved_per_block).next_multiple_of(128);
    let (blocks, limit) = [
        (card.threads_per_multiprocessor / 32 / warps, "threads"),
        (card.blocks_per_multiprocessor, "blocks"),
        (warps_by_registers / warps, "registers"),
        (card.shared_per_multiprocessor / block_shared, "shared memory"),
    ]
    .into_iter()
    .min_by_key(|&(blocks, _)| blocks)
    .expect("there are limits");
    let resident = blocks * warps;
    let percent = 100.0 * resident as f64 / (card.threads_per_multiprocessor / 32) as f64;
    Occupancy { blocks_per_multiprocessor: blocks, warps_per_multiprocessor: resident, percent, limit }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card::named("rtx4090").unwrap()
    }

    #[test]
    fn occupancy_names_what_limits_it() {
        let case = |threads, registers, shared| {
            let found = occupancy(&card(), threads, registers, shared);
            (found.blocks_per_multiprocessor, found.limit)
        };
        assert_eq!(case(256, 32, 0), (6, "threads"));
        assert_eq!(case(32, 16, 0), (24, "blocks"));
        assert_eq!(case(128, 128, 0), (4, "registers"));
        assert_eq!(case(256, 255, 0), (1, "registers"), "8 warps of 8192 registers");
        assert_eq!(case(128, 64, 48 << 10), (2, "shared memory"));
        assert_eq!(case(128, 64, 101_376), (1, "shared memory"), "the opt-in limit fits once");
        assert_eq!(case(1024, 128, 0), (0, "registers"));
        let full = occupancy(&card(), 512, 32, 1000);
        assert_eq!((full.warps_per_multiprocessor, full.percent), (48, 100.0));
    }
}

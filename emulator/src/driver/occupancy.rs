//! How many blocks of a kernel a multiprocessor holds (CUDA C++ Programming Guide, "Multiprocessor Level", "Compute Capabilities").
//!
//! `counters::roofline` has the rule; this asks it what the driver's occupancy functions are asked.

use crate::card::Card;
use crate::occupancy::{self, estimated_registers};
use crate::program::{LANES, Program};

/// Shared memory is given to a block in steps of this many bytes.
const SHARED_STEP: u32 = 128;

/// The most threads a block of the kernel may have.
pub fn threads_per_block(card: &Card, program: &Program) -> u32 {
    let by_registers = card.registers_per_block / estimated_registers(program) / LANES as u32 * LANES as u32;
    let declared =
        program.max_threads.or(program.required_threads).map(|[x, y, z]| x.saturating_mul(y).saturating_mul(z));
    card.threads_per_block.min(by_registers).min(declared.unwrap_or(u32::MAX))
}

/// Blocks of `threads` threads that one multiprocessor holds at once.
pub fn blocks_per_multiprocessor(card: &Card, program: &Program, threads: u32, dynamic_shared: u64) -> u32 {
    let before = if dynamic_shared == 0 { program.static_shared } else { program.dynamic_shared };
    let shared = dynamic_shared.saturating_add(u64::from(before));
    if threads == 0 || threads > card.threads_per_block || shared > u64::from(card.shared_per_block_optin) {
        return 0;
    }
    occupancy::occupancy(card, threads, estimated_registers(program), shared as u32).blocks_per_multiprocessor
}

/// The block size that fills a multiprocessor best, and the blocks that fill the card; larger blocks win ties.
pub fn best_block(card: &Card, program: &Program, limit: u32, shared_of: impl Fn(u32) -> u64) -> (u32, u32) {
    let most = threads_per_block(card, program).min(if limit == 0 { u32::MAX } else { limit });
    let step = LANES as u32;
    let sizes = (1..=most.div_ceil(step)).map(|warps| (warps * step).min(most));
    let best = sizes.map(|size| (size, blocks_per_multiprocessor(card, program, size, shared_of(size))));
    let (size, blocks) = best.max_by_key(|&(size, blocks)| (size * blocks, size)).unwrap_or((0, 0));
    (size, blocks * card.multiprocessors)
}

/// The dynamic shared memory that leaves room for `blocks` blocks on a multiprocessor.
pub fn available_dynamic_shared(card: &Card, program: &Program, blocks: u32) -> u64 {
    let each = card.shared_per_multiprocessor / blocks.max(1) / SHARED_STEP * SHARED_STEP;
    let usable = each.saturating_sub(card.shared_reserved_per_block).min(card.shared_per_block_optin);
    u64::from(usable.saturating_sub(program.static_shared.max(program.dynamic_shared)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(registers: u32, static_shared: u32) -> (Card, Program) {
        let program =
            Program { live_registers: registers, static_shared, dynamic_shared: static_shared, ..Program::default() };
        (Card::named("rtx4090").unwrap(), program)
    }

    #[test]
    fn each_limit_binds() {
        let of = |registers, shared, threads, dynamic| {
            let (card, program) = setup(registers, shared);
            blocks_per_multiprocessor(&card, &program, threads, dynamic)
        };
        assert_eq!(of(16, 0, 256, 0), 6, "1536 threads");
        assert_eq!(of(16, 0, 32, 0), 24, "24 blocks");
        assert_eq!(of(16, 48 * 1024, 128, 0), 2, "100 KiB of shared memory, 1 KiB of each block reserved");
        assert_eq!(of(16, 0, 128, 101_376), 1);
        assert_eq!(of(16, 0, 128, 101_377), 0);
        assert_eq!(of(128, 0, 256, 0), 2, "65536 registers");
        assert_eq!(of(255, 0, 512, 0), 0, "131072 registers a block");
        assert_eq!(of(16, 0, 0, 0), 0);
        assert_eq!(of(16, 0, 1025, 0), 0);
    }

    #[test]
    fn the_best_block_fills_the_multiprocessor() {
        let (card, program) = setup(16, 0);
        let (size, blocks) = best_block(&card, &program, 0, |_| 0);
        assert_eq!((size, blocks), (768, 2 * 128));
        assert_eq!(best_block(&card, &program, 100, |_| 0).0, 96);
    }

    #[test]
    fn available_shared_leaves_room() {
        let (card, program) = setup(16, 1000);
        for blocks in [1, 2, 5] {
            let bytes = available_dynamic_shared(&card, &program, blocks);
            assert!(blocks_per_multiprocessor(&card, &program, 64, bytes) >= blocks);
        }
    }
}

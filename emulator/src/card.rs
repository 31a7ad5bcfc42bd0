//! The cards that can be emulated: their limits and peak rates.
//!
//! Sources. Limits: CUDA C++ Programming Guide, "Compute Capabilities", tables "Technical Specifications per Compute
//! Capability" (8.9 and 9.0); the 1 KiB that the system keeps of each block's shared memory: Ada and Hopper Tuning
//! Guides, "Unified Shared Memory/L1/Texture Cache". Results a clock of the special-function units, and the ratio of f64
//! to f32: the guide's "Throughput of Native Arithmetic Instructions". Rates of a card: named at its constant. Dense rates; the
//! vendor's figures "with sparsity" are twice these.

/// A card's limits and peak rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Card {
    /// The name that chooses it: `rtx4090`.
    pub key: &'static str,
    /// What the device reports; holds "emulated".
    pub name: &'static str,
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
    /// The boost clock.
    pub clock_khz: u32,
    pub memory_clock_khz: u32,
    pub memory_bus_bits: u32,
    pub memory_bytes: u64,
    pub l2_bytes: u32,
    pub threads_per_multiprocessor: u32,
    pub blocks_per_multiprocessor: u32,
    pub registers_per_multiprocessor: u32,
    pub registers_per_block: u32,
    pub shared_per_multiprocessor: u32,
    /// Static and dynamic together, without the opt-in.
    pub shared_per_block: u32,
    pub shared_per_block_optin: u32,
    /// Bytes of shared memory that the system keeps of each block.
    pub shared_reserved_per_block: u32,
    pub threads_per_block: u32,
    pub block_limit: [u32; 3],
    pub grid_limit: [u32; 3],
    /// TFLOP/s of the tensor cores: bf16 and f16 with f32 accumulators, f16 with f16 accumulators, tf32, f64; and their
    /// TOP/s with 8-bit integers.
    pub tensor_tflops: f64,
    pub tensor_f16_tflops: f64,
    pub tf32_tflops: f64,
    pub tensor_f64_tflops: f64,
    pub int8_tops: f64,
    /// TFLOP/s of the CUDA cores.
    pub f32_tflops: f64,
    pub f64_tflops: f64,
    /// Lanes a clock and multiprocessor of `rsqrt`, `ex2`, `lg2`, `sin`, …
    pub special_functions_per_clock: u32,
    pub memory_gb_per_s: f64,
}

/// NVIDIA Ada GPU Architecture white paper, appendix A, column "GeForce RTX 4090": 128 multiprocessors, boost 2520 MHz,
/// 24 GB GDDR6X at 21 Gbit/s and 384 bits (1008 GB/s), L2 73,728 KB, 82.6 TFLOP/s f32, 165.2 bf16 and f16 with f32
/// accumulators (half the rate of f16 accumulators, 330.3), 82.6 tf32, 660.6 TOP/s int8. It has no f64 tensor cores: `mma` of
/// f64 runs at the f64 rate, 1/64 of f32. Memory is 24 GiB; a driver reports a little less.
const RTX_4090: Card = Card {
    key: "rtx4090",
    name: "NVIDIA GeForce RTX 4090 (emulated)",
    compute_capability: (8, 9),
    multiprocessors: 128,
    clock_khz: 2_520_000,
    memory_clock_khz: 10_501_000,
    memory_bus_bits: 384,
    memory_bytes: 24 << 30,
    l2_bytes: 72 << 20,
    threads_per_multiprocessor: 1536,
    blocks_per_multiprocessor: 24,
    registers_per_multiprocessor: 65_536,
    registers_per_block: 65_536,
    shared_per_multiprocessor: 102_400,
    shared_per_block: 49_152,
    shared_per_block_optin: 101_376,
    shared_reserved_per_block: 1024,
    threads_per_block: 1024,
    block_limit: [1024, 1024, 64],
    grid_limit: [2_147_483_647, 65_535, 65_535],
    tensor_tflops: 165.2,
    tensor_f16_tflops: 330.3,
    tf32_tflops: 82.6,
    tensor_f64_tflops: 1.29,
    int8_tops: 660.6,
    f32_tflops: 82.6,
    f64_tflops: 1.29,
    special_functions_per_clock: 16,
    memory_gb_per_s: 1008.0,
};

/// NVIDIA H200 data sheet, column "H200 SXM": 141 GB at 4.8 TB/s, 34 TFLOP/s f64, 67 f64 tensor, 67 f32, 989 tf32, 1979
/// bf16 and f16, 3958 TOP/s int8, the last four with sparsity. NVIDIA H100 GPU Architecture white paper (the same chip):
/// 132 multiprocessors, L2 50 MB. Memory: 143,771 MiB, the memory clock and the highest clock, 1980 MHz, as `nvidia-smi`
/// shows them.
const H200: Card = Card {
    key: "h200",
    name: "NVIDIA H200 (emulated)",
    compute_capability: (9, 0),
    multiprocessors: 132,
    clock_khz: 1_980_000,
    memory_clock_khz: 3_201_000,
    memory_bus_bits: 6144,
    memory_bytes: 143_771 << 20,
    l2_bytes: 50 << 20,
    threads_per_multiprocessor: 2048,
    blocks_per_multiprocessor: 32,
    registers_per_multiprocessor: 65_536,
    registers_per_block: 65_536,
    shared_per_multiprocessor: 233_472,
    shared_per_block: 49_152,
    shared_per_block_optin: 232_448,
    shared_reserved_per_block: 1024,
    threads_per_block: 1024,
    block_limit: [1024, 1024, 64],
    grid_limit: [2_147_483_647, 65_535, 65_535],
    tensor_tflops: 989.5,
    tensor_f16_tflops: 989.5,
    tf32_tflops: 494.7,
    tensor_f64_tflops: 66.9,
    int8_tops: 1979.0,
    f32_tflops: 66.9,
    f64_tflops: 33.5,
    special_functions_per_clock: 16,
    memory_gb_per_s: 4800.0,
};

pub const CARDS: [&Card; 2] = [&RTX_4090, &H200];

impl Card {
    /// The card of a name, or the names that exist.
    pub fn named(key: &str) -> Result<Card, String> {
        CARDS.iter().find(|card| card.key == key).map(|&card| card.clone()).ok_or_else(|| {
            let known: Vec<_> = CARDS.iter().map(|card| card.key).collect();
            format!("card {key:?} is not known: expected one of {}", known.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_by_name() {
        assert_eq!(Card::named("h200").unwrap().compute_capability, (9, 0));
        let error = Card::named("rtx3090").unwrap_err();
        assert!(error.contains("rtx3090") && error.contains("rtx4090, h200"), "{error}");
    }

    /// Figures that follow from others agree with them.
    #[test]
    fn figures_agree_with_each_other() {
        for card in CARDS {
            let close = |found: f64, expected: f64, percent: f64| {
                assert!((found / expected - 1.0).abs() < percent / 100.0, "{}: {found} and {expected}", card.key);
            };
            let lanes_per_second = card.multiprocessors as f64 * card.clock_khz as f64 * 1e3;
            close(card.f32_tflops, lanes_per_second * 128.0 * 2.0 / 1e12, 1.0);
            let bytes_per_second = 2.0 * card.memory_clock_khz as f64 * 1e3 * card.memory_bus_bits as f64 / 8.0;
            close(card.memory_gb_per_s, bytes_per_second / 1e9, 3.0);
            assert!(card.name.contains("emulated"));
            assert_eq!(card.shared_per_block_optin, card.shared_per_multiprocessor - card.shared_reserved_per_block);
        }
    }
}

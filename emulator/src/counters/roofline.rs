//! The least time that a card needs for a launch, and which of its units it waits for.
//!
//! Time ≥ work / rate for each unit on its own; the largest of these bounds is the roofline's. Rates are those of the
//! multiprocessors that have a block. Latencies, caches' bandwidths and overlap are not modelled, so a card takes longer.
//! Global memory counts each byte of the touched ranges once (a perfect L2 cache), and never more than the sectors moved.
//! (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", 2009.)

use serde::Serialize;

use super::Derived;
use crate::card::Card;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Roofline {
    /// Microseconds of one launch: the largest of the limits.
    pub microseconds: f64,
    /// Its name.
    pub bound: &'static str,
    /// Every unit that has work, slowest first.
    pub limits: Vec<Limit>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    pub unit: &'static str,
    pub microseconds: f64,
}

/// The bounds of `launches` launches of `blocks` blocks each; `derived` and `memory_bytes` are sums over them.
pub fn roofline(card: &Card, derived: &Derived, memory_bytes: u64, blocks: u64, launches: u64) -> Roofline {
    let busy = blocks.clamp(1, card.multiprocessors as u64) as f64;
    let part = busy / card.multiprocessors as f64;
    let clocks = busy * card.clock_khz as f64 * 1e3;
    let peaks = [card.tensor_tflops, card.tensor_f16_tflops, card.tf32_tflops, card.int8_tops, card.tensor_f64_tflops];
    let tensor: f64 = derived.tensor_flops.iter().zip(peaks).map(|(&flops, peak)| flops as f64 / peak).sum();
    let memory_bytes = memory_bytes.min(32 * derived.traffic.sectors);
    let seconds = [
        ("tensor cores", tensor / (part * 1e12)),
        // A packed pair of halves takes the place of one f32, and both run in the same units.
        (
            "f32 units",
            (derived.float32_flops as f64 + derived.half_flops as f64 / 2.0) / (part * card.f32_tflops * 1e12),
        ),
        ("f64 units", derived.float64_flops as f64 / (part * card.f64_tflops * 1e12)),
        ("special functions", derived.special_functions as f64 / (clocks * card.special_functions_per_clock as f64)),
        // Four schedulers issue one warp instruction a clock each; shared memory serves one wavefront.
        ("instruction issue", derived.instructions as f64 / (clocks * 4.0)),
        ("shared memory", derived.traffic.wavefronts as f64 / clocks),
        ("global memory", memory_bytes as f64 / (card.memory_gb_per_s * 1e9)),
    ];
    let mut limits: Vec<Limit> = seconds
        .into_iter()
        .filter(|&(_, seconds)| seconds > 0.0)
        .map(|(unit, seconds)| Limit { unit, microseconds: seconds * 1e6 / launches.max(1) as f64 })
        .collect();
    limits.sort_by(|a, b| b.microseconds.total_cmp(&a.microseconds));
    let (bound, microseconds) = limits.first().map_or(("nothing", 0.0), |limit| (limit.unit, limit.microseconds));
    Roofline { microseconds, bound, limits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Traffic;

    fn card() -> Card {
        Card::named("rtx4090").unwrap()
    }

    #[test]
    fn the_slowest_unit_binds() {
        let flops = 165_200_000_000u64;
        let mut derived = Derived { tensor_flops: [flops, 0, 0, 0, 0], instructions: 1, ..Derived::default() };
        let found = roofline(&card(), &derived, 0, 1 << 20, 1);
        assert_eq!(found.bound, "tensor cores");
        assert!((found.microseconds - 1000.0).abs() < 1e-6, "{found:?}");
        derived.traffic = Traffic { sectors: 1 << 40, ..Traffic::default() };
        let found = roofline(&card(), &derived, 2_016_000_000, 1 << 20, 2);
        assert_eq!(found.bound, "global memory");
        assert!((found.microseconds - 1000.0).abs() < 1e-6, "per launch: {found:?}");
        assert_eq!(found.limits.len(), 3);
        derived.traffic.sectors = 1000;
        let few = roofline(&card(), &derived, u64::MAX, 1 << 20, 1);
        assert!(few.limits.iter().all(|l| l.unit != "global memory" || l.microseconds < 0.04), "bytes moved: {few:?}");
    }

    #[test]
    fn one_block_has_one_multiprocessor() {
        let derived = Derived { tensor_flops: [165_200_000_000 / 128, 0, 0, 0, 0], ..Derived::default() };
        assert!((roofline(&card(), &derived, 0, 1, 1).microseconds - 1000.0).abs() < 1e-6);
        assert!((roofline(&card(), &derived, 0, 64, 1).microseconds - 1000.0 / 64.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_to_do_takes_no_time() {
        let found = roofline(&card(), &Derived::default(), 0, 1, 1);
        assert_eq!((found.microseconds, found.bound), (0.0, "nothing"));
    }
}

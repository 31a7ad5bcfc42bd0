//! What a launch did, counted: by instruction of the program, so that every figure can be traced to a source line.
//!
//! `memory` counts sectors and wavefronts, `classify` says what an instruction is, `derived` adds up, `roofline` turns
//! sums into the least time a card needs, `report` keeps the launches of a process, `text` prints them.

mod classify;
mod derived;
mod memory;
pub mod report;
pub mod roofline;
mod text;

pub use classify::{InstructionClass, TensorRate, classify, tensor_work};
pub use derived::{Derived, Listing, Share};
pub use memory::{global_sectors, matrix_wavefronts, shared_wavefronts};

/// The counts of one launch, or of several added up. Every vector is indexed by program counter.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    /// Warp instructions, also those whose guard is false in every lane.
    pub executed: Vec<u64>,
    /// Lanes that took part in them.
    pub lanes: Vec<u64>,
    /// Executions of a branch that sent the lanes two ways.
    pub diverged: Vec<u64>,
    pub traffic: Vec<Traffic>,
    /// Arrivals of warps at barriers.
    pub barriers: u64,
}

/// What an instruction moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// 32-byte sectors of global memory, and the fewest that hold the bytes asked for.
    pub sectors: u64,
    pub sectors_ideal: u64,
    /// Bytes of global memory that lanes asked for.
    pub bytes: u64,
    /// Passes over the banks of shared memory, and the fewest that the accesses need.
    pub wavefronts: u64,
    pub wavefronts_ideal: u64,
    /// Lanes' atomic operations.
    pub atomics: u64,
}

impl Counters {
    /// Zeros for a program of so many instructions.
    pub fn new(instructions: usize) -> Counters {
        Counters {
            executed: vec![0; instructions],
            lanes: vec![0; instructions],
            diverged: vec![0; instructions],
            traffic: vec![Traffic::default(); instructions],
            barriers: 0,
        }
    }

    #[inline(always)]
    pub fn count_global(&mut self, pc: u32, sectors: u64, ideal: u64, bytes: u64) {
        let traffic = &mut self.traffic[pc as usize];
        traffic.sectors += sectors;
        traffic.sectors_ideal += ideal;
        traffic.bytes += bytes;
    }

    #[inline(always)]
    pub fn count_shared(&mut self, pc: u32, wavefronts: u64, ideal: u64) {
        let traffic = &mut self.traffic[pc as usize];
        traffic.wavefronts += wavefronts;
        traffic.wavefronts_ideal += ideal;
    }

    #[inline(always)]
    pub fn count_atomic(&mut self, pc: u32, lanes: u64) {
        self.traffic[pc as usize].atomics += lanes;
    }

    /// Adds the counts of another run of the same program.
    pub fn add(&mut self, other: &Counters) {
        let add = |sums: &mut Vec<u64>, terms: &[u64]| {
            sums.resize(sums.len().max(terms.len()), 0);
            sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        };
        add(&mut self.executed, &other.executed);
        add(&mut self.lanes, &other.lanes);
        add(&mut self.diverged, &other.diverged);
        self.traffic.resize(self.traffic.len().max(other.traffic.len()), Traffic::default());
        self.traffic.iter_mut().zip(&other.traffic).for_each(|(sum, term)| sum.add(term));
        self.barriers += other.barriers;
    }
}

impl Traffic {
    pub fn add(&mut self, other: &Traffic) {
        self.sectors += other.sectors;
        self.sectors_ideal += other.sectors_ideal;
        self.bytes += other.bytes;
        self.wavefronts += other.wavefronts;
        self.wavefronts_ideal += other.wavefronts_ideal;
        self.atomics += other.atomics;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_two_runs_add_up() {
        let mut a = Counters::new(2);
        a.executed[1] = 3;
        a.count_global(1, 4, 2, 64);
        a.count_shared(0, 8, 1);
        a.barriers = 1;
        let mut sum = Counters::default();
        sum.add(&a);
        sum.add(&a);
        assert_eq!((sum.executed[1], sum.barriers), (6, 2));
        assert_eq!(sum.traffic[1], Traffic { sectors: 8, sectors_ideal: 4, bytes: 128, ..Traffic::default() });
        assert_eq!((sum.traffic[0].wavefronts, sum.traffic[0].wavefronts_ideal), (16, 2));
    }
}

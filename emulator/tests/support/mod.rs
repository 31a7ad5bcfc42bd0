//! What the tests of whole kernels share: nvcc, a device to run on, and the kernels' cases.
// Each test file uses a part of it.
#![allow(dead_code)]

pub mod attention_cases;
pub mod cases;
pub mod counting;
pub mod gpu;
pub mod matmul_cases;
pub mod mutate;
pub mod nvcc;
pub mod snippet;
pub mod training_cases;

/// Repeatable numbers (SplitMix64; Steele, Lea, Flood 2014).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Uniform in −1..1.
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn uniforms(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.uniform()).collect()
    }

    pub fn bf16s(&mut self, n: usize) -> Vec<half::bf16> {
        (0..n).map(|_| half::bf16::from_f32(self.uniform())).collect()
    }
}

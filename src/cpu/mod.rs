//! What makes the CPU fast: the tuned f32 matrix product and tiled attention, checked against the plain versions in
//! [`ops`](crate::ops); threads and vector registers for the row loops that stand there; how much memory is left.

pub mod attention;
pub mod gemm;
pub mod memory;
pub mod parallel;
pub mod reduce;
pub mod simd;

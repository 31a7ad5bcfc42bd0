//! Tuned CPU kernels, all in f32: matrix multiplication, tiled attention, and row functions built on vector exponentials.
//! The plain versions that they are checked against stand in [`ops`](crate::ops).

pub mod attention;
pub mod gemm;
pub mod parallel;
pub mod reduce;
pub mod simd;

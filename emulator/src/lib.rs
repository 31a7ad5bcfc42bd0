//! A drop-in CUDA driver that runs nvcc's PTX on a CPU and checks it.
pub mod alu;
pub mod card;
pub mod counters;
pub mod device;
pub mod driver;
pub mod fatbin;
pub mod fault;
pub mod lower;
pub mod numerics;
pub mod program;
pub mod ptx;
pub mod warp_ops;
pub mod exec;
pub mod limits;
pub mod memory;
pub mod printf;
pub mod rng;

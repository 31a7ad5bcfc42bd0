//! A drop-in CUDA driver that runs nvcc's PTX on a CPU and checks it.
//!
//! Read it in the order of the data:
//!
//! | module | turns | into |
//! |---|---|---|
//! | [`fatbin`] | what nvcc embeds in a program | PTX text |
//! | [`ptx`] | PTX text | [`ptx::ast::Module`]: names and opcodes, as written |
//! | [`lower`] | a module | [`program::Program`]s: flat code over few registers |
//! | [`alu`], [`warp_ops`], [`numerics`] | one instruction | its effect on 32 lanes |
//! | [`exec`] | a launch | results, findings, counters: grid → block → warp → instruction |
//! | [`memory`] | accesses | data, and the records behind the checks |
//! | [`counters`] | counts | sectors, wavefronts, FLOPs, roofline, the report |
//! | [`device`] | all of these | a device that a Rust program can use |
//! | [`driver`] | a device | the C interface of `libcuda.so.1` |
//!
//! `docs/emulator.md` says how the checks work and what they can't promise.

pub mod alu;
pub mod card;
pub mod counters;
pub mod device;
pub mod driver;
pub mod exec;
pub mod fatbin;
pub mod fault;
pub mod limits;
pub mod lower;
pub mod memory;
pub mod numerics;
pub mod occupancy;
pub mod printf;
pub mod program;
pub mod ptx;
pub mod rng;
pub mod warp_ops;

//! The CUDA backend on cudarc: what drives a card drives the emulator as well.
//!
//! - [`Gpu`], a device with its stream, memory pool and loaded kernels, and [`Memory`], what it allocates;
//! - [`grid`]: blocks, threads and variants of the kernels that work on rows and elements;
//! - [`gemm`] and [`attention`]: the tilings of the two big operators;
//! - with the feature `cuda`, `modules` (the kernels that `build.rs` compiled, and what ptxas said of them), `occupancy`
//!   (how many blocks a multiprocessor holds) and `emulator` (puts the emulator in the driver's place).
//!
//! Nothing of CUDA is linked: the driver is looked for when a [`Gpu`] is opened. Without the feature `cuda` a [`Gpu`]
//! cannot exist: the type has no value, so no operator needs to know which build it is part of.
//!
//! How a kernel is launched with tensors stands in [`launch`](crate::launch).

#[cfg(not(feature = "cuda"))]
mod absent;
pub mod attention;
#[cfg(feature = "cuda")]
mod card;
#[cfg(feature = "cuda")]
pub mod emulator;
pub mod error;
pub mod gemm;
pub mod grid;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
pub mod modules;
#[cfg(feature = "cuda")]
pub mod occupancy;

#[cfg(not(feature = "cuda"))]
pub use absent::{Gpu, Memory};
#[cfg(feature = "cuda")]
pub use card::{Gpu, KERNELS_VARIABLE, too_old};
pub use error::LaunchError;
pub use grid::Grid;
#[cfg(feature = "cuda")]
pub use memory::Memory;

pub type Result<T> = std::result::Result<T, LaunchError>;

/// What a card allows.
#[derive(Clone, Debug)]
pub struct Limits {
    pub multiprocessors: u32,
    /// Bytes of shared memory that a block gets unasked.
    pub shared_memory: usize,
    /// Bytes of shared memory that a block gets if the kernel opts in.
    pub shared_memory_optin: usize,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Compute capability × 10.
    pub capability: u32,
    pub multiprocessor: Multiprocessor,
}

/// What a multiprocessor has.
#[derive(Clone, Debug)]
pub struct Multiprocessor {
    pub threads: u32,
    pub blocks: u32,
    pub registers: u32,
    /// Bytes.
    pub shared: u32,
    /// Bytes of shared memory that the system keeps of each block.
    pub shared_reserved: u32,
}

/// The kind of a kernel's parameter, as the compiled PTX has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// 64 bits that become a global address.
    Pointer,
    /// Any other 64 bits: a number, or a pointer that only inline assembly uses.
    Bits64,
    Bits32,
    F32,
}

/// A compiled kernel: its name in the PTX, and its parameters.
#[derive(Debug)]
pub struct Entry {
    pub name: &'static str,
    pub params: &'static [Param],
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Bits64(u64),
    Bits32(u32),
    F32(f32),
}

/// Bytes that the device's memory pool holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// In use now.
    pub used: usize,
    /// The most that was in use at once.
    pub used_high: usize,
    /// Taken from the driver, in use or kept for the next allocation.
    pub reserved: usize,
}

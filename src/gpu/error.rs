//! What keeps a kernel from being launched, found before the launch; and what the driver says.

use std::error::Error;
use std::fmt;

/// A launch that was refused, or that failed. Arguments are counted from 0.
#[derive(Debug, Clone, PartialEq)]
pub enum LaunchError {
    /// A tensor without elements where the kernel would read or write.
    Null { kernel: String, argument: usize },
    /// An address that is not a multiple of `expected` bytes.
    Misaligned { kernel: String, argument: usize, address: u64, expected: u64 },
    /// A tensor on another device than the kernel.
    Device { kernel: String, argument: usize, found: String, expected: String },
    /// An output whose storage another tensor uses too.
    Shared { kernel: String, argument: usize },
    /// A shape whose bytes are beyond what a device can address.
    Overflow { shape: Vec<usize> },
    /// A head dimension that no kernel was compiled for.
    HeadDim { kernel: &'static str, found: usize, expected: Vec<usize> },
    /// A number that the kernel's parameter cannot hold, or any other that it does not take.
    Range { kernel: String, what: String, found: String, expected: String },
    /// More shared memory than a block of this card may have, in bytes.
    SharedMemory { kernel: String, requested: usize, limit: usize },
    /// More threads in a block than the compiled kernel allows.
    Threads { kernel: String, requested: u32, limit: u32 },
    /// A grid longer than the card takes, along axis x, y or z.
    Grid { kernel: String, axis: char, requested: usize, limit: u32 },
    /// Arguments that are not those of the kernel.
    Arguments { kernel: String, found: String, expected: String },
    /// No kernel of this name was compiled.
    Unknown { kernel: String },
    /// An allocation, in bytes, that did not fit; `free` of `total` bytes were left.
    OutOfMemory { requested: usize, free: usize, total: usize },
    /// What the driver answered to `call`.
    Driver { call: String, message: String },
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        use LaunchError::*;
        match self {
            Null { kernel, argument } => {
                write!(f, "{kernel}: argument {argument}: found a tensor without elements, expected at least one")
            }
            Misaligned { kernel, argument, address, expected } => write!(
                f,
                "{kernel}: argument {argument}: found address {address:#x}, expected a multiple of {expected} bytes"
            ),
            Device { kernel, argument, found, expected } => {
                write!(f, "{kernel}: argument {argument}: found a tensor on {found}, expected one on {expected}")
            }
            Shared { kernel, argument } => {
                write!(
                    f,
                    "{kernel}: argument {argument}: found an output that another tensor shares, expected its own storage"
                )
            }
            Overflow { shape } => write!(f, "found shape {shape:?}, expected one whose bytes fit in 63 bits"),
            HeadDim { kernel, found, expected } => {
                write!(f, "{kernel}: found head_dim {found}, expected one of {expected:?}")
            }
            Range { kernel, what, found, expected } => {
                write!(f, "{kernel}: {what}: found {found}, expected {expected}")
            }
            SharedMemory { kernel, requested, limit } => write!(
                f,
                "{kernel}: found a request of {requested} bytes of shared memory for a block, expected at most this card's {limit}"
            ),
            Threads { kernel, requested, limit } => {
                write!(f, "{kernel}: found a block of {requested} threads, expected 1 to {limit}")
            }
            Grid { kernel, axis, requested, limit } => {
                write!(f, "{kernel}: found a grid of {requested} blocks along {axis}, expected 1 to {limit}")
            }
            Arguments { kernel, found, expected } => {
                write!(f, "{kernel}: found arguments ({found}), expected ({expected})")
            }
            Unknown { kernel } => write!(f, "{kernel}: found no compiled kernel of this name"),
            OutOfMemory { requested, free, total } => write!(
                f,
                "out of device memory: found {free} of {total} bytes free, expected at least {requested}: lower the batch size or the sequence length"
            ),
            Driver { call, message } => write!(f, "{call}: {message}"),
        }
    }
}

impl Error for LaunchError {}

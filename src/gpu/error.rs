//! What keeps a kernel from being launched, found before the launch; and what the driver says.

use std::error::Error;
use std::fmt;

use cudarc::driver::DriverError;

/// A launch that was refused, or that failed. `kernel` is the operation as its launch function calls it.
#[derive(Debug, Clone, PartialEq)]
pub enum LaunchError {
    /// An operand has no memory although elements are expected.
    Null { kernel: &'static str, operand: &'static str, expected: usize },
    /// An operand has fewer elements than the shapes say.
    TooSmall { kernel: &'static str, operand: &'static str, found: usize, expected: usize },
    /// An address is not a multiple of `expected` bytes.
    Misaligned { kernel: &'static str, operand: &'static str, address: u64, expected: u64 },
    /// The product of a shape, in bytes, is beyond what a device can address.
    Overflow { kernel: &'static str, operand: &'static str, shape: Vec<usize> },
    /// A head dimension that no kernel was compiled for.
    HeadDim { kernel: &'static str, found: usize, expected: Vec<usize> },
    /// The query heads are not a multiple of the KV heads.
    Group { kernel: &'static str, n_head: usize, n_kv_head: usize },
    /// Any other number that a kernel does not take.
    Range { kernel: &'static str, what: &'static str, found: String, expected: String },
    /// More shared memory than a block of this card may have, in bytes.
    SharedMemory { kernel: String, requested: usize, limit: usize },
    /// More threads in a block than the compiled kernel allows.
    Threads { kernel: String, requested: u32, limit: u32 },
    /// A grid longer than the card takes, along axis x, y or z.
    Grid { kernel: String, axis: char, requested: u32, limit: u32 },
    /// Arguments that are not those of the kernel.
    Arguments { kernel: String, found: String, expected: String },
    /// No kernel of this name was compiled.
    Unknown { file: &'static str, kernel: String },
    /// An allocation, in bytes, that did not fit; `free` of `total` bytes were left.
    OutOfMemory { requested: usize, free: usize, total: usize },
    /// What the driver answered to `call`.
    Driver { call: String, message: String },
}

impl LaunchError {
    /// The driver's error, with its text: under the emulator that is the diagnosis.
    pub(super) fn driver(call: impl Into<String>) -> impl FnOnce(DriverError) -> LaunchError {
        move |error| LaunchError::Driver { call: call.into(), message: driver_message(error) }
    }
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered`
pub(super) fn driver_message(error: DriverError) -> String {
    let text = |found: Result<&std::ffi::CStr, DriverError>| found.map(|text| text.to_string_lossy().into_owned());
    let DriverError(code) = error;
    let name = text(error.error_name()).unwrap_or_else(|_| format!("{code:?}"));
    format!("{name}: {}", text(error.error_string()).unwrap_or_default())
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        use LaunchError::*;
        match self {
            Null { kernel, operand, expected } => {
                write!(f, "{kernel}: {operand}: found a null buffer, expected {expected} elements")
            }
            TooSmall { kernel, operand, found, expected } => {
                write!(f, "{kernel}: {operand}: found {found} elements, expected at least {expected}")
            }
            Misaligned { kernel, operand, address, expected } => {
                write!(f, "{kernel}: {operand}: found address {address:#x}, expected a multiple of {expected} bytes")
            }
            Overflow { kernel, operand, shape } => {
                write!(f, "{kernel}: {operand}: found shape {shape:?}, expected one whose bytes fit in 63 bits")
            }
            HeadDim { kernel, found, expected } => {
                write!(f, "{kernel}: found head_dim {found}, expected one of {expected:?}")
            }
            Group { kernel, n_head, n_kv_head } => {
                write!(f, "{kernel}: found {n_head} query heads and {n_kv_head} KV heads, expected a multiple")
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
            Unknown { file, kernel } => {
                write!(f, "{kernel}: found no such kernel, expected one of those in kernels/{file}.cu")
            }
            OutOfMemory { requested, free, total } => write!(
                f,
                "out of device memory: found {free} of {total} bytes free, expected at least {requested}: lower the batch size or the sequence length"
            ),
            Driver { call, message } => write!(f, "{call}: {message}"),
        }
    }
}

impl Error for LaunchError {}

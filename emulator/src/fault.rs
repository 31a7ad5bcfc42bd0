//! What went wrong, as a CUDA error code with a one-line diagnosis.

use std::fmt;

/// The `CUresult` values that the emulator returns (`cuda.h`, CUDA 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Code {
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    Deinitialized = 4,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    NoBinaryForGpu = 209,
    UnsupportedLimit = 215,
    InvalidPtx = 218,
    UnsupportedPtxVersion = 222,
    FileNotFound = 301,
    SharedObjectSymbolNotFound = 302,
    InvalidHandle = 400,
    IllegalState = 401,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    LaunchOutOfResources = 701,
    LaunchTimeout = 702,
    PrimaryContextActive = 708,
    ContextIsDestroyed = 709,
    Assert = 710,
    HostMemoryAlreadyRegistered = 712,
    HostMemoryNotRegistered = 713,
    IllegalInstruction = 715,
    MisalignedAddress = 716,
    LaunchFailed = 719,
    CooperativeLaunchTooLarge = 720,
    NotPermitted = 800,
    NotSupported = 801,
    Unknown = 999,
}

/// An error: its code for programs, its text for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub code: Code,
    /// One line: what was found, what was expected, where.
    pub message: String,
}

impl Fault {
    pub fn new(code: Code, message: impl Into<String>) -> Fault {
        Fault { code, message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

pub type Result<T> = std::result::Result<T, Fault>;

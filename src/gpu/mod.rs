//! The CUDA backend on cudarc: what drives a card drives the emulator as well.
//!
//! - [`context`]: [`Gpu`], a device with its stream, memory pool and loaded kernels;
//! - [`memory`]: [`Buffer`], owned device memory, and the views that launches take;
//! - [`modules`]: the kernels that `build.rs` compiled, and what ptxas said of them;
//! - [`launch`]: a [`Kernel`]'s parameter list, the checks of a launch's operands, the launch itself;
//! - [`occupancy`]: how many blocks a multiprocessor holds;
//! - [`kernels`]: one file per operator, the launches that the operators call;
//! - [`emulator`]: puts the emulator in the driver's place.
//!
//! Nothing of CUDA is linked: the driver is looked for when a [`Gpu`] is opened.

pub mod context;
pub mod emulator;
pub mod error;
pub mod kernels;
pub mod launch;
pub mod memory;
pub mod modules;
pub mod occupancy;

pub use context::{Gpu, Limits};
pub use error::LaunchError;
pub use launch::{Arg, Check, Config, Kernel, Param};
pub use memory::{Buffer, View, ViewMut};

use crate::dtype::Element;

pub type Result<T> = std::result::Result<T, LaunchError>;

/// A type that kernels compute with; `SUFFIX` stands in their names.
pub trait GpuFloat: Element {
    const SUFFIX: &'static str;
}

impl GpuFloat for f32 {
    const SUFFIX: &'static str = "f32";
}

impl GpuFloat for half::bf16 {
    const SUFFIX: &'static str = "bf16";
}

//! The launches, one file per operator with the name of its `kernels/FILE.cu`: which kernel variant, which grid, which
//! arguments, and the checks that keep bad input from the device.
//!
//! Each file lists its kernels in `KERNELS` and runs every one of them once, at a size that shows how it behaves, in `showcase`.

pub mod scale;

use super::{Gpu, Kernel, Result};

/// An operator's kernels.
pub struct Family {
    pub name: &'static str,
    pub kernels: &'static [&'static Kernel],
    pub showcase: fn(&Gpu) -> Result<()>,
}

/// Every file of this folder.
pub const FAMILIES: &[Family] = &[Family { name: "scale", kernels: scale::KERNELS, showcase: scale::showcase }];

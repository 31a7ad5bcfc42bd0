//! Where a tensor lies and where its operators run: in the host's memory, or on a card (an emulated one, too).

use crate::gpu::Gpu;
use crate::shown::shown;
use anyhow::{Result, bail};
use std::fmt;

/// A device. There is one engine: every operator knows both.
#[derive(Clone, Debug, PartialEq)]
pub enum Device {
    Cpu,
    Gpu(Gpu),
}

impl Device {
    /// Opens `cpu`, `cuda`, `cuda:N` or `emulator`.
    ///
    /// Errors: another name; no driver, no card, a driver too old, no kernels for the card; a build without CUDA.
    pub fn open(name: &str) -> Result<Device> {
        match (name, name.strip_prefix("cuda:").map(str::parse)) {
            ("cpu", _) => Ok(Device::Cpu),
            ("emulator", _) => Ok(Device::Gpu(Gpu::emulator()?)),
            ("cuda", _) => Ok(Device::Gpu(Gpu::open(0)?)),
            (_, Some(Ok(ordinal))) => Ok(Device::Gpu(Gpu::open(ordinal)?)),
            _ => bail!("device: found {}, expected cpu, cuda, cuda:N or emulator", shown(name)),
        }
    }

    /// The card; `None` is the CPU.
    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Device::Cpu => None,
            Device::Gpu(gpu) => Some(gpu),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Device::Cpu => "cpu",
            Device::Gpu(gpu) => gpu.name(),
        })
    }
}

//! Where a tensor lies and where its operators run: in the host's memory, or on a card (an emulated one, too).

use crate::cpu::memory::{self, Free};
use crate::gpu::Gpu;
use crate::shown::shown;
use anyhow::{Result, bail, ensure};
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

    /// What an allocation here can still get: on the CPU see [`memory::free`]; on a card, what the driver has free and what
    /// the pool keeps. `None` where that is unknown.
    pub fn free_memory(&self) -> Option<Free> {
        let Some(gpu) = self.gpu() else { return memory::free() };
        let ((free, total), pool) = (gpu.memory().ok()?, gpu.pool().ok()?);
        // The emulator's driver counts as free what the pool keeps.
        let free = free + pool.reserved.saturating_sub(pool.used);
        Some(Free { bytes: free.min(total - pool.used) as f64, limit: None })
    }

    /// Error: `needed` bytes are more than there are; `purpose` says what for, and what would need less. Where it is
    /// unknown how many there are, there is no error.
    pub fn check_memory(&self, needed: f64, purpose: &str) -> Result<()> {
        let Some(Free { bytes, limit }) = self.free_memory() else { return Ok(()) };
        let limit = limit.map(|limit| format!(" ({limit})")).unwrap_or_default();
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        ensure!(
            needed <= bytes,
            "memory: found {:.1} GiB free on {self}{limit}, expected about {:.1} GiB {purpose}",
            gib(bytes),
            gib(needed)
        );
        Ok(())
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

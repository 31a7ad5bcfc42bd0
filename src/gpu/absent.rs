//! The device of a build without the feature `cuda`: there is none, so its types have no values and nothing here runs.

use super::{Entry, Grid, Limits, PoolUse, Result, Value};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Never {}

/// A device that cannot be opened.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu(Never);

/// Memory that cannot be allocated.
#[derive(Debug)]
pub struct Memory(Never);

const MISSING: &str = "expected cpu: this build has no CUDA support; build it with --features cuda";

impl Gpu {
    /// Error: always.
    pub fn open(ordinal: usize) -> anyhow::Result<Gpu> {
        anyhow::bail!("device: found cuda:{ordinal}, {MISSING}")
    }

    /// Error: always.
    pub fn emulator() -> anyhow::Result<Gpu> {
        anyhow::bail!("device: found emulator, {MISSING}")
    }

    pub fn name(&self) -> &str {
        match self.0 {}
    }

    pub fn is_emulated(&self) -> bool {
        match self.0 {}
    }

    pub fn limits(&self) -> &Limits {
        match self.0 {}
    }

    pub fn entry(&self, _name: &str) -> Option<&'static Entry> {
        match self.0 {}
    }

    pub(crate) fn submit(&self, _entry: &'static Entry, _grid: &Grid, _values: &[Value]) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn alloc(&self, _bytes: usize) -> Result<Memory> {
        match self.0 {}
    }

    pub(crate) fn upload(&self, _data: &[u8]) -> Result<Memory> {
        match self.0 {}
    }

    pub fn synchronize(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn waits(&self) -> usize {
        match self.0 {}
    }

    pub fn memory(&self) -> Result<(usize, usize)> {
        match self.0 {}
    }

    pub fn pool(&self) -> Result<PoolUse> {
        match self.0 {}
    }

    pub fn emulator_report(&self) -> Option<serde_json::Value> {
        match self.0 {}
    }
}

impl Memory {
    pub fn gpu(&self) -> &Gpu {
        match self.0 {}
    }

    pub fn address(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn clear(&mut self) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn copy(&self, _range: Range<usize>) -> Result<Memory> {
        match self.0 {}
    }

    pub(crate) fn copy_to(&self, _from: usize, _to: &Memory, _at: usize, _bytes: usize) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn download(&self, _from: usize, _to: &mut [u8]) -> Result<()> {
        match self.0 {}
    }
}

//! Device memory from the stream-ordered pool.
//!
//! It is freed on its stream, so after the work that was submitted before: it may be dropped right after a launch that uses
//! it. The pool rounds addresses up to 256 bytes, so every allocation is aligned for every kernel.

use super::card::{driver, driver_error};
use super::{Gpu, LaunchError, Result};
use cudarc::driver::{CudaSlice, DevicePtr, result};
use std::fmt;
use std::ops::Range;

/// Owned device memory.
pub struct Memory {
    gpu: Gpu,
    /// None where there is no byte: then the address is 0.
    bytes: Option<CudaSlice<u8>>,
    address: u64,
}

impl Gpu {
    /// `bytes` bytes of unknown value. Error: out of memory, with what was asked for and what was free.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<Memory> {
        if bytes == 0 {
            return Ok(Memory { gpu: self.clone(), bytes: None, address: 0 });
        }
        // SAFETY: every bit pattern is a value of u8, and whoever reads the elements has to write them first.
        let slice = unsafe { self.stream().alloc::<u8>(bytes) }.map_err(|error| self.out_of_memory(bytes, error))?;
        let address = slice.device_ptr(self.stream()).0;
        Ok(Memory { gpu: self.clone(), bytes: Some(slice), address })
    }

    /// A copy of `data` on the device. It goes by a stream of its own, so that it does not stand behind the work that was
    /// submitted before, and what is submitted from now on waits for it: the next batch is copied while a step runs.
    pub(crate) fn upload(&self, data: &[u8]) -> Result<Memory> {
        if data.is_empty() {
            return self.alloc(0);
        }
        let copies = self.copies();
        self.bind("copy to the device")?;
        // SAFETY: the memory is written whole before anybody reads it; `stream` frees it, and waits for the copy first.
        let bytes = unsafe {
            let address = match copies.context().has_async_alloc() {
                true => result::malloc_async(copies.cu_stream(), data.len()),
                false => result::malloc_sync(data.len()),
            };
            let address = address.map_err(|error| self.out_of_memory(data.len(), error))?;
            self.stream().upgrade_device_ptr::<u8>(address, data.len())
        };
        let address = bytes.device_ptr(self.stream()).0;
        // SAFETY: the memory has the data's length; from memory that is not pinned, the driver takes `data` before it returns.
        unsafe { result::memcpy_htod_async(address, data, copies.cu_stream()) }
            .map_err(driver("copy to the device"))?;
        self.stream().join(copies).map_err(driver("copy to the device"))?;
        Ok(Memory { gpu: self.clone(), bytes: Some(bytes), address })
    }

    fn out_of_memory(&self, requested: usize, error: cudarc::driver::DriverError) -> LaunchError {
        use cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        if error.0 != CUDA_ERROR_OUT_OF_MEMORY {
            return driver_error("allocate", error);
        }
        let (free, total) = self.memory().unwrap_or_default();
        LaunchError::OutOfMemory { requested, free, total }
    }
}

impl Memory {
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    /// Sets all bytes to 0.
    pub(crate) fn clear(&mut self) -> Result<()> {
        match &mut self.bytes {
            Some(bytes) => self.gpu.stream().memset_zeros(bytes).map_err(driver("fill with zeros")),
            None => Ok(()),
        }
    }

    /// New memory that holds the bytes of `range`.
    pub(crate) fn copy(&self, range: Range<usize>) -> Result<Memory> {
        let memory = self.gpu.alloc(range.len())?;
        self.copy_to(range.start, &memory, 0, range.len())?;
        Ok(memory)
    }

    /// Copies `bytes` bytes from byte `from` on to byte `at` of `to`, which no part of the program may be reading.
    pub(crate) fn copy_to(&self, from: usize, to: &Memory, at: usize, bytes: usize) -> Result<()> {
        let fits = |memory: &Memory, start: usize| start + bytes <= memory.bytes.as_ref().map_or(0, CudaSlice::len);
        assert!(fits(self, from) && fits(to, at), "a copy within the memory of both");
        if bytes == 0 {
            return Ok(());
        }
        self.gpu.bind("copy on the device")?;
        let (from, at) = (self.address + from as u64, to.address + at as u64);
        // SAFETY: both ranges were checked, and what is freed is freed on this stream.
        unsafe { result::memcpy_dtod_async(at, from, bytes, self.gpu.stream().cu_stream()) }
            .map_err(driver("copy on the device"))
    }

    /// Copies the bytes from `from` on to the host, once all work submitted so far is done. Error: what went wrong in that
    /// work, or in the copy.
    pub(crate) fn download(&self, from: usize, to: &mut [u8]) -> Result<()> {
        let Some(bytes) = self.bytes.as_ref().filter(|_| !to.is_empty()) else { return Ok(()) };
        let view = bytes.slice(from..from + to.len());
        self.gpu.stream().memcpy_dtoh(&view, to).map_err(driver("copy to the host"))?;
        self.gpu.synchronize()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:#x} on {}", self.address, self.gpu.name())
    }
}

//! Device memory: owned buffers from the stream-ordered pool, and typed views of them.
//!
//! A buffer is freed on its stream, so after the work that was submitted before; it may be dropped right after a launch
//! that uses it.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};

use super::launch::Arg;
use super::{LaunchError, Result};
use crate::dtype::Element;

/// Owned device memory of `len` elements.
pub struct Buffer<E> {
    /// None where there is no element: then the address is 0.
    bytes: Option<CudaSlice<u8>>,
    stream: Arc<CudaStream>,
    address: u64,
    len: usize,
    element: PhantomData<E>,
}

/// Device memory that a launch reads: an address and a number of elements.
#[derive(Debug)]
pub struct View<'a, E> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a E>,
}

/// Device memory that a launch writes. What lies in it may be read as well.
#[derive(Debug)]
pub struct ViewMut<'a, E> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a mut E>,
}

// Derived, these would ask the same of E.
impl<E> Clone for View<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for View<'_, E> {}

impl<E: Element> Buffer<E> {
    /// `len` elements of unknown value. Error: out of memory, with what was asked for and what was free.
    pub(super) fn new(stream: &Arc<CudaStream>, len: usize) -> Result<Buffer<E>> {
        let overflow = || LaunchError::Overflow { kernel: "alloc", operand: "buffer", shape: vec![len] };
        let size = len.checked_mul(size_of::<E>()).filter(|&size| size <= i64::MAX as usize).ok_or_else(overflow)?;
        if len == 0 {
            return Ok(Buffer { bytes: None, stream: stream.clone(), address: 0, len, element: PhantomData });
        }
        // SAFETY: every bit pattern is a value of u8, and whoever reads the elements has to write them first.
        let bytes = unsafe { stream.alloc::<u8>(size) }.map_err(|error| out_of_memory(stream, size, error))?;
        let address = bytes.device_ptr(stream).0;
        Ok(Buffer { bytes: Some(bytes), stream: stream.clone(), address, len, element: PhantomData })
    }

    /// Copies `data`, whose length is the buffer's, to the device.
    pub(super) fn write(&mut self, data: &[E]) -> Result<()> {
        match &mut self.bytes {
            Some(bytes) => {
                let copy = self.stream.memcpy_htod(bytemuck::cast_slice::<E, u8>(data), bytes);
                copy.map_err(LaunchError::driver("copy to the device"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn clear(&mut self) -> Result<()> {
        match &mut self.bytes {
            Some(bytes) => self.stream.memset_zeros(bytes).map_err(LaunchError::driver("fill with zeros")),
            None => Ok(()),
        }
    }

    /// The elements, once all work submitted so far is done. Error: what went wrong in that work, or in the copy.
    pub fn download(&self) -> Result<Vec<E>> {
        let mut data = vec![E::zeroed(); self.len];
        if let Some(bytes) = &self.bytes {
            let copy = self.stream.memcpy_dtoh(bytes, bytemuck::cast_slice_mut::<E, u8>(&mut data));
            copy.map_err(LaunchError::driver("copy to the host"))?;
            self.stream.synchronize().map_err(LaunchError::driver("copy to the host"))?;
        }
        Ok(data)
    }
}

impl<E> Buffer<E> {
    #[expect(clippy::len_without_is_empty, reason = "an empty buffer is one of length 0, asked for nowhere")]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn view(&self) -> View<'_, E> {
        View { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// Elements `range` of the buffer. Panics if they are not in it, as slices do.
    pub fn range(&self, range: Range<usize>) -> View<'_, E> {
        self.view().range(range)
    }

    pub fn view_mut(&mut self) -> ViewMut<'_, E> {
        ViewMut { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// Elements `range` of the buffer, for writing. Panics if they are not in it, as slices do.
    pub fn range_mut(&mut self, range: Range<usize>) -> ViewMut<'_, E> {
        let View { address, len, .. } = self.view().range(range);
        ViewMut { address, len, buffer: PhantomData }
    }
}

impl<'a, E> View<'a, E> {
    /// A view of memory that somebody else owns.
    ///
    /// # Safety
    ///
    /// `address` is device memory of `len` elements of type `E` for as long as `'a`, or `len` is refused by every check.
    pub unsafe fn from_raw(address: u64, len: usize) -> View<'a, E> {
        View { address, len, buffer: PhantomData }
    }

    pub fn range(self, range: Range<usize>) -> View<'a, E> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a view of {} elements", self.len);
        View { address: self.address + (range.start * size_of::<E>()) as u64, len: range.len(), buffer: PhantomData }
    }

    pub fn address(self) -> u64 {
        self.address
    }

    #[expect(clippy::len_without_is_empty, reason = "an empty view is one of length 0, asked for nowhere")]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the address is a multiple of `bytes`.
    pub fn is_aligned(self, bytes: u64) -> bool {
        self.address.is_multiple_of(bytes)
    }

    pub fn arg(self) -> Arg {
        Arg::Pointer(self.address)
    }
}

impl<'a, E> ViewMut<'a, E> {
    /// A view of memory that somebody else owns, for writing.
    ///
    /// # Safety
    ///
    /// As [`View::from_raw`], and nothing else uses the memory.
    pub unsafe fn from_raw(address: u64, len: usize) -> ViewMut<'a, E> {
        ViewMut { address, len, buffer: PhantomData }
    }

    /// The same memory, to be read; for operands that are changed in place.
    pub fn as_view(&self) -> View<'_, E> {
        View { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// The same memory for a shorter time, so that the view can be given away more than once.
    pub fn reborrow(&mut self) -> ViewMut<'_, E> {
        ViewMut { address: self.address, len: self.len, buffer: PhantomData }
    }

    /// The memory as input and as output, for kernels that work in place.
    pub fn in_place(&mut self) -> (View<'_, E>, ViewMut<'_, E>) {
        let &mut ViewMut { address, len, buffer: _ } = self;
        (View { address, len, buffer: PhantomData }, ViewMut { address, len, buffer: PhantomData })
    }

    /// Elements `range` of the view. Panics if they are not in it, as slices do.
    pub fn range_mut(&mut self, range: Range<usize>) -> ViewMut<'_, E> {
        let View { address, len, .. } = self.as_view().range(range);
        ViewMut { address, len, buffer: PhantomData }
    }

    #[expect(clippy::len_without_is_empty, reason = "an empty view is one of length 0, asked for nowhere")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the address is a multiple of `bytes`.
    pub fn is_aligned(&self, bytes: u64) -> bool {
        self.address.is_multiple_of(bytes)
    }

    pub fn arg(&self) -> Arg {
        Arg::Pointer(self.address)
    }
}

fn out_of_memory(stream: &CudaStream, requested: usize, error: cudarc::driver::DriverError) -> LaunchError {
    use cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    if error.0 != CUDA_ERROR_OUT_OF_MEMORY {
        return LaunchError::driver("allocate")(error);
    }
    let (free, total) = stream.context().mem_get_info().unwrap_or_default();
    LaunchError::OutOfMemory { requested, free, total }
}

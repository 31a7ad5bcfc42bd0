//! A block's shared memory, and its threads' local memory.

use super::init::Initialised;
use super::room;
use super::shadow::Shadow;
use crate::fault::Result;

#[derive(Debug)]
pub struct Shared {
    pub data: Vec<u8>,
    pub initialised: Initialised,
    pub shadow: Shadow,
    /// For kernels with `cp.async`: how many copies not yet waited for will write each byte.
    pub pending: Vec<u8>,
}

impl Shared {
    /// Ready for a block: nothing is initialised.
    pub fn reset(&mut self, bytes: usize, shift: u32, asynchronous: bool) -> Result<()> {
        room::refill(&mut self.data, bytes)?;
        self.initialised.reset(bytes)?;
        self.shadow.fit(bytes, shift)?;
        room::refill(&mut self.pending, if asynchronous { bytes } else { 0 })
    }
}

impl Shared {
    /// Whether a copy not yet waited for will write some of these bytes.
    #[inline(always)]
    pub fn is_pending(&self, offset: usize, bytes: usize) -> bool {
        match self.pending.get(offset..offset + bytes) {
            None => false,
            Some(pending) if bytes == 16 => pending != [0; 16],
            Some(pending) => pending.iter().any(|&copies| copies != 0),
        }
    }
}

impl Default for Shared {
    fn default() -> Shared {
        Shared { data: Vec::new(), initialised: Initialised::All, shadow: Shadow::default(), pending: Vec::new() }
    }
}

/// `.local` variables: each thread has `stride` bytes of its own.
#[derive(Debug)]
pub struct Local {
    pub stride: usize,
    pub data: Vec<u8>,
    pub initialised: Initialised,
}

impl Default for Local {
    fn default() -> Local {
        Local { stride: 0, data: Vec::new(), initialised: Initialised::All }
    }
}

impl Local {
    pub fn reset(&mut self, stride: usize, threads: usize) -> Result<()> {
        self.stride = stride;
        room::refill(&mut self.data, stride * threads)?;
        self.initialised.reset(stride * threads)
    }
}

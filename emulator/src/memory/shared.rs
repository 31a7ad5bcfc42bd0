//! A block's shared memory, and its threads' local memory.

use super::init::Initialised;
use super::shadow::Shadow;

#[derive(Debug)]
pub struct Shared {
    pub data: Vec<u8>,
    pub initialised: Initialised,
    pub shadow: Shadow,
    /// For kernels with `cp.async`: bytes that a copy not yet waited for will write hold 1 + the copy's index in `copies`
    /// modulo 255; 0 is none.
    pub pending: Vec<u8>,
}

impl Shared {
    /// Ready for a block: nothing is initialised.
    pub fn reset(&mut self, bytes: usize, shift: u32, asynchronous: bool) {
        self.data.clear();
        self.data.resize(bytes, 0);
        self.initialised.reset(bytes);
        self.shadow.fit(bytes, shift);
        self.pending.clear();
        self.pending.resize(if asynchronous { bytes } else { 0 }, 0);
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
    pub fn reset(&mut self, stride: usize, threads: usize) {
        self.stride = stride;
        self.data.clear();
        self.data.resize(stride * threads, 0);
        self.initialised.reset(stride * threads);
    }
}

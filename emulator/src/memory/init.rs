//! Which bytes of a memory were ever written.

use super::room;
use crate::fault::Result;

/// Initialised bytes of one allocation.
#[derive(Debug, Clone)]
pub enum Initialised {
    /// All of them: nothing to look up.
    All,
    /// One byte of record for each byte of memory (1: written), and how many are still 0.
    Some { written: Vec<u8>, missing: usize },
}

impl Initialised {
    pub fn none(bytes: usize) -> Result<Initialised> {
        Ok(Initialised::Some { written: room::zeroed(bytes)?, missing: bytes })
    }

    #[inline(always)]
    pub fn set(&mut self, offset: usize, bytes: usize) {
        if let Initialised::Some { written, missing } = self {
            if bytes == written.len() {
                *self = Initialised::All;
                return;
            }
            if all_ones(&written[offset..offset + bytes]) {
                return;
            }
            for byte in &mut written[offset..offset + bytes] {
                *missing -= (*byte == 0) as usize;
                *byte = 1;
            }
            if *missing == 0 {
                *self = Initialised::All;
            }
        }
    }

    /// Bytes that now hold something not initialised.
    pub fn unset(&mut self, offset: usize, bytes: usize, total: usize) -> Result<()> {
        self.copy(offset, &[0; 16][..bytes], total)
    }

    #[inline(always)]
    pub fn has(&self, offset: usize, bytes: usize) -> bool {
        match self {
            Initialised::All => true,
            Initialised::Some { written, .. } => all_ones(&written[offset..offset + bytes]),
        }
    }

    /// The record itself, or nothing where all is written.
    #[inline(always)]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Initialised::All => None,
            Initialised::Some { written, .. } => Some(written),
        }
    }

    /// Whether some byte of a range was written.
    pub fn any(&self, offset: usize, bytes: usize) -> bool {
        match self {
            Initialised::All => true,
            Initialised::Some { written, .. } => written[offset..offset + bytes].contains(&1),
        }
    }

    /// The record of a range: 1 for each byte written.
    pub fn record(&self, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        match self {
            Initialised::All => room::filled(1, bytes),
            Initialised::Some { written, .. } => room::copied(&written[offset..offset + bytes]),
        }
    }

    /// Replaces the record of a range.
    pub fn copy(&mut self, offset: usize, record: &[u8], total: usize) -> Result<()> {
        if record.iter().all(|&byte| byte == 1) {
            self.set(offset, record.len());
            return Ok(());
        }
        if matches!(self, Initialised::All) {
            *self = Initialised::Some { written: room::filled(1, total)?, missing: 0 };
        }
        if let Initialised::Some { written, missing } = self {
            for (byte, &new) in written[offset..].iter_mut().zip(record) {
                *missing = *missing + (new == 0) as usize - (*byte == 0) as usize;
                *byte = new;
            }
        }
        Ok(())
    }

    /// Forgets everything (shared and local memory of the next block).
    pub fn reset(&mut self, bytes: usize) -> Result<()> {
        match self {
            _ if bytes == 0 => *self = Initialised::All,
            Initialised::Some { written, missing } => {
                room::refill(written, bytes)?;
                *missing = bytes;
            }
            Initialised::All => *self = Initialised::none(bytes)?,
        }
        Ok(())
    }
}

/// Whether every byte is 1; lengths of one access take one comparison.
#[inline(always)]
fn all_ones(record: &[u8]) -> bool {
    match record.len() {
        4 => record == [1; 4],
        16 => record == [1; 16],
        2 => record == [1; 2],
        8 => record == [1; 8],
        _ => record.iter().all(|&byte| byte == 1),
    }
}

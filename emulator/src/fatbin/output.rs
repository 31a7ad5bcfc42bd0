//! What decompression writes: never more than was claimed, in room that grows as the data comes.

use crate::fault::{Code, Fault, Result};

pub fn bad(reason: impl AsRef<str>) -> Fault {
    Fault::new(Code::InvalidImage, format!("the fatbin's PTX does not decompress: {}", reason.as_ref()))
}

pub struct Output {
    bytes: Vec<u8>,
    claimed: usize,
}

impl Output {
    pub fn new(claimed: usize) -> Output {
        Output { bytes: Vec::new(), claimed }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    fn reserve(&mut self, more: usize) -> Result<()> {
        if more > self.claimed - self.bytes.len() {
            return Err(bad(format!("found more than the {} bytes that its entry says", self.claimed)));
        }
        self.bytes.try_reserve(more).map_err(|_| {
            Fault::new(Code::OutOfMemory, format!("out of memory: the host has no {} bytes", self.claimed))
        })
    }

    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.reserve(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    pub fn fill(&mut self, byte: u8, count: usize) -> Result<()> {
        self.reserve(count)?;
        self.bytes.resize(self.bytes.len() + count, byte);
        Ok(())
    }

    /// Appends what begins `offset` bytes before the end, over and over where it is shorter than `count`.
    pub fn repeat(&mut self, offset: usize, count: usize) -> Result<()> {
        let begin = self.bytes.len().checked_sub(offset).filter(|_| offset > 0);
        let begin = begin.ok_or_else(|| bad("it repeats what lies before its beginning"))?;
        self.reserve(count)?;
        let end = self.bytes.len() + count;
        while self.bytes.len() < end {
            // Always a multiple of the offset, but for the last piece.
            let piece = (end - self.bytes.len()).min(self.bytes.len() - begin);
            self.bytes.extend_from_within(begin..begin + piece);
        }
        Ok(())
    }

    pub fn finish(self) -> Result<Vec<u8>> {
        match self.bytes.len() == self.claimed {
            true => Ok(self.bytes),
            false => Err(bad(format!("found {} bytes, expected {}", self.bytes.len(), self.claimed))),
        }
    }
}

/// The compressed bytes that are not yet read.
#[derive(Clone, Copy)]
pub struct Source<'a>(pub &'a [u8]);

impl<'a> Source<'a> {
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or_else(|| bad("it is cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// A little-endian number of up to 8 bytes.
    pub fn number(&mut self, width: usize) -> Result<u64> {
        Ok(self.take(width)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }
}

//! The two entropy codes of Zstandard: finite-state entropy and Huffman. (RFC 8878, sections 4.1 and 4.2.)

use super::output::{Source, bad};
use crate::fault::Result;

/// Bits that are read from the last one back to the first. What lies before the first reads as zeros.
pub struct BackwardBits<'a> {
    bytes: &'a [u8],
    /// Bits not yet read; below zero where more were read than there are.
    pub left: isize,
}

impl<'a> BackwardBits<'a> {
    /// The highest one bit of the last byte marks the end.
    pub fn new(bytes: &'a [u8]) -> Result<BackwardBits<'a>> {
        match bytes.last() {
            Some(&last) if last > 0 => {
                let left = 8 * bytes.len() as isize - 1 - last.leading_zeros() as isize;
                Ok(BackwardBits { bytes, left })
            }
            _ => Err(bad("a stream of bits has no end mark")),
        }
    }

    /// The next bits, at most 32, the first of them the highest.
    pub fn peek(&self, count: u32) -> u32 {
        let mut value = 0u64;
        let begin = self.left - count as isize;
        let (first, last) = (begin.div_euclid(8), (self.left + 7).div_euclid(8));
        for at in (first..last).rev() {
            let byte = usize::try_from(at).ok().and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
            value = value << 8 | u64::from(byte);
        }
        (value >> begin.rem_euclid(8) & ((1 << count) - 1)) as u32
    }

    pub fn read(&mut self, count: u32) -> u32 {
        let value = self.peek(count);
        self.left -= count as isize;
        value
    }

    pub fn finish(&self) -> Result<()> {
        if self.left == 0 { Ok(()) } else { Err(bad("a stream of bits has another length than its symbols")) }
    }
}

#[derive(Clone, Copy, Default)]
struct State {
    symbol: u8,
    bits: u8,
    baseline: u16,
}

/// The table of a finite-state code.
pub struct FseTable {
    states: Vec<State>,
    accuracy: u32,
}

impl FseTable {
    /// A code of one symbol.
    pub fn one(symbol: u8) -> FseTable {
        FseTable { states: vec![State { symbol, ..State::default() }], accuracy: 0 }
    }

    /// The table for how often each symbol comes; −1 is less than once.
    pub fn new(frequencies: &[i16], accuracy: u32) -> Result<FseTable> {
        let size = 1usize << accuracy;
        let total: usize = frequencies.iter().map(|frequency| frequency.unsigned_abs() as usize).sum();
        if total != size {
            return Err(bad("the frequencies of a code have another sum than its table's size"));
        }
        let mut states = vec![State::default(); size];
        let mut next: Vec<u16> = frequencies.iter().map(|frequency| frequency.unsigned_abs()).collect();
        let mut rare = size;
        for (symbol, _) in frequencies.iter().enumerate().filter(|(_, frequency)| **frequency < 0) {
            rare -= 1;
            states[rare].symbol = symbol as u8;
        }
        let step = (size >> 1) + (size >> 3) + 3;
        let mut at = 0;
        for (symbol, &frequency) in frequencies.iter().enumerate() {
            for _ in 0..frequency.max(0) {
                states[at].symbol = symbol as u8;
                at = (at + step) & (size - 1);
                while at >= rare {
                    at = (at + step) & (size - 1);
                }
            }
        }
        for state in &mut states {
            let next = &mut next[usize::from(state.symbol)];
            let bits = accuracy - next.ilog2();
            (state.bits, state.baseline) = (bits as u8, (*next << bits) - size as u16);
            *next += 1;
        }
        Ok(FseTable { states, accuracy })
    }

    /// A table as the format writes it, of at most `symbols` symbols.
    pub fn read(source: &mut Source, most_accuracy: u32, symbols: usize) -> Result<FseTable> {
        let mut bits = ForwardBits { bytes: source.0, at: 0 };
        let accuracy = bits.read(4)? + 5;
        if accuracy > most_accuracy {
            return Err(bad("the table of a code is too large"));
        }
        let mut frequencies: Vec<i16> = Vec::new();
        let mut left = 1i32 << accuracy;
        while left > 0 && frequencies.len() <= symbols {
            let frequency = bits.frequency(left as u32)?;
            left -= i32::from(frequency.abs());
            frequencies.push(frequency);
            let mut more = if frequency == 0 { 3 } else { 0 };
            while more == 3 && frequencies.len() <= symbols {
                more = bits.read(2)? as usize;
                frequencies.extend(std::iter::repeat_n(0, more));
            }
        }
        if frequencies.len() > symbols {
            return Err(bad("a code has too many symbols"));
        }
        source.take(bits.at.div_ceil(8))?;
        FseTable::new(&frequencies, accuracy)
    }

    pub fn start(&self, bits: &mut BackwardBits) -> usize {
        bits.read(self.accuracy) as usize
    }

    pub fn symbol(&self, state: usize) -> u8 {
        self.states[state].symbol
    }

    pub fn next(&self, state: usize, bits: &mut BackwardBits) -> usize {
        let state = self.states[state];
        usize::from(state.baseline) + bits.read(u32::from(state.bits)) as usize
    }
}

struct ForwardBits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl ForwardBits<'_> {
    fn read(&mut self, count: usize) -> Result<u32> {
        let mut value = 0;
        for bit in 0..count {
            let byte = self.bytes.get((self.at + bit) / 8).ok_or_else(|| bad("it is cut short"))?;
            value |= u32::from(byte >> ((self.at + bit) % 8) & 1) << bit;
        }
        self.at += count;
        Ok(value)
    }

    /// A number from −1 to `left`, in one bit less where it is small.
    fn frequency(&mut self, left: u32) -> Result<i16> {
        let width = (left + 1).ilog2() as usize;
        let short = self.read(width)?;
        let spare = (2 << width) - 2 - left;
        if short < spare {
            return Ok(short as i16 - 1);
        }
        let long = short | self.read(1)? << width;
        let value = if long >= 1 << width { long - spare } else { long };
        Ok(value as i16 - 1)
    }
}

/// The longest Huffman code.
const LONGEST: u32 = 11;

/// A symbol for each string of as many bits as the longest code has, and the bits of its own code.
pub struct Huffman {
    entries: Vec<(u8, u8)>,
    longest: u32,
}

impl Huffman {
    pub fn read(source: &mut Source) -> Result<Huffman> {
        let head = source.byte()?;
        let mut weights = if head < 128 {
            compressed_weights(source.take(usize::from(head))?)?
        } else {
            let count = usize::from(head) - 127;
            let bytes = source.take(count.div_ceil(2))?;
            (0..count).map(|i| if i % 2 == 0 { bytes[i / 2] >> 4 } else { bytes[i / 2] & 15 }).collect()
        };
        let sum: u32 = weights.iter().map(|&weight| if weight > 0 { 1 << (weight - 1) } else { 0 }).sum();
        let longest = sum.checked_ilog2().map_or(0, |bits| bits + 1);
        let last = (1u32 << longest) - sum;
        if sum == 0 || longest > LONGEST || !last.is_power_of_two() || weights.len() > 255 {
            return Err(bad("the weights of a Huffman code do not fit together"));
        }
        weights.push(last.ilog2() as u8 + 1);
        let mut entries = Vec::with_capacity(1 << longest);
        for weight in 1..=longest as u8 {
            for (symbol, _) in weights.iter().enumerate().filter(|(_, found)| **found == weight) {
                let entry = (symbol as u8, longest as u8 + 1 - weight);
                entries.extend(std::iter::repeat_n(entry, 1 << (weight - 1)));
            }
        }
        Ok(Huffman { entries, longest })
    }

    /// Appends the `count` symbols of a stream.
    pub fn decode(&self, stream: &[u8], count: usize, to: &mut Vec<u8>) -> Result<()> {
        let mut bits = BackwardBits::new(stream)?;
        for _ in 0..count {
            let (symbol, length) = self.entries[bits.peek(self.longest) as usize];
            bits.left -= length as isize;
            to.push(symbol);
            if bits.left < 0 {
                break;
            }
        }
        bits.finish()
    }
}

/// Weights under a finite-state code of their own, with two states in turn.
fn compressed_weights(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut source = Source(bytes);
    let table = FseTable::read(&mut source, 6, 12)?;
    let mut bits = BackwardBits::new(source.0)?;
    let (mut one, mut other) = (table.start(&mut bits), table.start(&mut bits));
    let mut weights = Vec::new();
    while weights.len() < 255 {
        weights.push(table.symbol(one));
        let next = table.next(one, &mut bits);
        if bits.left < 0 {
            weights.push(table.symbol(other));
            return Ok(weights);
        }
        (one, other) = (other, next);
    }
    Err(bad("a Huffman code has too many weights"))
}

//! LZ4 blocks. ("LZ4 Block Format Description".)

use super::output::{Output, Source, bad};
use crate::fault::Result;

/// A match is at least this long.
const SHORTEST: usize = 4;
/// The most bytes that one byte of a block stands for.
pub const MOST: usize = 255;

/// The `bytes` bytes that a block stands for.
pub fn decompress(block: &[u8], bytes: usize) -> Result<Vec<u8>> {
    let mut source = Source(block);
    let mut output = Output::new(bytes);
    loop {
        let token = source.byte()?;
        let literals = length(token >> 4, &mut source)?;
        output.append(source.take(literals)?)?;
        if source.0.is_empty() {
            return output.finish();
        }
        let offset = source.number(2)? as usize;
        let count = length(token & 15, &mut source)?;
        output.repeat(offset, count + SHORTEST)?;
    }
}

/// A length of four bits, to which bytes are added while they are 255.
fn length(nibble: u8, source: &mut Source) -> Result<usize> {
    let mut length = usize::from(nibble);
    if nibble < 15 {
        return Ok(length);
    }
    loop {
        let byte = source.byte()?;
        length = length.checked_add(usize::from(byte)).ok_or_else(|| bad("an impossible length"))?;
        if byte < 255 {
            return Ok(length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_matches() {
        // "abc", then 9 bytes from 3 back, then "xyz12".
        let block = [0x35, b'a', b'b', b'c', 3, 0, 0x50, b'x', b'y', b'z', b'1', b'2'];
        assert_eq!(decompress(&block, 17).unwrap(), b"abcabcabcabcxyz12");
        for bytes in [0, 3, 16, 18] {
            assert!(decompress(&block, bytes).is_err(), "{bytes}");
        }
        for end in 0..block.len() {
            assert!(decompress(&block[..end], 17).is_err(), "{end}");
        }
    }

    #[test]
    fn long_lengths() {
        let mut block = vec![0xff, 255, 255, 20];
        block.extend([b'l'; 15 + 530]);
        block.extend([1, 0, 255, 3, 0x10, b'.']);
        let expected = [vec![b'l'; 545 + 15 + 258 + SHORTEST], vec![b'.']].concat();
        assert_eq!(decompress(&block, expected.len()).unwrap(), expected);
    }

    #[test]
    fn a_match_before_the_beginning() {
        for offset in [0, 2, 255] {
            assert!(decompress(&[0x10, b'a', offset, 0, 0x10, b'b'], 6).is_err(), "{offset}");
        }
    }
}

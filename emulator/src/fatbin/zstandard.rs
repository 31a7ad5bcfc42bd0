//! Zstandard frames. (RFC 8878, section 3.1.)
//!
//! Everything that was decompressed lies in the output, so the window is all of it. The checksum at the end is not
//! compared: what comes out must still pass the reader of PTX.

use super::entropy::{BackwardBits, FseTable, Huffman};
use super::output::{Output, Source, bad};
use crate::fault::Result;

const MAGIC: u64 = 0xFD2F_B528;
/// What a block stands for at most.
pub const BLOCK: usize = 128 << 10;
/// A block's bytes at least: its header, and the byte that it repeats.
pub const SMALLEST_BLOCK: usize = 4;

/// The `bytes` bytes that a frame stands for.
pub fn decompress(frame: &[u8], bytes: usize) -> Result<Vec<u8>> {
    let mut source = Source(frame);
    if source.number(4)? != MAGIC {
        return Err(bad("it is no Zstandard frame"));
    }
    frame_header(&mut source)?;
    let mut decoder = Decoder::new(bytes);
    loop {
        let header = source.number(3)? as usize;
        let (last, kind, size) = (header & 1 == 1, header >> 1 & 3, header >> 3);
        let before = decoder.output.len();
        match kind {
            0 => decoder.output.append(source.take(size)?)?,
            1 => decoder.output.fill(source.byte()?, size)?,
            2 => decoder.block(Source(source.take(size)?))?,
            _ => return Err(bad("a block of an unknown kind")),
        }
        if size > BLOCK || decoder.output.len() - before > BLOCK {
            return Err(bad("a block is larger than 128 KiB"));
        }
        if last {
            return decoder.output.finish();
        }
    }
}

/// Skips the header. The size in it is that of the fatbin's entry, too.
fn frame_header(source: &mut Source) -> Result<()> {
    let descriptor = source.byte()?;
    let single = descriptor >> 5 & 1;
    if descriptor & 8 != 0 {
        return Err(bad("a reserved bit of the frame is set"));
    }
    if single == 0 {
        source.byte()?;
    }
    if source.number([0, 1, 2, 4][usize::from(descriptor & 3)])? != 0 {
        return Err(bad("it needs a dictionary"));
    }
    source.take([usize::from(single), 2, 4, 8][usize::from(descriptor >> 6)])?;
    Ok(())
}

/// What one block leaves for the next.
struct Decoder {
    output: Output,
    huffman: Option<Huffman>,
    /// Codes of literal lengths, offsets and match lengths.
    codes: [Option<FseTable>; 3],
    /// The latest offsets.
    offsets: [usize; 3],
}

/// How a code is written: its largest table, its symbols, and the table that needs no writing.
struct Form {
    accuracy: u32,
    symbols: usize,
    usual: &'static [i16],
    usual_accuracy: u32,
}

impl Decoder {
    fn new(bytes: usize) -> Decoder {
        Decoder { output: Output::new(bytes), huffman: None, codes: [None, None, None], offsets: [1, 4, 8] }
    }

    /// A compressed block.
    fn block(&mut self, mut source: Source) -> Result<()> {
        let literals = self.literals(&mut source)?;
        let mut literals = Source(&literals);
        let count = match source.byte()? as usize {
            short @ 0..128 => short,
            255 => source.number(2)? as usize + 0x7F00,
            long => (long - 128) << 8 | source.byte()? as usize,
        };
        if count > 0 {
            self.sequences(source, count, &mut literals)?;
        } else if !source.0.is_empty() {
            return Err(bad("a block goes on behind its end"));
        }
        self.output.append(literals.0)
    }

    fn literals(&mut self, source: &mut Source) -> Result<Vec<u8>> {
        let first = source.0.first().copied().unwrap_or(0);
        let (kind, form) = (first & 3, first >> 2 & 3);
        // Bytes of the header, and bits of each size in it.
        let (bytes, bits) = match (kind, form) {
            (0 | 1, 0 | 2) => (1, 5),
            (0 | 1, 1) => (2, 12),
            (0 | 1, _) => (3, 20),
            (_, 0 | 1) => (3, 10),
            (_, 2) => (4, 14),
            _ => (5, 18),
        };
        let header = source.number(bytes)?;
        let skipped = if bytes == 1 { 3 } else { 4 };
        let size = (header >> skipped & ((1 << bits) - 1)) as usize;
        if size > BLOCK {
            return Err(bad("a block has too many literals"));
        }
        match kind {
            0 => return Ok(source.take(size)?.to_vec()),
            1 => return Ok(vec![source.byte()?; size]),
            _ => {}
        }
        let mut packed = Source(source.take((header >> (skipped + bits) & ((1 << bits) - 1)) as usize)?);
        if kind == 2 {
            self.huffman = Some(Huffman::read(&mut packed)?);
        }
        let huffman = self.huffman.as_ref().ok_or_else(|| bad("the first block has no Huffman code"))?;
        let mut literals = Vec::new();
        if form == 0 {
            huffman.decode(packed.0, size, &mut literals)?;
            return Ok(literals);
        }
        let sizes = [packed.number(2)?, packed.number(2)?, packed.number(2)?];
        let each = size.div_ceil(4);
        for bytes in sizes {
            huffman.decode(packed.take(bytes as usize)?, each, &mut literals)?;
        }
        let rest = size.checked_sub(3 * each).ok_or_else(|| bad("a block has too few literals for four streams"))?;
        huffman.decode(packed.0, rest, &mut literals)?;
        Ok(literals)
    }

    /// Copies literals and what came before, in turn.
    fn sequences(&mut self, mut source: Source, count: usize, literals: &mut Source) -> Result<()> {
        let modes = source.byte()?;
        if modes & 3 != 0 {
            return Err(bad("a reserved bit of a block is set"));
        }
        for (code, form) in FORMS.iter().enumerate() {
            let table = match modes >> (6 - 2 * code) & 3 {
                0 => FseTable::new(form.usual, form.usual_accuracy)?,
                1 => match source.byte()? {
                    one if usize::from(one) < form.symbols => FseTable::one(one),
                    _ => return Err(bad("a code has an unknown symbol")),
                },
                2 => FseTable::read(&mut source, form.accuracy, form.symbols)?,
                _ => continue,
            };
            self.codes[code] = Some(table);
        }
        let [Some(lengths), Some(offsets), Some(matches)] = &self.codes else {
            return Err(bad("the first block repeats a code"));
        };
        let mut bits = BackwardBits::new(source.0)?;
        let mut length = lengths.start(&mut bits);
        let mut offset = offsets.start(&mut bits);
        let mut matched = matches.start(&mut bits);
        for left in (0..count).rev() {
            let code = u32::from(offsets.symbol(offset));
            let value = (1usize << code) + bits.read(code) as usize;
            let (base, more) = MATCH_LENGTHS[usize::from(matches.symbol(matched))];
            let match_length = base as usize + bits.read(u32::from(more)) as usize;
            let (base, more) = LITERAL_LENGTHS[usize::from(lengths.symbol(length))];
            let literal_length = base as usize + bits.read(u32::from(more)) as usize;
            if left > 0 {
                length = lengths.next(length, &mut bits);
                matched = matches.next(matched, &mut bits);
                offset = offsets.next(offset, &mut bits);
            }
            if bits.left < 0 {
                break;
            }
            self.output.append(literals.take(literal_length)?)?;
            let distance = distance(&mut self.offsets, value, literal_length == 0);
            self.output.repeat(distance, match_length)?;
        }
        bits.finish()
    }
}

/// What an offset's value means: one of the latest three, which it moves to the front, or a new one.
fn distance(latest: &mut [usize; 3], value: usize, no_literals: bool) -> usize {
    let (distance, from) = match value {
        4.. => (value - 3, 2),
        // Without literals before it, the latest would only lengthen the match before: the three mean the next ones.
        3 if no_literals => (latest[0].wrapping_sub(1), 2),
        _ => (latest[value - 1 + usize::from(no_literals)], value - 1 + usize::from(no_literals)),
    };
    latest.copy_within(0..from, 1);
    latest[0] = distance;
    distance
}

const FORMS: [Form; 3] = [
    Form { accuracy: 9, symbols: 36, usual: &USUAL_LITERAL_LENGTHS, usual_accuracy: 6 },
    Form { accuracy: 8, symbols: 32, usual: &USUAL_OFFSETS, usual_accuracy: 5 },
    Form { accuracy: 9, symbols: 53, usual: &USUAL_MATCH_LENGTHS, usual_accuracy: 6 },
];

#[rustfmt::skip]
const USUAL_LITERAL_LENGTHS: [i16; 36] = [
    4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1,
];

#[rustfmt::skip]
const USUAL_OFFSETS: [i16; 29] = [
    1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
];

#[rustfmt::skip]
const USUAL_MATCH_LENGTHS: [i16; 53] = [
    1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
];

/// For each code the least length, and the bits that are added to it.
#[rustfmt::skip]
const LITERAL_LENGTHS: [(u32, u8); 36] = [
    (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 0), (12, 0), (13, 0),
    (14, 0), (15, 0), (16, 1), (18, 1), (20, 1), (22, 1), (24, 2), (28, 2), (32, 3), (40, 3), (48, 4), (64, 6), (128, 7),
    (256, 8), (512, 9), (1024, 10), (2048, 11), (4096, 12), (8192, 13), (16384, 14), (32768, 15), (65536, 16),
];

#[rustfmt::skip]
const MATCH_LENGTHS: [(u32, u8); 53] = [
    (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 0), (12, 0), (13, 0), (14, 0), (15, 0), (16, 0),
    (17, 0), (18, 0), (19, 0), (20, 0), (21, 0), (22, 0), (23, 0), (24, 0), (25, 0), (26, 0), (27, 0), (28, 0), (29, 0),
    (30, 0), (31, 0), (32, 0), (33, 0), (34, 0), (35, 1), (37, 1), (39, 1), (41, 1), (43, 2), (47, 2), (51, 3), (59, 3),
    (67, 4), (83, 4), (99, 5), (131, 7), (259, 8), (515, 9), (1027, 10), (2051, 11), (4099, 12), (8195, 13), (16387, 14),
    (32771, 15), (65539, 16),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines like those of PTX, always the same.
    fn text() -> Vec<u8> {
        let mut text = String::new();
        let mut state = 1u32;
        for line in 0..5_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (a, b) = (state >> 29, state >> 20 & 7);
            text += &match line % 400 {
                0..360 => format!("\tfma.rn.f32 \t%f{line}, %f{a}, %f{b}, %f1;\n"),
                _ => "\tst.shared.u32 \t[%r1], 0;\n".to_string(),
            };
        }
        text.into_bytes()
    }

    // Made of the text by zstd 1.5.4 with -1 and with --ultra -22.
    const FAST: &[u8] = include_bytes!("../../tests/fatbin/lines-1.zst");
    const SMALL: &[u8] = include_bytes!("../../tests/fatbin/lines-22.zst");

    #[test]
    fn frames_of_several_blocks() {
        let text = text();
        for frame in [FAST, SMALL] {
            assert!(decompress(frame, text.len()).unwrap() == text);
            assert!(decompress(frame, text.len() - 1).is_err() && decompress(frame, text.len() + 1).is_err());
        }
    }

    #[test]
    fn blocks_that_are_not_compressed() {
        // A frame of one segment; a block of three bytes, one that repeats a byte five times, the last one empty.
        let frame = [0x28, 0xB5, 0x2F, 0xFD, 0x20, 8, 3 << 3, 0, 0, b'a', b'b', b'c', 5 << 3 | 2, 0, 0, b'd', 1, 0, 0];
        assert_eq!(decompress(&frame, 8).unwrap(), b"abcddddd");
        for end in 0..frame.len() {
            assert!(decompress(&frame[..end], 8).is_err(), "{end}");
        }
        // A block may not be larger than 128 KiB.
        let large = [0x28, 0xB5, 0x2F, 0xFD, 0x20, 8, 0x0B, 0, 0x10, b'd'];
        assert!(decompress(&large, BLOCK + 1).is_err());
    }

    #[test]
    fn any_changed_bit_is_an_error_or_other_text() {
        let length = text().len();
        for at in (0..SMALL.len()).step_by(13) {
            let mut frame = SMALL.to_vec();
            frame[at] ^= 1 << (at % 8);
            let _ = decompress(&frame, length);
        }
    }
}

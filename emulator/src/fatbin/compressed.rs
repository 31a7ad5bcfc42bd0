//! Compressed entries. The size that an entry claims is only a limit: room for the data grows with what the decoder really
//! makes of it, and is asked for.

use crate::fault::{Code, Fault, Result};
use crate::memory::room;

/// No LZ4 data become more bytes for each of theirs.
pub const LZ4_MOST: usize = 255;
/// What a Zstandard block holds at most, and the fewest bytes that say so.
pub const ZSTANDARD_BLOCK: usize = 128 << 10;
pub const ZSTANDARD_SMALLEST_BLOCK: usize = 4;
/// The library's number for a buffer that is too small (`ZSTD_error_dstSize_tooSmall`), as its negative.
const TOO_SMALL: usize = 70_usize.wrapping_neg();

enum Failure {
    TooSmall,
    Bad(String),
}

pub fn lz4(payload: &[u8], claimed: usize) -> Result<Vec<u8>> {
    decompress(payload, claimed, |out| {
        lz4_flex::block::decompress_into(payload, out).map_err(|error| match error {
            lz4_flex::block::DecompressError::OutputTooSmall { .. } => Failure::TooSmall,
            other => Failure::Bad(other.to_string()),
        })
    })
}

pub fn zstandard(payload: &[u8], claimed: usize) -> Result<Vec<u8>> {
    decompress(payload, claimed, |out| {
        zstd_safe::decompress(out, payload).map_err(|error| match error {
            TOO_SMALL => Failure::TooSmall,
            other => Failure::Bad(zstd_safe::get_error_name(other).to_string()),
        })
    })
}

/// Tries ever larger buffers up to `claimed`: a decoder that wants more than one holds has filled it.
fn decompress(
    payload: &[u8],
    claimed: usize,
    decode: impl Fn(&mut [u8]) -> std::result::Result<usize, Failure>,
) -> Result<Vec<u8>> {
    let bad =
        |reason: String| Fault::new(Code::InvalidImage, format!("the fatbin's PTX does not decompress: {reason}"));
    let mut size = payload.len().saturating_mul(8).min(claimed);
    loop {
        let mut out: Vec<u8> = room::zeroed(size)?;
        match decode(&mut out) {
            Ok(length) if length == claimed => {
                out.truncate(length);
                return Ok(out);
            }
            Ok(length) => return Err(bad(format!("found {length} bytes, expected {claimed}"))),
            Err(Failure::TooSmall) if size < claimed => size = size.saturating_mul(4).min(claimed),
            Err(Failure::TooSmall) => {
                return Err(bad(format!("found more than the {claimed} bytes that its entry says")));
            }
            Err(Failure::Bad(reason)) => return Err(bad(reason)),
        }
    }
}

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
    fn data_are_as_long_as_they_claim() {
        let text = text();
        for frame in [FAST, SMALL] {
            assert!(zstandard(frame, text.len()).unwrap() == text);
            assert!(zstandard(frame, text.len() - 1).is_err() && zstandard(frame, text.len() + 1).is_err());
        }
        // A literal, and 2,050 times what came before it: far more than eight times as long.
        let mut long = vec![0x1F, b'a', 1, 0];
        long.extend([255; 7]);
        long.extend([246, 0x10, b'b']);
        let expected = [vec![b'a'; 2051], vec![b'b']].concat();
        assert_eq!(lz4(&long, 2052).unwrap().len(), expected.len());
        assert!(lz4(&long, 2052).unwrap() == expected);
        assert!(lz4(&long, 2051).is_err() && lz4(&long, 2053).is_err());
    }

    #[test]
    fn any_changed_bit_is_an_error_or_other_text() {
        let length = text().len();
        for at in (0..SMALL.len()).step_by(13) {
            let mut frame = SMALL.to_vec();
            frame[at] ^= 1 << (at % 8);
            let _ = zstandard(&frame, length);
        }
    }
}

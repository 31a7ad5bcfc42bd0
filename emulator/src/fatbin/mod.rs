//! The PTX inside what nvcc makes: fatbins, their wrappers in programs, and plain text.
//!
//! nvcc's fatbin format is not documented; this follows what nvcc 13 writes. A fatbin is a 16-byte header (magic, version,
//! header bytes, payload bytes) and entries. An entry's header holds, by offset: 0 kind (1 PTX, 2 machine code), 4 header
//! bytes, 8 payload bytes with padding, 16 compressed bytes, 28 compute capability × 10, 40 flags (0x2000 LZ4 block,
//! 0x8000 Zstandard), 56 bytes before compression. All numbers are little-endian.

mod compressed;

use crate::fault::{Code, Fault, Result};
use crate::memory::room;

/// `__fatBinC_Wrapper_t`: magic, version, then the fatbin's address (`fatbinary_section.h`).
pub const WRAPPER_MAGIC: u32 = 0x466243b1;
const FATBIN_MAGIC: u32 = 0xba55ed50;
pub const HEADER_BYTES: usize = 16;
const PTX: u64 = 1;
const ELF: u64 = 2;
const LZ4: u64 = 0x2000;
const ZSTANDARD: u64 = 0x8000;
/// More than any PTX file: a damaged size does not take the memory.
const LARGEST: usize = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    Fatbin,
    Elf,
    Text,
}

/// What an image is, by its first bytes.
pub fn kind(start: &[u8]) -> Image {
    if start.starts_with(&FATBIN_MAGIC.to_le_bytes()) {
        Image::Fatbin
    } else if start.starts_with(b"\x7fELF") {
        Image::Elf
    } else {
        Image::Text
    }
}

fn invalid(message: impl AsRef<str>) -> Fault {
    Fault::new(Code::InvalidImage, message)
}

/// A little-endian number of up to 8 bytes.
fn number(bytes: &[u8], at: usize, width: usize) -> Result<u64> {
    let field = at.checked_add(width).and_then(|end| bytes.get(at..end));
    let field = field.ok_or_else(|| invalid(format!("the fatbin is cut short at byte {}", bytes.len())))?;
    Ok(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

/// Bytes of a fatbin, from its header.
pub fn size(header: &[u8]) -> Result<usize> {
    let size = number(header, 6, 2)?.checked_add(number(header, 8, 8)?);
    let size = size.filter(|&size| size as usize >= HEADER_BYTES && size as usize <= LARGEST);
    size.map(|size| size as usize).ok_or_else(|| invalid("the fatbin's header gives an impossible size"))
}

struct FatbinEntry<'a> {
    kind: u64,
    /// Compute capability × 10.
    capability: u64,
    flags: u64,
    raw_bytes: usize,
    payload: &'a [u8],
}

fn entries(fatbin: &[u8]) -> Result<Vec<FatbinEntry<'_>>> {
    let end = size(fatbin)?;
    let fatbin = fatbin.get(..end).ok_or_else(|| {
        invalid(format!("the fatbin is cut short: found {} bytes, its header says {end}", fatbin.len()))
    })?;
    let mut entries = Vec::new();
    let mut at = number(fatbin, 6, 2)? as usize;
    while at < end {
        let header = number(fatbin, at + 4, 4)? as usize;
        let padded = number(fatbin, at + 8, 8)? as usize;
        let compressed = number(fatbin, at + 16, 4)? as usize;
        let flags = number(fatbin, at + 40, 8)?;
        let packed = flags & (LZ4 | ZSTANDARD) != 0;
        let bytes = if packed { compressed } else { padded };
        let start = at.checked_add(header);
        let next = start.and_then(|start| start.checked_add(padded)).filter(|&next| next > at && header >= 48);
        let (Some(start), Some(next)) = (start, next) else {
            return Err(invalid(format!("the fatbin's entry at byte {at} has an impossible size")));
        };
        let payload = start.checked_add(bytes).and_then(|stop| fatbin.get(start..stop));
        let payload = payload.ok_or_else(|| invalid(format!("the fatbin's entry at byte {at} is cut short")))?;
        let raw_bytes = if packed { number(fatbin, at + 56, 8)? as usize } else { bytes };
        entries.push(FatbinEntry {
            kind: number(fatbin, at, 2)?,
            capability: number(fatbin, at + 28, 4)?,
            flags,
            raw_bytes,
            payload,
        });
        at = next;
    }
    Ok(entries)
}

/// What an entry holds, decompressed. A claim that no data of its length can meet is not believed.
fn unpack(entry: &FatbinEntry) -> Result<Vec<u8>> {
    let (payload, claimed) = (entry.payload, entry.raw_bytes);
    let most = match entry.flags & (LZ4 | ZSTANDARD) {
        LZ4 => payload.len().saturating_mul(compressed::LZ4_MOST),
        ZSTANDARD => (payload.len() / compressed::ZSTANDARD_SMALLEST_BLOCK).saturating_mul(compressed::ZSTANDARD_BLOCK),
        0 => return room::copied(payload),
        both => return Err(invalid(format!("the fatbin's PTX is compressed in two ways: its flags are {both:#x}"))),
    };
    if claimed > most.min(LARGEST) {
        return Err(invalid(format!("the fatbin's PTX claims {claimed} bytes in {} compressed ones", payload.len())));
    }
    if entry.flags & LZ4 != 0 { compressed::lz4(payload, claimed) } else { compressed::zstandard(payload, claimed) }
}

/// The PTX of the highest compute capability that the card has.
pub fn ptx(fatbin: &[u8], card: (u32, u32)) -> Result<String> {
    let entries = entries(fatbin)?;
    let limit = u64::from(card.0 * 10 + card.1);
    let all = || entries.iter().filter(|entry| entry.kind == PTX);
    if let Some(entry) = all().filter(|entry| entry.capability <= limit).max_by_key(|entry| entry.capability) {
        return into_text(unpack(entry)?);
    }
    let list = |kind: u64, prefix: &str| {
        let found = entries.iter().filter(|entry| entry.kind == kind);
        found.map(|entry| format!("{prefix}_{}", entry.capability)).collect::<Vec<_>>().join(", ")
    };
    let message = if all().next().is_some() {
        format!(
            "found PTX for {} only; the emulated card has compute capability {}.{}",
            list(PTX, "compute"),
            card.0,
            card.1
        )
    } else if entries.is_empty() {
        "the fatbin is empty".to_string()
    } else {
        no_ptx(&list(ELF, "sm"))
    };
    Err(Fault::new(Code::NoBinaryForGpu, message))
}

fn no_ptx(found: &str) -> String {
    format!(
        "found machine code for {found} only; the emulator needs PTX: compile with -gencode arch=compute_80,code=compute_80"
    )
}

/// Why a cubin can't run. Its architecture is in the ELF header's flags (offset 48), since ABI version 8 in their second byte.
pub fn elf_alone(header: &[u8]) -> Fault {
    const CUDA_MACHINE: u64 = 190;
    let field = |at, width| number(header, at, width).unwrap_or(0);
    if field(18, 2) != CUDA_MACHINE {
        return invalid("found an ELF file for another machine than a GPU: expected PTX or a fatbin");
    }
    let architecture = if field(8, 1) >= 8 { field(49, 1) } else { field(48, 1) };
    Fault::new(Code::NoBinaryForGpu, no_ptx(&format!("sm_{architecture}")))
}

/// PTX as text, up to a NUL.
pub fn text(bytes: &[u8]) -> Result<String> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    into_text(room::copied(&bytes[..end])?)
}

fn into_text(mut bytes: Vec<u8>) -> Result<String> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    String::from_utf8(bytes).map_err(|e| invalid(format!("not PTX: byte {} is not text", e.utf8_error().valid_up_to())))
}

/// The PTX in a file's bytes, whatever nvcc made of it.
pub fn ptx_of_file(bytes: &[u8], card: (u32, u32)) -> Result<String> {
    match kind(bytes) {
        Image::Fatbin => ptx(bytes, card),
        Image::Elf => Err(elf_alone(bytes)),
        Image::Text => text(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Made of tests/fatbin/saxpy.cu by nvcc 13.0 with PTX for compute_80 and compute_89 and machine code for sm_89,
    // --compress-mode size (Zstandard), speed (LZ4) and none.
    const SIZE: &[u8] = include_bytes!("../../tests/fatbin/size.fatbin");
    const SPEED: &[u8] = include_bytes!("../../tests/fatbin/speed.fatbin");
    const NONE: &[u8] = include_bytes!("../../tests/fatbin/none.fatbin");
    const SM89: &[u8] = include_bytes!("../../tests/fatbin/sm89.fatbin");

    #[test]
    fn every_compression_gives_the_same_text() {
        let plain = ptx(NONE, (8, 9)).unwrap();
        assert!(plain.contains(".entry saxpy(") && plain.contains(".target sm_89"), "{plain}");
        assert_eq!(ptx(SIZE, (8, 9)).unwrap(), plain);
        assert_eq!(ptx(SPEED, (8, 9)).unwrap(), plain);
    }

    #[test]
    fn the_highest_capability_that_fits_is_taken() {
        assert!(ptx(SIZE, (9, 0)).unwrap().contains(".target sm_89"));
        assert!(ptx(SIZE, (8, 6)).unwrap().contains(".target sm_80"));
        let fault = ptx(SIZE, (7, 5)).unwrap_err();
        assert_eq!(fault.code, Code::NoBinaryForGpu);
        assert_eq!(
            fault.message,
            "found PTX for compute_80, compute_89 only; the emulated card has compute capability 7.5"
        );
    }

    #[test]
    fn machine_code_alone_is_refused_with_the_reason() {
        let fault = ptx(SM89, (8, 9)).unwrap_err();
        assert_eq!(fault.code, Code::NoBinaryForGpu);
        assert!(fault.message.starts_with("found machine code for sm_89 only; the emulator needs PTX"), "{fault}");
        let cubin = &SM89[HEADER_BYTES + 64..];
        assert_eq!(kind(cubin), Image::Elf);
        assert_eq!(elf_alone(cubin), fault);
        assert_eq!(elf_alone(b"\x7fELF").code, Code::InvalidImage);
    }

    #[test]
    fn damaged_fatbins_are_errors() {
        for fatbin in [SIZE, SPEED, NONE] {
            for length in 0..fatbin.len() {
                assert!(ptx(&fatbin[..length], (8, 9)).is_err(), "{length} bytes");
            }
            // Every single byte changed: no panic, whatever comes of it.
            for at in 0..fatbin.len().min(700) {
                let mut damaged = fatbin.to_vec();
                damaged[at] ^= 0xff;
                let _ = ptx(&damaged, (8, 9));
            }
        }
    }

    /// A fatbin whose PTX for compute_80 says that it holds `claimed` bytes.
    fn claiming(fatbin: &[u8], claimed: u64) -> Vec<u8> {
        let mut fatbin = fatbin.to_vec();
        let field = |at, width| number(&fatbin, at, width).unwrap() as usize;
        let mut at = HEADER_BYTES;
        while (field(at, 2) as u64, field(at + 28, 4)) != (PTX, 80) {
            at += field(at + 4, 4) + field(at + 8, 8);
        }
        fatbin[at + 56..at + 64].copy_from_slice(&claimed.to_le_bytes());
        fatbin
    }

    #[test]
    fn a_claim_is_checked_before_and_after() {
        for fatbin in [SIZE, SPEED] {
            let text = ptx(fatbin, (8, 0)).unwrap();
            let fault = |claimed| ptx(&claiming(fatbin, claimed), (8, 0)).unwrap_err().message;
            for claimed in [1 << 30, 1 << 40, u64::MAX] {
                assert!(fault(claimed).contains(&format!("claims {claimed} bytes")), "{}", fault(claimed));
            }
            // A NUL ends it.
            let length = text.len() as u64 + 1;
            assert!(fault(length - 1).contains(&format!("more than the {} bytes", length - 1)));
            assert!(fault(length + 1).contains(&format!("found {length} bytes, expected {}", length + 1)));
        }
    }

    #[test]
    fn text_ends_at_a_nul() {
        assert_eq!(text(b".version 9.0\0garbage").unwrap(), ".version 9.0");
        assert!(text(&[b'a', 0xff]).unwrap_err().message.contains("byte 1"));
        assert_eq!(ptx_of_file(b"// x", (8, 9)).unwrap(), "// x");
    }
}

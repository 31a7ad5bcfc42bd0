//! Between memory and registers: what a warp moves, lane by lane, and its elements as register values.

use crate::program::{LANES, Lanes32, Lanes64, Value};

/// What a warp moves: up to 16 bytes a lane.
pub type Staging = [[u8; 16]; LANES];

/// Moves 1, 2, 4, 8 or 16 bytes.
#[inline(always)]
pub fn copy(to: &mut [u8; 16], from: &[u8], bytes: u32) {
    match bytes {
        4 => to[..4].copy_from_slice(&from[..4]),
        16 => to.copy_from_slice(&from[..16]),
        8 => to[..8].copy_from_slice(&from[..8]),
        2 => to[..2].copy_from_slice(&from[..2]),
        _ => to[0] = from[0],
    }
}

#[inline(always)]
pub fn store_bytes(to: &mut [u8], from: &[u8; 16], bytes: u32) {
    match bytes {
        4 => to[..4].copy_from_slice(&from[..4]),
        16 => to[..16].copy_from_slice(from),
        8 => to[..8].copy_from_slice(&from[..8]),
        2 => to[..2].copy_from_slice(&from[..2]),
        _ => to[0] = from[0],
    }
}

pub fn decode32(staging: &Staging, element: usize, value: Value) -> Lanes32 {
    let begin = element * value.bytes as usize;
    match (value.bytes, value.signed) {
        (4, _) => each(staging, begin, u32::from_le_bytes),
        (2, false) => each(staging, begin, |bytes| u16::from_le_bytes(bytes) as u32),
        (2, true) => each(staging, begin, |bytes| i16::from_le_bytes(bytes) as u32),
        (_, false) => each(staging, begin, |[byte]| byte as u32),
        (_, true) => each(staging, begin, |[byte]| byte as i8 as u32),
    }
}

/// A value of `B` bytes at `begin` in each lane.
#[inline(always)]
fn each<const B: usize>(staging: &Staging, begin: usize, value: impl Fn([u8; B]) -> u32) -> Lanes32 {
    let mut out = [0; LANES];
    for (out, from) in out.iter_mut().zip(staging) {
        if let Some(bytes) = from[begin..].first_chunk() {
            *out = value(*bytes);
        }
    }
    out
}

pub fn decode64(staging: &Staging, element: usize, value: Value) -> Lanes64 {
    let mut out = [0; LANES];
    let (begin, bytes) = (element * value.bytes as usize, value.bytes as usize);
    for (out, from) in out.iter_mut().zip(staging) {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(&from[begin..begin + bytes]);
        let shift = 64 - 8 * value.bytes;
        let bits = u64::from_le_bytes(word) << shift;
        *out = if value.signed { (bits as i64 >> shift) as u64 } else { bits >> shift };
    }
    out
}

pub fn encode(staging: &mut Staging, element: usize, bytes: u32, value: impl Fn(usize) -> u64) {
    let (begin, bytes) = (element * bytes as usize, bytes as usize);
    for (lane, to) in staging.iter_mut().enumerate() {
        to[begin..begin + bytes].copy_from_slice(&value(lane).to_le_bytes()[..bytes]);
    }
}

//! What a warp's access costs, and what it would cost if its addresses lay as well as they can.
//!
//! Shared memory has 32 banks of 4 bytes; a wavefront serves one word of each bank, to all lanes that want it. Accesses
//! of up to 4 bytes are served 32 lanes together, of 8 bytes 16, of 16 bytes 8: the ideal is one wavefront for each such
//! group that has an active lane. A matrix of `ldmatrix` is 8 rows of 16 bytes: one wavefront.
//! Global memory moves in sectors of 32 bytes; the ideal is the distinct bytes over 32, rounded up.
//! (CUDA C++ Programming Guide, "Shared Memory" and "Device Memory Accesses"; Nsight Compute, "Memory Tables".)
#![allow(clippy::needless_range_loop)] // Loops over lanes go by number.

use crate::program::{LANES, Lanes32, Lanes64, Mask};

const BANKS: usize = 32;
const SECTOR: u64 = 32;

/// Wavefronts, and the ideal, of an access of `bytes` (1, 2, 4, 8 or 16, aligned) a lane.
#[inline(always)]
pub fn shared_wavefronts(addresses: &Lanes32, active: Mask, bytes: u32) -> (u64, u64) {
    if active == Mask::MAX && bytes >= 4 && consecutive(addresses, bytes) {
        let groups = (bytes / 4) as u64;
        return (groups, groups);
    }
    // What a lane wants is one unit of 4, 8 or 16 bytes; a group of 32, 16 or 8 lanes shares as many columns of units.
    let shift = bytes.max(4).trailing_zeros();
    let columns = BANKS >> (shift - 2).min(2);
    let mut units = [0; LANES];
    for lane in 0..LANES {
        units[lane] = addresses[lane] >> shift;
    }
    let (mut wavefronts, mut ideal) = (0, 0);
    for first in (0..LANES).step_by(columns) {
        let lanes = active & (u32::MAX >> (BANKS - columns)) << first;
        if lanes == 0 {
            continue;
        }
        ideal += 1;
        wavefronts += if apart(&units, columns, lanes) { 1 } else { passes(&units, columns, lanes) };
    }
    (wavefronts, ideal)
}

/// Whether no column has to serve two different units.
#[inline(always)]
fn apart(units: &Lanes32, columns: usize, mut lanes: Mask) -> bool {
    let (mut served, mut taken, mut apart) = ([0; BANKS], 0u32, true);
    while lanes != 0 {
        let unit = units[lanes.trailing_zeros() as usize];
        let column = unit as usize % columns;
        apart &= taken >> column & 1 == 0 || served[column] == unit;
        taken |= 1 << column;
        served[column] = unit;
        lanes &= lanes - 1;
    }
    apart
}

#[inline(always)]
fn consecutive(addresses: &Lanes32, bytes: u32) -> bool {
    let mut same = addresses[0] & (bytes - 1) == 0;
    for lane in 0..LANES {
        same &= addresses[lane] == addresses[0].wrapping_add(lane as u32 * bytes);
    }
    same
}

/// The most distinct units that one column has to serve.
#[inline(never)]
fn passes(units: &Lanes32, columns: usize, mut lanes: Mask) -> u64 {
    let mut distinct: [(usize, u32); LANES] = [(0, 0); LANES];
    let mut count = 0;
    let mut most = 0;
    while lanes != 0 {
        let unit = units[lanes.trailing_zeros() as usize];
        let column = unit as usize % columns;
        let same = distinct[..count].iter().filter(|&&(other, _)| other == column).count() as u64;
        if !distinct[..count].contains(&(column, unit)) {
            distinct[count] = (column, unit);
            count += 1;
            most = most.max(same + 1);
        }
        lanes &= lanes - 1;
    }
    most
}

/// Wavefronts, and the ideal, of `ldmatrix` or `stmatrix`: lane 8m+r gives the address of row r of matrix m.
pub fn matrix_wavefronts(rows: &Lanes32, matrices: usize) -> (u64, u64) {
    let matrices = matrices.min(4);
    let mut apart = true;
    for matrix in rows.chunks_exact(8).take(matrices) {
        // Eight rows in eight different groups of four banks.
        apart &= matrix.iter().fold(0, |groups, row| groups | 1u32 << (row >> 4 & 7)) == 0xff;
    }
    if apart {
        return (matrices as u64, matrices as u64);
    }
    shared_wavefronts(rows, ((1u64 << (8 * matrices)) - 1) as Mask, 16)
}

/// Sectors, and the ideal, of an access of `bytes` (at most 32) a lane.
#[inline(always)]
pub fn global_sectors(addresses: &Lanes64, active: Mask, bytes: u32) -> (u64, u64) {
    if active == Mask::MAX && consecutive_wide(addresses, bytes as u64) {
        let all = LANES as u64 * bytes as u64;
        let (first, last) = (addresses[0] / SECTOR, addresses[0].wrapping_add(all - 1) / SECTOR);
        return (last.wrapping_sub(first) + 1, all.div_ceil(SECTOR));
    }
    let mut sorted = *addresses;
    if active != Mask::MAX {
        if active == 0 {
            return (0, 0);
        }
        // The active lanes' addresses, then the last again.
        let mut count = 0;
        for lane in 0..LANES {
            sorted[count] = addresses[lane];
            count += (active >> lane & 1) as usize;
        }
        let last = sorted[count - 1];
        sorted[count..].fill(last);
    }
    let bytes = bytes as u64;
    let (mut plain, mut sectors, mut distinct) = (bytes.is_power_of_two() && bytes <= SECTOR, 1, 1);
    plain &= sorted[0] & bytes.wrapping_sub(1) == 0;
    for lane in 1..LANES {
        let (before, here) = (sorted[lane - 1], sorted[lane]);
        plain &= (here >= before) & (here & bytes.wrapping_sub(1) == 0);
        sectors += (here / SECTOR != before / SECTOR) as u64;
        distinct += (here != before) as u64;
    }
    match plain {
        true => (sectors, (distinct * bytes).div_ceil(SECTOR)),
        false => scattered_sectors(addresses, active, bytes),
    }
}

#[inline(always)]
fn consecutive_wide(addresses: &Lanes64, bytes: u64) -> bool {
    let mut same = bytes > 0;
    for lane in 0..LANES {
        same &= addresses[lane] == addresses[0].wrapping_add(lane as u64 * bytes);
    }
    same
}

/// In any order, with any alignment.
#[inline(never)]
fn scattered_sectors(addresses: &Lanes64, active: Mask, bytes: u64) -> (u64, u64) {
    // A hash table of sectors, each with the bytes touched in it; 32 lanes touch at most 64.
    const SLOTS: usize = 64;
    let mut sectors = [0; SLOTS];
    let mut touched = [0u32; SLOTS];
    let mut touch = |address: u64, bytes: u64| {
        let sector = address / SECTOR;
        let mut slot = (sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
        while touched[slot] != 0 && sectors[slot] != sector {
            slot = (slot + 1) % SLOTS;
        }
        sectors[slot] = sector;
        touched[slot] |= (u32::MAX >> (32 - bytes)) << (address % SECTOR);
    };
    let bytes = bytes.clamp(1, SECTOR);
    for lane in 0..LANES {
        if active >> lane & 1 == 1 {
            let address = addresses[lane];
            let here = bytes.min(SECTOR - address % SECTOR);
            touch(address, here);
            if here < bytes {
                touch(address.wrapping_add(here), bytes - here);
            }
        }
    }
    let (mut count, mut distinct) = (0, 0);
    for slot in 0..SLOTS {
        count += (touched[slot] != 0) as u64;
        distinct += touched[slot].count_ones() as u64;
    }
    (count, distinct.div_ceil(SECTOR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn lanes(f: impl Fn(u32) -> u32) -> Lanes32 {
        std::array::from_fn(|lane| f(lane as u32))
    }

    fn wide(f: impl Fn(u64) -> u64) -> Lanes64 {
        std::array::from_fn(|lane| f(lane as u64))
    }

    /// The definition: in each group the most distinct words of one bank.
    fn wavefronts_model(addresses: &Lanes32, active: Mask, bytes: u32) -> (u64, u64) {
        let group = match bytes {
            16 => 8,
            8 => 16,
            _ => 32,
        };
        let mut totals = (0, 0);
        for first in (0..LANES).step_by(group) {
            let words: BTreeSet<u32> = (first..first + group)
                .filter(|lane| active >> lane & 1 == 1)
                .flat_map(|lane| (0..bytes.div_ceil(4)).map(move |word| addresses[lane] / 4 + word))
                .collect();
            let in_bank = |bank| words.iter().filter(|&&word| word % 32 == bank).count() as u64;
            totals.0 += (0..32).map(in_bank).max().unwrap();
            totals.1 += !words.is_empty() as u64;
        }
        totals
    }

    fn sectors_model(addresses: &Lanes64, active: Mask, bytes: u32) -> (u64, u64) {
        let touched: BTreeSet<u64> = (0..LANES)
            .filter(|lane| active >> lane & 1 == 1)
            .flat_map(|lane| (0..bytes as u64).map(move |byte| addresses[lane] + byte))
            .collect();
        let sectors: BTreeSet<u64> = touched.iter().map(|byte| byte / 32).collect();
        (sectors.len() as u64, (touched.len() as u64).div_ceil(32))
    }

    #[test]
    fn known_patterns_of_shared_memory() {
        let all = Mask::MAX;
        assert_eq!(shared_wavefronts(&lanes(|l| 4 * l), all, 4), (1, 1));
        assert_eq!(shared_wavefronts(&lanes(|_| 64), all, 4), (1, 1), "broadcast");
        assert_eq!(shared_wavefronts(&lanes(|l| 8 * l), all, 4), (2, 1), "stride 2");
        assert_eq!(shared_wavefronts(&lanes(|l| 128 * l), all, 4), (32, 1), "a column of 32 words");
        assert_eq!(shared_wavefronts(&lanes(|l| 132 * l), all, 4), (1, 1), "padded column");
        assert_eq!(shared_wavefronts(&lanes(|l| 2 * l), all, 2), (1, 1), "two halves of a word");
        assert_eq!(shared_wavefronts(&lanes(|l| l), all, 1), (1, 1));
        assert_eq!(shared_wavefronts(&lanes(|l| 8 * l), all, 8), (2, 2));
        assert_eq!(shared_wavefronts(&lanes(|l| 16 * l), all, 16), (4, 4));
        assert_eq!(shared_wavefronts(&lanes(|l| 128 * l), all, 16), (32, 4), "16 bytes of each row");
        assert_eq!(shared_wavefronts(&lanes(|l| 16 * l), 0xff, 16), (1, 1), "one quarter-warp");
        assert_eq!(shared_wavefronts(&lanes(|l| 4 * l), 0, 4), (0, 0));
        assert_eq!(matrix_wavefronts(&lanes(|l| 128 * l), 4), (32, 4), "rows of 128 bytes");
        assert_eq!(matrix_wavefronts(&lanes(|l| 144 * l), 2), (2, 2), "rows padded by 16 bytes");
        assert_eq!(matrix_wavefronts(&lanes(|l| 128 * (l % 8) + 16 * ((l / 8) ^ (l % 8))), 4), (4, 4), "swizzled");
        assert_eq!(matrix_wavefronts(&lanes(|l| 16 * l), 1), (1, 1));
    }

    #[test]
    fn known_patterns_of_global_memory() {
        let all = Mask::MAX;
        assert_eq!(global_sectors(&wide(|l| 4096 + 4 * l), all, 4), (4, 4));
        assert_eq!(global_sectors(&wide(|l| 4096 + 16 * l), all, 16), (16, 16));
        assert_eq!(global_sectors(&wide(|l| 4100 + 4 * l), all, 4), (5, 4), "one word off");
        assert_eq!(global_sectors(&wide(|_| 4096), all, 4), (1, 1), "broadcast");
        assert_eq!(global_sectors(&wide(|l| 4096 + 128 * l), all, 4), (32, 4), "a column");
        assert_eq!(global_sectors(&wide(|l| 4096 + 2 * l), all, 2), (2, 2));
        assert_eq!(global_sectors(&wide(|l| 4 * (31 - l)), all, 4), (4, 4), "backwards");
        assert_eq!(global_sectors(&wide(|l| 4 * l), 0x00ff, 4), (1, 1));
        assert_eq!(global_sectors(&wide(|l| 4 * l), 0, 4), (0, 0));
        assert_eq!(global_sectors(&wide(|l| 4096 + 6 * l), all, 4), (6, 4), "misaligned, with gaps");
        assert_eq!(global_sectors(&wide(|l| u64::MAX - 3 - 4 * l), all, 4), (4, 4), "the end of the address space");
    }

    #[test]
    fn any_pattern_agrees_with_the_definition() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as u32
        };
        for round in 0..4000 {
            let bytes = [1, 2, 4, 8, 16][round % 5];
            let (stride, spread) = (random() % 40, [1, 4, 64, 1000][random() as usize % 4]);
            let base = random() % 100;
            let active = [Mask::MAX, random(), random() & random(), 0xffff][random() as usize % 4];
            let places = lanes(|_| 0).map(|_| random() % spread);
            let addresses = lanes(|l| (base + stride * l + places[l as usize]) * bytes);
            assert_eq!(
                shared_wavefronts(&addresses, active, bytes),
                wavefronts_model(&addresses, active, bytes),
                "{bytes} bytes, {active:#x}: {addresses:?}"
            );
            let addresses = wide(|l| addresses[l as usize] as u64 + (1 << 33));
            assert_eq!(
                global_sectors(&addresses, active, bytes),
                sectors_model(&addresses, active, bytes),
                "{bytes} bytes, {active:#x}: {addresses:?}"
            );
        }
    }
}

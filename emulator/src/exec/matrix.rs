//! `ldmatrix` and `stmatrix`: 8×8 matrices of 16-bit elements, each row at an address that one lane gives.
//! (PTX ISA, "ldmatrix", "stmatrix".)

use super::Ran;
use super::access::{AccessRequest, Uninitialised, addresses};
use super::diagnose::Place;
use super::interpret::Run;
use super::warp::{Warp, describe_lanes, lanes};
use crate::counters::matrix_wavefronts;
use crate::fault::Code;
use crate::program::{Address, Class, LANES, LOCAL_WINDOW, Lanes32, Mask, Reg, SHARED_WINDOW};
use crate::warp_ops::{matrix_fragment, matrix_rows};

/// Bytes of a row.
const ROW: u32 = 16;

impl Run<'_> {
    pub fn load_matrix(
        &mut self,
        warp: &mut Warp,
        at: Place,
        address: Address,
        to: &[Reg],
        transposed: bool,
    ) -> Ran<()> {
        let rows = self.row_offsets(warp, at, address, to.len(), false)?;
        let mut staging = [[0; 16]; LANES];
        let mut missing = Uninitialised::default();
        let givers = ((1u64 << (8 * to.len())) - 1) as Mask;
        let offsets = rows.map(u64::from);
        let request = AccessRequest { at, active: givers, addresses: &offsets, bytes: ROW, strong: false };
        let rest = self.read_shared_quick::<{ ROW as usize }>(&request, &offsets, &mut staging);
        for lane in lanes(rest) {
            let offset = rows[lane] as usize;
            self.read_shared_bytes::<{ ROW as usize }>(&request, lane, offset, &mut staging, &mut missing)?;
        }
        let mut missing_of = [0; 4];
        for (matrix, &reg) in to.iter().enumerate() {
            let mut block = [[0; 16]; 8];
            block.copy_from_slice(&staging[8 * matrix..8 * matrix + 8]);
            warp.registers.set32(reg, matrix_fragment(&block, transposed), warp.alive());
            if missing.lanes != 0 {
                missing_of[matrix] = self.missing_fragment(&rows[8 * matrix..8 * matrix + 8], transposed);
            }
        }
        self.taint_loaded(warp, at, warp.alive(), Class::R32, to, &missing_of, missing.place)
    }

    pub fn store_matrix(
        &mut self,
        warp: &mut Warp,
        at: Place,
        address: Address,
        from: &[Reg],
        transposed: bool,
    ) -> Ran<()> {
        let rows = self.row_offsets(warp, at, address, from.len(), true)?;
        let request = AccessRequest { at, active: warp.alive(), addresses: &[0; LANES], bytes: ROW, strong: false };
        for (matrix, &reg) in from.iter().enumerate() {
            let block = matrix_rows(warp.registers.get32(reg), transposed);
            for (row, bytes) in block.iter().enumerate() {
                let lane = 8 * matrix + row;
                self.write_shared_bytes(&request, lane, rows[lane] as usize, bytes)?;
            }
        }
        Ok(())
    }

    /// The shared offset of each row: lane 8m+r gives row r of matrix m.
    fn row_offsets(
        &mut self,
        warp: &Warp,
        at: Place,
        address: Address,
        matrices: usize,
        written: bool,
    ) -> Ran<Lanes32> {
        let givers = ((1u64 << (8 * matrices)) - 1) as Mask;
        let absent = givers & !warp.alive();
        if absent != 0 {
            let text =
                format!("the rows' addresses come from {}, which exited or never existed", describe_lanes(absent));
            return Err(self.fault(Code::LaunchFailed, at, 0, text));
        }
        let addresses = addresses(warp, address);
        let mut offsets = [0; LANES];
        let (mut highest, mut bits) = (0, 0);
        for lane in 0..8 * matrices {
            let address = addresses[lane];
            let generic = (SHARED_WINDOW..LOCAL_WINDOW).contains(&address);
            let offset = if generic { address - SHARED_WINDOW } else { address };
            highest = highest.max(offset);
            bits |= offset;
            offsets[lane] = offset as u32;
        }
        if highest.saturating_add(ROW as u64) > self.shared.data.len() as u64 || bits % ROW as u64 != 0 {
            self.wrong_row(at, &addresses[..8 * matrices], written)?;
        }
        let (wavefronts, ideal) = matrix_wavefronts(&offsets, matrices);
        self.counters.count_shared(at.pc, wavefronts, ideal);
        Ok(offsets)
    }

    /// The first row that is out of bounds or misaligned.
    #[inline(never)]
    fn wrong_row(&self, at: Place, addresses: &[u64], written: bool) -> Ran<()> {
        for (lane, &address) in addresses.iter().enumerate() {
            let generic = (SHARED_WINDOW..LOCAL_WINDOW).contains(&address);
            let offset = if generic { address - SHARED_WINDOW } else { address };
            self.shared_offset(at, lane, offset, ROW, written)?;
            if offset % ROW as u64 != 0 {
                let text = format!("misaligned: a row of 16 bytes at shared address {offset:#x}");
                return Err(self.fault(Code::MisalignedAddress, at, lane as u32, text));
            }
        }
        Ok(())
    }

    /// The lanes whose elements of a matrix are not initialised.
    #[inline(never)]
    fn missing_fragment(&self, rows: &[u32], transposed: bool) -> Mask {
        let known = |row: usize, column: usize| self.shared.initialised.has(rows[row] as usize + 2 * column, 2);
        let mut missing = 0;
        for lane in 0..LANES {
            let (group, pair) = (lane / 4, lane % 4 * 2);
            let (a, b) = match transposed {
                false => (known(group, pair), known(group, pair + 1)),
                true => (known(pair, group), known(pair + 1, group)),
            };
            missing |= (!(a && b) as u32) << lane;
        }
        missing
    }
}

//! `cp.async`: data read when the copy is issued appears in shared memory when its lane waits for it, no earlier.
//! (PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy".)

use super::Ran;
use super::access::{AccessRequest, addresses};
use super::diagnose::Place;
use super::interpret::Run;
use super::warp::{Copy, Warp, lanes};
use crate::fault::{Code, Fault};
use crate::memory::shadow::Accessor;
use crate::program::{Address, LANES, Lanes32, Mask, Reg};
use crate::ptx::ast::Space;

impl Run<'_> {
    #[allow(clippy::too_many_arguments)] // the fields of one instruction
    pub fn copy_async(
        &mut self,
        warp: &mut Warp,
        at: Place,
        active: Mask,
        shared: Address,
        global: Address,
        bytes: u32,
        source_bytes: Option<Reg>,
    ) -> Ran<()> {
        let to = addresses(warp, shared);
        let from = addresses(warp, global);
        let mut data = [[0; 16]; LANES];
        self.read_sources(warp, at, active, &from, bytes, source_bytes, &mut data)?;
        let mut offsets: Lanes32 = [0; LANES];
        for lane in lanes(active) {
            if !to[lane].is_multiple_of(bytes as u64) {
                let text = format!("misaligned: {bytes} bytes at shared address {:#x}", to[lane]);
                return Err(self.fault(Code::MisalignedAddress, at, lane as u32, text));
            }
            let offset = self.shared_offset(at, lane, to[lane], bytes, true)?;
            offsets[lane] = offset as u32;
            self.mark_pending(at, lane, offset, bytes as usize)?;
        }
        let (wavefronts, ideal) = crate::counters::shared_wavefronts(&offsets, active, bytes);
        self.counters.count_shared(at.pc, wavefronts, ideal);
        warp.copies.push(Copy { pc: at.pc, bytes, lanes: active, shared: offsets, data, group: warp.committed });
        Ok(())
    }

    /// Reads what the copies will write; lanes may take fewer bytes than they write, even none.
    #[allow(clippy::too_many_arguments)] // the fields of one instruction
    fn read_sources(
        &mut self,
        warp: &Warp,
        at: Place,
        active: Mask,
        from: &[u64; LANES],
        bytes: u32,
        source_bytes: Option<Reg>,
        data: &mut [[u8; 16]; LANES],
    ) -> Ran<()> {
        let counts = source_bytes.map_or([bytes; LANES], |reg| *warp.registers.get32(reg));
        let full = lanes(active).filter(|&lane| counts[lane] >= bytes).fold(0, |set: Mask, lane| set | 1 << lane);
        if full != 0 {
            let request = AccessRequest { at, active: full, addresses: from, bytes, strong: false };
            let missing = self.read(Space::Global, request, data)?;
            if missing.lanes != 0 {
                return Err(self.copies_uninitialised(at, missing.lanes.trailing_zeros(), &missing.place));
            }
        }
        for lane in lanes(active & !full) {
            for byte in 0..counts[lane] as usize {
                let mut one = *from;
                one[lane] += byte as u64;
                let request = AccessRequest { at, active: 1 << lane, addresses: &one, bytes: 1, strong: false };
                let mut staging = [[0; 16]; LANES];
                let missing = self.read(Space::Global, request, &mut staging)?;
                if missing.lanes != 0 {
                    return Err(self.copies_uninitialised(at, lane as u32, &missing.place));
                }
                data[lane][byte] = staging[lane][0];
            }
        }
        Ok(())
    }

    fn copies_uninitialised(&self, at: Place, lane: u32, place: &str) -> Box<Fault> {
        self.fault(Code::LaunchFailed, at, lane, format!("uninitialised: copies {place}, which was never written"))
    }

    /// From now until the wait nobody may read or write these bytes.
    fn mark_pending(&mut self, at: Place, lane: usize, offset: usize, bytes: usize) -> Ran<()> {
        if self.shared.is_pending(offset, bytes) {
            return Err(self.used_too_early(at, lane as u32, offset, bytes));
        }
        let access = Accessor {
            launch: &self.memory.clock,
            block: self.clock,
            thread: at.thread(lane as u32),
            pc: at.pc,
            floor: self.clock.since,
            strong: false,
        };
        if let Some(conflict) = self.shared.shadow.note_write(offset, bytes, &access) {
            let place = format!("{bytes} bytes at shared address {offset:#x}");
            return Err(self.race(at, lane as u32, true, &place, conflict));
        }
        self.shared.pending[offset..offset + bytes].iter_mut().for_each(|pending| *pending = pending.saturating_add(1));
        Ok(())
    }

    /// `cp.async.wait_group N`: all but each lane's latest N groups; `wait_all`: everything issued.
    pub fn copy_async_wait(&mut self, warp: &mut Warp, at: Place, active: Mask, keep: Option<u32>) -> Ran<()> {
        let mut copies = std::mem::take(&mut warp.copies);
        for copy in &mut copies {
            let due = lanes(copy.lanes & active).filter(|&lane| match keep {
                None => true,
                Some(keep) => copy.group[lane].saturating_add(keep) < warp.committed[lane],
            });
            let due = due.fold(0, |set: Mask, lane| set | 1 << lane);
            copy.lanes &= !due;
            for lane in lanes(due) {
                self.deliver(copy, Place { pc: copy.pc, warp: at.warp }, lane)?;
            }
        }
        copies.retain(|copy| copy.lanes != 0);
        warp.copies = copies;
        Ok(())
    }

    /// Puts a lane's copied bytes where they belong.
    fn deliver(&mut self, copy: &Copy, at: Place, lane: usize) -> Ran<()> {
        let (offset, bytes) = (copy.shared[lane] as usize, copy.bytes as usize);
        self.shared.pending[offset..offset + bytes].iter_mut().for_each(|pending| *pending = pending.saturating_sub(1));
        let request = AccessRequest { at, active: 1 << lane, addresses: &[0; LANES], bytes: copy.bytes, strong: false };
        self.write_shared_bytes(&request, lane, offset, &copy.data[lane])
    }

    /// Shared memory is used before the wait for the copy that fills it.
    #[inline(never)]
    pub fn used_too_early(&self, at: Place, lane: u32, offset: usize, bytes: usize) -> Box<Fault> {
        let text =
            format!("cp.async: {bytes} bytes at shared address {offset:#x} are used before the wait for their copy");
        self.fault(Code::LaunchFailed, at, lane, text)
    }
}

impl Warp {
    /// `cp.async.commit_group`
    pub fn commit_copies(&mut self, active: Mask) {
        lanes(active).for_each(|lane| self.committed[lane] += 1);
    }
}

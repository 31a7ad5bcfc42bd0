//! Shared memory, by offset in the block's memory.

use super::Ran;
use super::access::{AccessRequest, Uninitialised, consecutive};
use super::diagnose::Place;
use super::interpret::Run;
use super::staging::{Staging, copy, store_bytes};
use super::warp::lanes;
use crate::counters::shared_wavefronts;
use crate::fault::{Code, Fault};
use crate::memory::shadow::Conflict;
use crate::program::{LANES, Lanes32, Mask};

impl Run<'_> {
    pub fn read_shared(&mut self, request: &AccessRequest, staging: &mut Staging) -> Ran<Uninitialised> {
        self.count_shared(request);
        let mut missing = Uninitialised::default();
        if let Some(offset) = self.shared_run(request)
            && self.shared.initialised.has(offset, LANES * request.bytes as usize)
            && self.note_shared_run(request, offset, false)
        {
            let from = self.shared.data[offset..].chunks_exact(request.bytes as usize);
            staging.iter_mut().zip(from).for_each(|(lane, from)| copy(lane, from, request.bytes));
            return Ok(missing);
        }
        match request.bytes {
            4 => self.read_shared_lanes::<4>(request, staging, &mut missing)?,
            16 => self.read_shared_lanes::<16>(request, staging, &mut missing)?,
            8 => self.read_shared_lanes::<8>(request, staging, &mut missing)?,
            2 => self.read_shared_lanes::<2>(request, staging, &mut missing)?,
            _ => self.read_shared_lanes::<1>(request, staging, &mut missing)?,
        }
        Ok(missing)
    }

    /// `B` bytes a lane, each at its own address.
    fn read_shared_lanes<const B: usize>(
        &mut self,
        request: &AccessRequest,
        staging: &mut Staging,
        missing: &mut Uninitialised,
    ) -> Ran<()> {
        let rest = self.read_shared_quick::<B>(request, request.addresses, staging);
        let mut before = [usize::MAX; 2];
        for lane in lanes(rest) {
            let address = request.addresses[lane];
            if before.iter().all(|&earlier| earlier != usize::MAX && request.addresses[earlier] == address) {
                // Two lanes read this already: a third changes nothing that the race check would see.
                staging[lane] = staging[before[1]];
                missing.lanes |= (missing.lanes >> before[1] & 1) << lane;
                continue;
            }
            let offset = self.shared_offset(request.at, lane, address, B as u32, false)?;
            self.read_shared_bytes::<B>(request, lane, offset, staging, missing)?;
            before = [before[1], lane];
        }
        Ok(())
    }

    /// Reads what is initialised, under no copy's way, and ordered at a glance; returns the lanes for which it takes more
    /// than that, of which nothing is read.
    #[inline(always)]
    pub fn read_shared_quick<const B: usize>(
        &mut self,
        request: &AccessRequest,
        offsets: &[u64; LANES],
        staging: &mut Staging,
    ) -> Mask {
        let shared = &mut *self.shared;
        if shared.shadow.shift != B.trailing_zeros() || request.strong {
            return request.active;
        }
        let mut access = request.access(0, &self.memory.clock, self.clock, self.clock.since);
        let (pending, written) = (shared.pending.as_slice(), shared.initialised.bytes());
        let mut rest = 0;
        for lane in lanes(request.active) {
            let offset = offsets[lane] as usize;
            access.thread = request.at.thread(lane as u32);
            let here = shared.data.get(offset..).and_then(<[u8]>::first_chunk::<B>);
            let arrived = pending.is_empty() || pending.get(offset..).and_then(<[u8]>::first_chunk) == Some(&[0; B]);
            let known = written.is_none_or(|w| w.get(offset..).and_then(<[u8]>::first_chunk) == Some(&[1; B]));
            match here {
                Some(bytes) if arrived && known && shared.shadow.quick_read(offset >> B.trailing_zeros(), &access) => {
                    staging[lane][..B].copy_from_slice(bytes);
                }
                _ => rest |= 1 << lane,
            }
        }
        rest
    }

    /// One lane's part of a shared read. `staging[lane]` receives it.
    #[inline(always)]
    pub fn read_shared_bytes<const B: usize>(
        &mut self,
        request: &AccessRequest,
        lane: usize,
        offset: usize,
        staging: &mut Staging,
        missing: &mut Uninitialised,
    ) -> Ran<()> {
        let shared = &mut *self.shared;
        if !shared.pending.is_empty() && shared.pending[offset..offset + B] != [0; B] {
            return Err(self.used_too_early(request.at, lane as u32, offset, B));
        }
        staging[lane][..B].copy_from_slice(&shared.data[offset..offset + B]);
        if !shared.initialised.has(offset, B) {
            missing.note(lane, || format!("shared address {offset:#x}"));
        }
        let access = request.access(lane as u32, &self.memory.clock, self.clock, self.clock.since);
        if let Some(conflict) = shared.shadow.note_read(offset, B, &access) {
            return Err(self.shared_race(request, lane, offset, false, conflict));
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn shared_race(
        &self,
        request: &AccessRequest,
        lane: usize,
        offset: usize,
        writes: bool,
        conflict: Conflict,
    ) -> Box<Fault> {
        let place = format!("{} bytes at shared address {offset:#x}", request.bytes);
        self.race(request.at, lane as u32, writes, &place, conflict)
    }

    /// The offset of a whole warp's consecutive accesses, if the block's memory holds them and no copy is under way there.
    #[inline(always)]
    fn shared_run(&self, request: &AccessRequest) -> Option<usize> {
        let (first, bytes) = (request.addresses[0], LANES as u64 * request.bytes as u64);
        let inside = first.saturating_add(bytes) <= self.shared.data.len() as u64;
        let run = request.active == Mask::MAX && inside && consecutive(request.addresses, request.bytes as u64);
        (run && !self.shared.is_pending(first as usize, bytes as usize)).then_some(first as usize)
    }

    #[inline(always)]
    fn note_shared_run(&mut self, request: &AccessRequest, offset: usize, writes: bool) -> bool {
        let access = request.access(0, &self.memory.clock, self.clock, self.clock.since);
        self.shared.shadow.note_run(offset, request.bytes as usize, &access, writes)
    }

    pub fn write_shared(&mut self, request: &AccessRequest, staging: &Staging) -> Ran<()> {
        self.count_shared(request);
        if let Some(offset) = self.shared_run(request)
            && self.note_shared_run(request, offset, true)
        {
            let bytes = request.bytes as usize;
            let to = self.shared.data[offset..].chunks_exact_mut(bytes);
            staging.iter().zip(to).for_each(|(lane, to)| store_bytes(to, lane, request.bytes));
            self.shared.initialised.set(offset, LANES * bytes);
            return Ok(());
        }
        for lane in lanes(request.active) {
            let offset = self.shared_offset(request.at, lane, request.addresses[lane], request.bytes, true)?;
            self.write_shared_bytes(request, lane, offset, &staging[lane])?;
        }
        Ok(())
    }

    /// One lane's part of a shared write.
    #[inline(always)]
    pub fn write_shared_bytes(
        &mut self,
        request: &AccessRequest,
        lane: usize,
        offset: usize,
        from: &[u8; 16],
    ) -> Ran<()> {
        let bytes = request.bytes as usize;
        if self.shared.is_pending(offset, bytes) {
            return Err(self.used_too_early(request.at, lane as u32, offset, bytes));
        }
        let access = request.access(lane as u32, &self.memory.clock, self.clock, self.clock.since);
        let conflict = self.shared.shadow.note_write(offset, bytes, &access);
        let target = &mut self.shared.data[offset..offset + bytes];
        if let Some(conflict) = conflict
            && target != &from[..bytes]
        {
            return Err(self.shared_race(request, lane, offset, true, conflict));
        }
        store_bytes(target, from, request.bytes);
        self.shared.initialised.set(offset, bytes);
        Ok(())
    }

    /// A shared address as an offset, if `bytes` are there.
    #[inline(always)]
    pub fn shared_offset(&self, at: Place, lane: usize, address: u64, bytes: u32, written: bool) -> Ran<usize> {
        if address.saturating_add(bytes as u64) <= self.shared.data.len() as u64 {
            return Ok(address as usize);
        }
        Err(self.outside_shared(at, lane, address, bytes, written))
    }

    #[cold]
    #[inline(never)]
    fn outside_shared(&self, at: Place, lane: usize, address: u64, bytes: u32, written: bool) -> Box<Fault> {
        let verb = if written { "writes" } else { "reads" };
        let text = format!(
            "out of bounds: {verb} {bytes} bytes at shared address {address:#x}; the block has {} bytes",
            self.shared.data.len()
        );
        self.fault(Code::IllegalAddress, at, lane as u32, text)
    }

    #[inline(always)]
    fn count_shared(&mut self, request: &AccessRequest) {
        let mut addresses: Lanes32 = [0; LANES];
        for lane in 0..LANES {
            addresses[lane] = request.addresses[lane] as u32;
        }
        let (wavefronts, ideal) = shared_wavefronts(&addresses, request.active, request.bytes);
        self.counters.count_shared(request.at.pc, wavefronts, ideal);
    }
}

//! Global memory: a lane's address leads to an allocation, or to what is wrong with it.

use super::Ran;
use super::access::{AccessRequest, Uninitialised, consecutive};
use super::interpret::Run;
use super::staging::{Staging, copy, store_bytes};
use super::warp::lanes;
use crate::counters::global_sectors;
use crate::fault::Code;
use crate::program::{LANES, Mask};

impl Run<'_> {
    pub fn read_global(&mut self, request: &AccessRequest, staging: &mut Staging) -> Ran<Uninitialised> {
        self.count_global(request);
        let mut missing = Uninitialised::default();
        if self.read_global_run(request, staging)? {
            return Ok(missing);
        }
        for lane in lanes(request.active) {
            let (index, offset) = self.locate(request, lane, false)?;
            let found = &mut self.memory.allocations[index];
            copy(&mut staging[lane], &found.data[offset..], request.bytes);
            let bytes = request.bytes as usize;
            if !found.initialised.has(offset, bytes) {
                missing.note(lane, || format!("{:#x} in {}", request.addresses[lane], found.describe()));
            }
            if found.constant {
                continue;
            }
            found.shadow.fit(found.bytes as usize, self.global_shift)?;
            let access = request.access(lane as u32, &self.memory.clock, self.clock, self.memory.clock.since);
            if let Some(conflict) = found.shadow.note_read(offset, bytes, &access) {
                let place = format!("{bytes} bytes at {:#x} in {}", request.addresses[lane], found.describe());
                return Err(self.race(request.at, lane as u32, false, &place, conflict));
            }
        }
        Ok(missing)
    }

    /// The usual case in one go: a whole warp reads initialised memory, lane after lane, that nobody wrote or read yet in
    /// this launch. Returns false, having done nothing, in any other.
    #[inline(always)]
    fn read_global_run(&mut self, request: &AccessRequest, staging: &mut Staging) -> Ran<bool> {
        let Some((index, offset)) = self.locate_run(request) else { return Ok(false) };
        let bytes = request.bytes as usize;
        let access = request.access(0, &self.memory.clock, self.clock, self.memory.clock.since);
        let found = &mut self.memory.allocations[index];
        found.shadow.fit(found.bytes as usize, self.global_shift)?;
        if !found.initialised.has(offset, LANES * bytes)
            || !(found.constant || found.shadow.note_run(offset, bytes, &access, false))
        {
            return Ok(false);
        }
        for (lane, from) in staging.iter_mut().zip(found.data[offset..].chunks_exact(bytes)) {
            copy(lane, from, request.bytes);
        }
        found.touch(offset as u64, (offset + LANES * bytes) as u64, false);
        Ok(true)
    }

    /// The usual case in one go: a whole warp writes, lane after lane, what nobody wrote or read yet in this launch.
    /// Returns false, having done nothing, in any other.
    #[inline(always)]
    fn write_global_run(&mut self, request: &AccessRequest, staging: &Staging) -> Ran<bool> {
        let Some((index, offset)) = self.locate_run(request) else { return Ok(false) };
        let bytes = request.bytes as usize;
        let access = request.access(0, &self.memory.clock, self.clock, self.memory.clock.since);
        let found = &mut self.memory.allocations[index];
        found.shadow.fit(found.bytes as usize, self.global_shift)?;
        if found.constant || !found.shadow.note_run(offset, bytes, &access, true) {
            return Ok(false);
        }
        for (lane, to) in staging.iter().zip(found.data[offset..].chunks_exact_mut(bytes)) {
            store_bytes(to, lane, request.bytes);
        }
        found.initialised.set(offset, LANES * bytes);
        found.touch(offset as u64, (offset + LANES * bytes) as u64, true);
        Ok(true)
    }

    /// The allocation and offset of a whole warp's consecutive accesses, if one allocation holds them all.
    #[inline(always)]
    fn locate_run(&self, request: &AccessRequest) -> Option<(usize, usize)> {
        let (first, bytes) = (request.addresses[0], request.bytes as u64);
        let index = self.cache[request.at.pc as usize] as usize;
        let found = self.memory.allocations.get(index)?;
        let offset = first.wrapping_sub(found.base);
        let inside = !found.freed && offset.saturating_add(LANES as u64 * bytes) <= found.bytes;
        (request.active == Mask::MAX && inside && consecutive(request.addresses, bytes))
            .then_some((index, offset as usize))
    }

    pub fn write_global(&mut self, request: &AccessRequest, staging: &Staging) -> Ran<()> {
        self.count_global(request);
        if self.write_global_run(request, staging)? {
            return Ok(());
        }
        for lane in lanes(request.active) {
            let (index, offset) = self.locate(request, lane, true)?;
            let found = &mut self.memory.allocations[index];
            if found.constant {
                let text = format!("write to constant {}", found.describe());
                return Err(self.fault(Code::IllegalAddress, request.at, lane as u32, text));
            }
            let bytes = request.bytes as usize;
            found.shadow.fit(found.bytes as usize, self.global_shift)?;
            let access = request.access(lane as u32, &self.memory.clock, self.clock, self.memory.clock.since);
            let conflict = found.shadow.note_write(offset, bytes, &access);
            let target = &mut found.data[offset..offset + bytes];
            // Writing what is there already changes nothing in any order.
            if let Some(conflict) = conflict
                && target != &staging[lane][..bytes]
            {
                let place = format!("{bytes} bytes at {:#x} in {}", request.addresses[lane], found.describe());
                return Err(self.race(request.at, lane as u32, true, &place, conflict));
            }
            store_bytes(target, &staging[lane], request.bytes);
            found.initialised.set(offset, bytes);
        }
        Ok(())
    }

    /// The allocation and offset of a lane's address.
    #[inline(always)]
    pub fn locate(&mut self, request: &AccessRequest, lane: usize, written: bool) -> Ran<(usize, usize)> {
        let (address, bytes) = (request.addresses[lane], request.bytes as u64);
        let mut index = self.cache[request.at.pc as usize] as usize;
        let fits = self.memory.allocations.get(index).is_some_and(|a| {
            let offset = address.wrapping_sub(a.base);
            !a.freed && offset.saturating_add(bytes) <= a.bytes
        });
        if !fits {
            index = match self.memory.find(address, bytes) {
                Some(index) => index,
                None => {
                    let (code, text) = self.memory.explain(address, bytes);
                    let verb = if written { "writes" } else { "reads" };
                    let text = format!("{text} ({verb} {bytes} bytes)");
                    return Err(self.fault(code, request.at, lane as u32, text));
                }
            };
            self.cache[request.at.pc as usize] = index as u32;
        }
        let found = &mut self.memory.allocations[index];
        let offset = address - found.base;
        found.touch(offset, offset + bytes, written);
        Ok((index, offset as usize))
    }

    #[inline(always)]
    fn count_global(&mut self, request: &AccessRequest) {
        let (sectors, ideal) = global_sectors(request.addresses, request.active, request.bytes);
        let bytes = request.active.count_ones() as u64 * request.bytes as u64;
        self.counters.count_global(request.at.pc, sectors, ideal, bytes);
    }
}

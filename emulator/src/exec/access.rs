//! Loads and stores: every access is checked (alignment, bounds, initialised, races) before it happens, and counted.

use super::Ran;
use super::diagnose::Place;
use super::interpret::{Run, first};
use super::services::{local_lanes, space_of};
use super::taint::{Origin, Taint};
use super::warp::{Warp, lanes};
use crate::counters::{global_sectors, shared_wavefronts};
use crate::fault::Code;
use crate::memory::shadow::Access;
use crate::program::{
    Address, Class, LANES, LOCAL_WINDOW, Lanes32, Lanes64, Mask, PARAM_WINDOW, Reg, SHARED_WINDOW, Value,
};
use crate::ptx::ast::Space;

/// What a warp moves: up to 16 bytes a lane.
pub type Staging = [[u8; 16]; LANES];

/// One warp-wide access to memory.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub at: Place,
    pub active: Mask,
    pub addresses: &'a Lanes64,
    /// Bytes a lane: 1, 2, 4, 8 or 16.
    pub bytes: u32,
    /// Volatile or atomic.
    pub strong: bool,
}

/// Lanes whose bytes were not all initialised, and the first one's place.
#[derive(Debug, Default)]
pub struct Uninitialised {
    pub lanes: Mask,
    pub place: String,
}

/// The address in each lane.
#[inline(always)]
pub fn addresses(warp: &Warp, address: Address) -> Lanes64 {
    let mut out = [0; LANES];
    if address.wide {
        let base = warp.registers.get64(address.base);
        for lane in 0..LANES {
            out[lane] = base[lane].wrapping_add(address.offset as u64);
        }
    } else {
        let base = warp.registers.get32(address.base);
        for lane in 0..LANES {
            out[lane] = base[lane].wrapping_add(address.offset as u32) as u64;
        }
    }
    out
}

impl Run<'_> {
    #[allow(clippy::too_many_arguments)] // the fields of one instruction
    pub fn load(
        &mut self,
        warp: &mut Warp,
        at: Place,
        active: Mask,
        space: Space,
        value: Value,
        address: Address,
        to: &[Reg],
        strong: bool,
    ) -> Ran<()> {
        let addresses = addresses(warp, address);
        let bytes = value.bytes * to.len() as u32;
        let mut staging: Staging = [[0; 16]; LANES];
        let request = Request { at, active, addresses: &addresses, bytes, strong };
        let missing = self.read(space, request, &mut staging)?;
        for (element, &reg) in to.iter().enumerate() {
            if value.wide {
                warp.registers.set64(reg, decode64(&staging, element, value), active);
            } else {
                warp.registers.set32(reg, decode32(&staging, element, value), active);
            }
        }
        let class = if value.wide { Class::R64 } else { Class::R32 };
        self.taint_loaded(warp, at, active, class, to, &[missing.lanes; 4], missing.place);
        Ok(())
    }

    /// Notes where loaded registers are not initialised; `missing` has the lanes of each register.
    #[allow(clippy::too_many_arguments)] // where, which registers, which lanes, and why
    pub fn taint_loaded(
        &self,
        warp: &mut Warp,
        at: Place,
        active: Mask,
        class: Class,
        to: &[Reg],
        missing: &[Mask; 4],
        place: String,
    ) {
        if missing.iter().all(|&lanes| lanes == 0) && warp.taint.is_none() {
            return;
        }
        let files = self.program.registers;
        let taint = warp.taint.get_or_insert_with(|| Box::new(Taint::clean(files)));
        for (&reg, &missing) in to.iter().zip(missing) {
            let origin = (missing & active != 0).then(|| Origin { pc: at.pc, place: place.clone() });
            taint.set(class, reg, !missing, active, origin);
        }
    }

    #[allow(clippy::too_many_arguments)] // the fields of one instruction
    pub fn store(
        &mut self,
        warp: &mut Warp,
        at: Place,
        active: Mask,
        space: Space,
        value: Value,
        address: Address,
        from: &[Reg],
        strong: bool,
    ) -> Ran<()> {
        let addresses = addresses(warp, address);
        let bytes = value.bytes * from.len() as u32;
        let mut staging: Staging = [[0; 16]; LANES];
        for (element, &reg) in from.iter().enumerate() {
            if value.wide {
                encode(&mut staging, element, value.bytes, |lane| warp.registers.get64(reg)[lane]);
            } else {
                encode(&mut staging, element, value.bytes, |lane| warp.registers.get32(reg)[lane] as u64);
            }
        }
        let request = Request { at, active, addresses: &addresses, bytes, strong };
        self.write(space, request, &staging)?;
        if let Some(taint) = &warp.taint {
            let class = if value.wide { Class::R64 } else { Class::R32 };
            for (element, &reg) in from.iter().enumerate() {
                let missing = active & !taint.get(class, reg) & local_lanes(space, &addresses);
                for lane in lanes(missing) {
                    let address = addresses[lane] as u32 as usize + element * value.bytes as usize;
                    let offset = at.thread(lane as u32) as usize * self.local.stride + address;
                    self.local.initialised.unset(offset, value.bytes as usize, self.local.data.len());
                }
            }
        }
        Ok(())
    }

    /// Reads from any space into `staging`.
    pub fn read(&mut self, space: Space, request: Request, staging: &mut Staging) -> Ran<Uninitialised> {
        self.check_alignment(&request)?;
        if request.strong {
            self.clock.strong_access(&mut self.memory.clock, request.at.warp, request.active);
        }
        match space {
            Space::Global | Space::Const => self.read_global(&request, staging),
            Space::Shared => self.read_shared(&request, staging),
            Space::Local => self.read_local(&request, staging),
            Space::Param => self.read_param(&request, staging).map(|()| Uninitialised::default()),
            Space::Generic => {
                let mut all = Uninitialised::default();
                for (space, window, lanes) in by_space(&request) {
                    let addresses = request.addresses.map(|a| a.wrapping_sub(window));
                    let part = Request { active: lanes, addresses: &addresses, strong: false, ..request };
                    let missing = self.read(space, part, staging)?;
                    if missing.lanes != 0 {
                        all = Uninitialised { lanes: all.lanes | missing.lanes, place: missing.place };
                    }
                }
                Ok(all)
            }
        }
    }

    /// Writes `staging` to any space.
    pub fn write(&mut self, space: Space, request: Request, staging: &Staging) -> Ran<()> {
        self.check_alignment(&request)?;
        if request.strong {
            self.clock.strong_access(&mut self.memory.clock, request.at.warp, request.active);
        }
        match space {
            Space::Global => self.write_global(&request, staging),
            Space::Shared => self.write_shared(&request, staging),
            Space::Local => self.write_local(&request, staging),
            Space::Const | Space::Param => {
                let text = format!("write to {space:?} memory, which kernels can only read");
                Err(self.fault(Code::IllegalAddress, request.at, first(request.active), text))
            }
            Space::Generic => {
                for (space, window, lanes) in by_space(&request) {
                    let addresses = request.addresses.map(|a| a.wrapping_sub(window));
                    let part = Request { active: lanes, addresses: &addresses, ..request };
                    self.write(space, part, staging)?;
                }
                Ok(())
            }
        }
    }

    fn check_alignment(&self, request: &Request) -> Ran<()> {
        let wrong = request.bytes as u64 - 1;
        if request.addresses.iter().fold(0, |bits, &a| bits | a) & wrong == 0 {
            return Ok(());
        }
        for lane in lanes(request.active) {
            let address = request.addresses[lane];
            if address & wrong != 0 {
                let place = match self.memory.find(address, 1) {
                    Some(index) => format!(" in {}", self.memory.allocations[index].describe()),
                    None => String::new(),
                };
                let text = format!("misaligned: {} bytes at {address:#x}{place}", request.bytes);
                return Err(self.fault(Code::MisalignedAddress, request.at, lane as u32, text));
            }
        }
        Ok(())
    }

    fn read_global(&mut self, request: &Request, staging: &mut Staging) -> Ran<Uninitialised> {
        self.count_global(request);
        let mut missing = Uninitialised::default();
        for lane in lanes(request.active) {
            let (index, offset) = self.locate(request, lane, false)?;
            let found = &mut self.memory.allocations[index];
            copy(&mut staging[lane], &found.data[offset..], request.bytes);
            let bytes = request.bytes as usize;
            if !found.initialised.has(offset, bytes) {
                if missing.lanes == 0 {
                    missing.place = format!("{:#x} in {}", request.addresses[lane], found.describe());
                }
                missing.lanes |= 1 << lane;
            }
            if found.constant {
                continue;
            }
            found.shadow.fit(found.bytes as usize, self.global_shift);
            let access = Access {
                launch: &self.memory.clock,
                block: self.clock,
                thread: request.at.thread(lane as u32),
                pc: request.at.pc,
                floor: self.memory.clock.since,
                strong: request.strong,
            };
            if let Some(conflict) = found.shadow.note_read(offset, bytes, &access) {
                let place = format!("{bytes} bytes at {:#x} in {}", request.addresses[lane], found.describe());
                return Err(self.race(request.at, lane as u32, false, &place, conflict));
            }
        }
        Ok(missing)
    }

    fn write_global(&mut self, request: &Request, staging: &Staging) -> Ran<()> {
        self.count_global(request);
        for lane in lanes(request.active) {
            let (index, offset) = self.locate(request, lane, true)?;
            let found = &mut self.memory.allocations[index];
            if found.constant {
                let text = format!("write to constant {}", found.describe());
                return Err(self.fault(Code::IllegalAddress, request.at, lane as u32, text));
            }
            let bytes = request.bytes as usize;
            found.shadow.fit(found.bytes as usize, self.global_shift);
            let access = Access {
                launch: &self.memory.clock,
                block: self.clock,
                thread: request.at.thread(lane as u32),
                pc: request.at.pc,
                floor: self.memory.clock.since,
                strong: request.strong,
            };
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
    pub fn locate(&mut self, request: &Request, lane: usize, written: bool) -> Ran<(usize, usize)> {
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

    fn read_shared(&mut self, request: &Request, staging: &mut Staging) -> Ran<Uninitialised> {
        self.count_shared(request);
        let mut missing = Uninitialised::default();
        for lane in lanes(request.active) {
            let offset = self.shared_offset(request.at, lane, request.addresses[lane], request.bytes, false)?;
            self.read_shared_bytes(request, lane, offset, staging, &mut missing)?;
        }
        Ok(missing)
    }

    /// One lane's part of a shared read. `staging[lane]` receives it.
    #[inline(always)]
    pub fn read_shared_bytes(
        &mut self,
        request: &Request,
        lane: usize,
        offset: usize,
        staging: &mut Staging,
        missing: &mut Uninitialised,
    ) -> Ran<()> {
        let bytes = request.bytes as usize;
        if self.shared.is_pending(offset, bytes) {
            return Err(self.read_too_early(request.at, lane as u32, offset, bytes));
        }
        copy(&mut staging[lane], &self.shared.data[offset..], request.bytes);
        if !self.shared.initialised.has(offset, bytes) {
            if missing.lanes == 0 {
                missing.place = format!("shared address {offset:#x}");
            }
            missing.lanes |= 1 << lane;
        }
        let access = Access {
            launch: &self.memory.clock,
            block: self.clock,
            thread: request.at.thread(lane as u32),
            pc: request.at.pc,
            floor: self.clock.since,
            strong: request.strong,
        };
        if let Some(conflict) = self.shared.shadow.note_read(offset, bytes, &access) {
            let place = format!("{bytes} bytes at shared address {offset:#x}");
            return Err(self.race(request.at, lane as u32, false, &place, conflict));
        }
        Ok(())
    }

    fn write_shared(&mut self, request: &Request, staging: &Staging) -> Ran<()> {
        self.count_shared(request);
        for lane in lanes(request.active) {
            let offset = self.shared_offset(request.at, lane, request.addresses[lane], request.bytes, true)?;
            self.write_shared_bytes(request, lane, offset, &staging[lane])?;
        }
        Ok(())
    }

    /// One lane's part of a shared write.
    #[inline(always)]
    pub fn write_shared_bytes(&mut self, request: &Request, lane: usize, offset: usize, from: &[u8; 16]) -> Ran<()> {
        let bytes = request.bytes as usize;
        let access = Access {
            launch: &self.memory.clock,
            block: self.clock,
            thread: request.at.thread(lane as u32),
            pc: request.at.pc,
            floor: self.clock.since,
            strong: request.strong,
        };
        let conflict = self.shared.shadow.note_write(offset, bytes, &access);
        let target = &mut self.shared.data[offset..offset + bytes];
        if let Some(conflict) = conflict
            && target != &from[..bytes]
        {
            let place = format!("{bytes} bytes at shared address {offset:#x}");
            return Err(self.race(request.at, lane as u32, true, &place, conflict));
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
        let verb = if written { "writes" } else { "reads" };
        let text = format!(
            "out of bounds: {verb} {bytes} bytes at shared address {address:#x}; the block has {} bytes",
            self.shared.data.len()
        );
        Err(self.fault(Code::IllegalAddress, at, lane as u32, text))
    }

    fn read_local(&mut self, request: &Request, staging: &mut Staging) -> Ran<Uninitialised> {
        let mut missing = Uninitialised::default();
        for lane in lanes(request.active) {
            let offset = self.local_offset(request, lane)?;
            copy(&mut staging[lane], &self.local.data[offset..], request.bytes);
            if !self.local.initialised.has(offset, request.bytes as usize) {
                if missing.lanes == 0 {
                    missing.place = format!("local address {:#x}", request.addresses[lane]);
                }
                missing.lanes |= 1 << lane;
            }
        }
        Ok(missing)
    }

    fn write_local(&mut self, request: &Request, staging: &Staging) -> Ran<()> {
        for lane in lanes(request.active) {
            let offset = self.local_offset(request, lane)?;
            let bytes = request.bytes as usize;
            store_bytes(&mut self.local.data[offset..offset + bytes], &staging[lane], request.bytes);
            self.local.initialised.set(offset, bytes);
        }
        Ok(())
    }

    fn local_offset(&self, request: &Request, lane: usize) -> Ran<usize> {
        let (address, stride) = (request.addresses[lane], self.local.stride as u64);
        if address.saturating_add(request.bytes as u64) <= stride {
            return Ok(request.at.thread(lane as u32) as usize * self.local.stride + address as usize);
        }
        let text = format!(
            "out of bounds: {} bytes at local address {address:#x}; the thread has {stride} bytes",
            request.bytes
        );
        Err(self.fault(Code::IllegalAddress, request.at, lane as u32, text))
    }

    fn read_param(&mut self, request: &Request, staging: &mut Staging) -> Ran<()> {
        for lane in lanes(request.active) {
            let (address, bytes) = (request.addresses[lane], request.bytes as u64);
            if address.saturating_add(bytes) > self.params.len() as u64 {
                let text = format!(
                    "out of bounds: {bytes} bytes at parameter offset {address:#x}; the kernel has {} bytes",
                    self.params.len()
                );
                return Err(self.fault(Code::IllegalAddress, request.at, lane as u32, text));
            }
            copy(&mut staging[lane], &self.params[address as usize..], request.bytes);
        }
        Ok(())
    }

    #[inline(always)]
    fn count_global(&mut self, request: &Request) {
        let (sectors, ideal) = global_sectors(request.addresses, request.active, request.bytes);
        let bytes = request.active.count_ones() as u64 * request.bytes as u64;
        self.counters.count_global(request.at.pc, sectors, ideal, bytes);
    }

    #[inline(always)]
    fn count_shared(&mut self, request: &Request) {
        let mut addresses: Lanes32 = [0; LANES];
        for lane in 0..LANES {
            addresses[lane] = request.addresses[lane] as u32;
        }
        let (wavefronts, ideal) = shared_wavefronts(&addresses, request.active, request.bytes);
        self.counters.count_shared(request.at.pc, wavefronts, ideal);
    }
}

/// The active lanes by the space their generic address lies in, with the start of its window.
fn by_space(request: &Request) -> Vec<(Space, u64, Mask)> {
    let all = [
        (Space::Global, 0),
        (Space::Shared, SHARED_WINDOW),
        (Space::Local, LOCAL_WINDOW),
        (Space::Param, PARAM_WINDOW),
    ];
    let lanes_in = |space| {
        lanes(request.active)
            .filter(|&lane| space_of(request.addresses[lane]) == space)
            .fold(0, |set: Mask, lane| set | 1 << lane)
    };
    all.into_iter().map(|(space, window)| (space, window, lanes_in(space))).filter(|part| part.2 != 0).collect()
}

/// Moves 1, 2, 4, 8 or 16 bytes.
#[inline(always)]
fn copy(to: &mut [u8; 16], from: &[u8], bytes: u32) {
    match bytes {
        4 => to[..4].copy_from_slice(&from[..4]),
        16 => to.copy_from_slice(&from[..16]),
        8 => to[..8].copy_from_slice(&from[..8]),
        2 => to[..2].copy_from_slice(&from[..2]),
        _ => to[0] = from[0],
    }
}

#[inline(always)]
fn store_bytes(to: &mut [u8], from: &[u8; 16], bytes: u32) {
    match bytes {
        4 => to[..4].copy_from_slice(&from[..4]),
        16 => to[..16].copy_from_slice(from),
        8 => to[..8].copy_from_slice(&from[..8]),
        2 => to[..2].copy_from_slice(&from[..2]),
        _ => to[0] = from[0],
    }
}

fn decode32(staging: &Staging, element: usize, value: Value) -> Lanes32 {
    let mut out = [0; LANES];
    let begin = element * value.bytes as usize;
    for (out, from) in out.iter_mut().zip(staging) {
        *out = match (value.bytes, value.signed) {
            (4, _) => u32::from_le_bytes([from[begin], from[begin + 1], from[begin + 2], from[begin + 3]]),
            (2, false) => u16::from_le_bytes([from[begin], from[begin + 1]]) as u32,
            (2, true) => i16::from_le_bytes([from[begin], from[begin + 1]]) as u32,
            (_, false) => from[begin] as u32,
            (_, true) => from[begin] as i8 as u32,
        };
    }
    out
}

fn decode64(staging: &Staging, element: usize, value: Value) -> Lanes64 {
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

fn encode(staging: &mut Staging, element: usize, bytes: u32, value: impl Fn(usize) -> u64) {
    let (begin, bytes) = (element * bytes as usize, bytes as usize);
    for (lane, to) in staging.iter_mut().enumerate() {
        to[begin..begin + bytes].copy_from_slice(&value(lane).to_le_bytes()[..bytes]);
    }
}

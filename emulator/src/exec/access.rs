//! Loads and stores: every access is checked (alignment, bounds, initialised, races) before it happens, and counted.

use super::Ran;
use super::diagnose::Place;
use super::interpret::{Run, first};
use super::services::{local_lanes, space_of};
use super::staging::{Staging, copy, decode32, decode64, encode, store_bytes};
use super::taint::{Origin, Taint};
use super::warp::{Warp, lanes};
use crate::fault::Code;
use crate::memory::clock::{BlockClock, LaunchClock, Time};
use crate::memory::shadow::Accessor;
use crate::program::{Address, Class, LANES, LOCAL_WINDOW, Lanes64, Mask, PARAM_WINDOW, Reg, SHARED_WINDOW, Value};
use crate::ptx::ast::Space;

/// One warp-wide access to memory.
#[derive(Clone, Copy)]
pub struct AccessRequest<'a> {
    pub at: Place,
    pub active: Mask,
    pub addresses: &'a Lanes64,
    /// Bytes a lane: 1, 2, 4, 8 or 16.
    pub bytes: u32,
    /// Volatile or atomic.
    pub strong: bool,
}

impl AccessRequest<'_> {
    /// One lane's access, for the race check.
    #[inline(always)]
    pub fn access<'c>(&self, lane: u32, launch: &'c LaunchClock, block: &'c BlockClock, floor: Time) -> Accessor<'c> {
        Accessor { launch, block, thread: self.at.thread(lane), pc: self.at.pc, floor, strong: self.strong }
    }
}

/// Lanes whose bytes were not all initialised, and the first one's place.
#[derive(Debug, Default)]
pub struct Uninitialised {
    pub lanes: Mask,
    pub place: String,
}

impl Uninitialised {
    #[inline(always)]
    pub fn note(&mut self, lane: usize, place: impl Fn() -> String) {
        if self.lanes == 0 {
            self.place = place();
        }
        self.lanes |= 1 << lane;
    }
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
        let request = AccessRequest { at, active, addresses: &addresses, bytes, strong };
        let missing = self.read(space, request, &mut staging)?;
        for (element, &reg) in to.iter().enumerate() {
            if value.wide {
                warp.registers.set64(reg, decode64(&staging, element, value), active);
            } else {
                warp.registers.set32(reg, decode32(&staging, element, value), active);
            }
        }
        let class = if value.wide { Class::R64 } else { Class::R32 };
        let mut of_elements = [missing.lanes; 4];
        if missing.lanes != 0 {
            self.refine_missing(space, &request, value, missing.lanes, &mut of_elements);
        }
        self.taint_loaded(warp, at, active, class, to, &of_elements, missing.place)
    }

    /// Some bytes of these lanes' accesses were never written. An element counts as uninitialised if none of its bytes
    /// was: words with padding, or with a bit field of which a part is set, are copied as wholes in correct programs.
    #[cold]
    fn refine_missing(
        &self,
        space: Space,
        request: &AccessRequest,
        value: Value,
        missing: Mask,
        elements: &mut [Mask; 4],
    ) {
        for (element, of_element) in elements.iter_mut().enumerate() {
            let offset = element as u64 * value.bytes as u64;
            if offset >= request.bytes as u64 {
                break;
            }
            let untouched = lanes(missing).filter(|&lane| {
                let thread = request.at.thread(lane as u32);
                !self.any_initialised(space, thread, request.addresses[lane] + offset, value.bytes as usize)
            });
            *of_element = untouched.fold(0, |set, lane| set | 1 << lane);
        }
    }

    /// Whether some of the bytes at an address that was just read were ever written.
    fn any_initialised(&self, space: Space, thread: u32, address: u64, bytes: usize) -> bool {
        match space {
            Space::Global | Space::Const => self.memory.find(address, bytes as u64).is_none_or(|index| {
                let found = &self.memory.allocations[index];
                found.initialised.any((address - found.base) as usize, bytes)
            }),
            Space::Shared => self.shared.initialised.any(address as usize, bytes),
            Space::Local => {
                let begin = thread as usize * self.local.stride;
                self.local.initialised.any(begin + address as usize, bytes)
            }
            Space::Param => true,
            Space::Generic => {
                let inner = space_of(address);
                let window = match inner {
                    Space::Shared => SHARED_WINDOW,
                    Space::Local => LOCAL_WINDOW,
                    Space::Param => PARAM_WINDOW,
                    _ => 0,
                };
                self.any_initialised(inner, thread, address - window, bytes)
            }
        }
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
    ) -> Ran<()> {
        let known = warp.taint.take();
        if missing.iter().all(|&lanes| lanes == 0) && known.is_none() {
            return Ok(());
        }
        let mut taint = match known {
            Some(taint) => taint,
            None => Box::new(Taint::clean(self.program.registers)?),
        };
        for (&reg, &missing) in to.iter().zip(missing) {
            let origin = (missing & active != 0).then(|| Origin { pc: at.pc, place: place.clone() });
            taint.set(class, reg, !missing, active, origin);
        }
        warp.taint = (!taint.is_clean()).then_some(taint);
        Ok(())
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
        let request = AccessRequest { at, active, addresses: &addresses, bytes, strong };
        self.write(space, request, &staging)?;
        if let Some(taint) = &warp.taint {
            let class = if value.wide { Class::R64 } else { Class::R32 };
            for (element, &reg) in from.iter().enumerate() {
                let missing = active & !taint.get(class, reg) & local_lanes(space, &addresses);
                for lane in lanes(missing) {
                    let address = addresses[lane] as u32 as usize + element * value.bytes as usize;
                    let offset = at.thread(lane as u32) as usize * self.local.stride + address;
                    self.local.initialised.unset(offset, value.bytes as usize, self.local.data.len())?;
                }
            }
        }
        Ok(())
    }

    /// Reads from any space into `staging`.
    pub fn read(&mut self, space: Space, request: AccessRequest, staging: &mut Staging) -> Ran<Uninitialised> {
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
                    let part = AccessRequest { active: lanes, addresses: &addresses, ..request };
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
    pub fn write(&mut self, space: Space, request: AccessRequest, staging: &Staging) -> Ran<()> {
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
                    let part = AccessRequest { active: lanes, addresses: &addresses, ..request };
                    self.write(space, part, staging)?;
                }
                Ok(())
            }
        }
    }

    fn check_alignment(&self, request: &AccessRequest) -> Ran<()> {
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

    fn read_local(&mut self, request: &AccessRequest, staging: &mut Staging) -> Ran<Uninitialised> {
        let mut missing = Uninitialised::default();
        for lane in lanes(request.active) {
            let offset = self.local_offset(request, lane)?;
            copy(&mut staging[lane], &self.local.data[offset..], request.bytes);
            if !self.local.initialised.has(offset, request.bytes as usize) {
                missing.note(lane, || format!("local address {:#x}", request.addresses[lane]));
            }
        }
        Ok(missing)
    }

    fn write_local(&mut self, request: &AccessRequest, staging: &Staging) -> Ran<()> {
        for lane in lanes(request.active) {
            let offset = self.local_offset(request, lane)?;
            let bytes = request.bytes as usize;
            store_bytes(&mut self.local.data[offset..offset + bytes], &staging[lane], request.bytes);
            self.local.initialised.set(offset, bytes);
        }
        Ok(())
    }

    fn local_offset(&self, request: &AccessRequest, lane: usize) -> Ran<usize> {
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

    fn read_param(&mut self, request: &AccessRequest, staging: &mut Staging) -> Ran<()> {
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
}

/// Whether each lane's address follows the one before.
#[inline(always)]
pub fn consecutive(addresses: &Lanes64, bytes: u64) -> bool {
    let mut follows = true;
    for lane in 0..LANES {
        follows &= addresses[lane] == addresses[0].wrapping_add(lane as u64 * bytes);
    }
    follows
}

/// The active lanes by the space their generic address lies in, with the start of its window.
fn by_space(request: &AccessRequest) -> Vec<(Space, u64, Mask)> {
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

//! `atom` and `red`: lane after lane, in lane order. (PTX ISA, "atom".)

use half::{bf16, f16};

use super::Ran;
use super::access::{AccessRequest, addresses};
use super::diagnose::Place;
use super::interpret::{Run, first};
use super::services::space_of;
use super::warp::{Warp, lanes};
use crate::fault::Code;
use crate::program::{Address, Atomic, AtomicOp, LOCAL_WINDOW, Mask, Reg, SHARED_WINDOW};
use crate::ptx::ast::{Space, Type};

impl Run<'_> {
    #[allow(clippy::too_many_arguments)] // the fields of one instruction
    pub fn atomic(
        &mut self,
        warp: &mut Warp,
        at: Place,
        active: Mask,
        space: Space,
        function: Atomic,
        address: Address,
        to: Option<Reg>,
        b: Reg,
        c: Option<Reg>,
    ) -> Ran<()> {
        let mut addresses = addresses(warp, address);
        let wide = function.ty.bytes() == 8;
        let get = |warp: &Warp, reg: Reg, lane: usize| {
            if wide { warp.registers.get64(reg)[lane] } else { warp.registers.get32(reg)[lane] as u64 }
        };
        self.clock.strong_access(&mut self.memory.clock, at.warp, active);
        self.counters.count_atomic(at.pc, active.count_ones() as u64);
        let mut old = [0u64; 32];
        for lane in lanes(active) {
            let mut space = space;
            if space == Space::Generic {
                space = space_of(addresses[lane]);
                match space {
                    Space::Shared => addresses[lane] -= SHARED_WINDOW,
                    Space::Local => addresses[lane] -= LOCAL_WINDOW,
                    _ => {}
                }
            }
            let request = AccessRequest {
                at,
                active: 1 << lane,
                addresses: &addresses,
                bytes: function.ty.bytes() as u32,
                strong: true,
            };
            let operands = (get(warp, b, lane), c.map_or(0, |c| get(warp, c, lane)));
            old[lane] = self.atomic_lane(&request, lane, space, function, operands)?;
        }
        if let Some(to) = to {
            if wide {
                warp.registers.set64(to, old, active);
            } else {
                warp.registers.set32(to, old.map(|v| v as u32), active);
            }
        }
        Ok(())
    }

    /// One lane's read, computation and write; returns what was there.
    fn atomic_lane(
        &mut self,
        request: &AccessRequest,
        lane: usize,
        space: Space,
        function: Atomic,
        (b, c): (u64, u64),
    ) -> Ran<u64> {
        let (at, bytes, address) = (request.at, request.bytes as usize, request.addresses[lane]);
        if address % bytes as u64 != 0 {
            let text = format!("misaligned: atomic on {bytes} bytes at {address:#x}");
            return Err(self.fault(Code::MisalignedAddress, at, lane as u32, text));
        }
        let (index, offset) = match space {
            Space::Shared => (0, self.shared_offset(at, lane, address, request.bytes, true)?),
            Space::Global => self.locate(request, lane, true)?,
            _ => {
                let text = format!("atomic on {space:?} memory: expected global or shared");
                return Err(self.fault(Code::IllegalAddress, at, lane as u32, text));
            }
        };
        if space == Space::Shared && self.shared.is_pending(offset, bytes) {
            return Err(self.used_too_early(at, lane as u32, offset, bytes));
        }
        let found = &mut self.memory.allocations.get_mut(index);
        let (data, initialised, shadow, floor) = match (space, found) {
            (Space::Global, Some(found)) => {
                let bytes = found.bytes as usize;
                found.shadow.fit(bytes, self.global_shift)?;
                (&mut found.data, &mut found.initialised, &mut found.shadow, self.memory.clock.since)
            }
            _ => (&mut self.shared.data, &mut self.shared.initialised, &mut self.shared.shadow, self.clock.since),
        };
        let access = request.access(lane as u32, &self.memory.clock, self.clock, floor);
        let conflict = shadow.note_write(offset, bytes, &access);
        let known = initialised.has(offset, bytes);
        let mut word = [0u8; 8];
        word[..bytes].copy_from_slice(&data[offset..offset + bytes]);
        let old = u64::from_le_bytes(word);
        let new = compute(function, old, b, c);
        data[offset..offset + bytes].copy_from_slice(&new.to_le_bytes()[..bytes]);
        initialised.set(offset, bytes);
        if let Some(conflict) = conflict {
            let place = format!("{bytes} bytes at {space:?} address {address:#x} (atomic)");
            return Err(self.race(at, lane as u32, true, &place, conflict));
        }
        if !known && function.op != AtomicOp::Exchange {
            let text = format!("uninitialised: atomic on {space:?} address {address:#x}, which was never written");
            return Err(self.fault(Code::LaunchFailed, at, first(1 << lane), text));
        }
        Ok(old)
    }
}

/// The value that an atomic stores.
fn compute(function: Atomic, old: u64, b: u64, c: u64) -> u64 {
    let Atomic { op, ty } = function;
    match op {
        AtomicOp::Exchange => b,
        AtomicOp::CompareAndSwap => {
            if old == b {
                c
            } else {
                old
            }
        }
        AtomicOp::And => old & b,
        AtomicOp::Or => old | b,
        AtomicOp::Xor => old ^ b,
        AtomicOp::Increment => {
            if old >= b {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || old > b {
                b
            } else {
                old - 1
            }
        }
        AtomicOp::Add => add(ty, old, b),
        AtomicOp::Min => extreme(ty, old, b, true),
        AtomicOp::Max => extreme(ty, old, b, false),
    }
}

fn add(ty: Type, a: u64, b: u64) -> u64 {
    let f16_add = |a: u64, b: u64| {
        f16::from_f32(f16::from_bits(a as u16).to_f32() + f16::from_bits(b as u16).to_f32()).to_bits() as u64
    };
    let bf16_add = |a: u64, b: u64| {
        bf16::from_f32(bf16::from_bits(a as u16).to_f32() + bf16::from_bits(b as u16).to_f32()).to_bits() as u64
    };
    match ty {
        Type::F32 => (f32::from_bits(a as u32) + f32::from_bits(b as u32)).to_bits() as u64,
        Type::F64 => (f64::from_bits(a) + f64::from_bits(b)).to_bits(),
        Type::F16 => f16_add(a, b),
        Type::Bf16 => bf16_add(a, b),
        Type::F16x2 => f16_add(a & 0xffff, b & 0xffff) | f16_add(a >> 16, b >> 16) << 16,
        Type::Bf16x2 => bf16_add(a & 0xffff, b & 0xffff) | bf16_add(a >> 16, b >> 16) << 16,
        _ if ty.bytes() == 4 => (a as u32).wrapping_add(b as u32) as u64,
        _ => a.wrapping_add(b),
    }
}

/// The lesser or greater of two integers.
fn extreme(ty: Type, a: u64, b: u64, least: bool) -> u64 {
    let first_less = match ty {
        Type::S32 => (a as i32) < (b as i32),
        Type::S64 => (a as i64) < (b as i64),
        _ => a < b,
    };
    if first_less == least { a } else { b }
}

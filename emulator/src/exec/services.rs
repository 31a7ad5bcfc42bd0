//! What a kernel asks of its surroundings: printing, assertions, the clock, and which space an address is in.

use super::Ran;
use super::access::addresses;
use super::diagnose::Place;
use super::interpret::{Flow, Run, first};
use super::taint::{Origin, Uses};
use super::warp::{Group, Wait, Warp, describe_lanes, lanes};
use crate::fault::{Code, Fault, shown};
use crate::memory::room;
use crate::program::{Class, Instruction, LOCAL_WINDOW, Lanes64, Mask, Op, PARAM_WINDOW, Reg, SHARED_WINDOW};
use crate::ptx::ast::Space;

impl Run<'_> {
    /// `brx.idx`: lanes go where their index says.
    pub fn branch_indexed(
        &mut self,
        warp: &mut Warp,
        at: Place,
        mask: Mask,
        active: Mask,
        index: Reg,
        targets: &[u32],
    ) -> Ran<Flow> {
        let index = *warp.registers.get32(index);
        let mut rest = active;
        while rest != 0 {
            let lane = first(rest);
            let chosen = index[lane as usize];
            let Some(&target) = targets.get(chosen as usize) else {
                let text = format!("jump to entry {chosen} of a table of {}", targets.len());
                return Err(self.fault(Code::LaunchFailed, at, lane, text));
            };
            let set = lanes(rest).filter(|&l| index[l] == chosen).fold(0, |set, l| set | 1 << l);
            rest &= !set;
            warp.put(Group { pc: target, lanes: set, wait: Wait::Ready });
        }
        if mask & !active != 0 {
            warp.put(Group { pc: at.pc + 1, lanes: mask & !active, wait: Wait::Ready });
        }
        Ok(Flow::Gone)
    }

    /// `printf`: appends to what the launch prints.
    pub fn printf(
        &mut self,
        warp: &mut Warp,
        at: Place,
        active: Mask,
        format: Reg,
        arguments: Reg,
        to: Reg,
    ) -> Ran<()> {
        for lane in lanes(active) {
            let address = warp.registers.get64(format)[lane];
            let Some(format) = self.text(address) else {
                let text = format!("printf with a format at {address:#x}, where no text is");
                return Err(self.fault(Code::IllegalAddress, at, lane as u32, text));
            };
            let arguments = self.bytes_from(at, lane as u32, warp.registers.get64(arguments)[lane]);
            let printed = crate::printf::format(&format, &arguments, &|address| self.text(address));
            self.output.extend_from_slice(&printed);
        }
        warp.registers.set32(to, [0; 32], active);
        Ok(())
    }

    /// `assert` failed: what the toolkit prints, as a finding.
    pub fn assert_fail(&self, warp: &Warp, at: Place, active: Mask, texts: [Reg; 3], line: Reg) -> Box<Fault> {
        let lane = first(active);
        let [message, file, function] = texts.map(|reg| {
            let text = self.text(warp.registers.get64(reg)[lane as usize]).unwrap_or_default();
            shown(&String::from_utf8_lossy(&text))
        });
        let line = warp.registers.get32(line)[lane as usize];
        let text = format!("assertion `{message}` failed at {file}:{line} in {function}");
        self.fault(Code::Assert, at, lane, text)
    }

    /// NUL-terminated text in device memory.
    fn text(&self, address: u64) -> Option<Vec<u8>> {
        let index = self.memory.find(address, 1)?;
        let found = &self.memory.allocations[index];
        let bytes = &found.data[(address - found.base) as usize..];
        room::copied(&bytes[..bytes.iter().position(|&b| b == 0)?]).ok()
    }

    /// Memory from an address to the end of its thread's or allocation's memory.
    fn bytes_from(&self, at: Place, lane: u32, address: u64) -> Vec<u8> {
        if (LOCAL_WINDOW..LOCAL_WINDOW + (1 << 32)).contains(&address) {
            let stride = self.local.stride;
            let begin = at.thread(lane) as usize * stride;
            let offset = (address - LOCAL_WINDOW) as usize;
            return self.local.data.get(begin + offset..begin + stride).unwrap_or(&[]).to_vec();
        }
        let Some(index) = self.memory.find(address, 1) else { return Vec::new() };
        let found = &self.memory.allocations[index];
        found.data[(address - found.base) as usize..].iter().copied().take(4096).collect()
    }

    /// `%clock`: one tick an instruction of the warp, so that runs repeat.
    pub fn read_clock(&self, warp: &mut Warp, active: Mask, to: Reg, wide: bool) {
        if wide {
            warp.registers.set64(to, [warp.steps; 32], active);
        } else {
            warp.registers.set32(to, [warp.steps as u32; 32], active);
        }
    }

    /// `isspacep`
    pub fn is_space(&self, warp: &mut Warp, active: Mask, space: Space, to: Reg, from: Reg) {
        let addresses = warp.registers.get64(from);
        let inside = lanes(Mask::MAX).filter(|&lane| space_of(addresses[lane]) == space);
        let inside = inside.fold(0, |set, lane| set | 1 << lane);
        warp.registers.set_pred(to, inside, active);
    }

    /// Before an instruction runs in a warp with uninitialised registers: reports those that decide something, and
    /// works out where the results will be initialised.
    #[inline(never)]
    pub fn check_taint(&mut self, warp: &mut Warp, pc: u32, mask: Mask, active: Mask) -> Ran<()> {
        let program = self.program;
        let uses = self.uses.get_or_init(|| program.code.iter().map(Uses::of).collect());
        let instruction = &program.code[pc as usize];
        let at = Place { pc, warp: warp.index };
        if let Some(guard) = instruction.guard {
            self.demand(warp, at, mask, Class::Pred, guard.pred, "decides a branch or a guard")?;
        }
        if active == 0 {
            return Ok(());
        }
        let uses = &uses[pc as usize];
        match &instruction.op {
            Op::Alu(_) | Op::Warp(_) => self.spread(warp, instruction, uses, active),
            Op::Store { space, address, from, .. } => {
                let class = if address.wide { Class::R64 } else { Class::R32 };
                self.demand(warp, at, active, class, address.base, "is used as an address")?;
                // A thread's own memory may hold what its registers may hold.
                let shared = active & !local_lanes(*space, &addresses(warp, *address));
                for &(class, reg) in uses.reads.iter().filter(|(_, reg)| from.contains(reg)) {
                    self.demand(warp, at, shared, class, reg, "is stored")?;
                }
            }
            Op::Load { .. } | Op::LoadMatrix { .. } | Op::CopyAsync { .. } => {
                for &(class, reg) in &uses.reads {
                    self.demand(warp, at, active, class, reg, "is used as an address")?;
                }
            }
            _ => {
                for &(class, reg) in &uses.reads {
                    self.demand(warp, at, active, class, reg, "is used here")?;
                }
                if let Some(taint) = &mut warp.taint {
                    uses.writes.iter().for_each(|&(class, reg)| taint.set(class, reg, Mask::MAX, active, None));
                }
            }
        }
        Ok(())
    }

    /// A register must be initialised in all `lanes`.
    fn demand(&self, warp: &Warp, at: Place, lanes: Mask, class: Class, reg: Reg, use_: &str) -> Ran<()> {
        let Some(taint) = &warp.taint else { return Ok(()) };
        let missing = lanes & !taint.get(class, reg);
        if missing == 0 {
            return Ok(());
        }
        let origin = match taint.origin(class, reg) {
            Some(origin) => format!("read at {} from {}", self.line(origin.pc), origin.place),
            None => "from a register that was never written".to_string(),
        };
        let text = format!("uninitialised: a value {origin} {use_} ({})", describe_lanes(missing));
        Err(self.fault(Code::LaunchFailed, at, first(missing), text))
    }

    /// Results of arithmetic are initialised where their operands are.
    fn spread(&self, warp: &mut Warp, instruction: &Instruction, uses: &Uses, active: Mask) {
        let Some(mut taint) = warp.taint.take() else { return };
        if uses.reads.iter().all(|&(class, reg)| taint.get(class, reg) & active == active) {
            uses.writes.iter().for_each(|&(class, reg)| taint.set(class, reg, Mask::MAX, active, None));
            warp.taint = (!taint.is_clean()).then_some(taint);
            return;
        }
        let get = |class, reg| taint.get(class, reg);
        let source = uses.reads.iter().find(|&&(class, reg)| get(class, reg) & active != active);
        let origin: Option<Origin> = source.and_then(|&(class, reg)| taint.origin(class, reg).cloned());
        let plain = uses.reads.iter().fold(Mask::MAX, |lanes, &(class, reg)| lanes & get(class, reg));
        let results: Vec<(Class, Reg, Mask)> = match &instruction.op {
            Op::Warp(op) => op.initialised(&warp.registers, active, &get),
            Op::Alu(alu) => {
                let lanes = alu.initialised(&warp.registers, &get).unwrap_or(plain);
                uses.writes.iter().map(|&(class, reg)| (class, reg, lanes)).collect()
            }
            _ => Vec::new(),
        };
        for (class, reg, lanes) in results {
            let origin = if lanes & active == active { None } else { origin.clone() };
            taint.set(class, reg, lanes, active, origin);
        }
        warp.taint = Some(taint);
    }
}

/// The space that a generic address lies in.
#[inline(always)]
pub fn space_of(address: u64) -> Space {
    match address >> 40 {
        1 if address - SHARED_WINDOW < 1 << 32 => Space::Shared,
        2 if address - LOCAL_WINDOW < 1 << 32 => Space::Local,
        3 if address - PARAM_WINDOW < 1 << 32 => Space::Param,
        _ => Space::Global,
    }
}

/// The lanes whose address lies in their thread's local memory.
pub fn local_lanes(space: Space, addresses: &Lanes64) -> Mask {
    match space {
        Space::Local => Mask::MAX,
        Space::Generic => {
            let local = lanes(Mask::MAX).filter(|&lane| space_of(addresses[lane]) == Space::Local);
            local.fold(0, |set, lane| set | 1 << lane)
        }
        _ => 0,
    }
}

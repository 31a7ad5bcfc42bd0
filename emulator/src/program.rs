//! What the interpreter runs: a kernel lowered from PTX to a flat list of instructions over numbered registers.
//!
//! There are three register files. A register holds one value for each of the warp's 32 lanes.
//! Constants (immediates, symbol addresses) and the launch's special registers (`%tid.x`, …) are registers too,
//! filled when a warp starts, so every operand of an instruction is a register.

use crate::alu::Alu;
use crate::ptx::ast::Space;
use crate::warp_ops::WarpOp;

/// Lanes in a warp.
pub const LANES: usize = 32;
/// Where shared memory begins among generic addresses; local memory and parameters likewise.
pub const SHARED_WINDOW: u64 = 1 << 40;
pub const LOCAL_WINDOW: u64 = 2 << 40;
pub const PARAM_WINDOW: u64 = 3 << 40;
/// One 32-bit value a lane. Narrower types (8 and 16 bits) live here too, zero-extended.
pub type Lanes32 = [u32; LANES];
/// One 64-bit value a lane.
pub type Lanes64 = [u64; LANES];
/// One bit a lane: bit i belongs to lane i. Predicates, and sets of lanes.
pub type Mask = u32;

/// Which register file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// 8, 16 and 32 bits: `Registers::r32`.
    R32,
    /// 64 bits: `Registers::r64`.
    R64,
    /// Predicates: `Registers::pred`.
    Pred,
}

/// A register's index in its file; the instruction says which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub u32);

/// A warp's registers.
#[derive(Debug, Clone, Default)]
pub struct Registers {
    pub r32: Vec<Lanes32>,
    pub r64: Vec<Lanes64>,
    pub pred: Vec<Mask>,
}

impl Registers {
    /// Writes the active lanes of a 32-bit register and leaves the others.
    #[inline(always)]
    pub fn set32(&mut self, d: Reg, value: Lanes32, active: Mask) {
        let target = &mut self.r32[d.0 as usize];
        if active == Mask::MAX {
            *target = value;
        } else {
            blend(target, &value, active);
        }
    }

    /// Writes the active lanes of a 64-bit register and leaves the others.
    #[inline(always)]
    pub fn set64(&mut self, d: Reg, value: Lanes64, active: Mask) {
        let target = &mut self.r64[d.0 as usize];
        if active == Mask::MAX {
            *target = value;
        } else {
            blend(target, &value, active);
        }
    }

    /// Writes the active lanes of a predicate and leaves the others.
    #[inline(always)]
    pub fn set_pred(&mut self, d: Reg, value: Mask, active: Mask) {
        let target = &mut self.pred[d.0 as usize];
        *target = (*target & !active) | (value & active);
    }

    #[inline(always)]
    pub fn get32(&self, r: Reg) -> &Lanes32 {
        &self.r32[r.0 as usize]
    }

    #[inline(always)]
    pub fn get64(&self, r: Reg) -> &Lanes64 {
        &self.r64[r.0 as usize]
    }

    #[inline(always)]
    pub fn get_pred(&self, r: Reg) -> Mask {
        self.pred[r.0 as usize]
    }
}

/// Copies the active lanes. Kept out of line: it would otherwise be compiled into every arithmetic instruction.
#[inline(never)]
fn blend<T: Copy>(target: &mut [T; LANES], value: &[T; LANES], active: Mask) {
    *target = crate::alu::lanes::select(active, value, target);
}

/// How an instruction uses a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Called with every register operand of an instruction: reads first, then writes.
pub type Visit<'a> = &'a mut dyn FnMut(Access, Class, &mut Reg);

/// `@p` / `@!p`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Guard {
    pub pred: Reg,
    pub negated: bool,
}

#[derive(Debug, Clone)]
pub struct Instruction {
    pub guard: Option<Guard>,
    pub op: Op,
    /// Index into `Program::lines`.
    pub line: u32,
}

/// What an instruction does. Arithmetic on lanes is `Alu`; what looks across lanes is `WarpOp`.
#[derive(Debug, Clone)]
pub enum Op {
    Alu(Alu),
    Warp(WarpOp),
    Load {
        space: Space,
        value: Value,
        address: Address,
        to: Vec<Reg>,
        strong: bool,
    },
    Store {
        space: Space,
        value: Value,
        address: Address,
        from: Vec<Reg>,
        strong: bool,
    },
    /// `atom`, and `red` where `to` is `None`.
    Atomic {
        space: Space,
        function: Atomic,
        address: Address,
        to: Option<Reg>,
        b: Reg,
        c: Option<Reg>,
    },
    /// `cp.async`: copies `bytes` from global to shared memory; the data appears at the wait. `source_bytes` (a 32-bit
    /// register) of them come from memory, the rest are zeros.
    CopyAsync {
        shared: Address,
        global: Address,
        bytes: u32,
        source_bytes: Option<Reg>,
    },
    CopyAsyncCommit,
    /// `cp.async.wait_group N`; `None` is `wait_all`.
    CopyAsyncWait {
        pending: Option<u32>,
    },
    /// `ldmatrix`: `to` has 1, 2 or 4 registers; lane 8m+r gives the address of row r of matrix m.
    LoadMatrix {
        address: Address,
        to: Vec<Reg>,
        transposed: bool,
    },
    /// `stmatrix`, the same the other way.
    StoreMatrix {
        address: Address,
        from: Vec<Reg>,
        transposed: bool,
    },
    /// `membar`, `fence`.
    Fence,
    /// `bar.sync`, `barrier.sync`, `bar.arrive`, `bar.red`.
    Barrier(Barrier),
    /// `bar.warp.sync MEMBERMASK`.
    WarpBarrier {
        members: Reg,
    },
    Branch {
        target: u32,
    },
    /// `brx.idx`: jumps to `targets[index]`.
    BranchIndexed {
        index: Reg,
        targets: Vec<u32>,
    },
    /// `exit`, and `ret` of a kernel.
    Exit,
    Trap,
    /// `call vprintf`: addresses (64-bit registers) of the format and of the packed arguments.
    Printf {
        format: Reg,
        arguments: Reg,
        to: Reg,
    },
    /// `call __assertfail`: addresses of message and file, the line, the address of the function's name.
    AssertFail {
        message: Reg,
        file: Reg,
        line: Reg,
        function: Reg,
    },
    /// `%clock`, `%clock64`, `%globaltimer`: counted in instructions, so that runs repeat.
    ReadClock {
        to: Reg,
        wide: bool,
    },
    /// `isspacep`: whether a generic address (a 64-bit register) lies in a space.
    IsSpace {
        space: Space,
        to: Reg,
        from: Reg,
    },
    /// `prefetch`, `discard`, `pragma`, `nanosleep`: what has no effect on values.
    Nop,
}

/// A memory operand's element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// Bytes of one element: 1, 2, 4 or 8.
    pub bytes: u32,
    /// Signed elements narrower than the register are sign-extended to 32 or 64 bits.
    pub signed: bool,
    /// Whether the registers are 64-bit ones (`Class::R64`); else 32-bit ones.
    pub wide: bool,
}

/// `[base + offset]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Address {
    pub base: Reg,
    /// Whether `base` is a 64-bit register.
    pub wide: bool,
    pub offset: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Atomic {
    pub op: AtomicOp,
    pub ty: crate::ptx::ast::Type,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
    Increment,
    Decrement,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Barrier {
    /// Which of the block's 16 barriers: a 32-bit register.
    pub id: Reg,
    /// Threads that take part; all of the block where there is none.
    pub threads: Option<Reg>,
    pub kind: BarrierKind,
    /// All lanes of a warp must come together: `bar`, `barrier.….aligned`.
    pub aligned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BarrierKind {
    Sync,
    Arrive,
    /// `bar.red.popc.u32`
    Count {
        to: Reg,
        pred: Reg,
        negated: bool,
    },
    /// `bar.red.and.pred`
    All {
        to: Reg,
        pred: Reg,
        negated: bool,
    },
    /// `bar.red.or.pred`
    Any {
        to: Reg,
        pred: Reg,
        negated: bool,
    },
}

/// A special register that is constant for a thread during a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// `%tid`, by axis 0 x, 1 y, 2 z.
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    SmId,
    NSmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    DynamicSharedBytes,
    TotalSharedBytes,
}

/// What fills a register when a warp starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Preset {
    /// A number: immediates, and addresses known when the module is loaded.
    Bits(u64),
    Special(Special),
}

/// A frame of source code.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    pub file: String,
    pub line: u32,
}

/// Where an instruction comes from: innermost frame first, then the calls it was inlined through.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SourceLine {
    pub frames: Vec<Frame>,
    /// Line of the PTX text.
    pub ptx_line: u32,
    /// The instruction as PTX writes it, its form alone: `ld.global.f32`.
    pub form: String,
}

/// A kernel, ready to run.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub name: String,
    pub code: Vec<Instruction>,
    pub lines: Vec<SourceLine>,
    /// Registers in each file.
    pub registers: Files,
    /// Registers that hold a constant for the whole launch.
    pub presets: Vec<(Class, Reg, Preset)>,
    /// Registers that some path may read before it writes them.
    pub undefined: Vec<(Class, Reg)>,
    pub params: Vec<ParamSlot>,
    /// Bytes of the parameter buffer.
    pub param_bytes: u32,
    /// Bytes of `.shared` variables (module and entry level); the dynamic part follows at `dynamic_shared`.
    pub static_shared: u32,
    /// Where `.extern .shared` begins: `static_shared` rounded up to the array's alignment.
    pub dynamic_shared: u32,
    /// Bytes of `.local` variables a thread.
    pub local_bytes: u32,
    /// `.maxntid`, `.reqntid`, `.minnctapersm`, `.maxnreg`.
    pub max_threads: Option<[u32; 3]>,
    pub required_threads: Option<[u32; 3]>,
    pub min_blocks: Option<u32>,
    pub max_registers: Option<u32>,
    /// An estimate of the 32-bit registers a thread needs: the most that are live at once.
    pub live_registers: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Files {
    pub r32: u32,
    pub r64: u32,
    pub pred: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ParamSlot {
    pub name: String,
    pub offset: u32,
    pub bytes: u32,
    pub align: u32,
}

/// A loaded module: kernels by name and where its variables lie.
#[derive(Debug, Clone, Default)]
pub struct ModuleImage {
    pub kernels: Vec<Program>,
}

impl Address {
    pub fn visit(&mut self, visit: Visit) {
        visit(Access::Read, if self.wide { Class::R64 } else { Class::R32 }, &mut self.base);
    }
}

impl Instruction {
    /// Every register the instruction reads, then every one it writes.
    pub fn visit(&mut self, visit: Visit) {
        use Access::{Read, Write};
        if let Some(guard) = &mut self.guard {
            visit(Read, Class::Pred, &mut guard.pred);
        }
        let width = |wide: bool| if wide { Class::R64 } else { Class::R32 };
        match &mut self.op {
            Op::Alu(alu) => alu.visit(visit),
            Op::Warp(op) => op.visit(visit),
            Op::Load { value, address, to, .. } => {
                address.visit(visit);
                to.iter_mut().for_each(|r| visit(Write, width(value.wide), r));
            }
            Op::Store { value, address, from, .. } => {
                address.visit(visit);
                from.iter_mut().for_each(|r| visit(Read, width(value.wide), r));
            }
            Op::Atomic { function, address, to, b, c, .. } => {
                let class = width(function.ty.bytes() == 8);
                address.visit(visit);
                visit(Read, class, b);
                c.iter_mut().for_each(|r| visit(Read, class, r));
                to.iter_mut().for_each(|r| visit(Write, class, r));
            }
            Op::CopyAsync { shared, global, source_bytes, .. } => {
                shared.visit(visit);
                global.visit(visit);
                source_bytes.iter_mut().for_each(|r| visit(Read, Class::R32, r));
            }
            Op::LoadMatrix { address, to, .. } => {
                address.visit(visit);
                to.iter_mut().for_each(|r| visit(Write, Class::R32, r));
            }
            Op::StoreMatrix { address, from, .. } => {
                address.visit(visit);
                from.iter_mut().for_each(|r| visit(Read, Class::R32, r));
            }
            Op::Barrier(barrier) => {
                visit(Read, Class::R32, &mut barrier.id);
                barrier.threads.iter_mut().for_each(|r| visit(Read, Class::R32, r));
                match &mut barrier.kind {
                    BarrierKind::Sync | BarrierKind::Arrive => {}
                    BarrierKind::Count { to, pred, .. } => {
                        visit(Read, Class::Pred, pred);
                        visit(Write, Class::R32, to);
                    }
                    BarrierKind::All { to, pred, .. } | BarrierKind::Any { to, pred, .. } => {
                        visit(Read, Class::Pred, pred);
                        visit(Write, Class::Pred, to);
                    }
                }
            }
            Op::WarpBarrier { members } => visit(Read, Class::R32, members),
            Op::BranchIndexed { index, .. } => visit(Read, Class::R32, index),
            Op::Printf { format, arguments, to } => {
                visit(Read, Class::R64, format);
                visit(Read, Class::R64, arguments);
                visit(Write, Class::R32, to);
            }
            Op::AssertFail { message, file, line, function } => {
                visit(Read, Class::R64, message);
                visit(Read, Class::R64, file);
                visit(Read, Class::R32, line);
                visit(Read, Class::R64, function);
            }
            Op::ReadClock { to, wide } => visit(Write, width(*wide), to),
            Op::IsSpace { to, from, .. } => {
                visit(Read, Class::R64, from);
                visit(Write, Class::Pred, to);
            }
            Op::CopyAsyncCommit
            | Op::CopyAsyncWait { .. }
            | Op::Fence
            | Op::Branch { .. }
            | Op::Exit
            | Op::Trap
            | Op::Nop => {}
        }
    }
}

//! What the interpreter runs: a kernel lowered from PTX to a flat list of instructions over numbered registers.
//!
//! There are three register files. A register holds one value for each of the warp's 32 lanes.
//! Constants (immediates, symbol addresses) and the launch's special registers (`%tid.x`, …) are registers too,
//! filled when a warp starts, so every operand of an instruction is a register.

mod registers;
mod visit;

pub use registers::{Class, LANES, Lanes32, Lanes64, Mask, Reg, Registers};

use std::sync::Arc;

use crate::alu::Alu;
use crate::ptx::ast::Space;
use crate::warp_ops::WarpOp;

/// Where shared memory begins among generic addresses; local memory and parameters likewise.
pub const SHARED_WINDOW: u64 = 1 << 40;
pub const LOCAL_WINDOW: u64 = 2 << 40;
pub const PARAM_WINDOW: u64 = 3 << 40;

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
        targets: Arc<[u32]>,
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
    pub file: Arc<str>,
    pub line: u32,
}

/// Where an instruction comes from: innermost frame first, then the calls it was inlined through.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SourceLine {
    pub frames: Arc<[Frame]>,
    /// Line of the PTX text.
    pub ptx_line: u32,
    /// The instruction as PTX writes it, its form alone: `ld.global.f32`.
    pub form: String,
}

/// A kernel, ready to run.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub name: String,
    /// The context that loaded it.
    pub owner: u32,
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

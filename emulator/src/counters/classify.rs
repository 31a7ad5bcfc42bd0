//! What an instruction is, and how many floating-point operations a lane does in it.
//!
//! An fma is two operations, an addition or a multiplication one, of each element of a packed pair; comparisons,
//! minima, conversions and special functions are none. `mma.sync` counts 2·m·n·k for the warp, by the rate at which
//! tensor cores run it.

use serde::Serialize;

use crate::alu::Alu;
use crate::program::Op;
use crate::ptx::ast::Space;
use crate::warp_ops::{MmaForm, WarpOp};

/// In the order of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    TensorCore,
    Float32,
    Float64,
    /// f16 and bf16, single or in pairs.
    Half,
    SpecialFunction,
    Convert,
    Integer,
    GlobalLoad,
    GlobalStore,
    SharedLoad,
    SharedStore,
    /// Local memory: spills and arrays that registers can't hold.
    Local,
    /// Parameters and constants.
    Constant,
    CopyAsync,
    Atomic,
    /// Shuffles, votes, matches and reductions of a warp.
    WarpExchange,
    Barrier,
    Branch,
    Other,
}

/// The rate that a card's tensor cores have for an `mma.sync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorRate {
    /// f16 or bf16, f32 accumulators.
    Half,
    /// f16 with f16 accumulators.
    HalfAccumulators,
    Tf32,
    Int8,
    Double,
}

impl Class {
    pub fn label(self) -> &'static str {
        match self {
            Class::TensorCore => "tensor core",
            Class::Float32 => "float32",
            Class::Float64 => "float64",
            Class::Half => "half",
            Class::SpecialFunction => "special function",
            Class::Convert => "convert",
            Class::Integer => "integer",
            Class::GlobalLoad => "global load",
            Class::GlobalStore => "global store",
            Class::SharedLoad => "shared load",
            Class::SharedStore => "shared store",
            Class::Local => "local",
            Class::Constant => "constant",
            Class::CopyAsync => "cp.async",
            Class::Atomic => "atomic",
            Class::WarpExchange => "warp exchange",
            Class::Barrier => "barrier",
            Class::Branch => "branch",
            Class::Other => "other",
        }
    }
}

/// The class, and floating-point operations of one lane.
pub fn classify(op: &Op) -> (Class, u32) {
    let class = match op {
        Op::Alu(op) => return alu(op),
        Op::Warp(WarpOp::Mma(_)) => Class::TensorCore,
        Op::Warp(_) => Class::WarpExchange,
        Op::Load { space, .. } => match space {
            Space::Global | Space::Generic => Class::GlobalLoad,
            Space::Shared => Class::SharedLoad,
            Space::Local => Class::Local,
            Space::Const | Space::Param => Class::Constant,
        },
        Op::Store { space, .. } => match space {
            Space::Global | Space::Generic => Class::GlobalStore,
            Space::Shared => Class::SharedStore,
            Space::Local => Class::Local,
            Space::Const | Space::Param => Class::Constant,
        },
        Op::LoadMatrix { .. } => Class::SharedLoad,
        Op::StoreMatrix { .. } => Class::SharedStore,
        Op::Atomic { .. } => Class::Atomic,
        Op::CopyAsync { .. } | Op::CopyAsyncCommit | Op::CopyAsyncWait { .. } => Class::CopyAsync,
        Op::Barrier(_) | Op::WarpBarrier { .. } | Op::Fence => Class::Barrier,
        Op::Branch { .. } | Op::BranchIndexed { .. } | Op::Exit => Class::Branch,
        _ => Class::Other,
    };
    (class, 0)
}

/// An `mma.sync`'s rate and the warp's operations.
pub fn tensor_work(op: &Op) -> Option<(TensorRate, u64)> {
    let Op::Warp(WarpOp::Mma(mma)) = op else { return None };
    let rate = match mma.form {
        MmaForm::Half { half_accumulators: true, .. } => TensorRate::HalfAccumulators,
        MmaForm::Half { .. } => TensorRate::Half,
        MmaForm::Tf32 { .. } => TensorRate::Tf32,
        MmaForm::Integer { .. } => TensorRate::Int8,
        MmaForm::Double => TensorRate::Double,
    };
    Some((rate, mma.form.flops()))
}

fn alu(op: &Alu) -> (Class, u32) {
    match op {
        Alu::Integer(_) => (Class::Integer, 0),
        Alu::Float(_) => (Class::Float32, 0),
    }
}

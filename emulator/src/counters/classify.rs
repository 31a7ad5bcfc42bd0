//! What an instruction is, and how many floating-point operations a lane does in it.
//!
//! An fma is two operations, an addition or a multiplication one, of each element of a packed pair; comparisons,
//! minima, conversions and special functions are none. `mma.sync` counts 2·m·n·k for the warp, by the rate at which
//! tensor cores run it.

use serde::Serialize;

use crate::alu::Alu;
use crate::alu::float::{Arithmetic, Float, FloatType, Operation};
use crate::program::Op;
use crate::ptx::ast::Space;
use crate::warp_ops::{MmaForm, WarpOp};

/// In the order of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InstructionClass {
    TensorCore,
    Float32,
    Float64,
    /// f16 and bf16, single or in pairs.
    Half,
    SpecialFunction,
    Convert,
    /// Also comparisons, selections and moves of any type.
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

impl InstructionClass {
    pub fn label(self) -> &'static str {
        match self {
            InstructionClass::TensorCore => "tensor core",
            InstructionClass::Float32 => "float32",
            InstructionClass::Float64 => "float64",
            InstructionClass::Half => "half",
            InstructionClass::SpecialFunction => "special function",
            InstructionClass::Convert => "convert",
            InstructionClass::Integer => "integer",
            InstructionClass::GlobalLoad => "global load",
            InstructionClass::GlobalStore => "global store",
            InstructionClass::SharedLoad => "shared load",
            InstructionClass::SharedStore => "shared store",
            InstructionClass::Local => "local",
            InstructionClass::Constant => "constant",
            InstructionClass::CopyAsync => "cp.async",
            InstructionClass::Atomic => "atomic",
            InstructionClass::WarpExchange => "warp exchange",
            InstructionClass::Barrier => "barrier",
            InstructionClass::Branch => "branch",
            InstructionClass::Other => "other",
        }
    }
}

/// The class, and floating-point operations of one lane.
pub fn classify(op: &Op) -> (InstructionClass, u32) {
    let class = match op {
        Op::Alu(op) => return alu(op),
        Op::Warp(WarpOp::Mma(_)) => InstructionClass::TensorCore,
        Op::Warp(_) => InstructionClass::WarpExchange,
        Op::Load { space, .. } => match space {
            Space::Global | Space::Generic => InstructionClass::GlobalLoad,
            Space::Shared => InstructionClass::SharedLoad,
            Space::Local => InstructionClass::Local,
            Space::Const | Space::Param => InstructionClass::Constant,
        },
        Op::Store { space, .. } => match space {
            Space::Global | Space::Generic => InstructionClass::GlobalStore,
            Space::Shared => InstructionClass::SharedStore,
            Space::Local => InstructionClass::Local,
            Space::Const | Space::Param => InstructionClass::Constant,
        },
        Op::LoadMatrix { .. } => InstructionClass::SharedLoad,
        Op::StoreMatrix { .. } => InstructionClass::SharedStore,
        Op::Atomic { .. } => InstructionClass::Atomic,
        Op::CopyAsync { .. } | Op::CopyAsyncCommit | Op::CopyAsyncWait { .. } => InstructionClass::CopyAsync,
        Op::Barrier(_) | Op::WarpBarrier { .. } | Op::Fence => InstructionClass::Barrier,
        Op::Branch { .. } | Op::BranchIndexed { .. } | Op::Exit => InstructionClass::Branch,
        _ => InstructionClass::Other,
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

fn alu(op: &Alu) -> (InstructionClass, u32) {
    match op {
        Alu::Integer(_) => (InstructionClass::Integer, 0),
        Alu::Float(Float::Convert(_)) => (InstructionClass::Convert, 0),
        Alu::Float(Float::Arithmetic(op)) => arithmetic(op),
    }
}

fn arithmetic(op: &Arithmetic) -> (InstructionClass, u32) {
    use Operation::{
        Abs, Add, CopySign, Cos, Div, Ex2, Fma, Lg2, Max, Min, Mul, Neg, Rcp, Rsqrt, Sin, Sqrt, Sub, Tanh,
    };
    let (special, operations) = match op.operation {
        Fma => (false, 2),
        Add | Sub | Mul => (false, 1),
        Neg | Abs | Min | Max | CopySign => (false, 0),
        Div | Sqrt | Rcp | Rsqrt | Sin | Cos | Lg2 | Ex2 | Tanh => (true, 0),
    };
    let class = match op.kind {
        // No special-function unit works in f64: these are sequences of ordinary instructions.
        FloatType::Double => InstructionClass::Float64,
        _ if special => InstructionClass::SpecialFunction,
        FloatType::Single => InstructionClass::Float32,
        FloatType::Half | FloatType::Bfloat => InstructionClass::Half,
    };
    (class, if op.packed { 2 * operations } else { operations })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::operands::Operands;
    use crate::program::{Address, Reg, Value};
    use crate::ptx::ast::{Instruction, Operand, Type};

    fn lowered(form: &str, operands: &[&str]) -> Op {
        let mut names = Operands::default();
        names.push_scope();
        for (ty, name) in
            [(Type::B32, "%r"), (Type::F32, "%f"), (Type::F64, "%fd"), (Type::B16, "%rs"), (Type::Pred, "%p")]
        {
            names.declare_registers(ty, name, Some(16)).unwrap();
        }
        let mut words = form.split('.').map(String::from);
        let instruction = Instruction {
            guard: None,
            opcode: words.next().unwrap(),
            modifiers: words.collect(),
            operands: operands
                .iter()
                .map(|text| match text.strip_prefix('{') {
                    Some(inner) => Operand::Vector(inner.split(' ').map(|name| Operand::Name(name.into())).collect()),
                    None => Operand::Name(text.to_string()),
                })
                .collect(),
            line: 1,
            source: None,
        };
        match Alu::lower(&instruction, &mut names).unwrap() {
            Some(alu) => Op::Alu(alu),
            None => Op::Warp(WarpOp::lower(&instruction, &mut names).unwrap().expect("an operation")),
        }
    }

    #[test]
    fn flops_of_a_lane() {
        for (form, operands, class, flops) in [
            ("fma.rn.f32", vec!["%f0", "%f1", "%f2", "%f3"], InstructionClass::Float32, 2),
            ("add.f32", vec!["%f0", "%f1", "%f2"], InstructionClass::Float32, 1),
            ("mul.f32", vec!["%f0", "%f1", "%f2"], InstructionClass::Float32, 1),
            ("max.f32", vec!["%f0", "%f1", "%f2"], InstructionClass::Float32, 0),
            ("fma.rn.f64", vec!["%fd0", "%fd1", "%fd2", "%fd3"], InstructionClass::Float64, 2),
            ("fma.rn.bf16x2", vec!["%r0", "%r1", "%r2", "%r3"], InstructionClass::Half, 4),
            ("add.f16", vec!["%rs0", "%rs1", "%rs2"], InstructionClass::Half, 1),
            ("ex2.approx.ftz.f32", vec!["%f0", "%f1"], InstructionClass::SpecialFunction, 0),
            ("rsqrt.approx.f32", vec!["%f0", "%f1"], InstructionClass::SpecialFunction, 0),
            ("cvt.rn.f32.s32", vec!["%f0", "%r1"], InstructionClass::Convert, 0),
            ("shfl.sync.bfly.b32", vec!["%r0", "%r1", "%r2", "%r3", "%r4"], InstructionClass::WarpExchange, 0),
        ] {
            assert_eq!(classify(&lowered(form, &operands)), (class, flops), "{form}");
        }
    }

    #[test]
    fn work_of_tensor_cores() {
        let four = "{%f0 %f1 %f2 %f3";
        let op = lowered(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            &[four, "{%r0 %r1 %r2 %r3", "{%r4 %r5", four],
        );
        assert_eq!(classify(&op), (InstructionClass::TensorCore, 0));
        assert_eq!(tensor_work(&op), Some((TensorRate::Half, 4096)));
        assert_eq!(tensor_work(&Op::Exit), None);
    }

    #[test]
    fn memory_goes_by_its_space() {
        let (value, address) =
            (Value { bytes: 4, signed: false, wide: false }, Address { base: Reg(0), wide: true, offset: 0 });
        let load = |space| classify(&Op::Load { space, value, address, to: vec![Reg(1)], strong: false }).0;
        assert_eq!(load(Space::Generic), InstructionClass::GlobalLoad);
        assert_eq!(load(Space::Shared), InstructionClass::SharedLoad);
        assert_eq!(load(Space::Param), InstructionClass::Constant);
        let store = Op::Store { space: Space::Local, value, address, from: vec![Reg(1)], strong: false };
        assert_eq!(classify(&store).0, InstructionClass::Local);
        assert_eq!(classify(&Op::CopyAsyncCommit).0, InstructionClass::CopyAsync);
    }
}

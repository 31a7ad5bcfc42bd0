//! The modifiers of `ld`, `ldu`, `st`, `atom` and `red`: which may stand together, and what they say.
//! (PTX ISA, "ld", "st", "atom", "red"; "Cache Operators".)

use crate::lower::problem::{Outcome, invalid, unsupported};
use crate::program::AtomicOp;
use crate::ptx::ast::{Instruction, Space, Type};

/// The modifiers of a load, store or atomic.
#[derive(Debug)]
pub struct Modifiers<'m> {
    pub space: Space,
    /// `.relaxed`, `.acquire`, `.volatile`, …
    pub order: Option<&'m str>,
    /// Elements of a vector; 1 without.
    pub elements: usize,
    pub ty: Type,
    /// `.L2::cache_hint`: one more operand, the policy.
    pub policy: bool,
    /// `.cv`: fetch again, as `.volatile` does.
    pub refetch: bool,
    pub read_only: bool,
    pub noftz: bool,
    pub function: Option<&'m str>,
}

/// What a modifier is; each kind may be given once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModifierKind {
    Space,
    Order,
    Mmio,
    Scope,
    Cache,
    EvictL1,
    EvictL2,
    Prefetch,
    Policy,
    ReadOnly,
    Noftz,
    Function,
    Vector,
    Type,
}

fn kind(modifier: &str) -> Option<ModifierKind> {
    Some(match modifier {
        "global" | "const" | "shared" | "local" | "param" => ModifierKind::Space,
        "shared::cta" | "shared::cluster" | "param::entry" | "param::func" => ModifierKind::Space,
        "weak" | "relaxed" | "acquire" | "release" | "acq_rel" | "volatile" => ModifierKind::Order,
        "mmio" => ModifierKind::Mmio,
        "cta" | "cluster" | "gpu" | "sys" => ModifierKind::Scope,
        "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" => ModifierKind::Cache,
        "L1::evict_normal" | "L1::evict_unchanged" | "L1::evict_first" | "L1::evict_last" | "L1::no_allocate" => {
            ModifierKind::EvictL1
        }
        "L2::evict_normal" | "L2::evict_first" | "L2::evict_last" => ModifierKind::EvictL2,
        "L2::64B" | "L2::128B" | "L2::256B" => ModifierKind::Prefetch,
        "L2::cache_hint" => ModifierKind::Policy,
        "nc" => ModifierKind::ReadOnly,
        "noftz" => ModifierKind::Noftz,
        "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" | "dec" => ModifierKind::Function,
        "v2" | "v4" | "v8" => ModifierKind::Vector,
        other => return Type::parse(other).map(|_| ModifierKind::Type),
    })
}

/// Reads an instruction's modifiers, of which only kinds in `allowed` may stand.
pub fn modifiers<'m>(instruction: &'m Instruction, allowed: &[ModifierKind]) -> Outcome<Modifiers<'m>> {
    let mut found = Modifiers {
        space: Space::Generic,
        order: None,
        elements: 1,
        ty: Type::Pred,
        policy: false,
        refetch: false,
        read_only: false,
        noftz: false,
        function: None,
    };
    let mut seen: Vec<ModifierKind> = Vec::new();
    for modifier in &instruction.modifiers {
        let modifier = modifier.as_str();
        let Some(kind) = kind(modifier).filter(|kind| allowed.contains(kind)) else {
            return unsupported(format!("modifier .{modifier} is not known here"));
        };
        if seen.contains(&kind) {
            return invalid(format!("modifier .{modifier} is one too many of its kind"));
        }
        seen.push(kind);
        match kind {
            ModifierKind::Space => found.space = space(modifier)?,
            ModifierKind::Order => found.order = Some(modifier),
            ModifierKind::Cache => found.refetch = modifier == "cv",
            ModifierKind::Policy => found.policy = true,
            ModifierKind::ReadOnly => found.read_only = true,
            ModifierKind::Noftz => found.noftz = true,
            ModifierKind::Function => found.function = Some(modifier),
            ModifierKind::Vector => found.elements = modifier[1..].parse().unwrap_or(1),
            ModifierKind::Type => found.ty = Type::parse(modifier).unwrap_or(Type::Pred),
            ModifierKind::Mmio
            | ModifierKind::Scope
            | ModifierKind::EvictL1
            | ModifierKind::EvictL2
            | ModifierKind::Prefetch => {}
        }
    }
    let strong = found.order.is_some_and(|order| !matches!(order, "weak" | "volatile"));
    // An atomic without an order is relaxed: `atom.sys.add`.
    if seen.contains(&ModifierKind::Scope) && !strong && !allowed.contains(&ModifierKind::Function) {
        return invalid("a scope needs .relaxed, .acquire or .release");
    }
    if instruction.modifiers.last().and_then(|last| kind(last)) != Some(ModifierKind::Type) {
        return invalid("expected a type as last modifier");
    }
    Ok(found)
}

fn space(modifier: &str) -> Outcome<Space> {
    Ok(match modifier {
        "global" => Space::Global,
        "const" => Space::Const,
        "shared" | "shared::cta" => Space::Shared,
        "local" => Space::Local,
        "shared::cluster" => return unsupported("clusters are not supported"),
        _ => Space::Param,
    })
}

impl Modifiers<'_> {
    /// Checks the type of a load's or store's elements and the size of the whole.
    pub fn check_element(&self) -> Outcome<()> {
        match self.ty {
            Type::B128 => return unsupported("128-bit elements are not supported"),
            Type::Pred | Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 => {
                return invalid(format!("type {:?} is not one of loads and stores", self.ty));
            }
            _ => {}
        }
        let bytes = self.ty.bytes() * self.elements;
        if bytes == 32 && self.space == Space::Global {
            return unsupported("vectors of 32 bytes need sm_100");
        }
        if bytes > 16 {
            return invalid(format!("a vector of {bytes} bytes is too large"));
        }
        Ok(())
    }

    /// Whether the access takes part in synchronisation, and whether it also orders others.
    pub fn strength(&self, ordering: &str, other: &str) -> Outcome<(bool, bool)> {
        match self.order {
            Some(order) if order == other || order == "acq_rel" => invalid(format!(".{order} is not allowed here")),
            Some(order) => Ok((order != "weak", order == ordering)),
            None => Ok((self.refetch, false)),
        }
    }
}

pub const LOADS: &[ModifierKind] = &[
    ModifierKind::Space,
    ModifierKind::Order,
    ModifierKind::Mmio,
    ModifierKind::Scope,
    ModifierKind::Cache,
    ModifierKind::EvictL1,
    ModifierKind::EvictL2,
    ModifierKind::Prefetch,
    ModifierKind::Policy,
    ModifierKind::ReadOnly,
    ModifierKind::Vector,
    ModifierKind::Type,
];
pub const ATOMICS: &[ModifierKind] = &[
    ModifierKind::Space,
    ModifierKind::Order,
    ModifierKind::Scope,
    ModifierKind::Function,
    ModifierKind::Noftz,
    ModifierKind::Policy,
    ModifierKind::Type,
];

/// The function of an atomic, and whether it exists for the type.
pub fn atomic_op(modifiers: &Modifiers, returns: bool) -> Outcome<AtomicOp> {
    use Type::*;
    let Some(function) = modifiers.function else { return invalid("expected a function such as .add") };
    let (op, types): (_, &[Type]) = match function {
        "add" => (AtomicOp::Add, &[U32, S32, U64, F32, F64, F16, F16x2, Bf16, Bf16x2]),
        "min" => (AtomicOp::Min, &[U32, S32, U64, S64]),
        "max" => (AtomicOp::Max, &[U32, S32, U64, S64]),
        "and" => (AtomicOp::And, &[B32, B64]),
        "or" => (AtomicOp::Or, &[B32, B64]),
        "xor" => (AtomicOp::Xor, &[B32, B64]),
        "inc" => (AtomicOp::Increment, &[U32]),
        "dec" => (AtomicOp::Decrement, &[U32]),
        "exch" if returns => (AtomicOp::Exchange, &[B32, B64]),
        "cas" if returns => (AtomicOp::CompareAndSwap, &[B16, B32, B64]),
        other => return invalid(format!(".{other} is not a function of this instruction")),
    };
    let (ty, half) = (modifiers.ty, matches!(modifiers.ty, F16 | F16x2 | Bf16 | Bf16x2));
    if !types.contains(&ty) || modifiers.noftz != half {
        let noftz = if modifiers.noftz { ".noftz" } else { "" };
        return unsupported(format!("there is no .{function}{noftz} of type {ty:?}"));
    }
    Ok(op)
}

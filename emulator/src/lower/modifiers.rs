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
pub enum Kind {
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

fn kind(modifier: &str) -> Option<Kind> {
    Some(match modifier {
        "global" | "const" | "shared" | "local" | "param" => Kind::Space,
        "shared::cta" | "shared::cluster" | "param::entry" | "param::func" => Kind::Space,
        "weak" | "relaxed" | "acquire" | "release" | "acq_rel" | "volatile" => Kind::Order,
        "mmio" => Kind::Mmio,
        "cta" | "cluster" | "gpu" | "sys" => Kind::Scope,
        "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" => Kind::Cache,
        "L1::evict_normal" | "L1::evict_unchanged" | "L1::evict_first" | "L1::evict_last" | "L1::no_allocate" => {
            Kind::EvictL1
        }
        "L2::evict_normal" | "L2::evict_first" | "L2::evict_last" => Kind::EvictL2,
        "L2::64B" | "L2::128B" | "L2::256B" => Kind::Prefetch,
        "L2::cache_hint" => Kind::Policy,
        "nc" => Kind::ReadOnly,
        "noftz" => Kind::Noftz,
        "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" | "dec" => Kind::Function,
        "v2" | "v4" | "v8" => Kind::Vector,
        other => return Type::parse(other).map(|_| Kind::Type),
    })
}

/// Reads an instruction's modifiers, of which only kinds in `allowed` may stand.
pub fn modifiers<'m>(instruction: &'m Instruction, allowed: &[Kind]) -> Outcome<Modifiers<'m>> {
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
    let mut seen: Vec<Kind> = Vec::new();
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
            Kind::Space => found.space = space(modifier)?,
            Kind::Order => found.order = Some(modifier),
            Kind::Cache => found.refetch = modifier == "cv",
            Kind::Policy => found.policy = true,
            Kind::ReadOnly => found.read_only = true,
            Kind::Noftz => found.noftz = true,
            Kind::Function => found.function = Some(modifier),
            Kind::Vector => found.elements = modifier[1..].parse().unwrap_or(1),
            Kind::Type => found.ty = Type::parse(modifier).unwrap_or(Type::Pred),
            Kind::Mmio | Kind::Scope | Kind::EvictL1 | Kind::EvictL2 | Kind::Prefetch => {}
        }
    }
    let strong = found.order.is_some_and(|order| !matches!(order, "weak" | "volatile"));
    // An atomic without an order is relaxed: `atom.sys.add`.
    if seen.contains(&Kind::Scope) && !strong && !allowed.contains(&Kind::Function) {
        return invalid("a scope needs .relaxed, .acquire or .release");
    }
    if instruction.modifiers.last().and_then(|last| kind(last)) != Some(Kind::Type) {
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

pub const LOADS: &[Kind] = &[
    Kind::Space,
    Kind::Order,
    Kind::Mmio,
    Kind::Scope,
    Kind::Cache,
    Kind::EvictL1,
    Kind::EvictL2,
    Kind::Prefetch,
    Kind::Policy,
    Kind::ReadOnly,
    Kind::Vector,
    Kind::Type,
];
pub const ATOMICS: &[Kind] =
    &[Kind::Space, Kind::Order, Kind::Scope, Kind::Function, Kind::Noftz, Kind::Policy, Kind::Type];

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

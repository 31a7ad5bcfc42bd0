//! `vote.sync`, `match.sync`, `redux.sync`, `activemask`, `elect.sync`: what all lanes that take part agree on.
//!
//! Over the lanes that take part: `vote.all`, `.any`, `.uni` (all equal) and `.ballot` (the set of lanes whose predicate
//! is true) of a predicate; `match.any` gives each lane the set of lanes with its value, `match.all` the whole set if
//! the value is one, else 0, and that as a predicate; `redux` sums (wrapping) or takes the minimum, maximum, and, or, xor;
//! `elect` chooses one lane, here the lowest. (PTX ISA, "vote.sync", "match.sync", "redux.sync", "activemask",
//! "elect.sync".)
#![allow(clippy::needless_range_loop)] // Loops over lanes and elements go by number.

use super::{Members, exactly, modifiers, unknown_form, write_pair};
use crate::lower::operands::Operands;
use crate::program::{Access, Class, LANES, Lanes32, Mask, Reg, Registers, Visit};
use crate::ptx::ast::{Instruction, Type};

#[derive(Debug, Clone, PartialEq)]
pub enum Collective {
    Vote(Vote),
    Match(Match),
    Reduce(Reduce),
    ActiveMask { to: Reg },
    Elect(Elect),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Vote {
    pub kind: VoteKind,
    /// A predicate; of a ballot, a 32-bit register.
    pub to: Reg,
    pub pred: Reg,
    pub negated: bool,
    pub members: Reg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteKind {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Match {
    /// `match.all`; else `match.any`.
    pub all: bool,
    /// 64-bit values.
    pub wide: bool,
    pub to: Reg,
    /// `match.all`: whether the values are equal.
    pub equal: Option<Reg>,
    pub a: Reg,
    pub members: Reg,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Reduce {
    pub op: ReduceOp,
    pub to: Reg,
    pub a: Reg,
    pub members: Reg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    Add,
    MinUnsigned,
    MaxUnsigned,
    MinSigned,
    MaxSigned,
    And,
    Or,
    Xor,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Elect {
    /// The elected lane's number.
    pub leader: Reg,
    /// Whether this lane is it.
    pub elected: Reg,
    pub members: Reg,
}

impl Collective {
    pub fn lower(instruction: &Instruction, operands: &mut Operands) -> Result<Collective, String> {
        let modifiers = modifiers(instruction);
        match (instruction.opcode.as_str(), &modifiers[..]) {
            ("vote", ["sync", "all", "pred"]) => lower_vote(VoteKind::All, instruction, operands),
            ("vote", ["sync", "any", "pred"]) => lower_vote(VoteKind::Any, instruction, operands),
            ("vote", ["sync", "uni", "pred"]) => lower_vote(VoteKind::Uniform, instruction, operands),
            ("vote", ["sync", "ballot", "b32"]) => lower_vote(VoteKind::Ballot, instruction, operands),
            ("vote", ["all" | "any" | "uni" | "ballot", ..]) => {
                Err("vote without .sync does not exist from sm_70 on: use vote.sync".to_string())
            }
            ("match", ["any", "sync", "b32"]) => lower_match(false, Type::B32, instruction, operands),
            ("match", ["any", "sync", "b64"]) => lower_match(false, Type::B64, instruction, operands),
            ("match", ["all", "sync", "b32"]) => lower_match(true, Type::B32, instruction, operands),
            ("match", ["all", "sync", "b64"]) => lower_match(true, Type::B64, instruction, operands),
            ("redux", ["sync", op, ty]) => {
                let op = match (*op, *ty) {
                    ("add", "u32" | "s32") => ReduceOp::Add,
                    ("min", "u32") => ReduceOp::MinUnsigned,
                    ("max", "u32") => ReduceOp::MaxUnsigned,
                    ("min", "s32") => ReduceOp::MinSigned,
                    ("max", "s32") => ReduceOp::MaxSigned,
                    ("and", "b32") => ReduceOp::And,
                    ("or", "b32") => ReduceOp::Or,
                    ("xor", "b32") => ReduceOp::Xor,
                    _ => return Err(unknown_form(instruction)),
                };
                let [d, a, members] = exactly::<3>(instruction)?;
                let a = operands.read(a, Type::B32)?;
                let members = operands.read(members, Type::B32)?;
                Ok(Collective::Reduce(Reduce { op, to: operands.write(d, Type::B32)?, a, members }))
            }
            ("activemask", ["b32"]) => {
                let [d] = exactly::<1>(instruction)?;
                Ok(Collective::ActiveMask { to: operands.write(d, Type::B32)? })
            }
            ("elect", ["sync"]) => {
                let [d, members] = exactly::<2>(instruction)?;
                let members = operands.read(members, Type::B32)?;
                match write_pair(operands, d, Type::B32)? {
                    (leader, Some(elected)) => Ok(Collective::Elect(Elect { leader, elected, members })),
                    (_, None) => Err("found one destination, expected d|p".to_string()),
                }
            }
            _ => Err(unknown_form(instruction)),
        }
    }

    pub fn visit(&mut self, visit: Visit) {
        use Access::{Read, Write};
        match self {
            Collective::Vote(vote) => {
                visit(Read, Class::Pred, &mut vote.pred);
                visit(Read, Class::R32, &mut vote.members);
                visit(Write, vote.result_class(), &mut vote.to);
            }
            Collective::Match(op) => {
                visit(Read, op.class(), &mut op.a);
                visit(Read, Class::R32, &mut op.members);
                visit(Write, Class::R32, &mut op.to);
                op.equal.iter_mut().for_each(|pred| visit(Write, Class::Pred, pred));
            }
            Collective::Reduce(op) => {
                visit(Read, Class::R32, &mut op.a);
                visit(Read, Class::R32, &mut op.members);
                visit(Write, Class::R32, &mut op.to);
            }
            Collective::ActiveMask { to } => visit(Write, Class::R32, to),
            Collective::Elect(op) => {
                visit(Read, Class::R32, &mut op.members);
                visit(Write, Class::R32, &mut op.leader);
                visit(Write, Class::Pred, &mut op.elected);
            }
        }
    }

    pub fn members(&self) -> Members {
        match self {
            Collective::Vote(op) => Members::Register(op.members),
            Collective::Match(op) => Members::Register(op.members),
            Collective::Reduce(op) => Members::Register(op.members),
            Collective::ActiveMask { .. } => Members::Nobody,
            Collective::Elect(op) => Members::Register(op.members),
        }
    }

    #[inline(always)]
    pub fn execute(&self, registers: &mut Registers, active: Mask) {
        match self {
            Collective::Vote(op) => op.execute(registers, active),
            Collective::Match(op) => op.execute(registers, active),
            Collective::Reduce(op) => {
                let result = op.result(registers.get32(op.a), active);
                registers.set32(op.to, [result; LANES], active);
            }
            Collective::ActiveMask { to } => registers.set32(*to, [active; LANES], active),
            Collective::Elect(op) => {
                let leader = active.trailing_zeros() % LANES as u32;
                registers.set32(op.leader, [leader; LANES], active);
                registers.set_pred(op.elected, 1 << leader, active);
            }
        }
    }

    /// One operand that is not initialised in one lane leaves all results so.
    pub fn initialised(&self, active: Mask, initialised: &dyn Fn(Class, Reg) -> Mask) -> Vec<(Class, Reg, Mask)> {
        let known = |class: Class, reg: Reg| match active & !initialised(class, reg) {
            0 => Mask::MAX,
            _ => 0,
        };
        match self {
            Collective::Vote(op) => vec![(op.result_class(), op.to, known(Class::Pred, op.pred))],
            Collective::Match(op) => {
                let known = known(op.class(), op.a);
                let mut results = vec![(Class::R32, op.to, known)];
                results.extend(op.equal.map(|pred| (Class::Pred, pred, known)));
                results
            }
            Collective::Reduce(op) => vec![(Class::R32, op.to, known(Class::R32, op.a))],
            Collective::ActiveMask { to } => vec![(Class::R32, *to, Mask::MAX)],
            Collective::Elect(op) => {
                vec![(Class::R32, op.leader, Mask::MAX), (Class::Pred, op.elected, Mask::MAX)]
            }
        }
    }
}

fn lower_vote(kind: VoteKind, instruction: &Instruction, operands: &mut Operands) -> Result<Collective, String> {
    let [d, pred, members] = exactly::<3>(instruction)?;
    let (pred, negated) = operands.read_pred(pred)?;
    let members = operands.read(members, Type::B32)?;
    let result = if kind == VoteKind::Ballot { Type::B32 } else { Type::Pred };
    Ok(Collective::Vote(Vote { kind, to: operands.write(d, result)?, pred, negated, members }))
}

fn lower_match(all: bool, ty: Type, instruction: &Instruction, operands: &mut Operands) -> Result<Collective, String> {
    let [d, a, members] = exactly::<3>(instruction)?;
    let a = operands.read(a, ty)?;
    let members = operands.read(members, Type::B32)?;
    let (to, equal) = write_pair(operands, d, Type::B32)?;
    if equal.is_some() && !all {
        return Err("found d|p, expected one destination: match.any has no predicate".to_string());
    }
    Ok(Collective::Match(Match { all, wide: ty == Type::B64, to, equal, a, members }))
}

impl Vote {
    fn result_class(&self) -> Class {
        if self.kind == VoteKind::Ballot { Class::R32 } else { Class::Pred }
    }

    #[inline(always)]
    fn execute(&self, registers: &mut Registers, active: Mask) {
        let pred = registers.get_pred(self.pred);
        let yes = if self.negated { !pred } else { pred } & active;
        let all_lanes = |truth: bool| if truth { Mask::MAX } else { 0 };
        match self.kind {
            VoteKind::All => registers.set_pred(self.to, all_lanes(yes == active), active),
            VoteKind::Any => registers.set_pred(self.to, all_lanes(yes != 0), active),
            VoteKind::Uniform => registers.set_pred(self.to, all_lanes(yes == active || yes == 0), active),
            VoteKind::Ballot => registers.set32(self.to, [yes; LANES], active),
        }
    }
}

impl Match {
    fn class(&self) -> Class {
        if self.wide { Class::R64 } else { Class::R32 }
    }

    #[inline(always)]
    fn execute(&self, registers: &mut Registers, active: Mask) {
        let mut values = [0; LANES];
        for lane in 0..LANES {
            values[lane] = match self.wide {
                true => registers.get64(self.a)[lane],
                false => registers.get32(self.a)[lane] as u64,
            };
        }
        if self.all {
            let first = values[active.trailing_zeros() as usize % LANES];
            let equal = (0..LANES).all(|lane| active >> lane & 1 == 0 || values[lane] == first);
            registers.set32(self.to, [if equal { active } else { 0 }; LANES], active);
            if let Some(pred) = self.equal {
                registers.set_pred(pred, if equal { Mask::MAX } else { 0 }, active);
            }
            return;
        }
        let mut sets = [0; LANES];
        let mut left = active;
        while left != 0 {
            let value = values[left.trailing_zeros() as usize];
            let mut same = 0;
            for lane in 0..LANES {
                same |= ((values[lane] == value) as Mask) << lane;
            }
            same &= active;
            for lane in 0..LANES {
                if same >> lane & 1 == 1 {
                    sets[lane] = same;
                }
            }
            left &= !same;
        }
        registers.set32(self.to, sets, active);
    }
}

impl Reduce {
    #[inline(always)]
    fn result(&self, a: &Lanes32, active: Mask) -> u32 {
        let neutral = match self.op {
            ReduceOp::Add | ReduceOp::MaxUnsigned | ReduceOp::Or | ReduceOp::Xor => 0,
            ReduceOp::MinUnsigned | ReduceOp::And => u32::MAX,
            ReduceOp::MinSigned => i32::MAX as u32,
            ReduceOp::MaxSigned => i32::MIN as u32,
        };
        let mut values = *a;
        for lane in 0..LANES {
            if active >> lane & 1 == 0 {
                values[lane] = neutral;
            }
        }
        let values = values.iter().copied();
        match self.op {
            ReduceOp::Add => values.fold(neutral, u32::wrapping_add),
            ReduceOp::MinUnsigned => values.fold(neutral, u32::min),
            ReduceOp::MaxUnsigned => values.fold(neutral, u32::max),
            ReduceOp::MinSigned => values.fold(neutral, |x, y| (x as i32).min(y as i32) as u32),
            ReduceOp::MaxSigned => values.fold(neutral, |x, y| (x as i32).max(y as i32) as u32),
            ReduceOp::And => values.fold(neutral, |x, y| x & y),
            ReduceOp::Or => values.fold(neutral, |x, y| x | y),
            ReduceOp::Xor => values.fold(neutral, |x, y| x ^ y),
        }
    }
}

//! Names to registers: the scopes of a function, the constants it uses, and the check that a register's width
//! is the instruction's.

use std::collections::HashMap;
use std::sync::Arc;

use crate::lower::text;
use crate::program::{Class, Files, Preset, Reg, Special};
use crate::ptx::ast::{Operand, Space, Type};

/// What a name stands for inside a function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Symbol {
    Register {
        ty: Type,
        reg: Reg,
    },
    /// A variable: its address in its state space (an offset for shared, local and param).
    Variable {
        space: Space,
        address: u64,
        bytes: u64,
    },
    /// A `.param` variable of a call or of a device function: bytes of the thread's local memory.
    Slot {
        address: u64,
        bytes: u64,
    },
    /// A function, which has no address here.
    Function,
}

/// The scopes of a function that waits for a call in it to be lowered.
#[derive(Debug)]
pub struct SuspendedScopes {
    scopes: Vec<HashMap<String, Symbol>>,
    families: Vec<HashMap<String, (Type, u32)>>,
}

/// Registers and constants of the function being lowered. Errors are one line without a place: the caller knows the
/// instruction and adds it.
#[derive(Debug, Default)]
pub struct Operands {
    /// What the whole module names, the same for each of its kernels: looked up after all scopes.
    module: Arc<HashMap<String, Symbol>>,
    scopes: Vec<HashMap<String, Symbol>>,
    /// Families such as `%r<9>`: prefix to type and count; members become registers when first named.
    families: Vec<HashMap<String, (Type, u32)>>,
    presets: HashMap<(Class, Preset), Reg>,
    carry: Option<Reg>,
    pub counts: Files,
}

/// The file in which values of a type live.
pub fn class_of(ty: Type) -> Class {
    match ty {
        Type::Pred => Class::Pred,
        Type::B64 | Type::U64 | Type::S64 | Type::F64 => Class::R64,
        _ => Class::R32,
    }
}

type Lowered<T> = Result<T, String>;

impl Operands {
    pub fn new(module: Arc<HashMap<String, Symbol>>) -> Operands {
        Operands { module, ..Operands::default() }
    }

    pub fn push_scope(&mut self) {
        self.scopes.push(HashMap::new());
        self.families.push(HashMap::new());
    }

    pub fn pop_scope(&mut self) {
        self.scopes.pop();
        self.families.pop();
    }

    /// Hides all scopes but the outermost, the shared variables of the module: what a device function's body sees.
    pub fn suspend(&mut self) -> SuspendedScopes {
        let keep = self.scopes.len().min(1);
        SuspendedScopes { scopes: self.scopes.split_off(keep), families: self.families.split_off(keep) }
    }

    /// Brings hidden scopes back in place of those opened since.
    pub fn resume(&mut self, suspended: SuspendedScopes) {
        let keep = self.scopes.len().min(1);
        self.scopes.truncate(keep);
        self.families.truncate(keep);
        self.scopes.extend(suspended.scopes);
        self.families.extend(suspended.families);
    }

    /// Declares a name in the innermost scope.
    pub fn declare(&mut self, name: &str, symbol: Symbol) {
        self.scopes.last_mut().expect("a scope is open").insert(name.to_string(), symbol);
    }

    /// Declares `.reg TYPE NAME;`, or the family `.reg TYPE NAME<COUNT>;`.
    pub fn declare_registers(&mut self, ty: Type, name: &str, count: Option<u32>) -> Lowered<()> {
        if ty == Type::B128 {
            return Err(format!("register {name}: .b128 registers are not supported"));
        }
        match count {
            Some(count) => {
                self.families.last_mut().expect("a scope is open").insert(name.to_string(), (ty, count));
            }
            None => {
                let reg = self.scratch(class_of(ty));
                self.declare(name, Symbol::Register { ty, reg });
            }
        }
        Ok(())
    }

    /// A fresh register.
    pub fn scratch(&mut self, class: Class) -> Reg {
        let count = match class {
            Class::R32 => &mut self.counts.r32,
            Class::R64 => &mut self.counts.r64,
            Class::Pred => &mut self.counts.pred,
        };
        *count += 1;
        Reg(*count - 1)
    }

    /// The thread's carry flag (`add.cc`), a predicate.
    pub fn carry(&mut self) -> Reg {
        if self.carry.is_none() {
            self.carry = Some(self.scratch(Class::Pred));
        }
        self.carry.expect("just set")
    }

    /// The register that holds a constant.
    pub fn preset(&mut self, class: Class, preset: Preset) -> Reg {
        if let Some(&reg) = self.presets.get(&(class, preset)) {
            return reg;
        }
        let reg = self.scratch(class);
        self.presets.insert((class, preset), reg);
        reg
    }

    /// All constants, in register order.
    pub fn presets(&self) -> Vec<(Class, Reg, Preset)> {
        let mut all: Vec<_> = self.presets.iter().map(|(&(class, preset), &reg)| (class, reg, preset)).collect();
        all.sort_by_key(|&(class, reg, _)| (class, reg));
        all
    }

    pub fn lookup(&mut self, name: &str) -> Option<Symbol> {
        for level in (0..self.scopes.len()).rev() {
            if let Some(&symbol) = self.scopes[level].get(name) {
                return Some(symbol);
            }
            if let Some(ty) = self.member(level, name) {
                let reg = self.scratch(class_of(ty));
                let symbol = Symbol::Register { ty, reg };
                self.scopes[level].insert(name.to_string(), symbol);
                return Some(symbol);
            }
        }
        self.module.get(name).copied()
    }

    /// The type of a family's member: `%r12` of `%r<20>`. A prefix may itself end in digits (`%r1<5>` has `%r14`).
    fn member(&self, level: usize, name: &str) -> Option<Type> {
        let families = &self.families[level];
        if families.is_empty() {
            return None;
        }
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        // A count has no more digits, and a name may have thousands.
        (prefix.max(name.len().saturating_sub(u32::MAX.ilog10() as usize + 1))..name.len()).find_map(|split| {
            let (prefix, number) = name.split_at(split);
            let &(ty, count) = families.get(prefix)?;
            let canonical = number == "0" || !number.starts_with('0');
            (canonical && number.parse::<u32>().is_ok_and(|number| number < count)).then_some(ty)
        })
    }

    /// A register by name: its type and where it is. `None` if the name is something else.
    pub fn register(&mut self, operand: &Operand) -> Lowered<Option<(Type, Reg)>> {
        let Operand::Name(name) = operand else { return Ok(None) };
        match self.lookup(name) {
            Some(Symbol::Register { ty, reg }) => Ok(Some((ty, reg))),
            Some(Symbol::Variable { .. } | Symbol::Slot { .. }) => Ok(None),
            Some(Symbol::Function) => Err(format!("the address of function {name} is not supported")),
            None if special(name).is_some() => Ok(None),
            None => Err(undeclared(name)),
        }
    }

    /// A source in the file of `ty`: a register exactly as wide as `ty`, an immediate, a special register, or a
    /// variable's address.
    pub fn read(&mut self, operand: &Operand, ty: Type) -> Lowered<Reg> {
        let class = class_of(ty);
        match operand {
            Operand::Name(_) => {
                if let Some((found, reg)) = self.register(operand)? {
                    return check_width(operand, found, ty).map(|()| reg);
                }
                let Operand::Name(name) = operand else { unreachable!("matched above") };
                let preset = match self.lookup(name) {
                    Some(Symbol::Variable { address, .. } | Symbol::Slot { address, .. }) => {
                        if ty.bytes() < 4 || ty.bytes() == 4 && address > u32::MAX as u64 {
                            return Err(format!("the address of {name} does not fit type {ty:?}"));
                        }
                        Preset::Bits(address)
                    }
                    _ => special(name).ok_or_else(|| undeclared(name))?,
                };
                Ok(self.preset(class, preset))
            }
            _ => {
                let bits = immediate(operand, ty)?;
                Ok(self.preset(class, Preset::Bits(bits)))
            }
        }
    }

    /// A source predicate and whether it is negated (`!%p1`).
    pub fn read_pred(&mut self, operand: &Operand) -> Lowered<(Reg, bool)> {
        match operand {
            Operand::Not(name) => Ok((self.read(&Operand::Name(name.clone()), Type::Pred)?, true)),
            Operand::Int(value) => Ok((self.preset(Class::Pred, Preset::Bits((*value != 0) as u64)), false)),
            _ => Ok((self.read(operand, Type::Pred)?, false)),
        }
    }

    /// A destination exactly as wide as `ty`; `_` is a register that nothing reads.
    pub fn write(&mut self, operand: &Operand, ty: Type) -> Lowered<Reg> {
        if *operand == Operand::Name("_".to_string()) {
            return Ok(self.scratch(class_of(ty)));
        }
        match self.register(operand)? {
            Some((found, reg)) => check_width(operand, found, ty).map(|()| reg),
            None => Err(format!("found {} as destination, expected a register", text::operand(operand))),
        }
    }
}

fn check_width(operand: &Operand, found: Type, expected: Type) -> Lowered<()> {
    // 8-bit instruction types use registers of 16 bits or more.
    let fits = match expected {
        Type::Pred => found == Type::Pred,
        _ => found != Type::Pred && (found.bytes() == expected.bytes() || expected.bytes() == 1 && found.bytes() <= 4),
    };
    match operand {
        _ if fits => Ok(()),
        Operand::Name(name) => Err(format!("{name} is a {found:?} register, expected {expected:?}")),
        _ => Err(format!("found a {found:?} register, expected {expected:?}")),
    }
}

/// An immediate's bits in type `ty`.
pub fn immediate(operand: &Operand, ty: Type) -> Lowered<u64> {
    let width = if ty.bytes() >= 8 { u64::MAX } else { (1u64 << (8 * ty.bytes())) - 1 };
    match (operand, ty) {
        (Operand::Int(value), Type::F32) => Ok((*value as f32).to_bits() as u64),
        (Operand::Int(value), Type::F64) => Ok((*value as f64).to_bits()),
        (Operand::Int(value), Type::Pred) => Ok((*value != 0) as u64),
        (Operand::Int(value), _) => Ok(*value as u64 & width),
        (Operand::F32(bits), _) if ty.bytes() == 4 => Ok(*bits as u64),
        (Operand::F32(bits), Type::F64) => Ok((f32::from_bits(*bits) as f64).to_bits()),
        (Operand::F64(bits), Type::F32) => Ok((f64::from_bits(*bits) as f32).to_bits() as u64),
        (Operand::F64(bits), _) if ty.bytes() == 8 => Ok(*bits),
        _ => Err(format!("found {}, expected a register or a number of type {ty:?}", text::operand(operand))),
    }
}

fn undeclared(name: &str) -> String {
    const UNSUPPORTED: [&str; 6] = ["%envreg", "%pm", "%reserved_smem", "%current_graph", "%ctaid_", "%aggr_smem"];
    match UNSUPPORTED.iter().any(|prefix| name.starts_with(prefix)) {
        true => format!("special register {name} is not supported"),
        false => format!("{name} is not declared"),
    }
}

/// What a special register holds; `None` for a name that is none, or one that changes during a launch.
pub fn special(name: &str) -> Option<Preset> {
    let axis = |rest: &str| match rest {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    let by_axis = |prefix: &str, make: fn(u8) -> Special| name.strip_prefix(prefix).and_then(axis).map(make);
    let special = by_axis("%tid.", Special::Tid)
        .or_else(|| by_axis("%ntid.", Special::Ntid))
        .or_else(|| by_axis("%ctaid.", Special::Ctaid))
        .or_else(|| by_axis("%nctaid.", Special::Nctaid))
        .or_else(|| by_axis("%clusterid.", Special::Ctaid))
        .or_else(|| by_axis("%nclusterid.", Special::Nctaid));
    let special = special.or(match name {
        "%laneid" => Some(Special::LaneId),
        "%warpid" => Some(Special::WarpId),
        "%nwarpid" => Some(Special::NWarpId),
        "%smid" => Some(Special::SmId),
        "%nsmid" => Some(Special::NSmId),
        "%gridid" => Some(Special::GridId),
        "%lanemask_eq" => Some(Special::LaneMaskEq),
        "%lanemask_le" => Some(Special::LaneMaskLe),
        "%lanemask_lt" => Some(Special::LaneMaskLt),
        "%lanemask_ge" => Some(Special::LaneMaskGe),
        "%lanemask_gt" => Some(Special::LaneMaskGt),
        "%dynamic_smem_size" => Some(Special::DynamicSharedBytes),
        // What the system keeps lies behind the block's own memory: reading where is fine, an access is out of bounds.
        "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" | "%reserved_smem_offset_1" => {
            Some(Special::TotalSharedBytes)
        }
        "%total_smem_size" => Some(Special::TotalSharedBytes),
        "WARP_SZ" => return Some(Preset::Bits(32)),
        // A launch without clusters is one of clusters of one block (PTX ISA, "Special Registers").
        "%cluster_ctaid.x" | "%cluster_ctaid.y" | "%cluster_ctaid.z" | "%cluster_ctarank" | "%is_explicit_cluster" => {
            return Some(Preset::Bits(0));
        }
        "%cluster_nctaid.x" | "%cluster_nctaid.y" | "%cluster_nctaid.z" | "%cluster_nctarank" => {
            return Some(Preset::Bits(1));
        }
        _ => None,
    });
    special.map(Preset::Special)
}

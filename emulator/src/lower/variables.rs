//! Where variables lie: module variables to be placed by the device, and the shared memory and parameters of a kernel.
//! (PTX ISA, "State Spaces" and "Variables": each lies at a multiple of its alignment; an unsized `.extern .shared`
//! array begins after all sized variables.)

use std::collections::{HashMap, HashSet};

use crate::lower::Outside;
use crate::lower::operands::{Operands, Symbol};
use crate::lower::problem::{Outcome, invalid, unsupported};
use crate::program::ParamSlot;
use crate::ptx::ast::{Function, Initial, Module, Operand, Space, Statement, Variable};

/// A `.global` or `.const` variable, for the device to place.
#[derive(Debug, Clone, PartialEq)]
pub struct ModuleVariable {
    pub name: String,
    pub space: Space,
    pub bytes: u64,
    pub align: u64,
    /// All addresses in it have 64 bits.
    pub init: Initial,
}

/// Larger variables than any card holds.
const SIZE_LIMIT: u64 = 1 << 40;
/// Shared memory and parameters have 32-bit addresses.
const SMALL_LIMIT: u64 = 1 << 30;

/// A variable's bytes, and its alignment, checked.
pub fn size(variable: &Variable) -> Result<(u64, u64), String> {
    let name = &variable.name;
    let elements = variable.elements.unwrap_or(1) as u64;
    let bytes = (variable.ty.bytes() as u64).checked_mul(elements).filter(|&bytes| bytes <= SIZE_LIMIT);
    let bytes =
        bytes.ok_or_else(|| format!("variable {name} of {elements} elements is larger than {SIZE_LIMIT} bytes"))?;
    let align = variable.align as u64;
    if !align.is_power_of_two() || align > SMALL_LIMIT {
        return Err(format!("variable {name}: alignment {align}, expected a power of two"));
    }
    Ok((bytes, align))
}

/// The `.global` and `.const` variables of a module.
pub fn module_variables(module: &Module) -> Outcome<Vec<ModuleVariable>> {
    let mut found: Vec<ModuleVariable> = Vec::new();
    let in_memory = |variable: &&Variable| matches!(variable.space, Space::Global | Space::Const);
    let defined: HashSet<&str> =
        module.variables.iter().filter(|v| !v.external).map(|variable| variable.name.as_str()).collect();
    let mut seen = HashSet::new();
    for variable in module.variables.iter().filter(in_memory) {
        let name = &variable.name;
        if variable.external && defined.contains(name.as_str()) {
            continue;
        }
        if variable.external {
            return invalid(format!("variable {name} is declared .extern but nothing defines it"));
        }
        if !seen.insert(name) {
            return invalid(format!("variable {name} is defined twice"));
        }
        let (bytes, align) = size(variable)?;
        if let Some((_, symbol, _)) = variable.init.addresses.first().filter(|_| variable.ty.bytes() != 8) {
            let width = variable.ty.bytes();
            return invalid(format!(
                "variable {name}: the address of {symbol} needs 8 bytes, its elements have {width}"
            ));
        }
        let (space, init) = (variable.space, variable.init.clone());
        found.push(ModuleVariable { name: name.clone(), space, bytes, align, init });
    }
    let names: HashSet<&str> = found.iter().map(|variable| variable.name.as_str()).collect();
    for variable in &found {
        let name = &variable.name;
        let unknown = variable.init.addresses.iter().find(|(_, symbol, _)| !names.contains(symbol.as_str()));
        let Some((_, symbol, _)) = unknown else { continue };
        if module.functions.iter().any(|function| function.name == *symbol) {
            return unsupported(format!("initial value of {name}: the address of function {symbol} is not supported"));
        }
        return invalid(format!("initial value of {name}: {symbol} is no .global or .const variable"));
    }
    Ok(found)
}

/// Declares the `.global` and `.const` variables at their addresses.
pub fn declare(
    module: &Module,
    addresses: &HashMap<String, u64>,
    symbols: &mut HashMap<String, Symbol>,
) -> Result<(), String> {
    for variable in module.variables.iter().filter(|v| matches!(v.space, Space::Global | Space::Const)) {
        let (name, space) = (&variable.name, variable.space);
        let (bytes, _) = size(variable)?;
        let &address = addresses.get(name).ok_or_else(|| format!("variable {name} was given no address"))?;
        symbols.insert(name.clone(), Symbol::Variable { space, address, bytes });
    }
    Ok(())
}

/// Puts parameters one after another, each at a multiple of its alignment: the slots and the buffer's bytes.
pub fn parameters(params: &[Variable]) -> Result<(Vec<ParamSlot>, u32), String> {
    let mut slots = Vec::new();
    let mut end = 0u64;
    for param in params {
        let (bytes, align) = size(param)?;
        let offset = end.next_multiple_of(align);
        end = offset + bytes;
        if end > SMALL_LIMIT {
            return Err(format!("parameter {} ends at byte {end}", param.name));
        }
        let (offset, bytes, align) = (offset as u32, bytes as u32, align as u32);
        slots.push(ParamSlot { name: param.name.clone(), offset, bytes, align });
    }
    Ok((slots, end as u32))
}

/// Shared memory of a kernel and of what it calls.
#[derive(Debug, Default)]
pub struct SharedVariables<'a> {
    /// Bytes of sized variables.
    pub bytes: u32,
    /// Where the unsized array begins.
    pub dynamic: u32,
    /// Variables of the module that the kernel names.
    module: Vec<(&'a Variable, u64)>,
    /// Those declared inside functions, by the declaration's place in the syntax tree.
    inner: HashMap<*const Variable, u64>,
}

impl<'a> SharedVariables<'a> {
    pub fn place(outside: &Outside<'a>, kernel: &'a Function) -> Result<SharedVariables<'a>, String> {
        let reached = reach(&outside.functions, kernel);
        let mut of_module: Vec<_> = reached.names.iter().filter_map(|name| outside.shared.get(name)).collect();
        of_module.sort_unstable_by_key(|(at, _)| *at);
        let (mut end, mut dynamic_align) = (0u64, 1u64);
        let mut unsized_arrays = Vec::new();
        let mut shared = SharedVariables::default();
        let all = of_module.iter().map(|&&(_, v)| (v, true)).chain(reached.shared.iter().map(|&v| (v, false)));
        for (variable, at_module) in all {
            let (bytes, align) = size(variable)?;
            if variable.external || variable.elements == Some(0) {
                dynamic_align = dynamic_align.max(align);
                unsized_arrays.push((variable, at_module));
                continue;
            }
            let address = end.next_multiple_of(align);
            end = address + bytes;
            if end > SMALL_LIMIT {
                return Err(format!("shared variable {} ends at byte {end}", variable.name));
            }
            shared.put(variable, at_module, address);
        }
        let dynamic = end.next_multiple_of(dynamic_align);
        unsized_arrays.into_iter().for_each(|(variable, at_module)| shared.put(variable, at_module, dynamic));
        (shared.bytes, shared.dynamic) = (end as u32, dynamic as u32);
        Ok(shared)
    }

    fn put(&mut self, variable: &'a Variable, at_module: bool, address: u64) {
        match at_module {
            true => self.module.push((variable, address)),
            false => {
                self.inner.insert(variable, address);
            }
        }
    }

    /// The address of a variable declared inside a function.
    pub fn inner(&self, variable: &Variable) -> Option<u64> {
        self.inner.get(&(variable as *const Variable)).copied()
    }

    /// Declares the module's variables that the kernel names.
    pub fn declare(&self, operands: &mut Operands) -> Result<(), String> {
        for &(variable, address) in &self.module {
            let (bytes, _) = size(variable)?;
            operands.declare(&variable.name, Symbol::Variable { space: Space::Shared, address, bytes });
        }
        Ok(())
    }
}

/// What a kernel and all functions that it calls name and declare.
#[derive(Default)]
struct Reached<'a> {
    names: HashSet<&'a str>,
    shared: Vec<&'a Variable>,
}

fn reach<'a>(functions: &HashMap<&'a str, &'a Function>, kernel: &'a Function) -> Reached<'a> {
    let mut reached = Reached::default();
    let mut visited: HashSet<&str> = HashSet::new();
    let mut pending = vec![kernel];
    while let Some(function) = pending.pop() {
        let mut calls = Vec::new();
        let mut lists: Vec<&[Statement]> = function.body.as_deref().into_iter().collect();
        while let Some(list) = lists.pop() {
            for statement in list {
                match statement {
                    Statement::Scope(inner) => lists.push(inner),
                    Statement::Variable(variable) if variable.space == Space::Shared => reached.shared.push(variable),
                    Statement::Instruction(instruction) => {
                        instruction.operands.iter().for_each(|operand| names(operand, &mut reached.names));
                        if instruction.opcode == "call" {
                            calls.extend(instruction.operands.iter().filter_map(|operand| match operand {
                                Operand::Name(name) => functions.get(name.as_str()).copied(),
                                _ => None,
                            }));
                        }
                    }
                    _ => {}
                }
            }
        }
        pending.extend(calls.into_iter().rev().filter(|callee| visited.insert(&callee.name)));
    }
    reached
}

fn names<'a>(operand: &'a Operand, found: &mut HashSet<&'a str>) {
    match operand {
        Operand::Name(name) | Operand::Address { base: Some(name), .. } => {
            found.insert(name);
        }
        Operand::Vector(elements) | Operand::List(elements) => elements.iter().for_each(|e| names(e, found)),
        _ => {}
    }
}

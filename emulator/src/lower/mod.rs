//! AST to program: every `.entry` of a module becomes flat code over numbered registers.
//!
//! `kernel` walks a kernel's statements and inlines calls (`calls`); `memory` (with `modifiers`), `asynchronous`, `control`
//! and `windows` lower the instructions that are neither arithmetic (`alu`) nor warp operations (`warp_ops`); `variables` places
//! variables; `labels` resolves branches; `liveness` and `registers` pack the registers.

mod asynchronous;
mod calls;
mod control;
mod kernel;
mod labels;
mod lines;
pub mod liveness;
mod memory;
mod modifiers;
pub mod operands;
mod problem;
pub mod registers;
mod text;
mod variables;
mod windows;

use std::collections::HashMap;

use crate::fault::{Code, Fault, Result};
use crate::program::Program;
use crate::ptx::ast::{Function, Module};

pub use variables::ModuleVariable;

/// The `.global` and `.const` variables that a module needs in memory.
pub fn module_variables(module: &Module) -> Result<Vec<ModuleVariable>> {
    variables::module_variables(module).map_err(|problem| match problem {
        problem::Problem::Here(code, reason) => Fault::new(code, reason),
        problem::Problem::Placed(fault) => fault,
    })
}

/// Lowers every kernel of a module; the first that can't be is the error. `addresses` has where each of
/// `module_variables` lies.
pub fn lower(module: &Module, addresses: &HashMap<String, u64>) -> Result<Vec<Program>> {
    lower_each(module, addresses)?.into_iter().map(|(_, lowered)| lowered).collect()
}

/// Each kernel's name with its program, or with the reason why there is none.
pub fn lower_each(module: &Module, addresses: &HashMap<String, u64>) -> Result<Vec<(String, Result<Program>)>> {
    let functions = functions(module)?;
    let kernels = module.functions.iter().filter(|function| function.entry && function.body.is_some());
    let lowered = |kernel: &Function| (kernel.name.clone(), kernel::lower(module, &functions, addresses, kernel));
    Ok(kernels.map(lowered).collect())
}

/// Functions by name: the one with a body where there are also prototypes.
fn functions(module: &Module) -> Result<HashMap<&str, &Function>> {
    let mut functions: HashMap<&str, &Function> = HashMap::new();
    for function in &module.functions {
        let known = functions.get(function.name.as_str());
        if known.is_some_and(|known| known.body.is_some() && function.body.is_some()) {
            let (name, line) = (&function.name, function.line);
            return Err(Fault::new(Code::InvalidPtx, format!("PTX line {line}: function {name} is defined twice")));
        }
        if known.is_none() || function.body.is_some() {
            functions.insert(&function.name, function);
        }
    }
    Ok(functions)
}

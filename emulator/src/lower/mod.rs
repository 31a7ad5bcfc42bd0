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

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::fault::{Code, Fault, Result};
use crate::program::Program;
use crate::ptx::ast::{Function, Module, Space, Statement, Variable};

use operands::Symbol;
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
    let outside = Outside::of(module, addresses)?;
    let kernels = module.functions.iter().filter(|function| function.entry && function.body.is_some());
    Ok(kernels.map(|kernel| (kernel.name.clone(), kernel::lower(&outside, kernel))).collect())
}

/// What lies outside the kernels of a module, prepared once for all of them.
struct Outside<'a> {
    module: &'a Module,
    functions: HashMap<&'a str, &'a Function>,
    /// What the names of functions and of variables in memory stand for.
    symbols: Arc<HashMap<String, Symbol>>,
    /// The shared variables by name, each with its place among the module's variables.
    shared: HashMap<&'a str, (usize, &'a Variable)>,
    /// Statements that were walked for the kernels so far, and the most that may be.
    walked: Cell<usize>,
    most_walked: usize,
}

/// Statements that are walked for all kernels of a module: many kernels may call one large function. For any module, and
/// for each of its statements.
const WALKED_ANYWAY: usize = 1 << 20;
const WALKED_EACH: usize = 16;

fn count(statements: &[Statement]) -> usize {
    let inner = |statement: &Statement| if let Statement::Scope(inner) = statement { count(inner) } else { 0 };
    statements.len() + statements.iter().map(inner).sum::<usize>()
}

impl<'a> Outside<'a> {
    fn of(module: &'a Module, addresses: &HashMap<String, u64>) -> Result<Outside<'a>> {
        let functions = functions(module)?;
        let mut symbols: HashMap<String, Symbol> =
            functions.keys().map(|name| (name.to_string(), Symbol::Function)).collect();
        variables::declare(module, addresses, &mut symbols).map_err(|e| Fault::new(Code::InvalidPtx, e))?;
        let shared = module.variables.iter().enumerate().filter(|(_, variable)| variable.space == Space::Shared);
        let shared = shared.map(|(at, variable)| (variable.name.as_str(), (at, variable))).collect();
        let statements: usize = module.functions.iter().filter_map(|f| f.body.as_deref()).map(count).sum();
        let most_walked = WALKED_ANYWAY + WALKED_EACH * statements;
        Ok(Outside { module, functions, symbols: Arc::new(symbols), shared, walked: Cell::new(0), most_walked })
    }
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

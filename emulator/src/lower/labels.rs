//! Labels and the branches to them. A label is visible in the scope that declares it and in those inside; until all
//! code is there, a branch holds the label's number. (PTX ISA, "Labels and Function Names", "brx.idx".)

use std::collections::HashMap;
use std::sync::Arc;

use crate::program::{Instruction, Op};
use crate::ptx::ast::Statement;

/// The targets of an indexed branch; shared by all branches that name it.
type Table = Arc<[u32]>;

#[derive(Debug, Default)]
pub struct Labels<'a> {
    /// Where each label stands, by its number.
    positions: Vec<Option<u32>>,
    /// The furthest position of a label.
    last: Option<usize>,
    scopes: Vec<Scope<'a>>,
}

#[derive(Debug, Default)]
struct Scope<'a> {
    labels: HashMap<&'a str, u32>,
    tables: HashMap<&'a str, Table>,
}

/// The scopes of a caller, hidden from the function that it calls.
pub struct SuspendedLabels<'a>(Vec<Scope<'a>>);

impl<'a> Labels<'a> {
    /// Opens a scope with all labels and branch tables that its statements declare.
    pub fn open(&mut self, statements: &'a [Statement]) -> Result<(), String> {
        self.scopes.push(Scope::default());
        for statement in statements {
            if let Statement::Label(name) = statement {
                let number = self.fresh();
                let scope = self.scopes.last_mut().expect("just pushed");
                if scope.labels.insert(name, number).is_some() {
                    return Err(format!("label {name} is declared twice"));
                }
            }
        }
        for statement in statements {
            if let Statement::BranchTargets { name, targets } = statement {
                let targets: Table = targets.iter().map(|target| self.find(target)).collect::<Result<_, _>>()?;
                self.scopes.last_mut().expect("just pushed").tables.insert(name, targets);
            }
        }
        Ok(())
    }

    pub fn close(&mut self) {
        self.scopes.pop();
    }

    pub fn suspend(&mut self) -> SuspendedLabels<'a> {
        SuspendedLabels(std::mem::take(&mut self.scopes))
    }

    pub fn resume(&mut self, suspended: SuspendedLabels<'a>) {
        self.scopes = suspended.0;
    }

    /// A label that no name reaches: the end of an inlined call.
    pub fn fresh(&mut self) -> u32 {
        self.positions.push(None);
        self.positions.len() as u32 - 1
    }

    pub fn place(&mut self, number: u32, position: usize) {
        self.positions[number as usize] = Some(position as u32);
        self.last = self.last.max(Some(position));
    }

    pub fn find(&self, name: &str) -> Result<u32, String> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.labels.get(name).copied());
        found.ok_or_else(|| format!("label {name} is not declared"))
    }

    pub fn table(&self, name: &str) -> Result<Table, String> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.tables.get(name).cloned());
        found.ok_or_else(|| format!("branch targets {name} are not declared"))
    }

    /// Whether a label stands at `position` or after it.
    pub fn reach(&self, position: usize) -> bool {
        self.last.is_some_and(|last| last >= position)
    }

    /// Replaces label numbers by instruction indices.
    pub fn resolve(&self, code: &mut [Instruction]) -> Result<(), String> {
        let position = |number: u32| self.positions[number as usize].ok_or("a label was never placed".to_string());
        // Branches that share a table still share it afterwards. The old tables live until all are replaced.
        let mut tables: HashMap<*const u32, (Table, Table)> = HashMap::new();
        for instruction in code {
            match &mut instruction.op {
                Op::Branch { target } => *target = position(*target)?,
                Op::BranchIndexed { targets, .. } => match tables.get(&targets.as_ptr()) {
                    Some((_, resolved)) => *targets = Arc::clone(resolved),
                    None => {
                        let resolved: Table =
                            targets.iter().map(|&number| position(number)).collect::<Result<_, _>>()?;
                        let old = std::mem::replace(targets, Arc::clone(&resolved));
                        tables.insert(old.as_ptr(), (old, resolved));
                    }
                },
                _ => {}
            }
        }
        Ok(())
    }
}

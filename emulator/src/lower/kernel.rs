//! One kernel: walks its statements, opens and closes scopes, and hands each instruction to the file that knows it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::alu::Alu;
use crate::fault::{Code, Fault};
use crate::lower::Outside;
use crate::lower::labels::Labels;
use crate::lower::lines::{Lines, NO_CALLS};
use crate::lower::operands::{Operands, Symbol};
use crate::lower::problem::{Outcome, Problem, invalid, unsupported};
use crate::lower::registers;
use crate::lower::text;
use crate::lower::variables::{self, SharedVariables};
use crate::program::{AtomicOp, Guard, Instruction, Op, ParamSlot, Program, Reg, SourceLine};
use crate::ptx::ast::{self, Function, Operand, Space, Statement, Type, Variable};
use crate::warp_ops::WarpOp;

/// The most instructions of a kernel, and the most statements that are walked to make them: inlining doubles at each
/// level of a chain in which every function calls the next one twice.
const CODE_LIMIT: usize = 1 << 20;
/// Scopes and calls inside one another.
const DEPTH_LIMIT: usize = 200;
/// Local memory of a thread (CUDA C++ Programming Guide, "Technical Specifications").
const LOCAL_LIMIT: u64 = 512 << 10;

pub struct Lowering<'a> {
    pub functions: &'a HashMap<&'a str, &'a Function>,
    kernel: &'a Function,
    pub operands: Operands,
    pub labels: Labels<'a>,
    pub lines: Lines<'a>,
    pub code: Vec<Instruction>,
    shared: SharedVariables<'a>,
    /// End of the local memory in use, and the most that was.
    local: u64,
    local_most: u64,
    /// The guard of the instruction being lowered.
    pub guard: Option<Guard>,
    /// The source line of the instruction being lowered, an index into `Program::lines`.
    pub line: u32,
    /// The calls that are being inlined, outermost first.
    pub calls: Vec<Call<'a>>,
    depth: usize,
    walked: usize,
}

/// A call that is being inlined.
pub struct Call<'a> {
    pub function: &'a Function,
    /// The label behind the call.
    pub end: u32,
    /// The call's place in the source, and that of the calls around it: a number of `Lines`.
    pub chain: u32,
}

/// Lowers one kernel of a module.
pub fn lower<'a>(outside: &'a Outside<'a>, kernel: &'a Function) -> Result<Program, Fault> {
    let whole = |reason: String| {
        let (name, line) = (&kernel.name, kernel.line);
        Fault::new(Code::InvalidPtx, format!("kernel {name}, PTX line {line}: {reason}"))
    };
    if outside.walked.get() > outside.most_walked {
        let most = outside.most_walked;
        let reason = format!("the module's kernels have more than {most} instructions after inlining all calls");
        return Err(Fault { code: Code::NotSupported, ..whole(reason) });
    }
    let shared = SharedVariables::place(outside, kernel).map_err(whole)?;
    let (params, param_bytes) = variables::parameters(&kernel.params).map_err(whole)?;
    let mut lowering = Lowering {
        functions: &outside.functions,
        kernel,
        operands: Operands::new(Arc::clone(&outside.symbols)),
        labels: Labels::default(),
        lines: Lines::new(outside.module),
        code: Vec::new(),
        shared,
        local: 0,
        local_most: 0,
        guard: None,
        line: 0,
        calls: Vec::new(),
        depth: 0,
        walked: 0,
    };
    lowering.declare_outside(&params).map_err(whole)?;
    let walked = lowering.statements(kernel.body.as_deref().unwrap_or_default());
    outside.walked.set(outside.walked.get() + lowering.walked);
    walked.map_err(|problem| match problem {
        Problem::Here(code, reason) => Fault { code, ..whole(reason) },
        Problem::Placed(fault) => fault,
    })?;
    lowering.finish(params, param_bytes).map_err(whole)
}

impl<'a> Lowering<'a> {
    /// Declares the module's shared variables, and the kernel's parameters in a scope of their own, which calls do not see.
    fn declare_outside(&mut self, params: &[ParamSlot]) -> Result<(), String> {
        self.operands.push_scope();
        self.shared.declare(&mut self.operands)?;
        self.operands.push_scope();
        for slot in params {
            let (address, bytes) = (slot.offset as u64, slot.bytes as u64);
            self.operands.declare(&slot.name, Symbol::Variable { space: Space::Param, address, bytes });
        }
        Ok(())
    }

    /// Lowers the statements of a scope.
    pub fn statements(&mut self, statements: &'a [Statement]) -> Outcome<()> {
        self.depth += 1;
        if self.depth > DEPTH_LIMIT {
            return unsupported(format!("scopes and calls lie more than {DEPTH_LIMIT} deep in one another"));
        }
        self.operands.push_scope();
        self.labels.open(statements)?;
        let local = self.local;
        for statement in statements {
            self.statement(statement)?;
        }
        // What a scope or an inlined call kept in local memory is free for the next one.
        self.local = local;
        self.labels.close();
        self.operands.pop_scope();
        self.depth -= 1;
        Ok(())
    }

    fn statement(&mut self, statement: &'a Statement) -> Outcome<()> {
        self.walked += 1;
        if self.code.len() > CODE_LIMIT || self.walked > CODE_LIMIT {
            return unsupported(format!("the code has more than {CODE_LIMIT} instructions after inlining all calls"));
        }
        match statement {
            Statement::Registers { ty, name, count } => Ok(self.operands.declare_registers(*ty, name, *count)?),
            Statement::Variable(variable) => self.variable(variable),
            Statement::Label(name) => {
                let label = self.labels.find(name)?;
                self.labels.place(label, self.code.len());
                Ok(())
            }
            Statement::Scope(inner) => self.statements(inner),
            Statement::BranchTargets { .. } => Ok(()),
            Statement::Instruction(instruction) => self.placed(instruction),
        }
    }

    /// A variable declared inside a function.
    fn variable(&mut self, variable: &'a Variable) -> Outcome<()> {
        let name = &variable.name;
        let (bytes, _) = variables::size(variable)?;
        let symbol = match variable.space {
            Space::Shared => {
                let address = self.shared.inner(variable);
                let address = address.ok_or_else(|| format!("shared variable {name} was not placed"))?;
                Symbol::Variable { space: Space::Shared, address, bytes }
            }
            Space::Local => Symbol::Variable { space: Space::Local, address: self.allocate_local(variable)?, bytes },
            Space::Param => Symbol::Slot { address: self.allocate_local(variable)?, bytes },
            Space::Global | Space::Const | Space::Generic => {
                return unsupported(format!("variable {name}: .global and .const inside a function are not supported"));
            }
        };
        self.operands.declare(name, symbol);
        Ok(())
    }

    /// Local memory for a variable until its scope ends.
    pub fn allocate_local(&mut self, variable: &Variable) -> Outcome<u64> {
        let (bytes, align) = variables::size(variable)?;
        let address = self.local.next_multiple_of(align);
        self.local = address + bytes;
        self.local_most = self.local_most.max(self.local);
        if self.local > LOCAL_LIMIT {
            return invalid(format!(
                "{} needs {} bytes of local memory a thread, the limit is {LOCAL_LIMIT}",
                variable.name, self.local
            ));
        }
        Ok(address)
    }

    /// The calls that the current instruction is inlined through.
    pub fn chain(&self) -> u32 {
        self.calls.last().map_or(NO_CALLS, |call| call.chain)
    }

    pub fn local_end(&self) -> u64 {
        self.local
    }

    pub fn release_local(&mut self, end: u64) {
        self.local = end;
    }

    /// Lowers an instruction; an error gets its place.
    fn placed(&mut self, instruction: &'a ast::Instruction) -> Outcome<()> {
        self.instruction(instruction).map_err(|problem| match problem {
            Problem::Here(code, reason) => Problem::Placed(self.fault(instruction, code, &reason)),
            placed => placed,
        })
    }

    fn fault(&self, instruction: &ast::Instruction, code: Code, reason: &str) -> Fault {
        let inside = self.calls.last().map(|call| format!(", function {}", call.function.name)).unwrap_or_default();
        let (name, line) = (&self.kernel.name, instruction.line);
        let text = text::instruction(instruction);
        Fault::new(code, format!("kernel {name}{inside}, PTX line {line}: {text} {reason}"))
    }

    fn instruction(&mut self, instruction: &'a ast::Instruction) -> Outcome<()> {
        self.line = self.lines.add(instruction, self.chain());
        self.guard = match &instruction.guard {
            Some(guard) => {
                let pred = self.operands.read(&Operand::Name(guard.predicate.clone()), Type::Pred)?;
                Some(Guard { pred, negated: guard.negated })
            }
            None => None,
        };
        match instruction.opcode.as_str() {
            "ld" | "ldu" => self.load(instruction),
            "st" => self.store(instruction),
            "atom" | "red" => self.atomic(instruction),
            "cp" => self.copy_async(instruction),
            "ldmatrix" => self.load_matrix(instruction),
            "stmatrix" => self.store_matrix(instruction),
            "membar" | "fence" => self.fence(instruction),
            "bar" | "barrier" => self.barrier(instruction),
            "prefetch" | "prefetchu" | "discard" | "applypriority" | "nanosleep" | "pragma" | "griddepcontrol" => {
                self.hint(instruction)
            }
            "exit" | "ret" | "trap" | "brkpt" => self.leave(instruction),
            "bra" | "brx" => self.branch(instruction),
            "call" => self.call(instruction),
            "cvta" => self.convert_address(instruction),
            "isspacep" => self.is_space(instruction),
            "mov" if self.clock(instruction)? => Ok(()),
            _ => self.others(instruction),
        }
    }

    /// Warp operations and arithmetic.
    fn others(&mut self, instruction: &ast::Instruction) -> Outcome<()> {
        if let Some(op) = WarpOp::lower(instruction, &mut self.operands)? {
            self.emit(Op::Warp(op));
        } else if let Some(op) = Alu::lower(instruction, &mut self.operands)? {
            self.emit(Op::Alu(op));
        } else {
            return unsupported("the instruction is not known");
        }
        Ok(())
    }

    /// Appends an operation under the guard and the line of the instruction being lowered.
    pub fn emit(&mut self, op: Op) {
        self.code.push(Instruction { guard: self.guard, op, line: self.line });
    }

    /// Appends arithmetic on registers that only lowering uses. All lanes do it, whatever the guard says: a guarded
    /// write would not end the life of an old value.
    pub fn unguarded(&mut self, form: &str, parts: &[Part]) -> Outcome<()> {
        let guard = self.guard.take();
        let appended = self.arithmetic(form, parts);
        self.guard = guard;
        appended
    }

    /// Appends an arithmetic instruction that the PTX does not have, on registers and numbers.
    pub fn arithmetic(&mut self, form: &str, parts: &[Part]) -> Outcome<()> {
        self.operands.push_scope();
        let mut words = form.split('.').map(str::to_string);
        let mut operands = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            operands.push(match *part {
                Part::Register(ty, reg) => {
                    let name = format!("%%{index}");
                    self.operands.declare(&name, Symbol::Register { ty, reg });
                    Operand::Name(name)
                }
                Part::Number(value) => Operand::Int(value),
            });
        }
        let instruction = ast::Instruction {
            guard: None,
            opcode: words.next().unwrap_or_default(),
            modifiers: words.collect(),
            operands,
            line: 0,
            source: None,
        };
        let lowered = self.others(&instruction);
        self.operands.pop_scope();
        lowered
    }

    fn finish(mut self, params: Vec<ParamSlot>, param_bytes: u32) -> Result<Program, String> {
        let ends = self.code.last().is_some_and(|last| {
            last.guard.is_none()
                && matches!(last.op, Op::Exit | Op::Trap | Op::Branch { .. } | Op::BranchIndexed { .. })
        });
        if !ends || self.labels.reach(self.code.len()) {
            let line = SourceLine { frames: Default::default(), ptx_line: self.kernel.line, form: "exit".to_string() };
            let line = self.code.last().map_or_else(|| self.lines.push(line), |last| last.line);
            self.code.push(Instruction { guard: None, op: Op::Exit, line });
        }
        self.labels.resolve(&mut self.code)?;
        strengthen_loads(&mut self.code);
        let presets = self.operands.presets();
        let packed = registers::allocate(&mut self.code, self.operands.counts, &presets)?;
        Ok(Program {
            owner: 0, // whoever loads it says
            name: self.kernel.name.clone(),
            code: self.code,
            lines: self.lines.table,
            registers: packed.registers,
            presets: packed.presets,
            undefined: packed.undefined,
            params,
            param_bytes,
            static_shared: self.shared.bytes,
            dynamic_shared: self.shared.dynamic,
            local_bytes: self.local_most as u32,
            max_threads: self.kernel.max_threads,
            required_threads: self.kernel.required_threads,
            min_blocks: self.kernel.min_blocks,
            max_registers: self.kernel.max_registers,
            live_registers: packed.live_registers,
        })
    }
}

/// An operand of an instruction that lowering adds.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    Register(Type, Reg),
    Number(i64),
}

/// A load from where a later compare-and-swap goes belongs to it: `old = *p; do … atomicCAS(p, old, …)` is how CUDA's own
/// guide writes an atomic that the hardware lacks. It counts as an atomic access, not as a race with those of others.
/// Registers still have their own names here, each written once in nvcc's output.
fn strengthen_loads(code: &mut [Instruction]) {
    let swaps: HashSet<(u32, bool, i64)> = code
        .iter()
        .filter_map(|instruction| match &instruction.op {
            Op::Atomic { function, address, .. } if function.op == AtomicOp::CompareAndSwap => {
                Some((address.base.0, address.wide, address.offset))
            }
            _ => None,
        })
        .collect();
    for instruction in code {
        if let Op::Load { address, to, strong, .. } = &mut instruction.op
            && to.len() == 1
            && swaps.contains(&(address.base.0, address.wide, address.offset))
        {
            *strong = true;
        }
    }
}

//! Calls: a device function's body is lowered again at each call, with registers of its own; arguments and results
//! are bytes of the thread's local memory. (PTX ISA, "call", "Abstracting the ABI".)

use crate::lower::kernel::{Call, Lowering};
use crate::lower::operands::{Symbol, class_of, immediate};
use crate::lower::problem::{Outcome, invalid, unsupported};
use crate::lower::text;
use crate::lower::variables;
use crate::program::{Address, Class, Guard, Op, Preset, Reg, Value};
use crate::ptx::ast::{Function, Instruction, Operand, Space, Type, Variable};

/// Functions of the device runtime that have no body in PTX.
const RUNTIME: [&str; 3] = ["malloc", "free", "memset"];

/// An argument or a result: a formal parameter and where its bytes lie.
struct Bound<'a> {
    formal: &'a Variable,
    address: u64,
    /// A result that goes to a register after the call.
    to: Option<(Type, Reg)>,
}

impl<'a> Lowering<'a> {
    pub fn call(&mut self, instruction: &'a Instruction) -> Outcome<()> {
        if !(instruction.modifiers.is_empty() || instruction.modifiers == ["uni"]) {
            return unsupported("this form of call is not known");
        }
        let (results, name, arguments) = parts(instruction)?;
        let Some(&function) = self.functions.get(name) else {
            return match self.operands.lookup(name) {
                Some(Symbol::Register { .. }) => unsupported(format!("indirect calls ({name}) are not supported")),
                _ => invalid(format!("function {name} is not declared")),
            };
        };
        if function.entry {
            return unsupported(format!("kernel {name} is called: launches from the device are not supported"));
        }
        self.recursion(function)?;
        let local = self.local_end();
        let skip = self.guard.take().map(|guard| self.skip(guard));
        let results = self.bind(&function.results, results, true)?;
        let arguments = self.bind(&function.params, arguments, false)?;
        match &function.body {
            Some(body) => self.inline(instruction, function, body, &results, &arguments)?,
            None => self.builtin(function, &results, &arguments)?,
        }
        for bound in &results {
            if let Some((ty, reg)) = bound.to {
                let value = slot_value(ty);
                let address = self.slot(bound.address);
                self.emit(Op::Load { space: Space::Local, value, address, to: vec![reg], strong: false });
            }
        }
        self.release_local(local);
        if let Some(end) = skip {
            self.labels.place(end, self.code.len());
        }
        Ok(())
    }

    /// A guarded call: lanes whose guard is false jump behind it.
    fn skip(&mut self, guard: Guard) -> u32 {
        let end = self.labels.fresh();
        self.guard = Some(Guard { negated: !guard.negated, ..guard });
        self.emit(Op::Branch { target: end });
        self.guard = None;
        end
    }

    fn recursion(&self, function: &Function) -> Outcome<()> {
        let Some(first) = self.calls.iter().position(|call| call.function.name == function.name) else { return Ok(()) };
        let mut cycle: Vec<&str> = self.calls[first..].iter().map(|call| call.function.name.as_str()).collect();
        cycle.push(&function.name);
        unsupported(format!("recursion is not supported: {}", cycle.join(" calls ")))
    }

    /// Puts formal parameters where the caller's `.param` variables lie; registers and numbers get a place of their own.
    fn bind(&mut self, formals: &'a [Variable], actuals: &[Operand], results: bool) -> Outcome<Vec<Bound<'a>>> {
        let what = if results { "results" } else { "arguments" };
        if formals.len() != actuals.len() {
            return invalid(format!("the call has {} {what}, expected {}", actuals.len(), formals.len()));
        }
        let mut bound = Vec::new();
        for (formal, actual) in formals.iter().zip(actuals) {
            let (size, _) = variables::size(formal)?;
            let symbol = if let Operand::Name(name) = actual { self.operands.lookup(name) } else { None };
            let Some(Symbol::Slot { address, bytes }) = symbol else {
                bound.push(self.bind_value(formal, actual, results)?);
                continue;
            };
            if bytes != size {
                let (actual, formal) = (text::operand(actual), &formal.name);
                return invalid(format!("{actual} has {bytes} bytes, parameter {formal} has {size}"));
            }
            bound.push(Bound { formal, address, to: None });
        }
        Ok(bound)
    }

    fn bind_value(&mut self, formal: &'a Variable, actual: &Operand, result: bool) -> Outcome<Bound<'a>> {
        let ty = formal.ty;
        if formal.elements.is_some() || ty.bytes() > 8 {
            return invalid(format!("{} does not fit parameter {}", text::operand(actual), formal.name));
        }
        let address = self.allocate_local(formal)?;
        if result {
            return Ok(Bound { formal, address, to: Some((ty, self.operands.write(actual, ty)?)) });
        }
        let from = match actual {
            Operand::Name(_) => self.operands.read(actual, ty)?,
            _ => {
                let bits = immediate(actual, ty)?;
                self.operands.preset(class_of(ty), Preset::Bits(bits))
            }
        };
        let (value, to) = (slot_value(ty), self.slot(address));
        self.emit(Op::Store { space: Space::Local, value, address: to, from: vec![from], strong: false });
        Ok(Bound { formal, address, to: None })
    }

    fn slot(&mut self, address: u64) -> Address {
        Address { base: self.operands.preset(Class::R64, Preset::Bits(address)), wide: true, offset: 0 }
    }

    fn inline(
        &mut self,
        instruction: &'a Instruction,
        function: &'a Function,
        body: &'a [crate::ptx::ast::Statement],
        results: &[Bound<'a>],
        arguments: &[Bound<'a>],
    ) -> Outcome<()> {
        let chain = self.lines.chain(instruction, self.chain());
        let end = self.labels.fresh();
        let (operands, labels) = (self.operands.suspend(), self.labels.suspend());
        let line = self.line;
        self.operands.push_scope();
        for bound in results.iter().chain(arguments) {
            let (bytes, _) = variables::size(bound.formal)?;
            self.operands.declare(&bound.formal.name, Symbol::Slot { address: bound.address, bytes });
        }
        self.calls.push(Call { function, end, chain });
        self.statements(body)?;
        self.calls.pop();
        self.operands.resume(operands);
        self.labels.resume(labels);
        (self.line, self.guard) = (line, None);
        // The `ret` at the very end needs no jump, unless a label stands behind it.
        let jumps = self
            .code
            .last()
            .is_some_and(|last| last.guard.is_none() && matches!(last.op, Op::Branch { target } if target == end));
        if jumps && !self.labels.reach(self.code.len()) {
            self.code.pop();
        }
        self.labels.place(end, self.code.len());
        Ok(())
    }

    /// A function without a body: one that the emulator itself does, or an error.
    fn builtin(&mut self, function: &Function, results: &[Bound], arguments: &[Bound]) -> Outcome<()> {
        let name = function.name.as_str();
        let widths: Vec<usize> = arguments.iter().map(|bound| bound.formal.ty.bytes()).collect();
        match (name, &widths[..], results) {
            ("vprintf", [8, 8], [result]) if result.formal.ty.bytes() == 4 => {
                let (format, packed) = (self.argument(&arguments[0]), self.argument(&arguments[1]));
                let to = self.operands.scratch(Class::R32);
                self.emit(Op::Printf { format, arguments: packed, to });
                let (value, address) = (slot_value(Type::B32), self.slot(result.address));
                self.emit(Op::Store { space: Space::Local, value, address, from: vec![to], strong: false });
                Ok(())
            }
            ("__assertfail", [8, 8, 4, 8, 8], []) => {
                let message = self.argument(&arguments[0]);
                let file = self.argument(&arguments[1]);
                let line = self.argument(&arguments[2]);
                let function = self.argument(&arguments[3]);
                self.emit(Op::AssertFail { message, file, line, function });
                Ok(())
            }
            ("vprintf" | "__assertfail", ..) => {
                invalid(format!("{name} is declared with other parameters than its own"))
            }
            _ if RUNTIME.contains(&name) || name.starts_with("cuda") || name.starts_with("__syscall") => {
                unsupported(format!("{name} on the device is not supported"))
            }
            _ => invalid(format!("device function {name} has no body")),
        }
    }

    fn argument(&mut self, bound: &Bound) -> Reg {
        let ty = bound.formal.ty;
        let to = self.operands.scratch(class_of(ty));
        let (value, address) = (slot_value(ty), self.slot(bound.address));
        self.emit(Op::Load { space: Space::Local, value, address, to: vec![to], strong: false });
        to
    }
}

fn slot_value(ty: Type) -> Value {
    Value { bytes: ty.bytes() as u32, signed: false, wide: class_of(ty) == Class::R64 }
}

/// Results, name and arguments of `call (results), name, (arguments);`.
fn parts(instruction: &Instruction) -> Outcome<(&[Operand], &str, &[Operand])> {
    match &instruction.operands[..] {
        [Operand::Name(name)] => Ok((&[], name, &[])),
        [Operand::Name(name), Operand::List(arguments)] => Ok((&[], name, arguments)),
        [Operand::List(results), Operand::Name(name)] => Ok((results, name, &[])),
        [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => Ok((results, name, arguments)),
        [.., Operand::Name(table)] => unsupported(format!("indirect calls (one of {table}) are not supported")),
        _ => invalid("expected call (results), function, (arguments)"),
    }
}

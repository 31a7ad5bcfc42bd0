//! From PTX text to programs: forms, layout, calls, errors and register allocation.

mod calls;
mod errors;
mod forms;
#[path = "../growth/mod.rs"]
mod growth;
mod interpreter;
mod layout;
mod registers;

use std::collections::HashMap;

use cuda_emulator::fault::{Fault, Result};
use cuda_emulator::lower;
use cuda_emulator::program::{Class, Op, Preset, Program, Reg};
use cuda_emulator::ptx;

/// Registers that every test kernel declares.
const REGISTERS: &str = ".reg .pred %p<10>; .reg .b16 %rs<10>; .reg .b32 %r<20>; .reg .b64 %rd<20>;
    .reg .f32 %f<20>; .reg .f64 %fd<10>;";

/// A module from its declarations and the body of its kernel `k(.u64 p0, .u32 p1)`.
fn source(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n{declarations}
        .visible .entry k(.param .u64 p0, .param .u32 p1)\n{{ {REGISTERS}\n{body}\n}}"
    )
}

fn lower_text(text: &str) -> Result<Vec<Program>> {
    let module = ptx::parse(text).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    let mut next = 0x1000;
    let mut addresses = HashMap::new();
    for variable in lower::module_variables(&module)? {
        let address = u64::next_multiple_of(next, variable.align);
        next = address + variable.bytes;
        addresses.insert(variable.name, address);
    }
    lower::lower(&module, &addresses)
}

fn try_kernel(declarations: &str, body: &str) -> Result<Program> {
    lower_text(&source(declarations, body)).map(|mut programs| programs.remove(0))
}

fn kernel(declarations: &str, body: &str) -> Program {
    try_kernel(declarations, body).unwrap_or_else(|fault| panic!("{fault}"))
}

fn fault(declarations: &str, body: &str) -> Fault {
    match try_kernel(declarations, body) {
        Ok(program) => panic!("no error: {:?}", program.code),
        Err(fault) => fault,
    }
}

/// The operations of a kernel with this body, without its last `Exit`.
fn ops(body: &str) -> (Program, Vec<Op>) {
    let program = kernel("", body);
    let mut ops: Vec<Op> = program.code.iter().map(|instruction| instruction.op.clone()).collect();
    assert!(matches!(ops.pop(), Some(Op::Exit)), "{body}");
    (program, ops)
}

/// The constant that a register holds.
fn constant(program: &Program, class: Class, reg: Reg) -> Option<Preset> {
    program.presets.iter().find(|preset| preset.0 == class && preset.1 == reg).map(|preset| preset.2)
}

fn bits(program: &Program, class: Class, reg: Reg) -> u64 {
    match constant(program, class, reg) {
        Some(Preset::Bits(bits)) => bits,
        other => panic!("expected a constant, found {other:?}"),
    }
}

//! Runs single instructions on lanes, for the tests of each form.

mod arithmetic;
mod conversions;
mod refusals;

use super::Float;
use crate::lower::operands::{Operands, Symbol};
use crate::numerics::Rounding;
use crate::program::{Access, Class, LANES, Mask, Preset, Reg, Registers};
use crate::ptx::ast::{Instruction, Operand, Type};

/// An instruction from its form and operands: names, or `#` and a single's value.
fn instruction(form: &str, operands: &[&str]) -> Instruction {
    let mut words = form.split('.').map(str::to_string);
    let operand = |text: &&str| match text.strip_prefix('#') {
        Some(number) => Operand::F32(number.parse::<f32>().expect("a number").to_bits()),
        None => Operand::Name(text.to_string()),
    };
    Instruction {
        guard: None,
        opcode: words.next().unwrap_or_default(),
        modifiers: words.collect(),
        operands: operands.iter().map(operand).collect(),
        line: 1,
        source: None,
    }
}

/// Registers `%c` of 8 bits, `%h` of 16, `%r` of 32, `%d` of 64, and predicates.
fn names() -> Operands {
    let mut operands = Operands::default();
    operands.push_scope();
    for (ty, name) in [(Type::B8, "%c"), (Type::B16, "%h"), (Type::B32, "%r"), (Type::B64, "%d"), (Type::Pred, "%p")] {
        operands.declare_registers(ty, name, Some(8)).expect("new names");
    }
    operands
}

fn lower(form: &str, operands: &[&str]) -> Result<Option<Float>, String> {
    Float::lower(&instruction(form, operands), &mut names())
}

/// A lowered instruction and where its operands are.
struct Machine {
    op: Float,
    registers: Registers,
    to: (Class, Reg),
    from: Vec<(Class, Reg)>,
}

impl Machine {
    fn new(form: &str, to: &str, from: &[&str]) -> Machine {
        let mut operands = names();
        let all: Vec<&str> = std::iter::once(to).chain(from.iter().copied()).collect();
        let op = match Float::lower(&instruction(form, &all), &mut operands) {
            Ok(Some(op)) => op,
            other => panic!("{form} {all:?}: {other:?}"),
        };
        let mut find = |name: &str| match operands.lookup(name) {
            Some(Symbol::Register { ty, reg }) => (crate::lower::operands::class_of(ty), reg),
            _ => panic!("{name} is no register"),
        };
        let to = find(to);
        let from = from.iter().filter(|name| name.starts_with('%')).map(|name| find(name)).collect();
        let mut registers = Registers::default();
        registers.r32.resize(operands.counts.r32 as usize, [0xdead_beef; LANES]);
        registers.r64.resize(operands.counts.r64 as usize, [0xdead_beef_dead_beef; LANES]);
        for (class, reg, preset) in operands.presets() {
            let Preset::Bits(bits) = preset else { continue };
            match class {
                Class::R32 => registers.r32[reg.0 as usize] = [bits as u32; LANES],
                _ => registers.r64[reg.0 as usize] = [bits; LANES],
            }
        }
        Machine { op, registers, to, from }
    }

    fn set(&mut self, index: usize, lane: usize, value: u64) {
        let (class, reg) = self.from[index];
        match class {
            Class::R32 => self.registers.r32[reg.0 as usize][lane] = value as u32,
            _ => self.registers.r64[reg.0 as usize][lane] = value,
        }
    }

    fn get(&self, lane: usize) -> u64 {
        match self.to.0 {
            Class::R32 => self.registers.r32[self.to.1.0 as usize][lane] as u64,
            _ => self.registers.r64[self.to.1.0 as usize][lane],
        }
    }

    /// The result for each row of operands.
    fn run(&mut self, rows: &[[u64; 3]]) -> Vec<u64> {
        let mut results = Vec::with_capacity(rows.len());
        for chunk in rows.chunks(LANES) {
            for (lane, row) in chunk.iter().enumerate() {
                for (index, &value) in row.iter().take(self.from.len()).enumerate() {
                    self.set(index, lane, value);
                }
            }
            self.op.execute(&mut self.registers, Mask::MAX);
            results.extend((0..chunk.len()).map(|lane| self.get(lane)));
        }
        results
    }
}

fn rounding(modifiers: &str) -> Rounding {
    match modifiers.split('.').find(|m| ["rz", "rm", "rp"].contains(m)) {
        Some("rz") => Rounding::Zero,
        Some("rm") => Rounding::Down,
        Some("rp") => Rounding::Up,
        _ => Rounding::Nearest,
    }
}

/// `-` stands for no modifiers.
fn form(opcode: &str, modifiers: &str, types: &str) -> String {
    if modifiers == "-" { format!("{opcode}.{types}") } else { format!("{opcode}.{modifiers}.{types}") }
}

fn visited(form: &str, operands: &[&str]) -> Vec<(Access, Class)> {
    let mut op = lower(form, operands).expect("known").expect("a float");
    let mut seen = Vec::new();
    op.visit(&mut |access, class, _| seen.push((access, class)));
    seen
}

#[test]
fn visits_name_every_register() {
    use Access::{Read, Write};
    use Class::{R32, R64};
    assert_eq!(visited("add.f32", &["%r0", "%r1", "%r2"]), [(Read, R32), (Read, R32), (Write, R32)]);
    assert_eq!(
        visited("fma.rn.f64", &["%d0", "%d1", "%d2", "%d3"]),
        [(Read, R64), (Read, R64), (Read, R64), (Write, R64)]
    );
    assert_eq!(visited("ex2.approx.f32", &["%r0", "%r1"]), [(Read, R32), (Write, R32)]);
    assert_eq!(visited("cvt.u64.u32", &["%d0", "%r1"]), [(Read, R32), (Write, R64)]);
    assert_eq!(visited("cvt.rn.f32.s64", &["%r0", "%d1"]), [(Read, R64), (Write, R32)]);
    assert_eq!(visited("cvt.rn.bf16x2.f32", &["%r0", "%r1", "%r2"]), [(Read, R32), (Read, R32), (Write, R32)]);
    let four = ["%r0", "%r1", "%r2", "%r3"];
    assert_eq!(visited("cvt.pack.sat.u8.s32.b32", &four), [(Read, R32), (Read, R32), (Read, R32), (Write, R32)]);
}

#[test]
fn visits_rename_what_runs() {
    let mut machine = Machine::new("sub.f32", "%r0", &["%r1", "%r2"]);
    // Exchanges the two sources.
    let [a, b] = [machine.from[0].1, machine.from[1].1];
    machine.op.visit(&mut |access, _, reg| {
        if access == Access::Read {
            *reg = if *reg == a { b } else { a };
        }
    });
    assert_eq!(machine.run(&[[5f32.to_bits() as u64, 3f32.to_bits() as u64, 0]]), [(-2f32).to_bits() as u64]);
}

#[test]
fn inactive_lanes_keep_their_value() {
    for (form, to, from) in [
        ("add.f32", "%r0", &["%r1", "%r1"][..]),
        ("add.f64", "%d0", &["%d1", "%d1"]),
        ("fma.rn.bf16x2", "%r0", &["%r1", "%r1", "%r1"]),
        ("cvt.rn.f32.s32", "%r0", &["%r1"]),
        ("cvt.rna.tf32.f32", "%r0", &["%r1"]),
        ("cvt.s64.s32", "%d0", &["%r1"]),
    ] {
        let mut machine = Machine::new(form, to, from);
        (0..LANES).for_each(|lane| machine.set(0, lane, 0x3f80_0000));
        machine.op.execute(&mut machine.registers, 0x8000_0001);
        let before = if machine.to.0 == Class::R32 { 0xdead_beef } else { 0xdead_beef_dead_beef };
        for lane in 0..LANES {
            assert_eq!(machine.get(lane) == before, lane != 0 && lane != 31, "{form} lane {lane}");
        }
    }
}

#[test]
fn immediates_are_operands() {
    assert_eq!(
        Machine::new("mul.f32", "%r0", &["%r1", "#2.5"]).run(&[[4f32.to_bits() as u64, 0, 0]]),
        [10f32.to_bits() as u64]
    );
    assert_eq!(
        Machine::new("cvt.rn.bf16x2.f32", "%r0", &["#1", "%r2"]).run(&[[2f32.to_bits() as u64, 0, 0]]),
        [0x3f80_4000]
    );
}

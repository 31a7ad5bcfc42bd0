//! Every form against plain scalar arithmetic: edge values and random ones, all lanes and some lanes.

mod arithmetic;
mod bits;
mod compare;
mod refused;
mod select;

use super::Integer;
use crate::lower::operands::{Operands, Symbol, class_of};
use crate::program::{Access, Class, LANES, Mask, Preset, Reg, Registers};
use crate::ptx::ast::{Instruction, Operand, Type};
use std::cell::RefCell;

const SEED: u64 = 0x1234_5678_9abc_def1;
/// Warps of operands drawn for each form.
const WARPS: usize = 128;

/// What a form should give: from the operands' bits, zero-extended, the bits of every destination.
type Expect = Box<dyn Fn(&[u64]) -> Vec<u64>>;

/// One form with its registers `%d0`, `%d1` … (destinations) and `%s0`, `%s1` … (sources).
struct Case {
    form: String,
    operands: Vec<Operand>,
    to: Vec<Type>,
    from: Vec<Type>,
    expect: Expect,
    /// Whether the carry flag is read and written besides the operands.
    carry: [bool; 2],
}

fn name(text: &str) -> Operand {
    Operand::Name(text.to_string())
}

fn names(prefix: &str, count: usize) -> Vec<Operand> {
    (0..count).map(|i| name(&format!("%{prefix}{i}"))).collect()
}

/// A form with one destination and sources in order.
fn case(form: &str, to: Type, from: &[Type], expect: impl Fn(&[u64]) -> u64 + 'static) -> Case {
    let mut operands = vec![name("%d0")];
    operands.extend(names("s", from.len()));
    with_operands(form, operands, &[to], from, move |s| vec![expect(s)])
}

fn with_operands(
    form: &str,
    operands: Vec<Operand>,
    to: &[Type],
    from: &[Type],
    expect: impl Fn(&[u64]) -> Vec<u64> + 'static,
) -> Case {
    let (to, from, expect) = (to.to_vec(), from.to_vec(), Box::new(expect));
    Case { form: form.to_string(), operands, to, from, expect, carry: [false; 2] }
}

fn instruction(form: &str, operands: Vec<Operand>) -> Instruction {
    let mut words = form.split('.').map(str::to_string);
    let opcode = words.next().unwrap_or_default();
    Instruction { guard: None, opcode, modifiers: words.collect(), operands, line: 1, source: None }
}

/// Declares the registers of `types` under a prefix and says where they are.
fn declare(operands: &mut Operands, prefix: &str, types: &[Type]) -> Vec<(Class, Reg)> {
    let mut found = Vec::new();
    for (i, &ty) in types.iter().enumerate() {
        let name = format!("%{prefix}{i}");
        operands.declare_registers(ty, &name, None).unwrap();
        let Some(Symbol::Register { reg, .. }) = operands.lookup(&name) else { panic!("{name} is not there") };
        found.push((class_of(ty), reg));
    }
    found
}

fn allocate(operands: &Operands) -> Registers {
    let counts = operands.counts;
    let mut registers = Registers {
        r32: vec![[0; LANES]; counts.r32 as usize],
        r64: vec![[0; LANES]; counts.r64 as usize],
        pred: vec![0; counts.pred as usize],
    };
    for (class, reg, preset) in operands.presets() {
        let Preset::Bits(bits) = preset else { panic!("no special registers here") };
        (0..LANES).for_each(|lane| poke(&mut registers, class, reg, lane, bits));
    }
    registers
}

fn peek(registers: &Registers, class: Class, reg: Reg, lane: usize) -> u64 {
    match class {
        Class::R32 => registers.r32[reg.0 as usize][lane] as u64,
        Class::R64 => registers.r64[reg.0 as usize][lane],
        Class::Pred => (registers.pred[reg.0 as usize] >> lane & 1) as u64,
    }
}

fn poke(registers: &mut Registers, class: Class, reg: Reg, lane: usize, bits: u64) {
    match class {
        Class::R32 => registers.r32[reg.0 as usize][lane] = bits as u32,
        Class::R64 => registers.r64[reg.0 as usize][lane] = bits,
        Class::Pred => {
            let pred = &mut registers.pred[reg.0 as usize];
            *pred = *pred & !(1 << lane) | ((bits & 1) as Mask) << lane;
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A value of a type, mostly one of its `edges`.
    fn value(&mut self, ty: Type, edges: &[u64]) -> u64 {
        let (choice, random) = (self.next(), self.next());
        let width = if ty.bytes() == 8 { u64::MAX } else { (1 << (8 * ty.bytes())) - 1 };
        match choice % 10 {
            _ if ty == Type::Pred => random & 1,
            0..7 => edges[(random % edges.len() as u64) as usize] & width,
            // A number of few bits, as counts are.
            7 => random >> (choice >> 8 & 63) & width,
            _ => random & width,
        }
    }
}

fn edges(ty: Type) -> Vec<u64> {
    let float = |exponent_bits: u32, mantissa_bits: u32| {
        let infinity = ((1u64 << exponent_bits) - 1) << mantissa_bits;
        let (one, normal) = ((infinity >> 1) & infinity, 1 << mantissa_bits);
        let quiet = infinity | normal >> 1;
        let positive =
            [0, 1, normal - 1, normal, normal + 1, one, one + 1, infinity - 1, infinity, infinity + 1, quiet];
        let sign = (infinity + normal) & !(infinity + normal - 1);
        positive.iter().flat_map(|&x| [x, x | sign]).collect::<Vec<u64>>()
    };
    match ty {
        Type::F16 => float(5, 10),
        Type::Bf16 => float(8, 7),
        Type::F16x2 | Type::Bf16x2 => {
            let half = edges(if ty == Type::F16x2 { Type::F16 } else { Type::Bf16 });
            half.iter().flat_map(|&x| half.iter().map(move |&y| x << 16 | y)).collect()
        }
        Type::F32 => float(8, 23),
        Type::F64 => float(11, 52),
        _ => {
            let mut edges: Vec<u64> = (0..=5).chain([7, 8, 12, 15, 16, 17, 24, 30, 31, 32, 33, 40, 47, 48]).collect();
            edges.extend([63, 64, 65, 127, 128, 129, 200, 254, 255, 256, 257, 0x120]);
            for bits in [8, 15, 16, 23, 24, 31, 32, 63] {
                let power = 1u64 << bits;
                edges.extend([power - 1, power, power + 1, power.wrapping_neg(), (power - 1).wrapping_neg()]);
            }
            edges.extend([u64::MAX, u64::MAX - 1, 0x8000_7fff_8000_7fff]);
            edges
        }
    }
}

/// Kept out of line: it is large, and the callers are many.
#[inline(never)]
fn run(op: &Integer, registers: &mut Registers, active: Mask) {
    op.execute(registers, active);
}

fn check(case: &Case) {
    check_warps(case, WARPS);
}

/// Lowers the case; then checks the registers it says it uses, and its results.
fn check_warps(case: &Case, warps: usize) {
    let mut operands = Operands::default();
    operands.push_scope();
    let from = declare(&mut operands, "s", &case.from);
    let to = declare(&mut operands, "d", &case.to);
    let lowered = Integer::lower(&instruction(&case.form, case.operands.clone()), &mut operands);
    let mut op = match lowered {
        Ok(Some(op)) => op,
        other => panic!("{}: {other:?}", case.form),
    };
    check_visit(case, &mut op, &from, &to, &mut operands);
    let mut random = Random(SEED);
    let mut registers = allocate(&operands);
    let edges: Vec<Vec<u64>> = case.from.iter().map(|&ty| edges(ty)).collect();
    for warp in 0..warps {
        // What lies above a 16-bit value must not matter.
        let dirty = warp % 4 == 3;
        let active = if warp % 2 == 0 { Mask::MAX } else { random.next() as Mask };
        for lane in 0..LANES {
            for (i, &(class, reg)) in from.iter().enumerate() {
                let ty = case.from[i];
                let above = if dirty && ty.bytes() == 2 { random.next() << 16 } else { 0 };
                let bits = random.value(ty, &edges[i]) | above;
                poke(&mut registers, class, reg, lane, bits);
            }
            for &(class, reg) in &to {
                let bits = random.next();
                poke(&mut registers, class, reg, lane, bits);
            }
        }
        check_warp(case, &op, &mut registers, active, dirty, [&from, &to]);
    }
}

fn check_warp(
    case: &Case,
    op: &Integer,
    registers: &mut Registers,
    active: Mask,
    dirty: bool,
    [from, to]: [&[(Class, Reg)]; 2],
) {
    let before = registers.clone();
    run(op, registers, active);
    for lane in 0..LANES {
        let value = |(&(class, reg), ty): (&(Class, Reg), &Type)| {
            let bits = peek(&before, class, reg, lane);
            if ty.bytes() == 2 { bits & 0xffff } else { bits }
        };
        let sources: Vec<u64> = from.iter().zip(&case.from).map(value).collect();
        let expected = (case.expect)(&sources);
        for (i, &(class, reg)) in to.iter().enumerate() {
            let (mut found, old) = (peek(registers, class, reg, lane), peek(&before, class, reg, lane));
            let runs = active >> lane & 1 == 1;
            if dirty && runs && case.to[i].bytes() == 2 {
                found &= 0xffff;
            }
            let expected = if runs { expected[i] } else { old };
            assert!(
                found == expected,
                "{} of {sources:#x?}: destination {i} is {found:#x}, expected {expected:#x} \
                 (lane {lane}, active {active:#x}, seed {SEED:#x})",
                case.form
            );
        }
    }
}

/// The instruction must visit exactly its sources as read, then its destinations as written.
fn check_visit(case: &Case, op: &mut Integer, from: &[(Class, Reg)], to: &[(Class, Reg)], operands: &mut Operands) {
    let presets: Vec<(Class, Reg)> = operands.presets().iter().map(|&(class, reg, _)| (class, reg)).collect();
    let seen = RefCell::new((Vec::new(), Vec::new()));
    op.visit(&mut |access, class, reg| {
        let mut seen = seen.borrow_mut();
        match access {
            Access::Read => {
                assert!(seen.1.is_empty(), "{}: a read after a write", case.form);
                seen.0.push((class, *reg));
            }
            Access::Write => seen.1.push((class, *reg)),
        }
    });
    let (mut reads, mut writes) = seen.into_inner();
    reads.retain(|read| !presets.contains(read));
    let mut expected = (from.to_vec(), to.to_vec());
    let carry = (Class::Pred, operands.carry());
    if case.carry[0] {
        expected.0.push(carry);
    }
    if case.carry[1] {
        expected.1.push(carry);
    }
    for list in [&mut reads, &mut writes, &mut expected.0, &mut expected.1] {
        list.sort();
        list.dedup();
    }
    assert_eq!((reads, writes), expected, "{}: registers read and written", case.form);
}

/// Bits as the number that a type says they are.
fn number(ty: Type, bits: u64) -> i128 {
    match ty {
        Type::S8 => bits as i8 as i128,
        Type::S16 => bits as i16 as i128,
        Type::S32 => bits as i32 as i128,
        Type::S64 => bits as i64 as i128,
        _ => truncate(ty, bits as i128) as i128,
    }
}

/// A number's low bits, as many as the type has.
fn truncate(ty: Type, value: i128) -> u64 {
    (value as u128 & ((1u128 << (8 * ty.bytes())) - 1)) as u64
}

fn type_name(ty: Type) -> String {
    format!("{ty:?}").to_lowercase()
}

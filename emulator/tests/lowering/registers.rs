//! Register allocation keeps every value until its last read, and packs tightly: allocated code is walked along random
//! paths beside the original, with a fresh token for each write.

use std::collections::HashMap;
use std::time::Instant;

use cuda_emulator::lower::registers::{RegisterAllocation, allocate};
use cuda_emulator::program::{
    Access, Address, Barrier, BarrierKind, Class, Files, Guard, Instruction, Op, Preset, Reg, Value,
};
use cuda_emulator::ptx::ast::Space;

use super::growth;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn reg(&mut self, n: u32) -> Reg {
        Reg(self.below(n as u64) as u32)
    }
}

fn plain(op: Op) -> Instruction {
    Instruction { guard: None, op, line: 0 }
}

fn load(to: Vec<Reg>, wide: bool, base: Reg, base_wide: bool) -> Op {
    let value = Value { bytes: 4, signed: false, wide };
    let address = Address { base, wide: base_wide, offset: 0 };
    Op::Load { space: Space::Global, value, address, to, strong: false }
}

const CONSTANTS: u32 = 2;

/// Registers 0 and 1 of the two number files are constants; the rest is random.
fn random_code(random: &mut Random, length: usize, files: Files) -> Vec<Instruction> {
    let mut code = Vec::new();
    let target = |random: &mut Random| random.below(length as u64) as u32;
    for _ in 0..length - 1 {
        let r32 = |random: &mut Random| random.reg(files.r32);
        let r64 = |random: &mut Random| random.reg(files.r64);
        let pred = |random: &mut Random| random.reg(files.pred);
        let to32 = |random: &mut Random| Reg(CONSTANTS + random.below((files.r32 - CONSTANTS) as u64) as u32);
        let to64 = |random: &mut Random| Reg(CONSTANTS + random.below((files.r64 - CONSTANTS) as u64) as u32);
        let op = match random.below(12) {
            0..3 => load((0..1 + random.below(3)).map(|_| to32(random)).collect(), false, r64(random), true),
            3 => load((0..1 + random.below(3)).map(|_| to64(random)).collect(), true, r32(random), false),
            4 => load(vec![to32(random)], false, r32(random), false),
            5 => {
                let address = Address { base: r64(random), wide: true, offset: 0 };
                let value = Value { bytes: 4, signed: false, wide: false };
                let from = vec![r32(random), r32(random)];
                Op::Store { space: Space::Global, value, address, from, strong: false }
            }
            6 => Op::IsSpace { space: Space::Local, to: pred(random), from: r64(random) },
            7 => {
                let kind = BarrierKind::All { to: pred(random), pred: pred(random), negated: false };
                Op::Barrier(Barrier { id: r32(random), threads: None, kind, aligned: true })
            }
            8 => Op::ReadClock { to: to64(random), wide: true },
            9 => Op::Branch { target: target(random) },
            10 => {
                let targets = (0..1 + random.below(3)).map(|_| target(random)).collect();
                Op::BranchIndexed { index: r32(random), targets }
            }
            _ => Op::WarpBarrier { members: r32(random) },
        };
        let jump = matches!(op, Op::Branch { .. } | Op::BranchIndexed { .. });
        let guarded = random.chance(if jump { 70 } else { 15 });
        let guard = guarded.then(|| Guard { pred: random.reg(files.pred), negated: random.chance(50) });
        code.push(Instruction { guard, op, line: 0 });
    }
    code.push(plain(Op::Exit));
    code
}

fn constants() -> Vec<(Class, Reg, Preset)> {
    let of = |class| (0..CONSTANTS).map(move |n| (class, Reg(n), Preset::Bits(n as u64)));
    of(Class::R32).chain(of(Class::R64)).collect()
}

type Uses = Vec<(Access, Class, Reg)>;

fn uses(instruction: &mut Instruction) -> Uses {
    let mut uses = Vec::new();
    instruction.visit(&mut |access, class, reg| uses.push((access, class, *reg)));
    uses
}

#[derive(Default)]
struct Walk {
    /// Tokens of virtual and of allocated registers; none: never written.
    before: HashMap<(Class, Reg), u64>,
    after: HashMap<(Class, Reg), u64>,
    writes: u64,
}

impl Walk {
    /// Checks the reads and, where the guard lets it, does the writes.
    fn step(&mut self, old: &Uses, new: &Uses, runs: bool, guarded: bool, packed: &RegisterAllocation) {
        let several = old.iter().filter(|(access, ..)| *access == Access::Write).count() > 1;
        for (index, (o, n)) in old.iter().zip(new).enumerate() {
            // The guard is read even where it forbids the rest.
            if o.0 == Access::Read && (runs || guarded && index == 0) {
                let (expected, found) = (self.before.get(&(o.1, o.2)), self.after.get(&(n.1, n.2)));
                assert_eq!(found, expected, "{o:?} became {n:?}");
                if expected.is_none() {
                    assert!(packed.undefined.contains(&(n.1, n.2)), "{o:?} may be read before it is written");
                }
            }
        }
        for (o, n) in old.iter().zip(new).filter(|(o, _)| o.0 == Access::Write) {
            for (other, renamed) in old.iter().zip(new) {
                let writes_too = other.0 == Access::Write;
                if (several || writes_too) && (other.1, other.2) != (o.1, o.2) {
                    assert_ne!((renamed.1, renamed.2), (n.1, n.2), "{o:?} and {other:?} share a register");
                }
            }
            if runs {
                self.writes += 1;
                self.before.insert((o.1, o.2), self.writes);
                self.after.insert((n.1, n.2), self.writes);
            }
        }
    }
}

fn walk(code: &mut [Instruction], packed_code: &mut [Instruction], packed: &RegisterAllocation, random: &mut Random) {
    let mut walk = Walk::default();
    for (number, &(class, reg, preset)) in constants().iter().enumerate() {
        walk.before.insert((class, reg), u64::MAX - number as u64);
        for &(class, slot, _) in packed.presets.iter().filter(|kept| kept.0 == class && kept.2 == preset) {
            walk.after.insert((class, slot), u64::MAX - number as u64);
        }
    }
    let mut pc = 0;
    for _ in 0..300 {
        let guarded = code[pc].guard.is_some();
        let runs = !guarded || random.chance(50);
        let (old, new) = (uses(&mut code[pc]), uses(&mut packed_code[pc]));
        walk.step(&old, &new, runs, guarded, packed);
        pc = match &code[pc].op {
            Op::Branch { target } if runs => *target as usize,
            Op::BranchIndexed { targets, .. } if runs => targets[random.below(targets.len() as u64) as usize] as usize,
            Op::Exit if runs => return,
            _ => pc + 1,
        };
    }
}

#[test]
fn every_read_sees_the_last_write() {
    for seed in 0..400 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let files = Files {
            r32: CONSTANTS + 1 + random.below(30) as u32,
            r64: CONSTANTS + 1 + random.below(20) as u32,
            pred: 1 + random.below(8) as u32,
        };
        let length = 2 + random.below(80) as usize;
        let mut code = random_code(&mut random, length, files);
        let mut packed_code = code.clone();
        let packed = allocate(&mut packed_code, files, &constants()).expect("random code is valid");
        assert!(packed.registers.r32 <= files.r32 && packed.registers.r64 <= files.r64);
        assert!(packed.registers.pred <= files.pred);
        for _ in 0..40 {
            walk(&mut code, &mut packed_code, &packed, &mut random);
        }
    }
}

#[test]
fn a_long_chain_needs_one_register() {
    let n = 20_000;
    let mut code: Vec<Instruction> = vec![plain(Op::ReadClock { to: Reg(0), wide: false })];
    code.extend((0..n - 1).map(|i| plain(load(vec![Reg(i + 1)], false, Reg(i), false))));
    code.push(plain(Op::WarpBarrier { members: Reg(n - 1) }));
    code.push(plain(Op::Exit));
    let begin = Instant::now();
    let packed = allocate(&mut code, Files { r32: n, r64: 0, pred: 0 }, &[]).expect("valid");
    println!("{n} instructions in {:?}", begin.elapsed());
    assert_eq!(packed.registers, Files { r32: 1, r64: 0, pred: 0 });
    assert_eq!(packed.live_registers, 1);
    assert!(packed.undefined.is_empty());
}

/// Without branches live ranges are intervals, which a scan in the order of their starts packs perfectly: no more
/// registers than are live at once.
#[test]
fn straight_code_needs_no_more_registers_than_are_live() {
    for seed in 0..50 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let n = 500u32;
        let mut code = vec![plain(Op::ReadClock { to: Reg(0), wide: false })];
        for to in 1..n {
            // One of the last 20 values.
            let from = Reg(to - 1 - random.below(20.min(to) as u64) as u32);
            code.push(plain(load(vec![Reg(to)], false, from, false)));
        }
        code.push(plain(Op::Exit));
        let packed = allocate(&mut code, Files { r32: n, r64: 0, pred: 0 }, &[]).expect("valid");
        assert_eq!(packed.registers.r32, packed.live_registers);
        assert!(packed.live_registers > 5, "{} live", packed.live_registers);
    }
}

#[test]
fn large_code_takes_linear_time() {
    let large = |n: usize| {
        let mut random = Random(7);
        let mut code = vec![plain(Op::ReadClock { to: Reg(0), wide: false })];
        for to in 1..n as u32 {
            if to % 20 == 0 {
                let guard = Some(Guard { pred: Reg(0), negated: false });
                // Loops of 210 instructions behind one another, and jumps that only split blocks.
                let here = code.len() as u32;
                let target = if random.chance(20) { here / 210 * 210 } else { here + 1 };
                code.push(Instruction { guard, op: Op::Branch { target }, line: 0 });
            }
            let from = Reg(to - 1 - random.below(60.min(to) as u64) as u32);
            code.push(plain(load(vec![Reg(to)], false, from, false)));
        }
        code.push(plain(Op::Exit));
        (code, Files { r32: n as u32, r64: 0, pred: 1 })
    };
    let allocated = |(mut code, files): (Vec<Instruction>, Files)| allocate(&mut code, files, &[]).expect("valid");
    let packed = allocated(large(20_000));
    assert!(packed.registers.r32 < 400, "{} registers", packed.registers.r32);
    growth::assert_linear(20_000, large, allocated);
}

#[test]
fn values_count_two_units_where_they_are_wide() {
    let mut code = vec![
        plain(Op::ReadClock { to: Reg(0), wide: true }),
        plain(Op::ReadClock { to: Reg(1), wide: true }),
        plain(Op::ReadClock { to: Reg(0), wide: false }),
        plain(load(vec![Reg(1)], false, Reg(0), true)),
        plain(load(vec![Reg(2)], false, Reg(1), true)),
        plain(Op::WarpBarrier { members: Reg(0) }),
        plain(Op::Exit),
    ];
    let packed = allocate(&mut code, Files { r32: 3, r64: 2, pred: 0 }, &[]).expect("valid");
    assert_eq!(packed.live_registers, 5);
}

#[test]
fn a_guarded_write_keeps_what_was_there() {
    // r1 is written in some lanes only, so its old value lives on; r0 must not take its place.
    let guard = Some(Guard { pred: Reg(0), negated: false });
    let mut code = vec![
        plain(Op::IsSpace { space: Space::Local, to: Reg(0), from: Reg(0) }),
        plain(Op::ReadClock { to: Reg(1), wide: false }),
        plain(Op::ReadClock { to: Reg(0), wide: false }),
        plain(Op::WarpBarrier { members: Reg(0) }),
        Instruction { guard, op: Op::ReadClock { to: Reg(1), wide: false }, line: 0 },
        plain(Op::WarpBarrier { members: Reg(1) }),
        plain(Op::Exit),
    ];
    let presets = [(Class::R64, Reg(0), Preset::Bits(9))];
    let packed = allocate(&mut code, Files { r32: 2, r64: 1, pred: 1 }, &presets).expect("valid");
    assert_eq!(packed.registers.r32, 2);
    assert!(packed.undefined.is_empty());
}

#[test]
fn what_may_be_read_before_a_write_is_listed_and_kept_apart() {
    // Register 1 is written on one of two paths.
    let guard = Some(Guard { pred: Reg(0), negated: true });
    let mut code = vec![
        plain(Op::IsSpace { space: Space::Local, to: Reg(0), from: Reg(0) }),
        Instruction { guard, op: Op::Branch { target: 3 }, line: 0 },
        plain(Op::ReadClock { to: Reg(1), wide: false }),
        plain(Op::WarpBarrier { members: Reg(1) }),
        plain(Op::ReadClock { to: Reg(0), wide: false }),
        plain(Op::WarpBarrier { members: Reg(0) }),
        plain(Op::Exit),
    ];
    let presets = [(Class::R64, Reg(0), Preset::Bits(9)), (Class::R32, Reg(2), Preset::Bits(1))];
    let packed = allocate(&mut code, Files { r32: 3, r64: 1, pred: 1 }, &presets).expect("valid");
    assert_eq!(packed.undefined, [(Class::R32, Reg(0))]);
    // The unused constant is gone, and the later value has a register of its own.
    assert_eq!(packed.presets, [(Class::R64, Reg(0), Preset::Bits(9))]);
    assert_eq!(packed.registers, Files { r32: 2, r64: 1, pred: 1 });
}

#[test]
fn a_write_to_a_constant_is_an_error() {
    let mut code = vec![plain(Op::ReadClock { to: Reg(0), wide: false }), plain(Op::Exit)];
    let presets = [(Class::R32, Reg(0), Preset::Bits(1))];
    let fault = allocate(&mut code, Files { r32: 1, r64: 0, pred: 0 }, &presets).err();
    assert_eq!(fault.as_deref(), Some("instruction 0 writes a constant"));
}

#[test]
fn no_code_needs_no_registers() {
    let packed = allocate(&mut [], Files { r32: 4, r64: 4, pred: 4 }, &[]).expect("valid");
    assert_eq!(packed.registers, Files::default());
}

//! Shuffles and collectives against scalar models, and what lowering accepts.

use super::*;
use crate::program::{Access, LANES};

/// `%r`, `%rd`, `%p` families, as nvcc declares them.
pub(super) fn operands() -> Operands {
    let mut operands = Operands::default();
    operands.push_scope();
    operands.declare_registers(Type::B32, "%r", Some(64)).unwrap();
    operands.declare_registers(Type::F32, "%f", Some(64)).unwrap();
    operands.declare_registers(Type::B64, "%rd", Some(64)).unwrap();
    operands.declare_registers(Type::F64, "%fd", Some(64)).unwrap();
    operands.declare_registers(Type::Pred, "%p", Some(64)).unwrap();
    operands
}

/// `{a, b}` is a vector, `a|b` a pair, `!a` a negation, digits a number, anything else a name.
pub(super) fn operand(text: &str) -> Operand {
    if let Some(inner) = text.strip_prefix('{') {
        return Operand::Vector(
            inner.trim_end_matches('}').split(',').map(|element| operand(element.trim())).collect(),
        );
    }
    match (text.split_once('|'), text.strip_prefix('!'), text.parse()) {
        (Some((a, b)), ..) => Operand::Pair(a.to_string(), b.to_string()),
        (_, Some(name), _) => Operand::Not(name.to_string()),
        (.., Ok(number)) => Operand::Int(number),
        _ => Operand::Name(text.to_string()),
    }
}

pub(super) fn instruction(form: &str, operands: &[&str]) -> Instruction {
    let mut words = form.split('.').map(String::from);
    Instruction {
        guard: None,
        opcode: words.next().unwrap(),
        modifiers: words.collect(),
        operands: operands.iter().map(|text| operand(text)).collect(),
        line: 1,
        source: None,
    }
}

/// The instruction and a register file that it fits.
pub(super) fn lowered(form: &str, texts: &[&str]) -> (WarpOp, Operands, Registers) {
    let mut operands = operands();
    let op = WarpOp::lower(&instruction(form, texts), &mut operands).unwrap().expect("a warp operation");
    let registers = Registers {
        r32: vec![[0; LANES]; operands.counts.r32 as usize],
        r64: vec![[0; LANES]; operands.counts.r64 as usize],
        pred: vec![0; operands.counts.pred as usize],
    };
    (op, operands, registers)
}

pub(super) fn reg(operands: &mut Operands, name: &str) -> Reg {
    operands.register(&Operand::Name(name.to_string())).unwrap().expect("a register").1
}

/// Numbers that look random and are the same every time.
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }
}

const MASKS: [Mask; 7] = [Mask::MAX, 0xffff, 0xffff_0000, 0x5555_5555, 1, 0x8000_0000, 0x0f1e_2d3c];

/// One lane of `shfl.sync` in the terms of the ISA: source lane and predicate.
fn shuffle_model(mode: &str, lane: i64, b: u32, c: u32) -> (i64, bool) {
    let (bval, cval, segmask) = ((b & 0x1f) as i64, (c & 0x1f) as i64, ((c >> 8) & 0x1f) as i64);
    let max_lane = (lane & segmask) | (cval & (31 - segmask));
    let min_lane = lane & segmask;
    let (j, pred) = match mode {
        "up" => (lane - bval, lane - bval >= max_lane),
        "down" => (lane + bval, lane + bval <= max_lane),
        "bfly" => (lane ^ bval, lane ^ bval <= max_lane),
        _ => {
            let j = min_lane | (bval & (31 - segmask));
            (j, j <= max_lane)
        }
    };
    (if pred { j } else { lane }, pred)
}

#[test]
fn shuffles_match_the_isa_in_every_mode_width_and_mask() {
    let mut random = Random(7);
    for mode in ["up", "down", "bfly", "idx"] {
        let form = format!("shfl.sync.{mode}.b32");
        let (op, mut operands, mut registers) = lowered(&form, &["%r0|%p0", "%r1", "%r2", "%r3", "%r4"]);
        let [d, a, b, c] = ["%r0", "%r1", "%r2", "%r3"].map(|name| reg(&mut operands, name));
        let p = reg(&mut operands, "%p0");
        assert_eq!(op.members(), Members::Register(reg(&mut operands, "%r4")));
        for width in [1u32, 2, 4, 8, 16, 32] {
            for offset in (0..=33).chain([u32::MAX, 1 << 31]) {
                for clamp in [0, 31, 12] {
                    for active in MASKS {
                        registers.r32[a.0 as usize] = std::array::from_fn(|lane| 1000 + lane as u32);
                        registers.r32[b.0 as usize] = match offset {
                            33 => std::array::from_fn(|_| random.next()),
                            _ => [offset; LANES],
                        };
                        registers.r32[c.0 as usize] = [(32 - width) << 8 | clamp | 0xffff_e0e0; LANES];
                        registers.r32[d.0 as usize] = [7; LANES];
                        registers.pred[p.0 as usize] = 0x1234_5678;
                        let model: Vec<(i64, bool)> = (0..LANES)
                            .map(|l| shuffle_model(mode, l as i64, registers.get32(b)[l], registers.get32(c)[l]))
                            .collect();
                        let lost = (0..LANES).find(|&l| active >> l & 1 == 1 && active >> model[l].0 & 1 == 0);
                        assert_eq!(op.invalid_source(&registers, active), lost.map(|l| (l, model[l].0 as usize)));
                        op.execute(&mut registers, active);
                        for (lane, &(source, pred)) in model.iter().enumerate() {
                            let source = if active >> source & 1 == 1 { source } else { lane as i64 };
                            let (value, pred) = match active >> lane & 1 {
                                1 => (1000 + source as u32, pred as u32),
                                _ => (7, 0x1234_5678 >> lane & 1),
                            };
                            let place = format!("{mode}, width {width}, b {offset}, lane {lane}, active {active:#x}");
                            assert_eq!(registers.get32(d)[lane], value, "{place}");
                            assert_eq!(registers.get_pred(p) >> lane & 1, pred, "{place}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_shuffle_may_overwrite_its_source() {
    let (op, mut operands, mut registers) = lowered("shfl.sync.bfly.b32", &["%r1", "%r1", "16", "31", "-1"]);
    let a = reg(&mut operands, "%r1");
    for (class, reg, preset) in operands.presets() {
        let crate::program::Preset::Bits(bits) = preset else { panic!("{preset:?}") };
        assert_eq!(class, Class::R32);
        registers.r32[reg.0 as usize] = [bits as u32; LANES];
    }
    registers.r32[a.0 as usize] = std::array::from_fn(|lane| lane as u32);
    op.execute(&mut registers, Mask::MAX);
    assert_eq!(*registers.get32(a), std::array::from_fn(|lane| lane as u32 ^ 16));
}

#[test]
fn a_shuffled_value_is_as_initialised_as_its_source() {
    let (op, mut operands, mut registers) = lowered("shfl.sync.idx.b32", &["%r0|%p0", "%r1", "%r2", "%r3", "%r4"]);
    let [d, a, b, c] = ["%r0", "%r1", "%r2", "%r3"].map(|name| reg(&mut operands, name));
    let p = reg(&mut operands, "%p0");
    registers.r32[b.0 as usize] = [5; LANES];
    registers.r32[c.0 as usize] = [31; LANES];
    let with = |known_a: Mask, known_b: Mask| {
        op.initialised(&registers, Mask::MAX, &|_, reg| match reg {
            reg if reg == a => known_a,
            reg if reg == b => known_b,
            _ => Mask::MAX,
        })
    };
    let results = |value, pred| vec![(Class::R32, d, value), (Class::Pred, p, pred)];
    assert_eq!(with(1 << 5, Mask::MAX), results(Mask::MAX, Mask::MAX), "lane 5 is all that is read");
    assert_eq!(with(!(1 << 5), Mask::MAX), results(0, Mask::MAX));
    assert_eq!(with(Mask::MAX, 0xff), results(0xff, 0xff));
}

#[test]
fn votes() {
    for (kind, model) in [
        ("all", (|yes: Mask, active: Mask| yes & active == active) as fn(Mask, Mask) -> bool),
        ("any", |yes, active| yes & active != 0),
        ("uni", |yes, active| yes & active == active || yes & active == 0),
    ] {
        for (text, flip) in [("%p1", 0), ("!%p1", Mask::MAX)] {
            let (op, mut operands, mut registers) = lowered(&format!("vote.sync.{kind}.pred"), &["%p0", text, "%r1"]);
            let [d, a] = ["%p0", "%p1"].map(|name| reg(&mut operands, name));
            for active in MASKS {
                for yes in [0, Mask::MAX, active, !active, active & 0x1111_1111, 1 << 31] {
                    for before in [0, Mask::MAX] {
                        registers.pred[a.0 as usize] = yes;
                        registers.pred[d.0 as usize] = before;
                        op.execute(&mut registers, active);
                        let lanes = if model(yes ^ flip, active) { active } else { 0 };
                        assert_eq!(
                            registers.get_pred(d),
                            lanes | (before & !active),
                            "{kind} {text} {yes:#x} {active:#x}"
                        );
                    }
                }
            }
        }
    }
    let (op, mut operands, mut registers) = lowered("vote.sync.ballot.b32", &["%r0", "!%p1", "%r1"]);
    let (d, a) = (reg(&mut operands, "%r0"), reg(&mut operands, "%p1"));
    registers.pred[a.0 as usize] = 0xff00_00ff;
    op.execute(&mut registers, 0xffff);
    let expected: [u32; LANES] = std::array::from_fn(|lane| if lane < 16 { 0xff00 } else { 0 });
    assert_eq!(*registers.get32(d), expected);
    let known = |lanes: Mask| op.initialised(&registers, 0xffff, &|_, _| lanes);
    assert_eq!(known(0xffff), vec![(Class::R32, d, Mask::MAX)]);
    assert_eq!(known(0xfffe), vec![(Class::R32, d, 0)]);
}

#[test]
fn matches() {
    for (ty, prefix) in [("b32", "%r"), ("b64", "%rd")] {
        let source = format!("{prefix}1");
        let (any, mut operands, mut registers) = lowered(&format!("match.any.sync.{ty}"), &["%r0", &source, "%r2"]);
        let (d, a) = (reg(&mut operands, "%r0"), reg(&mut operands, &source));
        let (all, mut all_operands, mut all_registers) =
            lowered(&format!("match.all.sync.{ty}"), &["%r0|%p0", &source, "%r2"]);
        let (all_d, all_a) = (reg(&mut all_operands, "%r0"), reg(&mut all_operands, &source));
        let p = reg(&mut all_operands, "%p0");
        for modulus in [1u64, 2, 5, 32] {
            // 64-bit values that differ in the high half alone.
            let values: [u64; LANES] =
                std::array::from_fn(|lane| (lane as u64 % modulus) << if ty == "b64" { 33 } else { 0 });
            for active in MASKS {
                for (registers, a) in [(&mut registers, a), (&mut all_registers, all_a)] {
                    match ty {
                        "b64" => registers.r64[a.0 as usize] = values,
                        _ => registers.r32[a.0 as usize] = values.map(|value| value as u32),
                    }
                }
                any.execute(&mut registers, active);
                all.execute(&mut all_registers, active);
                let lanes: Vec<usize> = (0..LANES).filter(|lane| active >> lane & 1 == 1).collect();
                let equal = lanes.iter().all(|&lane| values[lane] == values[lanes[0]]);
                for &lane in &lanes {
                    let same = lanes.iter().filter(|&&other| values[other] == values[lane]).fold(0, |s, l| s | 1 << l);
                    assert_eq!(registers.get32(d)[lane], same, "{ty} mod {modulus}, lane {lane}, {active:#x}");
                    assert_eq!(all_registers.get32(all_d)[lane], if equal { active } else { 0 });
                    assert_eq!(all_registers.get_pred(p) >> lane & 1, equal as u32);
                }
            }
        }
    }
}

#[test]
fn reductions() {
    let wrapping: fn(i64, i64) -> i64 = |x, y| (x as u32).wrapping_add(y as u32) as i64;
    type Case = (&'static str, bool, fn(i64, i64) -> i64);
    let cases: [Case; 9] = [
        ("add.u32", false, wrapping),
        ("add.s32", true, wrapping),
        ("min.u32", false, i64::min),
        ("max.u32", false, i64::max),
        ("min.s32", true, i64::min),
        ("max.s32", true, i64::max),
        ("and.b32", false, |x, y| x & y),
        ("or.b32", false, |x, y| x | y),
        ("xor.b32", false, |x, y| x ^ y),
    ];
    let mut random = Random(11);
    for (name, signed, model) in cases {
        let (op, mut operands, mut registers) = lowered(&format!("redux.sync.{name}"), &["%r0", "%r1", "%r2"]);
        let (d, a) = (reg(&mut operands, "%r0"), reg(&mut operands, "%r1"));
        for active in MASKS {
            let mut values: [u32; LANES] = std::array::from_fn(|_| random.next());
            values[3] = i32::MIN as u32;
            values[29] = i32::MAX as u32;
            registers.r32[a.0 as usize] = values;
            op.execute(&mut registers, active);
            let numbers = (0..LANES).filter(|lane| active >> lane & 1 == 1).map(|lane| match signed {
                true => values[lane] as i32 as i64,
                false => values[lane] as i64,
            });
            let expected = numbers.reduce(model).unwrap() as u32;
            for lane in (0..LANES).filter(|lane| active >> lane & 1 == 1) {
                assert_eq!(registers.get32(d)[lane], expected, "{name}, {active:#x}");
            }
        }
    }
}

#[test]
fn active_mask_and_election() {
    let (op, mut operands, mut registers) = lowered("activemask.b32", &["%r0"]);
    let d = reg(&mut operands, "%r0");
    assert_eq!(op.members(), Members::Nobody);
    op.execute(&mut registers, 0xf0);
    assert_eq!((registers.get32(d)[4], registers.get32(d)[0]), (0xf0, 0));

    let (op, mut operands, mut registers) = lowered("elect.sync", &["_|%p0", "%r1"]);
    let p = reg(&mut operands, "%p0");
    registers.pred[p.0 as usize] = Mask::MAX;
    op.execute(&mut registers, 0xf0);
    assert_eq!(registers.get_pred(p), 0xffff_ff1f);
}

#[test]
fn operands_are_visited_reads_first() {
    let (mut op, mut operands, _) = lowered("shfl.sync.idx.b32", &["%r0|%p0", "%r1", "%r2", "%r3", "%r4"]);
    let mut seen = Vec::new();
    op.visit(&mut |access, class, reg| seen.push((access, class, *reg)));
    let mut expected: Vec<_> =
        ["%r1", "%r2", "%r3", "%r4"].map(|name| (Access::Read, Class::R32, reg(&mut operands, name))).to_vec();
    expected.push((Access::Write, Class::R32, reg(&mut operands, "%r0")));
    expected.push((Access::Write, Class::Pred, reg(&mut operands, "%p0")));
    assert_eq!(seen, expected);
}

#[test]
fn unknown_forms_are_refused_by_name() {
    let refused: [(&str, &[&str], &str); 16] = [
        ("shfl.up.b32", &["%r0", "%r1", "%r2", "%r3"], "without .sync"),
        ("shfl.sync.up.b64", &["%rd0", "%rd1", "%r2", "%r3", "%r4"], "shfl.sync.up.b64"),
        ("shfl.sync.up.b32", &["%r0", "%r1", "%r2", "%r3"], "found 4 operands, expected 5"),
        ("shfl.sync.up.b32", &["%rd0", "%r1", "%r2", "%r3", "%r4"], "%rd0"),
        ("shfl.sync.up.b32", &["%r0|%r5", "%r1", "%r2", "%r3", "%r4"], "%r5"),
        ("vote.ballot.b32", &["%r0", "%p0"], "without .sync"),
        ("vote.sync.none.pred", &["%p0", "%p1", "%r0"], "vote.sync.none.pred"),
        ("vote.sync.ballot.b32", &["%p0", "%p1", "%r0"], "%p0"),
        ("match.any.sync.b16", &["%r0", "%r1", "%r2"], "match.any.sync.b16"),
        ("match.any.sync.b32", &["%r0|%p0", "%r1", "%r2"], "match.any"),
        ("redux.sync.add.b32", &["%r0", "%r1", "%r2"], "redux.sync.add.b32"),
        ("redux.sync.min.f32", &["%f0", "%f1", "%r2"], "redux.sync.min.f32"),
        ("activemask.b64", &["%rd0"], "activemask.b64"),
        ("elect.sync", &["%r0", "%r1"], "expected d|p"),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", &["%r0", "%r1", "%r2", "%r3"], "m8n8k4"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", &["{%r0,%r1}", "{%r0,%r1}", "%r2", "{%f0}"], "as c"),
    ];
    for (form, texts, part) in refused {
        let error = WarpOp::lower(&instruction(form, texts), &mut operands()).unwrap_err();
        assert!(error.contains(part), "{form}: found {error:?}, expected it to name {part:?}");
    }
    assert_eq!(WarpOp::lower(&instruction("add.s32", &["%r0", "%r1", "%r2"]), &mut operands()), Ok(None));
}

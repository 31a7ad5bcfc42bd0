//! Selection, moves and packing.

use super::*;
use Type::{B8, B16, B32, B64, F32, F64, Pred, S16, S32, S64, U16, U32, U64};

const PLAIN: [Type; 11] = [B16, B32, B64, U16, U32, U64, S16, S32, S64, F32, F64];

#[test]
fn selections() {
    for ty in PLAIN {
        let name = type_name(ty);
        let pick = |a: bool, s: &[u64]| if a { s[0] } else { s[1] };
        check(&case(&format!("selp.{name}"), ty, &[ty, ty, Pred], move |s| pick(s[2] == 1, s)));
        let mut negated = names("d", 1);
        negated.extend(names("s", 2));
        negated.push(Operand::Not("%s2".to_string()));
        check(&with_operands(&format!("selp.{name}"), negated, &[ty], &[ty, ty, Pred], move |s| {
            vec![pick(s[2] == 0, s)]
        }));
        check(&case(&format!("slct.{name}.s32"), ty, &[ty, ty, S32], move |s| pick(number(S32, s[2]) >= 0, s)));
        let single = |bits: u64| f32::from_bits(bits as u32);
        check(&case(&format!("slct.{name}.f32"), ty, &[ty, ty, F32], move |s| pick(single(s[2]) >= 0.0, s)));
        check(&case(&format!("slct.ftz.{name}.f32"), ty, &[ty, ty, F32], move |s| {
            pick(single(s[2]) >= 0.0 || single(s[2]).is_subnormal(), s)
        }));
    }
}

#[test]
fn moves() {
    for ty in PLAIN {
        check(&case(&format!("mov.{}", type_name(ty)), ty, &[ty], |s| s[0]));
    }
    check(&case("mov.pred", Pred, &[Pred], |s| s[0]));
    let negated = vec![name("%d0"), Operand::Not("%s0".to_string())];
    check(&with_operands("mov.pred", negated, &[Pred], &[Pred], |s| vec![1 - s[0]]));
    for (value, bit) in [(0, 0), (1, 1), (-1, 1)] {
        let constant = vec![name("%d0"), Operand::Int(value)];
        check(&with_operands("mov.pred", constant, &[Pred], &[], move |_| vec![bit]));
    }
    let constant = vec![name("%d0"), Operand::F32(0x3f80_0000)];
    check(&with_operands("mov.f32", constant, &[F32], &[], |_| vec![0x3f80_0000]));
    let constant = vec![name("%d0"), Operand::Int(-2)];
    check(&with_operands("mov.u64", constant, &[U64], &[], |_| vec![u64::MAX - 1]));
    let constant = vec![name("%d0"), Operand::Int(-2)];
    check(&with_operands("mov.u16", constant, &[U16], &[], |_| vec![0xfffe]));
}

#[test]
fn signs_are_copied() {
    check(&case("copysign.f32", F32, &[F32, F32], |s| (s[0] >> 31 << 31) + s[1] % (1 << 31)));
    check(&case("copysign.f64", F64, &[F64, F64], |s| (s[0] >> 63 << 63) + s[1] % (1 << 63)));
}

/// Whole and element of every vector form.
const VECTORS: [(Type, Type); 5] = [(B64, B32), (B64, B16), (B32, B16), (B32, B8), (B16, B8)];

#[test]
fn packing_and_unpacking() {
    for (whole, part) in VECTORS {
        let count = whole.bytes() / part.bytes();
        if count > 4 {
            continue;
        }
        let bits = 8 * part.bytes();
        let form = format!("mov.{}", type_name(whole));
        let low = (1u64 << bits) - 1;

        let pack = vec![name("%d0"), Operand::Vector(names("s", count))];
        check(&with_operands(&form, pack, &[whole], &vec![part; count], move |s| {
            vec![s.iter().enumerate().map(|(i, x)| (x & low) << (bits * i)).sum()]
        }));

        let unpack = vec![Operand::Vector(names("d", count)), name("%s0")];
        check(&with_operands(&form, unpack, &vec![part; count], &[whole], move |s| {
            (0..count).map(|i| s[0] >> (bits * i) & low).collect()
        }));
    }
}

#[test]
fn vectors_with_constants_and_gaps() {
    let pack = vec![name("%d0"), Operand::Vector(vec![name("%s0"), Operand::Int(-1)])];
    check(&with_operands("mov.b64", pack, &[B64], &[B32], |s| vec![s[0] | 0xffff_ffff_0000_0000]));

    // `_` takes its part of the value and nothing reads it.
    let mut operands = Operands::default();
    operands.push_scope();
    let from = declare(&mut operands, "s", &[B32]);
    let to = declare(&mut operands, "d", &[B16]);
    let list = vec![Operand::Vector(vec![name("_"), name("%d0")]), name("%s0")];
    let op = Integer::lower(&instruction("mov.b32", list), &mut operands).unwrap().unwrap();
    let mut registers = allocate(&operands);
    registers.r32[from[0].1.0 as usize] = [0xabcd_1234; LANES];
    run(&op, &mut registers, 1 << 9);
    assert_eq!(peek(&registers, to[0].0, to[0].1, 9), 0xabcd);
    assert_eq!(peek(&registers, to[0].0, to[0].1, 8), 0);
}

#[test]
fn a_register_may_be_source_and_destination() {
    let mut operands = Operands::default();
    operands.push_scope();
    let r = declare(&mut operands, "s", &[B32, B32, B64]);
    let list = vec![Operand::Vector(names("s", 2)), name("%s2")];
    let split = Integer::lower(&instruction("mov.b64", list), &mut operands).unwrap().unwrap();
    let add = Integer::lower(&instruction("add.u32", vec![name("%s0"), name("%s0"), name("%s1")]), &mut operands);
    let mut registers = allocate(&operands);
    registers.r64[r[2].1.0 as usize] = [0x0000_0005_ffff_fffe; LANES];
    run(&split, &mut registers, Mask::MAX);
    run(&add.unwrap().unwrap(), &mut registers, 0xffff);
    assert_eq!(peek(&registers, r[0].0, r[0].1, 15), 3);
    assert_eq!(peek(&registers, r[0].0, r[0].1, 16), 0xffff_fffe);
}

/// A selection's result is initialised where its condition and the operand it chooses are.
#[test]
fn selections_need_only_what_they_choose() {
    let forms =
        [("selp.b32", B32, Pred), ("selp.f64", F64, Pred), ("slct.u32.s32", U32, S32), ("slct.ftz.b64.f32", B64, F32)];
    for (form, ty, condition) in forms {
        let mut operands = Operands::default();
        operands.push_scope();
        let from = declare(&mut operands, "s", &[ty, ty, condition]);
        declare(&mut operands, "d", &[ty]);
        let list = [names("d", 1), names("s", 3)].concat();
        let op = Integer::lower(&instruction(form, list), &mut operands).unwrap().unwrap();
        let mut registers = allocate(&operands);
        let (chosen, known) = (0x0f0f_0f0f, [0x00ff_00ff, 0xf0f0_f0f0, 0xffff_0000]);
        for lane in 0..LANES {
            let a = chosen >> lane & 1 == 1;
            let bits = match condition {
                Pred => a as u64,
                _ => {
                    if a {
                        1
                    } else {
                        0x8fff_ffff
                    }
                }
            };
            poke(&mut registers, from[2].0, from[2].1, lane, bits);
        }
        let initialised = |class: Class, reg: Reg| {
            known[from.iter().position(|&register| register == (class, reg)).expect("a source")]
        };
        let expected = (known[0] & chosen | known[1] & !chosen) & known[2];
        assert_eq!(op.initialised(&registers, &initialised), Some(expected), "{form}");
    }
    let mut operands = Operands::default();
    operands.push_scope();
    declare(&mut operands, "s", &[U32, U32]);
    let add = vec![name("%s0"), name("%s0"), name("%s1")];
    let op = Integer::lower(&instruction("add.u32", add), &mut operands).unwrap().unwrap();
    assert_eq!(op.initialised(&allocate(&operands), &|_, _| 0), None);
}

//! What is not a form is an error that names it; what belongs to another part is passed on.

use super::*;
use Type::{B8, B16, B32, B64, F32, F64, Pred, S32, U32};

fn lower(form: &str, to: &[Type], from: &[Type]) -> Result<Option<Integer>, String> {
    let mut operands = Operands::default();
    operands.push_scope();
    declare(&mut operands, "s", from);
    declare(&mut operands, "d", to);
    let list = [names("d", to.len()), names("s", from.len())].concat();
    Integer::lower(&instruction(form, list), &mut operands)
}

/// The form must be an error whose text holds it.
pub fn check_refused(form: &str, to: &[Type], from: &[Type]) {
    match lower(form, to, from) {
        Err(error) => assert!(error.contains(form), "{form}: {error}"),
        Ok(found) => panic!("{form} is {found:?}, expected an error"),
    }
}

#[test]
fn unknown_forms_are_named() {
    let two32 = [
        "add.b32",
        "add.sat.u32",
        "add.wrap.s32",
        "add",
        "sub.sat.u32",
        "mul.s32",
        "mul.lo.b32",
        "mul.lo.sat.s32",
        "div.b32",
        "rem.rn.s32",
        "min.b32",
        "min.relu.u32",
        "max.relu.s16",
        "mul24.s32",
        "mul24.wide.u32",
        "and.u32",
        "or.s32",
        "xor.b8",
        "shl.u32",
        "shl.s32",
        "shr.f32",
        "bmsk.b32",
        "bmsk.clamp.u32",
        "szext.wrap.b32",
        "szext.s32",
        "sub.u16x2",
        "add.cc.b32",
        "add.cc.u16",
        "addc.cc",
        "subc.sat.s32",
        "rem.f32",
        "copysign.f16",
        "copysign.ftz.f32",
        "sub.cc.cc.u32",
    ];
    two32.iter().for_each(|form| check_refused(form, &[B32], &[B32, B32]));
    let one32 = [
        "abs.u32",
        "abs.b32",
        "neg.u32",
        "neg.b32",
        "neg.s16x2",
        "not.u32",
        "cnot.pred",
        "popc.u32",
        "popc.b16",
        "clz.s32",
        "bfind.b32",
        "bfind.s32.shiftamt",
        "bfind.u16",
        "brev.u32",
        "brev.b16",
        "mov.f16",
        "mov.b8",
        "mov.b128",
        "mov.wide.b32",
        "mov",
        "cnot.b32.b32",
        "testp.finite.f16",
        "testp.nan.f32",
        "testp.ftz.finite.f32",
    ];
    one32.iter().for_each(|form| check_refused(form, &[B32], &[B32]));
    let three32 = [
        "mad.s32",
        "mad.lo.sat.s32",
        "mad.hi.sat.u32",
        "mad24.lo.sat.s32",
        "mad24.hi.sat.u32",
        "sad.b32",
        "dp4a.s32",
        "dp4a.s32.b32",
        "dp2a.s32.u32",
        "dp2a.hi.s32",
        "bfe.b32",
        "bfe.u16",
        "shf.l.b32",
        "shf.left.wrap.b32",
        "shf.l.wrap.b64",
        "prmt.u32",
        "prmt.f4e.b32",
        "prmt.b32.f5e",
        "fns.u32",
        "mad.cc.lo.u32",
        "madc.u32",
        "mad.wide.cc.u32",
        "slct.b32.u32",
        "slct.ftz.b32.s32",
        "slct.f16.s32",
        "slct.b32",
        "selp.f16",
        "selp.pred",
        "selp.b32.b32",
        "lop3.xor.b32",
        "lop3.b64",
    ];
    three32.iter().for_each(|form| check_refused(form, &[B32], &[B32, B32, B32]));
    check_refused("mul.wide.u64", &[B64], &[B64, B64]);
    check_refused("mad.wide.s64", &[B64], &[B64, B64, B64]);
    check_refused("bfi.u32", &[B32], &[B32, B32, U32, U32]);
}

#[test]
fn unknown_comparisons_are_named() {
    let forms = [
        "setp.lt.b32",
        "setp.lo.s32",
        "setp.hi.s32",
        "setp.equ.u32",
        "setp.num.s32",
        "setp.eq.ftz.s32",
        "setp.eq.pred",
        "setp.eq.u8",
        "setp.s32",
        "setp.eq",
        "setp",
        "setp.nor.s32",
        "setp.eq.nand.s32",
        "setp.lo.f32",
        "setp.hs.f32",
        "setp.eq.s32.ftz",
        "setp.eq.and.or.s32",
    ];
    forms.iter().for_each(|form| check_refused(form, &[Pred], &[B32, B32]));
    check_refused("setp.lt.ftz.f64", &[Pred], &[F64, F64]);
    check_refused("setp.lt.ftz.bf16", &[Pred], &[B16, B16]);
    check_refused("setp.lt.ftz.bf16x2", &[Pred], &[B32, B32]);
    check_refused("set.lt.ftz.u32.s32", &[U32], &[S32, S32]);
    check_refused("set.lt.u32", &[U32], &[S32, S32]);
    check_refused("set.lt.ftz.bf16.f32", &[Type::Bf16], &[F32, F32]);
}

#[test]
fn operands_must_fit() {
    let bad: [(&str, &[Type], &[Type]); 14] = [
        ("add.u32", &[B32], &[B32]),
        ("add.u32", &[B32], &[B32, B32, B32]),
        ("add.u32", &[B32], &[B32, B64]),
        ("add.u64", &[B32], &[B64, B64]),
        ("shl.b64", &[B64], &[B64, B64]),
        ("popc.b64", &[B64], &[B64]),
        ("mul.wide.u32", &[B32], &[B32, B32]),
        ("mad.wide.u32", &[B64], &[B32, B32, B32]),
        ("setp.eq.s32", &[B32], &[S32, S32]),
        ("setp.eq.and.s32", &[Pred], &[S32, S32]),
        ("setp.eq.s32", &[Pred], &[S32, S32, Pred]),
        ("selp.b32", &[B32], &[B32, B32, B32]),
        ("slct.b32.s32", &[B32], &[B32, B32, B64]),
        ("and.pred", &[Pred], &[Pred, B32]),
    ];
    for (form, to, from) in bad {
        assert!(lower(form, to, from).is_err(), "{form} {to:?} {from:?}");
    }
}

/// Lowers with operands as given, over `%s0` `.b32`, `%s1` `.f16`, `%s2` `.b64`, `%s3` `.pred`, `%s4` `.b8`, `%d0` `.b32`.
fn lower_operands(form: &str, list: Vec<Operand>) -> Result<Option<Integer>, String> {
    let mut operands = Operands::default();
    operands.push_scope();
    declare(&mut operands, "s", &[B32, Type::F16, B64, Pred, B8]);
    declare(&mut operands, "d", &[B32, Pred]);
    Integer::lower(&instruction(form, list), &mut operands)
}

#[test]
fn malformed_operands_are_errors() {
    let vector = |parts: &[&str]| Operand::Vector(parts.iter().map(|part| name(part)).collect());
    let table = |table: Operand| {
        let mut list = vec![name("%d0")];
        list.extend([name("%s0"), name("%s0"), name("%s0"), table]);
        list
    };
    let bad = [
        ("mov.b32", vec![name("%d0"), vector(&["%s0", "%s0"])]),
        ("mov.b32", vec![name("%d0"), vector(&["%s1", "%s1", "%s1"])]),
        ("mov.b32", vec![name("%d0"), vector(&["%s1", "%s1", "%s1", "%s1"])]),
        ("mov.u32", vec![name("%d0"), vector(&["%s1", "%s1"])]),
        ("mov.b64", vec![vector(&["%s4"; 8]), name("%s2")]),
        ("mov.b32", vec![name("%d0"), name("%nothing")]),
        ("mov.b32", vec![Operand::Int(1), name("%s0")]),
        ("mov.b32", vec![name("%d0"), Operand::Address { base: None, offset: 0 }]),
        ("setp.eq.f16", vec![name("%d1"), name("%s1"), Operand::Int(0)]),
        ("setp.eq.s32", vec![Operand::Pair("%d1".to_string(), "%d0".to_string()), name("%s0"), name("%s0")]),
        ("lop3.b32", table(Operand::Int(256))),
        ("lop3.b32", table(Operand::Int(-1))),
        ("lop3.b32", table(name("%s0"))),
        ("lop3.and.b32", [table(Operand::Int(1)), vec![name("%s3")]].concat()),
        ("add.u32", vec![]),
        ("mov.b32", vec![]),
        ("setp.eq.s32", vec![]),
    ];
    for (form, list) in bad {
        assert!(lower_operands(form, list.clone()).is_err(), "{form} {list:?}");
    }
}

#[test]
fn other_parts_get_what_is_theirs() {
    for form in ["add.f32", "mul.rn.ftz.f32", "mad.rn.f32", "div.full.f32", "sub.rn.f32", "min.NaN.f32", "abs.ftz.f32"]
    {
        assert_eq!(lower(form, &[F32], &[F32, F32]), Ok(None), "{form}");
    }
    for form in ["add.f64", "neg.f64", "max.bf16x2", "min.xorsign.abs.f16", "add.rn.f32x2", "add.f32.bf16"] {
        assert_eq!(lower(form, &[F64], &[F64, F64]), Ok(None), "{form}");
    }
    for form in ["cvt.u32.u64", "fma.rn.f32", "ld.global.u32", "vadd.u32.u32.u32", "bar.sync", "cvta.to.global.u64"] {
        assert_eq!(lower(form, &[B32], &[B32]), Ok(None), "{form}");
    }
}

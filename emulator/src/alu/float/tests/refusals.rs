//! Forms and operands that are errors, and instructions that are someone else's.

use super::lower;

fn message(form: &str, operands: &[&str]) -> String {
    match lower(form, operands) {
        Err(message) => message,
        other => panic!("{form} {operands:?} gave {other:?}"),
    }
}

#[test]
fn integers_and_other_opcodes_are_not_floats() {
    for form in
        ["add.s32", "mul.lo.u32", "mad.wide.u32", "min.s16x2", "neg.s64", "div.u32", "abs.s32", "add", "sub.u16x2"]
    {
        assert_eq!(lower(form, &["%r0", "%r1", "%r2"]), Ok(None), "{form}");
    }
    for form in ["ld.global.f32", "setp.lt.f32", "mov.f32", "selp.f32", "ex3.approx.f32", ""] {
        assert_eq!(lower(form, &["%r0", "%r1"]), Ok(None), "{form}");
    }
}

#[test]
fn unknown_forms_name_what_is_wrong() {
    let cases: &[(&str, &[&str], &str)] = &[
        ("sqrt.rn.s32", &["%r0", "%r1"], ".s32"),
        ("sin", &["%r0", "%r1"], "sin"),
        ("sin.approx.f64", &["%d0", "%d1"], ".f64"),
        ("fma.rn.f32.f16", &["%h0", "%h1", "%h2", "%h3"], ".f32"),
        ("fma.f32", &["%r0", "%r1", "%r2", "%r3"], "rounding"),
        ("fma.rn.rz.f32", &["%r0", "%r1", "%r2", "%r3"], ".rn and .rz"),
        ("add.ftz.ftz.f32", &["%r0", "%r1", "%r2"], "twice"),
        ("add.wild.f32", &["%r0", "%r1", "%r2"], ".wild"),
        ("mad.rn.bf16", &["%h0", "%h1", "%h2", "%h3"], ".bf16"),
        ("min.xorsign.f32", &["%r0", "%r1", "%r2"], ".abs"),
        ("min.f32", &["%r0", "%r1", "%r2", "%r3"], "4 operands"),
        ("max.f32", &["%r0", "%r1"], "2 operands"),
        ("add.f32", &[], "no operands"),
        ("add.f32", &["%r0", "%r1", "%d2"], "%d2"),
        ("add.f32", &["%d0", "%r1", "%r2"], "%d0"),
        ("add.f16", &["%r0", "%h1", "%h2"], "%r0"),
        ("add.f32", &["%r0", "%x1", "%r2"], "%x1"),
        ("add.f32", &["%r0", "%p1", "%r2"], "%p1"),
        ("add.f32", &["#1", "%r1", "%r2"], "destination"),
        ("fma.rn.sat.relu.f16", &["%h0", "%h1", "%h2", "%h3"], ".relu"),
        ("ex2.approx.bf16", &["%h0", "%h1"], ".ftz"),
        ("rcp.approx.f64", &["%d0", "%d1"], ".ftz"),
        ("cvt.f32", &["%r0", "%r1"], "types"),
        ("cvt.wild.f32.s32", &["%r0", "%r1"], ".wild"),
        ("cvt.f32.s32", &["%r0", "%r1"], "rounding"),
        ("cvt.rn.f64.f32", &["%d0", "%r1"], "rounding"),
        ("cvt.rn.rz.f32.s32", &["%r0", "%r1"], ".rn and .rz"),
        ("cvt.rzi.s32.f32", &["%r0"], "1 operands"),
        ("cvt.rzi.s32.f32", &["%h0", "%r1"], "%h0"),
        ("cvt.rzi.s32.f32", &["%r0", "%h1"], "%h1"),
        ("cvt.rn.bf16.f32", &["%r0", "%r1"], "%r0"),
        ("cvt.f32.bf16", &["%r0", "%r1"], "%r1"),
        ("cvt.rn.satfinite.e4m3x2.f32", &["%r0", "%r1", "%r2"], "%r0"),
        ("cvt.rn.e4m3x2.f32", &["%h0", "%r1", "%r2"], ".satfinite"),
        ("cvt.rn.satfinite.e2m1x2.f32", &["%h0", "%r1", "%r2"], ".e2m1x2"),
        ("cvt.rs.f16x2.f32", &["%r0", "%r1", "%r2"], ".rs"),
        ("cvt.rn.satfinite.tf32.f32", &["%r0", "%r1"], "satfinite"),
        ("cvt.rna.relu.tf32.f32", &["%r0", "%r1"], "relu"),
        ("cvt.rn.f16x2.f32", &["%r0", "%r1"], "2 operands"),
        ("cvt.rn.f16x2.bf16", &["%r0", "%h1"], "not known"),
        ("cvt.pack.u8.s32.b32", &["%r0", "%r1", "%r2", "%r3"], ".sat"),
        ("cvt.pack.sat.u8.s32", &["%r0", "%r1", "%r2"], "not known"),
        ("cvt.pack.sat.u16.s32", &["%r0", "%r1", "%r2", "%r3"], "4 operands"),
        ("cvt.pack.sat.u16.u32", &["%r0", "%r1", "%r2"], "not known"),
        ("cvt.pred.f32", &["%p0", "%r1"], "not known"),
        ("cvt.u32.b32", &["%r0", "%r1"], "not known"),
    ];
    for (form, operands, part) in cases {
        let message = message(form, operands);
        assert!(message.contains(part) && !message.contains('\n'), "{form}: {message:?} lacks {part:?}");
    }
}

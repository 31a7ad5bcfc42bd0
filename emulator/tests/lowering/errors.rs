//! Everything that is wrong or unknown is one line with kernel, PTX line, instruction and reason.

use cuda_emulator::fault::Code::{self, InvalidPtx, NotSupported};
use cuda_emulator::{lower, ptx};

use crate::{fault, lower_text, source};

/// Body, code, part of the reason.
const CASES: [(&str, Code, &str); 93] = [
    ("frobnicate.u32 %r1;", NotSupported, "not known"),
    ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, %r1;", NotSupported, "not known"),
    ("mbarrier.init.shared.b64 [%r1], 1;", NotSupported, "not known"),
    ("@%q1 mov.u32 %r1, %r2;", InvalidPtx, "%q1 is not declared"),
    ("@%r1 mov.u32 %r1, %r2;", InvalidPtx, "%r1"),
    ("ld.global.u32 %r99, [%rd1];", InvalidPtx, "%r99 is not declared"),
    ("ld.global.u32 %r01, [%rd1];", InvalidPtx, "%r01 is not declared"),
    ("ld.global.u32 %r1, [%nothing];", InvalidPtx, "%nothing is not declared"),
    ("ld.global.u32 %r1, [%f1];", InvalidPtx, "expected an address"),
    ("ld.global.u32 %r1, [%rs1];", InvalidPtx, "expected an address"),
    ("ld.global.u32 %r1, %rd1;", InvalidPtx, "expected an address in brackets"),
    ("ld.global.u32 %tid.x, [%rd1];", InvalidPtx, "%tid.x"),
    ("ld.global.u32 5, [%rd1];", InvalidPtx, "expected a register"),
    ("ld.global.u32 %rs1, [%rd1];", InvalidPtx, "does not fit"),
    ("ld.global.u64 %r1, [%rd1];", InvalidPtx, "does not fit"),
    ("ld.global.f32 %rd1, [%rd1];", InvalidPtx, "does not fit"),
    ("ld.global.u16 %f1, [%rd1];", InvalidPtx, "does not fit"),
    ("ld.global.u32 %p1, [%rd1];", InvalidPtx, "does not fit"),
    ("ld.global.f16 %rs1, [%rd1];", InvalidPtx, "not one of loads and stores"),
    ("ld.global.pred %p1, [%rd1];", InvalidPtx, "not one of loads and stores"),
    ("ld.global.b128 %rd1, [%rd1];", NotSupported, "128-bit"),
    ("ld.global.v2.u32 %r1, [%rd1];", InvalidPtx, "expected a vector"),
    ("ld.global.v2.u32 {%r1, %r2, %r3}, [%rd1];", InvalidPtx, "3 elements, expected 2"),
    ("ld.global.u32 {%r1, %r2}, [%rd1];", InvalidPtx, "expected 1"),
    ("ld.global.v2.u32 {%r1, %rd2}, [%rd1];", NotSupported, "32-bit and 64-bit"),
    ("ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1];", NotSupported, "need sm_100"),
    ("ld.shared.v4.u64 {%rd1, %rd2, %rd3, %rd4}, [%r1];", InvalidPtx, "too large"),
    ("ld.global.u32 %r1, [%rd1], %rd2;", InvalidPtx, "found 3 operands, expected 2"),
    ("ld.global.L2::cache_hint.u32 %r1, [%rd1];", InvalidPtx, "found 2 operands, expected 3"),
    ("ld.global.shared.u32 %r1, [%rd1];", InvalidPtx, "one too many"),
    ("ld.global.u32.s32 %r1, [%rd1];", InvalidPtx, "one too many"),
    ("ld.global %r1, [%rd1];", InvalidPtx, "expected a type"),
    ("ld.global.u32.ca %r1, [%rd1];", InvalidPtx, "expected a type as last"),
    ("ld.global.fast.u32 %r1, [%rd1];", NotSupported, ".fast is not known"),
    ("ld.gpu.global.u32 %r1, [%rd1];", InvalidPtx, "a scope needs"),
    ("ld.release.gpu.global.u32 %r1, [%rd1];", InvalidPtx, ".release is not allowed"),
    ("ld.shared::cluster.u32 %r1, [%r1];", NotSupported, "clusters"),
    ("ld.shared.nc.u32 %r1, [%r1];", InvalidPtx, "read-only"),
    ("ld.param.u32 %r1, [p1+4];", InvalidPtx, "not inside p1"),
    ("ld.param.u64 %rd1, [p1];", InvalidPtx, "8 bytes at offset 0 are not inside p1, which has 4"),
    ("ld.param.u32 %r1, [p1+-4];", InvalidPtx, "not inside p1"),
    ("ld.global.u32 %r1, [p1];", InvalidPtx, "p1 lies in Param memory"),
    ("{ .param .b32 x; ld.local.u32 %r1, [x]; }", InvalidPtx, "x is a .param variable"),
    ("st.param.b32 [p1], %r1;", InvalidPtx, "cannot be written"),
    ("st.const.u32 [%rd1], %r1;", InvalidPtx, "cannot be written"),
    ("st.global.nc.u32 [%rd1], %r1;", InvalidPtx, ".nc is not allowed"),
    ("st.acquire.gpu.u32 [%rd1], %r1;", InvalidPtx, ".acquire is not allowed"),
    ("st.global.u32 [%rd1], _;", InvalidPtx, "_"),
    ("st.global.f32 [%rd1], %rs1;", InvalidPtx, "does not fit"),
    ("st.global.u32 [%rd1], 0d3FF0000000000000;", InvalidPtx, "expected a register or a number"),
    ("atom.global.add.s64 %rd1, [%rd1], %rd2;", NotSupported, "no .add of type S64"),
    ("atom.global.add.f16 %rs1, [%rd1], %rs2;", NotSupported, "no .add of type F16"),
    ("atom.global.add.noftz.f32 %f1, [%rd1], %f2;", NotSupported, "no .add.noftz of type F32"),
    ("atom.global.min.f32 %f1, [%rd1], %f2;", NotSupported, "no .min of type F32"),
    ("atom.global.inc.u64 %rd1, [%rd1], %rd2;", NotSupported, "no .inc of type U64"),
    ("atom.global.add.v2.f32 {%f1, %f2}, [%rd1], {%f3, %f4};", NotSupported, "vector atomics"),
    ("red.global.exch.b32 [%rd1], %r1;", InvalidPtx, ".exch is not a function"),
    ("red.global.cas.b32 [%rd1], %r1, %r2;", InvalidPtx, ".cas is not a function"),
    ("atom.global.u32 %r1, [%rd1], %r2;", InvalidPtx, "expected a function"),
    ("atom.local.add.u32 %r1, [%rd1], %r2;", InvalidPtx, "no atomics"),
    ("atom.global.add.u32 %r1, [%rd1];", InvalidPtx, "found 2 operands, expected 3"),
    ("atom.global.cas.b32 %r1, [%rd1], %r2;", InvalidPtx, "found 3 operands, expected 4"),
    ("atom.volatile.global.add.u32 %r1, [%rd1], %r2;", InvalidPtx, "an atomic is"),
    ("cp.async.cg.shared.global [%r1], [%rd1], 8;", InvalidPtx, "copies 8 bytes, expected 16"),
    ("cp.async.ca.shared.global [%r1], [%rd1], 12;", InvalidPtx, "copies 12 bytes"),
    ("cp.async.ca.shared.global [%r1], [%rd1], 4, 5;", InvalidPtx, "source size 5, expected 0 to 4"),
    ("cp.async.ca.shared.global [%r1], [%rd1];", InvalidPtx, "found 2 operands"),
    ("cp.async.ca.shared.global.L1::128B [%r1], [%rd1], 4;", NotSupported, "not known"),
    ("cp.async.wait_group -1;", InvalidPtx, "-1 groups"),
    ("cp.async.bulk.commit_group;", NotSupported, "not known"),
    ("ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r1, %r2, %r3}, [%r9];", InvalidPtx, ".x3"),
    ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1}, [%r9];", InvalidPtx, "expected 2 registers"),
    ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r9];", NotSupported, "not known"),
    ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r9], {%rd1};", InvalidPtx, "%rd1"),
    ("bar.sync 16;", InvalidPtx, "barrier 16"),
    ("bar.arrive 0;", InvalidPtx, "do not fit"),
    ("bar.red.popc.u32 %r1, 0;", InvalidPtx, "%r1"),
    ("bar.wait 0;", NotSupported, "not known"),
    ("barrier.cluster.arrive;", NotSupported, "clusters"),
    ("bar.warp.sync;", InvalidPtx, "found 0 operands"),
    ("fence.weak.gpu;", NotSupported, "not known"),
    ("membar.gpu;", NotSupported, "not known"),
    ("bra NOWHERE;", InvalidPtx, "label NOWHERE is not declared"),
    ("{ L: } bra L;", InvalidPtx, "label L is not declared"),
    ("brx.idx %r1, T;", InvalidPtx, "branch targets T"),
    ("bra %r1, %r2;", InvalidPtx, "expected bra LABEL"),
    ("ret %r1;", InvalidPtx, "no operands"),
    ("cvta.global.u32 %r1, %r2;", NotSupported, ".u32"),
    ("cvta.somewhere.u64 %rd1, %rd2;", InvalidPtx, ".somewhere"),
    ("cvta.shared.u64 %r1, %rd2;", InvalidPtx, "%r1"),
    ("isspacep.shared %r1, %rd1;", InvalidPtx, "%r1"),
    ("mov.u32 %r1, %clock64;", InvalidPtx, "%clock64 has 64 bits"),
    ("mov.u32 %r1, %envreg2;", InvalidPtx, "special register %envreg2"),
];

#[test]
fn every_error_names_its_place() {
    for (body, code, part) in CASES {
        let fault = fault("", body);
        let message = &fault.message;
        assert!(message.contains(part), "{body}: {message}");
        assert_eq!(fault.code, code, "{message}");
        assert!(message.starts_with("kernel k, PTX line 8: "), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn declarations_that_are_wrong() {
    let cases = [
        ("L: L: ret;", "label L is declared twice"),
        ("T: .branchtargets A, B; A: ret;", "label B is not declared"),
        (".reg .b128 %q;", "%q: .b128"),
        (".local .align 4 .b8 huge[600000];", "bytes of local memory"),
        (".global .align 4 .b8 inside[4];", "inside a function"),
    ];
    for (body, part) in cases {
        let fault = fault("", body);
        assert!(fault.message.contains(part) && fault.message.starts_with("kernel k, PTX line 5: "), "{fault}");
    }
}

#[test]
fn text_of_an_instruction_is_kept_short() {
    let name = "a".repeat(5000);
    let fault = fault("", &format!("bra {name};"));
    assert!(fault.message.len() < 6000);
    assert!(fault.message.contains('…'), "{fault}");
}

#[test]
fn damaged_text_never_panics() {
    // Deletes, doubles and swaps words of a kernel that uses most forms; whatever comes out is a program or an error.
    let text = source(
        ".global .align 8 .u64 g[2] = {g, 1}; .shared .align 4 .b8 s[64]; .extern .shared .align 16 .b8 d[];
        .func (.param .b32 r) f(.param .b32 a) { .reg .b32 %r<3>; ld.param.u32 %r1, [a]; st.param.b32 [r], %r1; ret; }",
        ".local .align 8 .b8 l[16]; ld.param.u64 %rd1, [p0]; cvta.to.global.u64 %rd2, %rd1; T: .branchtargets A, B;
        ld.global.nc.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2+16]; atom.global.add.f32 %f1, [%rd2], 0f3F800000;
        A: bar.sync 0, 64; cp.async.cg.shared.global [%r1], [%rd2], 16, %r2; cp.async.wait_group 0;
        ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r3, %r4}, [%r1]; @!%p1 bra A; { .param .b32 x;
        st.param.b32 [x], %r3; .param .b32 y; call (y), f, (x); ld.param.b32 %r5, [y]; } brx.idx %r5, T;
        B: st.shared.v2.u32 [s+8], {%r5, 3}; fence.acq_rel.gpu; mov.u64 %rd3, l; cvta.local.u64 %rd4, %rd3; ret;",
    );
    let words: Vec<&str> = text.split_inclusive([' ', ',', ';', '\n']).collect();
    let mut state = 0x1234_5678_9ABC_DEF0u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut lowered = 0;
    for _ in 0..3000 {
        let mut damaged: Vec<&str> = words.clone();
        for _ in 0..1 + below(3) {
            let (a, b) = (below(damaged.len()), below(damaged.len()));
            match below(3) {
                0 => drop(damaged.remove(a)),
                1 => damaged.insert(a, damaged[b]),
                _ => damaged.swap(a, b),
            }
        }
        if ptx::parse(&damaged.concat()).is_ok_and(|module| lower::module_variables(&module).is_ok()) {
            let _ = lower_text(&damaged.concat());
            lowered += 1;
        }
    }
    assert!(lowered > 300, "{lowered} of 3000 still parsed");
}

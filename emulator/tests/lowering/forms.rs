//! Each form of the memory, barrier and control instructions becomes the operation that it stands for.

use cuda_emulator::program::{AtomicOp, BarrierKind, Class, Instruction, Op, Preset, Special, Value};
use cuda_emulator::ptx::ast::{Space, Type};

use crate::{bits, constant, kernel, ops};

fn one(body: &str) -> Op {
    let (_, mut ops) = ops(body);
    assert_eq!(ops.len(), 1, "{body}: {ops:?}");
    ops.remove(0)
}

#[test]
fn loads() {
    // Form and operands; space; bytes, signed, wide; registers; strong.
    let cases = [
        ("ld.global.u8 %rs1, [%rd1];", Space::Global, (1, false, false), 1, false),
        ("ld.global.b8 %r1, [%rd1];", Space::Global, (1, false, false), 1, false),
        ("ld.global.s8 %r1, [%rd1];", Space::Global, (1, true, false), 1, false),
        ("ld.global.u8 %rd1, [%rd1];", Space::Global, (1, false, true), 1, false),
        ("ld.shared.u16 %rs1, [%r1];", Space::Shared, (2, false, false), 1, false),
        ("ld.shared.s16 %rs1, [%r1];", Space::Shared, (2, false, false), 1, false),
        ("ld.shared.s16 %r1, [%r1];", Space::Shared, (2, true, false), 1, false),
        ("ld.shared::cta.s16 %rd1, [%r1];", Space::Shared, (2, true, true), 1, false),
        ("ld.local.u32 %r1, [%rd1+4];", Space::Local, (4, false, false), 1, false),
        ("ld.local.s32 %rd1, [%rd1];", Space::Local, (4, true, true), 1, false),
        ("ld.const.f32 %f1, [%rd1];", Space::Const, (4, false, false), 1, false),
        ("ld.const.b32 %f1, [%rd1];", Space::Const, (4, false, false), 1, false),
        ("ld.f64 %fd1, [%rd1];", Space::Generic, (8, false, true), 1, false),
        ("ld.u64 %rd1, [%rd1];", Space::Generic, (8, false, true), 1, false),
        ("ld.param.u64 %rd1, [p0];", Space::Param, (8, false, true), 1, false),
        ("ld.global.v2.f32 {%f1, %f2}, [%rd1];", Space::Global, (4, false, false), 2, false),
        ("ld.global.v4.u32 {%r1, _, %r3, %r4}, [%rd1];", Space::Global, (4, false, false), 4, false),
        ("ld.global.v2.b64 {%rd1, %rd2}, [%rd1];", Space::Global, (8, false, true), 2, false),
        ("ld.global.v4.u8 {%rs1, %rs2, %rs3, %rs4}, [%rd1];", Space::Global, (1, false, false), 4, false),
        ("ld.global.nc.f32 %f1, [%rd1];", Space::Global, (4, false, false), 1, false),
        (
            "ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
            Space::Global,
            (4, false, false),
            4,
            false,
        ),
        ("ld.global.L1::evict_last.L2::cache_hint.u32 %r1, [%rd1], %rd2;", Space::Global, (4, false, false), 1, false),
        ("ldu.global.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, false),
        ("ld.global.ca.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, false),
        ("ld.global.cg.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, false),
        ("ld.global.cs.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, false),
        ("ld.global.lu.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, false),
        ("ld.global.cv.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, true),
        ("ld.weak.global.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, false),
        ("ld.volatile.global.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, true),
        ("ld.relaxed.gpu.global.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, true),
        ("ld.relaxed.sys.global.u32 %r1, [%rd1];", Space::Global, (4, false, false), 1, true),
    ];
    for (text, space, (bytes, signed, wide), registers, strong) in cases {
        match one(text) {
            Op::Load { space: s, value, to, strong: st, .. } => {
                assert_eq!(
                    (s, value, to.len(), st),
                    (space, Value { bytes, signed, wide }, registers, strong),
                    "{text}"
                );
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn stores() {
    let cases = [
        ("st.global.u8 [%rd1], %rs1;", Space::Global, (1, false), 1, false),
        ("st.global.u8 [%rd1], %r1;", Space::Global, (1, false), 1, false),
        ("st.global.b8 [%rd1], %rd2;", Space::Global, (1, true), 1, false),
        ("st.global.u32 [%rd1], %rd2;", Space::Global, (4, true), 1, false),
        ("st.shared.f32 [%r1+4], %f1;", Space::Shared, (4, false), 1, false),
        ("st.shared.v4.b32 [%r1], {%r1, %r2, 7, 8};", Space::Shared, (4, false), 4, false),
        ("st.local.v2.f64 [%rd1], {%fd1, %fd2};", Space::Local, (8, true), 2, false),
        ("st.u64 [%rd1], 5;", Space::Generic, (8, true), 1, false),
        ("st.global.wb.u32 [%rd1], %r1;", Space::Global, (4, false), 1, false),
        ("st.global.wt.u32 [%rd1], %r1;", Space::Global, (4, false), 1, false),
        ("st.global.cs.u32 [%rd1], %r1;", Space::Global, (4, false), 1, false),
        ("st.global.L1::no_allocate.L2::cache_hint.u32 [%rd1], %r1, %rd2;", Space::Global, (4, false), 1, false),
        ("st.volatile.shared.u32 [%r1], %r1;", Space::Shared, (4, false), 1, true),
        ("st.relaxed.cta.shared.u32 [%r1], %r1;", Space::Shared, (4, false), 1, true),
        ("st.mmio.relaxed.sys.global.u32 [%rd1], %r1;", Space::Global, (4, false), 1, true),
    ];
    for (text, space, (bytes, wide), registers, strong) in cases {
        match one(text) {
            Op::Store { space: s, value, from, strong: st, .. } => {
                let expected = Value { bytes, signed: false, wide };
                assert_eq!((s, value, from.len(), st), (space, expected, registers, strong), "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn acquire_and_release_fence() {
    let (_, ops_acquire) = ops("@%p1 ld.acquire.gpu.global.u32 %r1, [%rd1];");
    assert!(matches!(ops_acquire[..], [Op::Load { strong: true, .. }, Op::Fence]), "{ops_acquire:?}");
    let (_, ops_release) = ops("st.release.gpu.b32 [%rd1], %r1;");
    assert!(matches!(ops_release[..], [Op::Fence, Op::Store { strong: true, .. }]), "{ops_release:?}");
    // Both halves are under the guard.
    let program = kernel("", "@!%p1 ld.acquire.sys.u32 %r1, [%rd1];");
    assert!(program.code[..2].iter().all(|i| i.guard.is_some_and(|guard| guard.negated)));
    assert_eq!(program.code[0].line, program.code[1].line);
}

#[test]
fn addresses() {
    let program = kernel(
        ".shared .align 4 .b8 s[8]; .global .align 4 .u32 g;",
        "ld.shared.u32 %r1, [s+4]; ld.global.u32 %r2, [g]; ld.u32 %r3, [g+-4]; ld.global.u32 %r4, [4096];
        ld.shared.u32 %r5, [%r1+-8]; ld.param.u32 %r6, [p1];",
    );
    let addresses: Vec<_> = program
        .code
        .iter()
        .filter_map(|i| match &i.op {
            Op::Load { space, address, .. } => Some((*space, *address)),
            _ => None,
        })
        .collect();
    let base = |index: usize| bits(&program, Class::R64, addresses[index].1.base);
    assert_eq!((addresses[0].0, base(0), addresses[0].1.offset), (Space::Shared, 0, 4));
    assert_eq!((addresses[1].0, base(1), addresses[1].1.offset), (Space::Global, 0x1000, 0));
    assert_eq!((addresses[2].0, base(2), addresses[2].1.offset), (Space::Generic, 0x1000, -4));
    assert_eq!((addresses[3].0, base(3), addresses[3].1.offset), (Space::Global, 4096, 0));
    assert_eq!((addresses[4].1.wide, addresses[4].1.offset), (false, -8));
    assert_eq!((addresses[5].0, base(5), addresses[5].1.offset), (Space::Param, 8, 0));
}

#[test]
fn atomics() {
    use AtomicOp::*;
    let cases = [
        ("atom.global.add.u32 %r1, [%rd1], %r2;", Space::Global, Add, Type::U32),
        ("atom.global.add.s32 %r1, [%rd1], 1;", Space::Global, Add, Type::S32),
        ("atom.global.add.u64 %rd1, [%rd1], %rd2;", Space::Global, Add, Type::U64),
        ("atom.shared.add.f32 %f1, [%r1], %f2;", Space::Shared, Add, Type::F32),
        ("atom.shared::cta.add.f64 %fd1, [%r1], 0d3FF0000000000000;", Space::Shared, Add, Type::F64),
        ("atom.add.noftz.f16 %rs1, [%rd1], %rs2;", Space::Generic, Add, Type::F16),
        ("atom.add.noftz.bf16 %rs1, [%rd1], %rs2;", Space::Generic, Add, Type::Bf16),
        ("atom.global.add.noftz.f16x2 %r1, [%rd1], %r2;", Space::Global, Add, Type::F16x2),
        ("atom.global.add.noftz.bf16x2 %r1, [%rd1], %r2;", Space::Global, Add, Type::Bf16x2),
        ("atom.global.min.s32 %r1, [%rd1], %r2;", Space::Global, Min, Type::S32),
        ("atom.global.max.u64 %rd1, [%rd1], 5;", Space::Global, Max, Type::U64),
        ("atom.global.max.s64 %rd1, [%rd1], 5;", Space::Global, Max, Type::S64),
        ("atom.global.and.b32 %r1, [%rd1], %r2;", Space::Global, And, Type::B32),
        ("atom.global.or.b64 %rd1, [%rd1], %rd2;", Space::Global, Or, Type::B64),
        ("atom.global.xor.b32 %r1, [%rd1], %r2;", Space::Global, Xor, Type::B32),
        ("atom.global.exch.b32 %r1, [%rd1], %r2;", Space::Global, Exchange, Type::B32),
        ("atom.global.cas.b16 %rs1, [%rd1], %rs2, %rs3;", Space::Global, CompareAndSwap, Type::B16),
        ("atom.shared.cas.b32 %r1, [%r2], %r3, %r4;", Space::Shared, CompareAndSwap, Type::B32),
        ("atom.cas.b64 %rd1, [%rd1], %rd2, 0;", Space::Generic, CompareAndSwap, Type::B64),
        ("atom.global.inc.u32 %r1, [%rd1], %r2;", Space::Global, Increment, Type::U32),
        ("atom.global.dec.u32 %r1, [%rd1], %r2;", Space::Global, Decrement, Type::U32),
        ("atom.add.acquire.gpu.s32 %r1, [%rd1], %r2;", Space::Generic, Add, Type::S32),
        ("atom.relaxed.sys.global.add.u32 %r1, [%rd1], %r2;", Space::Global, Add, Type::U32),
        ("atom.acq_rel.cta.shared.exch.b32 %r1, [%r1], %r2;", Space::Shared, Exchange, Type::B32),
        ("atom.global.add.L2::cache_hint.u32 %r1, [%rd1], %r2, %rd2;", Space::Global, Add, Type::U32),
    ];
    for (text, space, op, ty) in cases {
        match one(text) {
            Op::Atomic { space: s, function, to, c, .. } => {
                assert_eq!((s, function.op, function.ty), (space, op, ty), "{text}");
                assert!(to.is_some() && c.is_some() == (op == CompareAndSwap), "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    for text in [
        "red.global.add.f32 [%rd1], %f1;",
        "atom.global.add.f32 _, [%rd1], %f1;",
        "red.release.gpu.add.f32 [%rd1], %f1;",
    ] {
        assert!(matches!(one(text), Op::Atomic { to: None, .. }), "{text}");
    }
}

#[test]
fn compare_and_swap_keeps_its_order() {
    let (program, ops) = ops("atom.global.cas.b32 %r1, [%rd1], 3, 4;");
    let [Op::Atomic { b, c: Some(c), .. }] = &ops[..] else { panic!("{ops:?}") };
    assert_eq!((bits(&program, Class::R32, *b), bits(&program, Class::R32, *c)), (3, 4));
}

#[test]
fn asynchronous_copies() {
    let cases = [
        ("cp.async.ca.shared.global [%r1], [%rd1], 4;", 4, None),
        ("cp.async.ca.shared.global [%r1], [%rd1], 8, 8;", 8, None),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16;", 16, None),
        ("cp.async.cg.shared::cta.global.L2::128B [%r1], [%rd1+32], 16, 12;", 16, Some(12)),
        ("cp.async.ca.shared.global.L2::cache_hint [%r1], [%rd1], 4, %rd2;", 4, None),
        ("cp.async.ca.shared.global.L2::cache_hint.L2::256B [%r1], [%rd1], 4, 0, %rd2;", 4, Some(0)),
    ];
    for (text, size, source) in cases {
        let (program, ops) = ops(text);
        let [Op::CopyAsync { bytes, source_bytes, .. }] = &ops[..] else { panic!("{text}: {ops:?}") };
        let found = source_bytes.map(|reg| bits(&program, Class::R32, reg));
        assert_eq!((*bytes, found), (size, source), "{text}");
    }
    assert!(matches!(
        one("cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;"),
        Op::CopyAsync { source_bytes: Some(_), .. }
    ));
    let (_, ignore) = ops("cp.async.cg.shared.global [%r1], [%rd1], 16, %p1;");
    assert!(matches!(ignore[..], [Op::Alu(_), Op::CopyAsync { source_bytes: Some(_), .. }]), "{ignore:?}");
    assert!(matches!(one("cp.async.commit_group;"), Op::CopyAsyncCommit));
    assert!(matches!(one("cp.async.wait_group 2;"), Op::CopyAsyncWait { pending: Some(2) }));
    assert!(matches!(one("cp.async.wait_all;"), Op::CopyAsyncWait { pending: None }));
}

#[test]
fn matrices() {
    let all = "{%r1, %r2, %r3, %r4}";
    for (count, trans, registers) in
        [(1, "", "{%r1}"), (1, "", "%r1"), (2, ".trans", "{%r1, %r2}"), (4, "", all), (4, ".trans", all)]
    {
        let text = format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {registers}, [%r9+64];");
        let Op::LoadMatrix { to, transposed, address } = one(&text) else { panic!("{text}") };
        assert_eq!((to.len(), transposed, address.offset), (count, !trans.is_empty(), 64), "{text}");
        let text = format!("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared::cta.b16 [%r9], {registers};");
        let Op::StoreMatrix { from, transposed, .. } = one(&text) else { panic!("{text}") };
        assert_eq!((from.len(), transposed), (count, !trans.is_empty()), "{text}");
    }
}

#[test]
fn barriers() {
    let cases = [
        ("bar.sync 0;", 0, None, true),
        ("bar.cta.sync 1, 64;", 1, Some(64), true),
        ("barrier.sync 2;", 2, None, false),
        ("barrier.cta.sync.aligned 3, 128;", 3, Some(128), true),
        ("bar.arrive 4, 96;", 4, Some(96), true),
        ("barrier.cta.arrive 5, 96;", 5, Some(96), false),
        ("bar.red.popc.u32 %r1, 6, %p1;", 6, None, true),
        ("bar.cta.red.popc.u32 %r1, 6, 32, !%p1;", 6, Some(32), true),
        ("barrier.cta.red.popc.aligned.u32 %r1, 6, %p1;", 6, None, true),
        ("bar.red.and.pred %p2, 7, %p1;", 7, None, true),
        ("barrier.red.or.pred %p2, 7, 64, !%p1;", 7, Some(64), false),
    ];
    for (text, id, threads, aligned) in cases {
        let (program, ops) = ops(text);
        let [Op::Barrier(barrier)] = &ops[..] else { panic!("{text}: {ops:?}") };
        assert_eq!(bits(&program, Class::R32, barrier.id), id, "{text}");
        assert_eq!(barrier.threads.map(|reg| bits(&program, Class::R32, reg)), threads, "{text}");
        assert_eq!(barrier.aligned, aligned, "{text}");
        let negated_as_written = |negated: bool| negated == text.contains('!');
        let kind_fits = match barrier.kind {
            BarrierKind::Sync => text.contains("sync"),
            BarrierKind::Arrive => text.contains("arrive"),
            BarrierKind::Count { negated, .. } => text.contains("popc") && negated_as_written(negated),
            BarrierKind::All { negated, .. } => text.contains(".and.") && negated_as_written(negated),
            BarrierKind::Any { negated, .. } => text.contains(".or.") && negated_as_written(negated),
        };
        assert!(kind_fits, "{text}: {barrier:?}");
    }
    let (program, members) = ops("bar.warp.sync -1;");
    let [Op::WarpBarrier { members }] = &members[..] else { panic!("{members:?}") };
    assert_eq!(bits(&program, Class::R32, *members), 0xFFFF_FFFF);
}

#[test]
fn fences_and_hints() {
    for text in [
        "membar.cta;",
        "membar.gl;",
        "membar.sys;",
        "fence.sc.cta;",
        "fence.acq_rel.gpu;",
        "fence.acq_rel.sys;",
        "fence.acquire.cluster;",
        "fence.release.gpu;",
        "fence.proxy.async;",
        "fence.proxy.async.shared::cta;",
        "fence.proxy.alias;",
        "fence.mbarrier_init.release.cluster;",
    ] {
        assert!(matches!(one(text), Op::Fence), "{text}");
    }
    for text in [
        "prefetch.global.L1 [%rd1];",
        "prefetch.local.L2 [%rd1+8];",
        "prefetch.L2 [%rd1];",
        "prefetchu.L1 [%rd1];",
        "prefetch.global.L2::evict_last [%rd1];",
        "discard.global.L2 [%rd1], 128;",
        "nanosleep.u32 100;",
        "nanosleep.u32 %r1;",
        "griddepcontrol.wait;",
        "griddepcontrol.launch_dependents;",
    ] {
        assert!(matches!(one(text), Op::Nop), "{text}");
    }
    // The parser drops it.
    assert!(ops(".pragma \"nounroll\";").1.is_empty());
}

#[test]
fn clocks() {
    assert!(matches!(one("mov.u32 %r1, %clock;"), Op::ReadClock { wide: false, .. }));
    assert!(matches!(one("mov.u64 %rd1, %clock64;"), Op::ReadClock { wide: true, .. }));
    assert!(matches!(one("mov.u64 %rd1, %globaltimer;"), Op::ReadClock { wide: true, .. }));
    assert!(matches!(one("mov.u32 %r1, %globaltimer_lo;"), Op::ReadClock { wide: false, .. }));
    let (_, upper) = ops("mov.u32 %r1, %clock_hi;");
    assert!(matches!(upper[..], [Op::ReadClock { wide: true, .. }, Op::Alu(_), Op::Alu(_)]), "{upper:?}");
}

#[test]
fn ends() {
    for text in ["trap;", "brkpt;"] {
        let program = kernel("", text);
        assert!(matches!(program.code[..], [Instruction { op: Op::Trap, .. }]), "{text}");
    }
    // Code that cannot reach its end gets no exit of its own; a label there does.
    assert_eq!(kernel("", "ret;").code.len(), 1);
    assert_eq!(kernel("", "exit;").code.len(), 1);
    assert_eq!(kernel("", "").code.len(), 1);
    assert_eq!(kernel("", "L: bra L;").code.len(), 1);
    assert_eq!(kernel("", "@%p1 bra L; ret; L:").code.len(), 3);
    assert_eq!(kernel("", "@%p1 ret;").code.len(), 2);
}

#[test]
fn branches_hold_instruction_indices() {
    let program = kernel("", "A: @%p1 bra B; bra.uni A; { bra B; } B: mov.u32 %r1, 1; bra A;");
    let targets: Vec<u32> = program
        .code
        .iter()
        .filter_map(|i| if let Op::Branch { target } = i.op { Some(target) } else { None })
        .collect();
    assert_eq!(targets, [3, 0, 3, 0]);
    let program = kernel("", "T: .branchtargets A, B; @!%p1 brx.idx %r1, T; A: exit; B: exit;");
    let Op::BranchIndexed { targets, .. } = &program.code[0].op else { panic!("{:?}", program.code) };
    assert_eq!(**targets, [1, 2]);
    assert!(program.code[0].guard.is_some_and(|guard| guard.negated));
}

#[test]
fn special_registers_are_presets() {
    let (program, ops) =
        ops("st.global.u32 [%rd1], 7; mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.x; st.global.v2.u32 [%rd1], {%r1, %r2};");
    assert!(matches!(ops[1], Op::Alu(_)));
    let kept: Vec<Preset> = program.presets.iter().map(|preset| preset.2).collect();
    assert!(kept.contains(&Preset::Special(Special::Tid(0))) && kept.contains(&Preset::Bits(7)), "{kept:?}");
    assert_eq!(program.presets.len(), 2);
    assert_eq!(constant(&program, Class::R64, program.undefined[0].1), None);
    assert_eq!(program.undefined.len(), 1, "%rd1 is never written");
}

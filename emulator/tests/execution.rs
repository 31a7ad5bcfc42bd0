//! How lanes, warps and blocks run together: divergence, waiting, barriers, calls, address spaces.

mod support;

use cuda_emulator::device::Options;
use cuda_emulator::fault::Code;
use support::gpu::{Arg, Gpu, shape};
use support::snippet::{fault, kernel, run, run_shape};

#[test]
fn shuffles_on_divergent_paths_exchange_within_their_mask() {
    // Even lanes exchange with lane+2, odd ones with lane−2, each on its own path.
    let values = run(
        "    and.b32 %r3, %r1, 1;
    setp.eq.u32 %p1, %r3, 0;
    mad.lo.u32 %r4, %r1, 10, 7;
    @%p1 bra EVEN;
    shfl.sync.up.b32 %r2, %r4, 2, 0, 0xaaaaaaaa;
    bra.uni JOIN;
EVEN:
    shfl.sync.down.b32 %r2, %r4, 2, 31, 0x55555555;
JOIN:",
        32,
    )
    .unwrap();
    for (lane, &value) in values.iter().enumerate() {
        let source = match lane % 2 {
            0 if lane + 2 < 32 => lane + 2,
            1 if lane >= 2 => lane - 2,
            _ => lane,
        };
        assert_eq!(value as usize, source * 10 + 7, "lane {lane}");
    }
}

#[test]
fn lanes_that_exited_are_not_waited_for() {
    // Thread 5 and the second warp's upper half leave before the barrier and the shuffle.
    let values = run(
        "    setp.eq.u32 %p1, %r1, 5;
    @%p1 exit;
    setp.ge.u32 %p2, %r1, 48;
    @%p2 exit;
    bar.sync 0;
    vote.sync.ballot.b32 %r2, 1, 0xffffffff;
    bar.warp.sync 0xffffffff;",
        64,
    )
    .unwrap();
    for (thread, &value) in values.iter().enumerate() {
        let expected = match thread {
            5 => 0xdead_beef,
            t if t >= 48 => 0xdead_beef,
            t if t < 32 => !(1 << 5),
            _ => 0xffff,
        };
        assert_eq!(value, expected, "thread {thread}");
    }
}

#[test]
fn a_block_that_is_no_multiple_of_the_warp_runs_with_fewer_lanes() {
    let values = run("    vote.sync.ballot.b32 %r2, 1, 0xffffffff;\n    bar.sync 0;", 41).unwrap();
    assert_eq!(values[..32], vec![u32::MAX; 32]);
    assert_eq!(values[32..], vec![0x1ff; 9]);
}

#[test]
fn lanes_meet_at_a_warp_barrier_in_different_places() {
    let values = run(
        "    mov.u32 %r5, smem;
    shl.b32 %r6, %r1, 2;
    add.u32 %r5, %r5, %r6;
    setp.lt.u32 %p1, %r1, 16;
    st.shared.u32 [%r5], %r1;
    @%p1 bra LOW;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r2, [%r5+-64];
    bra.uni JOIN;
LOW:
    add.u32 %r7, %r1, 1;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r2, [%r5+64];
JOIN:",
        32,
    )
    .unwrap();
    let expected: Vec<u32> = (0..32).map(|lane| lane ^ 16).collect();
    assert_eq!(values, expected);
}

#[test]
fn lanes_that_never_meet_are_a_deadlock() {
    let found = fault(
        "    setp.lt.u32 %p1, %r1, 16;
    @%p1 bra LOW;
    shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffffffff;
    bra.uni JOIN;
LOW:
    shfl.sync.bfly.b32 %r2, %r1, 2, 31, 0xffffffff;
JOIN:",
        32,
    );
    assert!(
        found.message.starts_with("deadlock: lanes 0-15 of warp 0") || found.message.contains("lanes 16-31"),
        "{found}"
    );
    assert!(found.message.contains("wait elsewhere"), "{found}");
}

#[test]
fn a_lane_outside_its_own_membermask_is_named() {
    let found = fault("    shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0x0000ffff;", 32);
    assert!(found.message.contains("lanes 16-31 not in the membermask 0x0000ffff"), "{found}");
}

#[test]
fn a_shuffle_from_a_lane_that_left_is_named() {
    let found = fault(
        "    setp.ge.u32 %p1, %r1, 20;
    @%p1 exit;
    shfl.sync.down.b32 %r2, %r1, 16, 31, 0xffffffff;",
        32,
    );
    assert!(found.message.contains("reads from lane 20, which does not take part"), "{found}");
}

#[test]
fn barriers_reduce_predicates() {
    let values = run(
        "    setp.lt.u32 %p1, %r1, 10;
    bar.red.popc.u32 %r3, 0, %p1;
    bar.red.and.pred %p2, 0, %p1;
    bar.red.or.pred %p3, 0, %p1;
    bar.red.and.pred %p4, 0, !%p1;
    selp.u32 %r4, 100, 0, %p2;
    selp.u32 %r5, 1000, 0, %p3;
    selp.u32 %r6, 10000, 0, %p4;
    add.u32 %r2, %r3, %r4;
    add.u32 %r2, %r2, %r5;
    add.u32 %r2, %r2, %r6;",
        64,
    )
    .unwrap();
    assert_eq!(values, vec![1010; 64]);
}

#[test]
fn a_barrier_in_divergent_code_is_named() {
    let inside = "    setp.lt.u32 %p1, %r1, 16;
    @%p1 bra LOW;
    bar.sync 0;
    bra.uni JOIN;
LOW:
    bar.sync 0;
JOIN:";
    assert!(fault(inside, 32).message.starts_with("barrier in divergent code: lanes"), "{}", fault(inside, 32));
    let between = inside.replace("%r1, 16", "%r1, 32");
    assert!(fault(&between, 64).message.starts_with("barrier in divergent code: warp"), "{}", fault(&between, 64));
}

#[test]
fn a_barrier_for_too_many_threads_is_a_deadlock() {
    let found = fault("    bar.sync 3, 128;", 64);
    assert_eq!(found.code, Code::LaunchTimeout);
    assert!(found.message.contains("barrier 3 waits for 128 threads, 64 came"), "{found}");
}

#[test]
fn an_endless_loop_ends_with_an_error() {
    let ptx = kernel("", "LOOP:\n    bra.uni LOOP;");
    let options = Options { step_limit: 100_000, ..Options::default() };
    let found = run_shape(&ptx, shape(1, 64), options).unwrap_err();
    assert_eq!(found.code, Code::LaunchTimeout);
    assert!(found.message.starts_with("hang: "), "{found}");
}

#[test]
fn indexed_branches_send_lanes_where_they_say() {
    let body = "    and.b32 %r3, %r1, 3;
TABLE: .branchtargets A, B, C, D;
    brx.idx %r3, TABLE;
A:
    mov.u32 %r2, 100;
    bra.uni JOIN;
B:
    mov.u32 %r2, 200;
    bra.uni JOIN;
C:
    mov.u32 %r2, 300;
    bra.uni JOIN;
D:
    mov.u32 %r2, 400;
JOIN:";
    let values = run(body, 32).unwrap();
    let expected: Vec<u32> = (0..32).map(|lane| 100 * (lane % 4 + 1)).collect();
    assert_eq!(values, expected);
    let wild = body.replace("and.b32 %r3, %r1, 3", "and.b32 %r3, %r1, 7");
    assert!(fault(&wild, 32).message.contains("jump to entry 4 of a table of 4"));
}

#[test]
fn a_called_function_returns_lane_by_lane() {
    // f(x) = x·x for even x, else x + 1000; returns early for the even ones.
    let function = ".func (.param .b32 result) f(.param .b32 x)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    ld.param.u32 %r1, [x];
    and.b32 %r2, %r1, 1;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra ODD;
    mul.lo.u32 %r3, %r1, %r1;
    st.param.b32 [result], %r3;
    ret;
ODD:
    add.u32 %r3, %r1, 1000;
    st.param.b32 [result], %r3;
    ret;
}";
    let call = "    {
    .param .b32 argument;
    .param .b32 returned;
    st.param.b32 [argument], %r1;
    call.uni (returned), f, (argument);
    ld.param.b32 %r2, [returned];
    }
    vote.sync.ballot.b32 %r3, 1, 0xffffffff;
    setp.ne.u32 %p1, %r3, 0xffffffff;
    @%p1 mov.u32 %r2, 0;";
    let ptx = kernel(function, call);
    let values = run_shape(&ptx, shape(1, 32), Options::default()).unwrap();
    let expected: Vec<u32> = (0..32).map(|x| if x % 2 == 0 { x * x } else { x + 1000 }).collect();
    assert_eq!(values, expected);
}

#[test]
fn generic_addresses_of_three_spaces_in_one_warp() {
    // Lanes 0–9 read global, 10–19 shared, 20–31 local memory through one generic load.
    let values = run(
        "    st.global.u32 [%rd1], 111;
    mov.u32 %r5, smem;
    shl.b32 %r6, %r1, 2;
    add.u32 %r5, %r5, %r6;
    st.shared.u32 [%r5], 222;
    cvt.u64.u32 %rd5, %r5;
    cvta.shared.u64 %rd6, %rd5;
    mov.u64 %rd7, depot;
    st.local.u32 [%rd7+8], 333;
    cvta.local.u64 %rd8, %rd7;
    add.s64 %rd8, %rd8, 8;
    setp.lt.u32 %p1, %r1, 10;
    setp.lt.u32 %p2, %r1, 20;
    selp.b64 %rd9, %rd6, %rd8, %p2;
    selp.b64 %rd9, %rd1, %rd9, %p1;
    ld.u32 %r2, [%rd9];
    isspacep.shared %p3, %rd9;
    @%p3 add.u32 %r2, %r2, 1000;",
        32,
    )
    .unwrap();
    for (lane, &value) in values.iter().enumerate() {
        let expected = if lane < 10 {
            111
        } else if lane < 20 {
            1222
        } else {
            333
        };
        assert_eq!(value, expected, "lane {lane}");
    }
}

#[test]
fn narrow_loads_extend_to_the_register_and_no_further() {
    let values = run(
        "    mov.u32 %r5, smem;
    shl.b32 %r6, %r1, 3;
    add.u32 %r5, %r5, %r6;
    st.shared.u32 [%r5], 0x8081ff7f;
    ld.shared.s8 %rs1, [%r5+1];
    ld.shared.u8 %rs2, [%r5+1];
    ld.shared.s8 %r10, [%r5+3];
    ld.shared.s16 %rd10, [%r5+2];
    cvt.u32.u16 %r11, %rs1;
    cvt.u32.u16 %r12, %rs2;
    shr.u64 %rd11, %rd10, 32;
    cvt.u32.u64 %r13, %rd11;
    mov.b32 %r14, {%rs1, %rs2};
    and.b32 %r15, %r1, 7;
    setp.eq.u32 %p1, %r15, 0;
    @%p1 mov.u32 %r2, %r11;
    setp.eq.u32 %p1, %r15, 1;
    @%p1 mov.u32 %r2, %r12;
    setp.eq.u32 %p1, %r15, 2;
    @%p1 mov.u32 %r2, %r10;
    setp.eq.u32 %p1, %r15, 3;
    @%p1 mov.u32 %r2, %r13;
    setp.eq.u32 %p1, %r15, 4;
    @%p1 mov.u32 %r2, %r14;
    st.shared.v2.u16 [%r5+4], {%rs1, %rs2};
    ld.shared.u32 %r16, [%r5+4];
    setp.eq.u32 %p1, %r15, 5;
    @%p1 mov.u32 %r2, %r16;
    and.b16 %rs3, %rs1, %rs1;
    cvt.u32.u16 %r17, %rs3;
    setp.eq.u32 %p1, %r15, 6;
    @%p1 mov.u32 %r2, %r17;",
        8,
    )
    .unwrap();
    assert_eq!(values[..7], [0xffff, 0xff, 0xffff_ff80, 0xffff_ffff, 0x00ff_ffff, 0x00ff_ffff, 0xffff], "{values:x?}");
}

#[test]
fn the_same_seed_counts_the_same() {
    let body = "    mov.u32 %r5, smem;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra GO;
    st.shared.u32 [%r5], 0;
GO:
    bar.sync 0;
    atom.shared.add.u32 %r2, [%r5], 1;";
    let counted = |seed| {
        let mut gpu = Gpu::with(&kernel("", body), Options { seed, ..Options::default() }).unwrap();
        let out = gpu.upload(&[0u32; 128]).unwrap();
        gpu.launch("k", shape(1, 128), &[Arg::Pointer(out)]).unwrap();
        (gpu.download::<u32>(out, 128).unwrap(), gpu.outcomes[0].counters.clone())
    };
    assert_eq!(counted(7), counted(7));
    // The order of warps decides who gets which ticket: seeds differ.
    let orders: std::collections::HashSet<Vec<u32>> = (0..8).map(|seed| counted(seed).0).collect();
    assert!(orders.len() > 1, "seeds never changed the order of warps");
}

#[test]
fn blocks_that_wait_for_later_blocks_get_there() {
    // Block 0 spins until the last block has raised a flag.
    let ptx = ".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 flag)
{
    .reg .pred %p<3>;
    .reg .b32 %r<6>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [flag];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %nctaid.x;
    add.u32 %r2, %r2, -1;
    setp.eq.u32 %p1, %r1, %r2;
    @%p1 bra RAISE;
    setp.ne.u32 %p2, %r1, 0;
    @%p2 exit;
SPIN:
    ld.volatile.global.u32 %r3, [%rd1];
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra SPIN;
    exit;
RAISE:
    st.volatile.global.u32 [%rd1], 1;
    ret;
}";
    for seed in 0..4 {
        let mut gpu = Gpu::with(ptx, Options { seed, ..Options::default() }).unwrap();
        let flag = gpu.upload(&[0u32]).unwrap();
        gpu.launch("k", shape(6, 1), &[Arg::Pointer(flag)]).unwrap();
        assert_eq!(gpu.download::<u32>(flag, 1).unwrap(), [1]);
    }
}

#[test]
fn a_kernel_reaches_its_own_contexts_memory_alone() {
    let mut gpu = Gpu::with(&kernel("", ""), Options::default()).unwrap();
    let foreign = gpu.device.alloc(2, 256).unwrap();
    let found = gpu.launch("k", shape(1, 32), &[Arg::Pointer(foreign)]).unwrap_err();
    assert_eq!(found.code, Code::IllegalAddress);
    assert!(found.message.contains("of context 2, used in context 1"), "{found}");
}

#[test]
fn old_freed_allocations_are_forgotten() {
    let mut gpu = Gpu::with(&kernel("", ""), Options::default()).unwrap();
    let kept = gpu.upload(&[5u32; 8]).unwrap();
    let mut last = 0;
    for _ in 0..30_000 {
        last = gpu.alloc::<u32>(8).unwrap();
        gpu.free(last).unwrap();
    }
    let found = gpu.launch("k", shape(1, 8), &[Arg::Pointer(last)]).unwrap_err();
    assert!(found.message.starts_with("use after free: "), "{found}");
    assert_eq!(gpu.download::<u32>(kept, 8).unwrap(), [5; 8]);
}

#[test]
fn ptx_for_a_newer_card_is_refused() {
    let found = Gpu::with(&kernel("", "").replace("sm_80", "sm_100"), Options::default()).err().unwrap();
    assert_eq!(found.code, Code::NoBinaryForGpu);
    assert!(
        found.message.contains("PTX for sm_100, the card NVIDIA GeForce RTX 4090 (emulated) is an sm_89"),
        "{found}"
    );
}

#[test]
fn the_carry_after_a_difference_is_what_compilers_expect() {
    // 5 − 3 needs no borrow, 3 − 5 does: the flag that `addc` sees is set and clear.
    let values = run(
        "    and.b32 %r3, %r1, 1;
    shl.b32 %r4, %r3, 1;
    sub.u32 %r5, 5, %r4;
    add.u32 %r6, %r4, 3;
    sub.cc.u32 %r7, %r5, %r6;
    addc.u32 %r2, 0, 0;",
        32,
    )
    .unwrap();
    let expected: Vec<u32> = (0..32).map(|lane| 1 - lane % 2).collect();
    assert_eq!(values, expected);
}

#[test]
fn an_atomic_may_name_its_scope_alone() {
    let values = run(
        "    atom.global.sys.add.u32 %r3, [%rd1], 1;
    atom.cta.exch.b32 %r4, [%rd1], 7;
    sub.u32 %r2, %r4, %r3;",
        32,
    )
    .unwrap();
    assert_eq!(values, vec![1; 32]);
}

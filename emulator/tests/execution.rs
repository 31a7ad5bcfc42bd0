//! How lanes, warps and blocks run together: divergence, waiting, barriers, calls, address spaces.
//! Each kernel is a few lines of PTX and gives one value a thread.

#[path = "support/gpu.rs"]
#[allow(dead_code)]
mod gpu;

use cuda_emulator::device::Options;
use cuda_emulator::fault::{Code, Fault};
use gpu::{Arg, Gpu, Shape, shape};

/// A kernel `k(out)` around a body. `%rd1` is the address of the thread's own word, `%r1` its index in the block, `%r2` what
/// is stored there in the end.
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.0
.target sm_80
.address_size 64
{declarations}
.visible .entry k(.param .u64 k_param_0)
{{
    .reg .pred %p<20>;
    .reg .b16 %rs<20>;
    .reg .b32 %r<60>;
    .reg .f32 %f<20>;
    .reg .b64 %rd<40>;
    .shared .align 16 .b8 smem[4096];
    .local .align 8 .b8 depot[64];
    ld.param.u64 %rd1, [k_param_0];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.s64 %rd1, %rd1, %rd2;
    mov.u32 %r2, 0;
{body}
    st.global.u32 [%rd1], %r2;
    ret;
}}
"
    )
}

fn run_shape(ptx: &str, shape: Shape, options: Options) -> Result<Vec<u32>, Fault> {
    let mut gpu = Gpu::with(ptx, options)?;
    let threads = shape.block.iter().product::<u32>() as usize;
    let out = gpu.upload(&vec![0xdead_beefu32; threads])?;
    gpu.launch("k", shape, &[Arg::Pointer(out)])?;
    gpu.download(out, threads)
}

/// One block, under several orders of warps, which must agree.
fn run(body: &str, threads: usize) -> Result<Vec<u32>, Fault> {
    let ptx = kernel("", body);
    let first = run_shape(&ptx, shape(1, threads), Options::default())?;
    for seed in 1..6 {
        let again = run_shape(&ptx, shape(1, threads), Options { seed, ..Options::default() })?;
        assert_eq!(first, again, "seed {seed}");
    }
    Ok(first)
}

fn fault(body: &str, threads: usize) -> Fault {
    run(body, threads).expect_err("expected a finding")
}

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
fn a_lock_held_by_a_lane_of_the_same_warp_is_passed_on() {
    let values = run(
        "    mov.u32 %r5, smem;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra INITIALISED;
    st.shared.u32 [%r5], 0;
    st.shared.u32 [%r5+4], 0;
INITIALISED:
    bar.sync 0;
SPIN:
    atom.shared.cas.b32 %r6, [%r5], 0, 1;
    setp.ne.u32 %p2, %r6, 0;
    @%p2 bra SPIN;
    membar.cta;
    ld.shared.u32 %r7, [%r5+4];
    add.u32 %r7, %r7, 1;
    st.shared.u32 [%r5+4], %r7;
    membar.cta;
    atom.shared.exch.b32 %r8, [%r5], 0;
    bar.sync 0;
    ld.shared.u32 %r2, [%r5+4];",
        96,
    )
    .unwrap();
    assert_eq!(values, vec![96; 96]);
}

#[test]
fn without_fences_the_locked_data_race() {
    let found = fault(
        "    mov.u32 %r5, smem;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra INITIALISED;
    st.shared.u32 [%r5], 0;
    st.shared.u32 [%r5+4], 0;
INITIALISED:
    bar.sync 0;
SPIN:
    atom.shared.cas.b32 %r6, [%r5], 0, 1;
    setp.ne.u32 %p2, %r6, 0;
    @%p2 bra SPIN;
    ld.shared.u32 %r7, [%r5+4];
    add.u32 %r7, %r7, 1;
    st.shared.u32 [%r5+4], %r7;
    atom.shared.exch.b32 %r8, [%r5], 0;",
        64,
    );
    assert_eq!(found.code, Code::LaunchFailed);
    assert!(found.message.starts_with("race: "), "{found}");
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
fn named_barriers_hand_data_from_producers_to_consumers() {
    // Warp 0 fills, warps 1 and 2 wait for it at barrier 1; then they let it go on by barrier 2.
    let body = "    mov.u32 %r5, smem;
    and.b32 %r9, %r1, 31;
    shl.b32 %r6, %r9, 2;
    add.u32 %r5, %r5, %r6;
    setp.ge.u32 %p1, %r1, 32;
    @%p1 bra CONSUME;
    st.shared.u32 [%r5], %r1;
    bar.arrive 1, 96;
    bar.sync 2, 96;
    mul.lo.u32 %r10, %r1, 3;
    st.shared.u32 [%r5], %r10;
    mov.u32 %r2, %r10;
    bra.uni JOIN;
CONSUME:
    bar.sync 1, 96;
    ld.shared.u32 %r2, [%r5];
    bar.arrive 2, 96;
JOIN:";
    let values = run(body, 96).unwrap();
    for (thread, &value) in values.iter().enumerate() {
        let lane = thread as u32 % 32;
        assert_eq!(value, if thread < 32 { 3 * lane } else { lane }, "thread {thread}");
    }
    // Without the second barrier the producer writes while consumers may still read.
    let racing = body.replace("    bar.sync 2, 96;\n", "").replace("    bar.arrive 2, 96;\n", "");
    assert!(fault(&racing, 96).message.starts_with("race: "));
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
fn a_compare_and_swap_loop_may_begin_with_a_plain_load() {
    // Every thread multiplies the word by 3, modulo 2^32, as CUDA's guide writes it.
    let values = run(
        "    mov.u32 %r5, smem;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra INITIALISED;
    st.shared.u32 [%r5], 1;
INITIALISED:
    bar.sync 0;
    ld.shared.u32 %r6, [%r5];
AGAIN:
    mul.lo.u32 %r7, %r6, 3;
    atom.shared.cas.b32 %r8, [%r5], %r6, %r7;
    setp.ne.u32 %p2, %r8, %r6;
    mov.u32 %r6, %r8;
    @%p2 bra AGAIN;
    bar.sync 0;
    ld.shared.u32 %r2, [%r5];",
        64,
    )
    .unwrap();
    assert_eq!(values, vec![3u32.wrapping_pow(64); 64]);
}

#[test]
fn a_value_that_decides_nothing_may_be_uninitialised() {
    // `i < 10 && s[i] > 5`, with the load ahead of its condition, as compilers like it.
    let body = "    mov.u32 %r5, smem;
    shl.b32 %r6, %r1, 2;
    add.u32 %r5, %r5, %r6;
    setp.lt.u32 %p1, %r1, 10;
    @%p1 st.shared.u32 [%r5], %r1;
    ld.shared.u32 %r7, [%r5];
    setp.gt.u32 %p2, %r7, 5;
    and.pred %p3, %p1, %p2;
    setp.gt.and.u32 %p4, %r7, 5, %p1;
    selp.u32 %r8, 1, 0, %p1;
    neg.s32 %r9, %r8;
    and.b32 %r10, %r7, %r9;
    add.u32 %r2, %r10, 100;
    @%p3 add.u32 %r2, %r2, 1000;
    @%p4 add.u32 %r2, %r2, 10000;";
    let values = run(body, 32).unwrap();
    for (i, &value) in values.iter().enumerate() {
        let own = if i < 10 { i } else { 0 };
        assert_eq!(value as usize, own + 100 + if (6..10).contains(&i) { 11_000 } else { 0 }, "thread {i}");
    }
    assert!(
        fault(&body.replace("and.pred %p3, %p1, %p2", "or.pred %p3, %p1, %p2"), 32)
            .message
            .starts_with("uninitialised")
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

/// A producer warp hands a word a time to a consumer warp through a flag, with fences.
const HAND_OVER: &str = "    mov.u32 %r5, smem;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra INITIALISED;
    st.shared.u32 [%r5], 0;
INITIALISED:
    bar.sync 0;
    setp.ge.u32 %p2, %r1, 32;
    @%p2 bra CONSUME;
    shl.b32 %r6, %r1, 2;
    add.u32 %r6, %r5, %r6;
    mov.u32 %r9, 0;
PRODUCE:
    add.u32 %r9, %r9, 1;
    mul.lo.u32 %r7, %r9, 128;
    add.u32 %r7, %r7, %r6;
    mad.lo.u32 %r8, %r9, 1000, %r1;
    st.shared.u32 [%r7], %r8;
    bar.warp.sync 0xffffffff;
    @!%p1 membar.cta;
    @!%p1 st.volatile.shared.u32 [%r5], %r9;
    setp.lt.u32 %p3, %r9, 5;
    @%p3 bra PRODUCE;
    bra.uni JOIN;
CONSUME:
    and.b32 %r10, %r1, 31;
    setp.ne.u32 %p4, %r10, 0;
WAIT:
    @%p4 bra ARRIVED;
    ld.volatile.shared.u32 %r11, [%r5];
    setp.lt.u32 %p5, %r11, 1;
    @%p5 bra WAIT;
    membar.cta;
ARRIVED:
    bar.warp.sync 0xffffffff;
    shl.b32 %r12, %r10, 2;
    add.u32 %r12, %r5, %r12;
    ld.shared.u32 %r2, [%r12+128];
JOIN:";

#[test]
fn a_flag_with_fences_hands_a_warps_data_to_another() {
    let values = run(HAND_OVER, 64).unwrap();
    let expected: Vec<u32> = (0..32).map(|lane| 1000 + lane).collect();
    assert_eq!(values[32..], expected);
    // Without the producer's fence nothing orders the data.
    let without = HAND_OVER.replace("    @!%p1 membar.cta;\n", "");
    assert!(fault(&without, 64).message.starts_with("race: "));
}

#[test]
fn a_lane_may_write_what_all_read_before_the_warp_met() {
    let body = "    mov.u32 %r5, smem;
    setp.ne.u32 %p1, %r1, 0;
    @!%p1 st.shared.u32 [%r5], 41;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r2, [%r5];
    bar.warp.sync 0xffffffff;
    @!%p1 st.shared.u32 [%r5], %r2;
    @!%p1 ld.shared.u32 %r3, [%r5];
    @!%p1 add.u32 %r3, %r3, 1;
    @!%p1 st.shared.u32 [%r5], %r3;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r2, [%r5];";
    assert_eq!(run(body, 32).unwrap(), vec![42; 32]);
}

#[test]
fn lanes_that_meet_in_parts_are_ordered_part_by_part() {
    // Pairs meet, then fours: what lane 0 wrote reaches lane 3 through lane 1 and lane 2.
    let body = "    mov.u32 %r5, smem;
    shl.b32 %r6, %r1, 2;
    add.u32 %r5, %r5, %r6;
    add.u32 %r7, %r1, 500;
    st.shared.u32 [%r5], %r7;
    and.b32 %r8, %r1, 0xfffffffe;
    shl.b32 %r9, 3, %r8;
    bar.warp.sync %r9;
    and.b32 %r8, %r1, 0xfffffffc;
    shl.b32 %r9, 6, %r8;
    add.u32 %r10, %r1, 3;
    and.b32 %r10, %r10, 3;
    setp.lt.u32 %p1, %r10, 2;
    @%p1 bar.warp.sync %r9;
    and.b32 %r8, %r1, 3;
    setp.ne.u32 %p2, %r8, 2;
    mov.u32 %r2, %r7;
    @!%p2 ld.shared.u32 %r2, [%r5+-8];";
    let values = run(body, 32).unwrap();
    for (lane, &value) in values.iter().enumerate() {
        assert_eq!(value as usize, 500 + if lane % 4 == 2 { lane - 2 } else { lane }, "lane {lane}");
    }
    assert!(fault(&body.replace("    @%p1 bar.warp.sync %r9;\n", ""), 32).message.starts_with("race: "));
}

#[test]
fn volatile_and_generic_flags_are_no_race() {
    let values = run(
        "    mov.u32 %r5, smem;
    cvt.u64.u32 %rd5, %r5;
    cvta.shared.u64 %rd6, %rd5;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra INITIALISED;
    st.shared.u32 [%r5], 0;
INITIALISED:
    bar.sync 0;
    setp.ne.u32 %p1, %r1, 40;
    @%p1 bra WAIT;
    st.volatile.u32 [%rd6], 9;
WAIT:
    ld.volatile.u32 %r2, [%rd6];
    setp.ne.u32 %p2, %r2, 9;
    @%p2 bra WAIT;",
        64,
    )
    .unwrap();
    assert_eq!(values, vec![9; 64]);
}

#[test]
fn bytes_on_their_way_may_not_be_written() {
    let body = "    mov.u32 %r5, smem;
    shl.b32 %r6, %r1, 2;
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%rd1], 3;
    cp.async.ca.shared.global [%r5], [%rd1], 4;
    st.shared.u32 [%r5], 4;
    cp.async.wait_all;
    ld.shared.u32 %r2, [%r5];";
    assert!(fault(body, 32).message.starts_with("cp.async: "));
}

#[test]
fn a_word_of_which_a_part_was_written_may_be_copied() {
    let body = "    mov.u32 %r5, smem;
    shl.b32 %r6, %r1, 3;
    add.u32 %r5, %r5, %r6;
    st.shared.u8 [%r5], 7;
    ld.shared.v2.u32 {%r2, %r3}, [%r5];
    and.b32 %r2, %r2, 255;";
    assert_eq!(run(body, 32).unwrap(), vec![7; 32]);
    assert!(fault(&format!("{body}\n    mov.u32 %r2, %r3;"), 32).message.starts_with("uninitialised"));
}

//! What comes before what: barriers, fences, flags, `cp.async`; and which values count as initialised. Correct programs
//! give no finding, and each test takes one ordering away and expects one.

mod support;

use cuda_emulator::fault::Code;
use support::snippet::{fault, run};

/// Every thread adds 1 to a word under a lock that lanes of the same warp fight for.
const LOCKED: &str = "    mov.u32 %r5, smem;
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
    ld.shared.u32 %r2, [%r5+4];";

#[test]
fn a_lock_held_by_a_lane_of_the_same_warp_is_passed_on() {
    let values = run(LOCKED, 96).unwrap();
    assert_eq!(values, vec![96; 96]);
}

#[test]
fn without_fences_the_locked_data_race() {
    let found = fault(&LOCKED.replace("    membar.cta;\n", ""), 96);
    assert_eq!(found.code, Code::LaunchFailed);
    assert!(found.message.starts_with("race: "), "{found}");
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

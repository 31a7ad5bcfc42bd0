//! Calls are inlined; what they compute is seen by running the program for one thread.

use cuda_emulator::fault::Code;
use cuda_emulator::program::{Class, LOCAL_WINDOW, Op, PARAM_WINDOW, SHARED_WINDOW};
use cuda_emulator::ptx::ast::Space;
use cuda_emulator::{lower, ptx};

use crate::interpreter::Thread;
use crate::{bits, fault, kernel, lower_text, source};

/// The parameter buffer of the test kernel.
fn params(p0: u64, p1: u32) -> Vec<u8> {
    [&p0.to_le_bytes()[..], &p1.to_le_bytes()[..]].concat()
}

/// `max(a, b)`, which returns early.
const MAX: &str = ".func (.param .b32 result) larger(.param .b32 a, .param .b32 b)
{ .reg .pred %p<2>; .reg .b32 %r<3>;
  ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b];
  setp.lt.u32 %p1, %r1, %r2;
  @%p1 bra LESS;
  st.param.b32 [result], %r1;
  ret;
LESS:
  st.param.b32 [result+0], %r2;
  ret;
}";

fn call(name: &str, a: &str, b: &str, to: &str) -> String {
    format!(
        "{{ .param .b32 x; st.param.b32 [x+0], {a}; .param .b32 y; st.param.b32 [y+0], {b}; .param .b32 z;
            call.uni (z), {name}, (x, y); ld.param.b32 {to}, [z+0]; }}"
    )
}

#[test]
fn a_function_returns_from_two_places() {
    let body = format!("ld.param.u32 %r1, [p1];\n{}\nst.global.u32 [256], %r2;", call("larger", "%r1", "7", "%r2"));
    let program = kernel(MAX, &body);
    for p1 in [0, 6, 7, 8, u32::MAX] {
        let thread = Thread::run(&program, &params(0, p1));
        assert_eq!(thread.number(Space::Global, 256, 4), p1.max(7) as u64, "p1 = {p1}");
    }
}

#[test]
fn calls_nest_and_repeat_with_registers_of_their_own() {
    let three = format!(
        ".func (.param .b32 out) larger3(.param .b32 a, .param .b32 b)
        {{ .reg .b32 %r<9>; ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b]; mov.u32 %r5, 100;
          {} {} add.u32 %r4, %r4, %r5; st.param.b32 [out], %r4; ret; }}",
        call("larger", "%r1", "%r2", "%r3"),
        call("larger", "%r3", "5", "%r4"),
    );
    let body = format!(
        "ld.param.u32 %r1, [p1]; mov.u32 %r5, 1; {} {} add.u32 %r2, %r2, %r5; st.global.v2.u32 [256], {{%r2, %r3}};",
        call("larger3", "%r1", "9", "%r2"),
        call("larger3", "%r1", "2", "%r3"),
    );
    let program = kernel(&format!("{MAX}\n{three}"), &body);
    for p1 in [0u32, 3, 7, 50] {
        let thread = Thread::run(&program, &params(0, p1));
        assert_eq!(thread.number(Space::Global, 256, 4), (p1.max(9).max(5) + 101) as u64);
        assert_eq!(thread.number(Space::Global, 260, 4), (p1.max(5) + 100) as u64);
    }
    // Two calls after one another use the same local memory: x, y, z and inside it x, y, z again.
    assert_eq!(program.local_bytes, 24);
}

#[test]
fn structs_pass_through_bytes() {
    let function = ".func (.param .align 8 .b8 out[16]) swap(.param .align 8 .b8 in[16])
    { .reg .b32 %r<3>; .reg .b64 %rd<2>;
      ld.param.v2.u32 {%r1, %r2}, [in]; ld.param.u64 %rd1, [in+8];
      st.param.b64 [out], %rd1; st.param.v2.b32 [out+8], {%r2, %r1}; ret; }";
    let body = "ld.param.u32 %r1, [p1]; ld.param.u64 %rd1, [p0];
    { .param .align 8 .b8 x[16]; st.param.v2.b32 [x+0], {%r1, 5}; st.param.b64 [x+8], %rd1;
      .param .align 8 .b8 y[16]; call (y), swap, (x); ld.param.b64 %rd2, [y+0]; ld.param.v2.b32 {%r2, %r3}, [y+8]; }
    st.global.u64 [256], %rd2; st.global.v2.u32 [264], {%r2, %r3};";
    let thread = Thread::run(&kernel(function, body), &params(0x1122_3344_5566_7788, 77));
    assert_eq!(thread.number(Space::Global, 256, 8), 0x1122_3344_5566_7788);
    assert_eq!(thread.number(Space::Global, 264, 8), 77 << 32 | 5);
}

#[test]
fn arguments_and_results_may_be_registers() {
    let body = "ld.param.u32 %r1, [p1]; call (%r2), larger, (%r1, 12); st.global.u32 [256], %r2;";
    let program = kernel(MAX, body);
    assert_eq!(Thread::run(&program, &params(0, 5)).number(Space::Global, 256, 4), 12);
    assert_eq!(Thread::run(&program, &params(0, 50)).number(Space::Global, 256, 4), 50);
}

#[test]
fn a_guarded_call_is_skipped_whole() {
    let function =
        ".func set(.param .b32 a) { .reg .b32 %r<2>; ld.param.u32 %r1, [a]; st.global.u32 [256], %r1; ret; }";
    let body = "mov.u32 %r9, 3; st.global.u32 [256], %r9; ld.param.u32 %r1, [p1]; setp.eq.u32 %p1, %r1, 1;
        @%p1 call set, (%r1); @!%p1 ret; st.global.u32 [260], %r1;";
    let program = kernel(function, body);
    let taken = Thread::run(&program, &params(0, 1));
    assert_eq!((taken.number(Space::Global, 256, 4), taken.number(Space::Global, 260, 4)), (1, 1));
    let skipped = Thread::run(&program, &params(0, 2));
    assert_eq!(skipped.number(Space::Global, 256, 4), 3);
    assert!(!skipped.memory.contains_key(&(Space::Global, 260)));
}

#[test]
fn a_guarded_return_leaves_the_function_alone() {
    let function = ".func early(.param .b32 a) { .reg .pred %p1; .reg .b32 %r<2>; ld.param.u32 %r1, [a];
        setp.eq.u32 %p1, %r1, 0; @%p1 ret; st.global.u32 [256], %r1; }";
    let body = "mov.u32 %r9, 3; st.global.u32 [256], %r9; ld.param.u32 %r1, [p1]; call early, (%r1);
        st.global.u32 [260], %r1;";
    let program = kernel(function, body);
    for (p1, expected) in [(0, 3), (9, 9)] {
        let thread = Thread::run(&program, &params(0, p1));
        assert_eq!(thread.number(Space::Global, 256, 4), expected);
        assert_eq!(thread.number(Space::Global, 260, 4), p1 as u64);
    }
}

#[test]
fn exit_inside_a_function_ends_the_thread() {
    let function = ".func stop() { exit; }";
    let thread = Thread::run(&kernel(function, "call stop; st.global.u32 [256], 1;"), &params(0, 0));
    assert!(thread.memory.keys().all(|&(space, _)| space != Space::Global));
}

#[test]
fn loops_branches_and_tables_run() {
    // Sum of 1..=p1, then a jump table.
    let body = "ld.param.u32 %r1, [p1]; mov.u32 %r2, 0; mov.u32 %r3, %r1;
    LOOP: setp.eq.u32 %p1, %r3, 0; @%p1 bra DONE; add.u32 %r2, %r2, %r3; sub.u32 %r3, %r3, 1; bra.uni LOOP;
    DONE: st.global.u32 [256], %r2;
      TABLE: .branchtargets A, B, C;
      brx.idx %r1, TABLE;
    A: mov.u32 %r4, 10; bra END;
    B: mov.u32 %r4, 11; bra END;
    C: mov.u32 %r4, 12;
    END: st.global.u32 [260], %r4;";
    let program = kernel("", body);
    for p1 in 0..3u32 {
        let thread = Thread::run(&program, &params(0, p1));
        assert_eq!(thread.number(Space::Global, 256, 4), (0..=p1).sum::<u32>() as u64);
        assert_eq!(thread.number(Space::Global, 260, 4), 10 + p1 as u64);
    }
}

#[test]
fn inner_scopes_hide_outer_names() {
    let body = "mov.u32 %r1, 1; mov.u32 %r2, 2;
    { .reg .b32 %r1; .reg .b32 %r2; mov.u32 %r1, 7; bra SAME; mov.u32 %r1, 8; SAME: mov.u32 %r2, %r1;
      st.global.u32 [256], %r2; }
    bra SAME; mov.u32 %r1, 9;
    SAME: st.global.v2.u32 [260], {%r1, %r2};";
    let thread = Thread::run(&kernel("", body), &params(0, 0));
    assert_eq!(thread.number(Space::Global, 256, 4), 7);
    assert_eq!(thread.number(Space::Global, 260, 8), 2 << 32 | 1);
}

#[test]
fn generic_addresses_reach_their_space() {
    let body = ".local .align 8 .b8 depot[16]; .shared .align 4 .b8 tile[8];
    mov.u64 %rd1, depot; add.u64 %rd1, %rd1, 4; cvta.local.u64 %rd2, %rd1; st.u32 [%rd2], 11; ld.local.u32 %r1, [depot+4];
    mov.u64 %rd3, tile; cvta.shared.u64 %rd4, %rd3; st.u32 [%rd4+4], 22; ld.shared.u32 %r2, [tile+4];
    cvta.to.shared.u64 %rd5, %rd4; ld.shared.u32 %r3, [%rd5+4];
    mov.u64 %rd6, p1; cvta.param.u64 %rd7, %rd6; ld.u32 %r4, [%rd7];
    st.global.v4.u32 [256], {%r1, %r2, %r3, %r4};
    isspacep.local %p1, %rd2; isspacep.shared %p2, %rd4; isspacep.global %p3, %rd4; isspacep.global %p4, 256;
    selp.u32 %r1, 1, 0, %p1; selp.u32 %r2, 1, 0, %p2; selp.u32 %r3, 1, 0, %p3; selp.u32 %r4, 1, 0, %p4;
    st.global.v4.u32 [272], {%r1, %r2, %r3, %r4}; st.global.u64 [288], %rd2; st.global.u64 [296], %rd4;
    st.global.u64 [304], %rd7; cvta.to.global.u64 %rd8, %rd2; st.global.u64 [312], %rd8;";
    let program = kernel("", body);
    let thread = Thread::run(&program, &params(0, 33));
    let words: Vec<u64> = (0..8).map(|word| thread.number(Space::Global, 256 + 4 * word, 4)).collect();
    assert_eq!(words, [11, 22, 22, 33, 1, 1, 0, 1]);
    assert_eq!(thread.number(Space::Global, 288, 8), LOCAL_WINDOW + 4);
    assert_eq!(thread.number(Space::Global, 296, 8), SHARED_WINDOW);
    assert_eq!(thread.number(Space::Global, 304, 8), PARAM_WINDOW + 8);
    assert_eq!(thread.number(Space::Global, 312, 8), LOCAL_WINDOW + 4, "cvta.to.global changes nothing");
}

#[test]
fn narrow_loads_extend_and_narrow_stores_cut() {
    let body = "mov.u32 %r1, 0xFFFFFF80; st.global.u8 [256], %r1; ld.global.s8 %r2, [256]; ld.global.u8 %r3, [256];
    ld.global.s8 %rs1, [256]; cvt.u32.u16 %r4, %rs1; ld.global.s8 %rd1, [256]; st.global.u16 [264], %rd1;
    st.global.v2.u32 [272], {%r2, %r3}; st.global.u32 [280], %r4; st.global.u64 [288], %rd1;";
    let thread = Thread::run(&kernel("", body), &params(0, 0));
    assert_eq!(thread.number(Space::Global, 256, 1), 0x80);
    assert!(!thread.memory.contains_key(&(Space::Global, 257)));
    assert_eq!(thread.number(Space::Global, 264, 2), 0xFF80);
    assert_eq!(thread.number(Space::Global, 272, 4), 0xFFFF_FF80);
    assert_eq!(thread.number(Space::Global, 276, 4), 0x80);
    assert_eq!(thread.number(Space::Global, 280, 4), 0xFF80, "a 16-bit register keeps zeros above");
    assert_eq!(thread.number(Space::Global, 288, 8), 0xFFFF_FFFF_FFFF_FF80);
}

const VPRINTF: &str = ".extern .func (.param .b32 status) vprintf(.param .b64 format, .param .b64 arguments);
.global .align 1 .b8 text[4] = {37, 100, 10, 0};";

#[test]
fn vprintf_gets_both_addresses() {
    let body = ".local .align 8 .b8 depot[8]; mov.u64 %rd1, depot; cvta.local.u64 %rd1, %rd1; mov.u64 %rd2, text;
    { .param .b64 x; st.param.b64 [x+0], %rd2; .param .b64 y; st.param.b64 [y+0], %rd1; .param .b32 z;
      call.uni (z), vprintf, (x, y); ld.param.b32 %r1, [z+0]; } st.global.u32 [256], %r1;";
    let thread = Thread::run(&kernel(VPRINTF, body), &params(0, 0));
    assert_eq!(thread.printed, [(0x1000, LOCAL_WINDOW)]);
    assert_eq!(thread.number(Space::Global, 256, 4), 1);
}

#[test]
fn assertfail_gets_its_arguments() {
    let function =
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);";
    let program = kernel(function, "call.uni __assertfail, (%rd1, %rd2, 23, %rd3, 1);");
    let found = program.code.iter().any(|i| matches!(i.op, Op::AssertFail { .. }));
    assert!(found, "{:?}", program.code);
    // The line number is a constant that goes through the parameter's bytes.
    let stored = program.code.iter().find_map(|i| match &i.op {
        Op::Store { value, from, .. } if value.bytes == 4 => Some(bits(&program, Class::R32, from[0])),
        _ => None,
    });
    assert_eq!(stored, Some(23));
}

#[test]
fn what_cannot_be_called_is_an_error_that_names_it() {
    let cases = [
        (
            ".extern .func (.param .b64 r) malloc(.param .b64 n);",
            "call (%rd1), malloc, (8);",
            Code::NotSupported,
            "malloc",
        ),
        (".extern .func free(.param .b64 n);", "call free, (%rd1);", Code::NotSupported, "free"),
        (
            ".extern .func (.param .b32 r) cudaMalloc(.param .b64 n, .param .b64 m);",
            "call (%r1), cudaMalloc, (%rd1, 8);",
            Code::NotSupported,
            "cudaMalloc",
        ),
        (".extern .func other();", "call other;", Code::InvalidPtx, "other has no body"),
        ("", "call nothing;", Code::InvalidPtx, "nothing is not declared"),
        ("", "call (%r1), %rd1, (%r2), proto;", Code::NotSupported, "indirect"),
        ("", "call %rd1;", Code::NotSupported, "indirect"),
        (".func two(.param .b32 a, .param .b32 b) { ret; }", "call two, (%r1);", Code::InvalidPtx, "expected 2"),
        (".func one(.param .b32 a) { ret; }", "call one, (%rd1);", Code::InvalidPtx, "%rd1"),
        (
            ".func one(.param .b32 a) { ret; }",
            "{ .param .b64 x; call one, (x); }",
            Code::InvalidPtx,
            "x has 8 bytes, parameter a has 4",
        ),
        (".extern .func vprintf(.param .b64 n);", "call vprintf, (%rd1);", Code::InvalidPtx, "vprintf"),
        ("", "call k, (%rd1, %r1);", Code::NotSupported, "kernel k"),
    ];
    for (declarations, body, code, part) in cases {
        let fault = fault(declarations, body);
        assert_eq!(fault.code, code, "{fault}");
        assert!(fault.message.contains(part) && fault.message.contains("kernel k, PTX line"), "{fault}");
        assert!(!fault.message.contains('\n'), "{fault}");
    }
}

#[test]
fn recursion_names_the_cycle() {
    let functions = ".func b(); .func a() { call b; ret; } .func b() { call a; ret; }";
    let fault = fault(functions, "call a;");
    assert_eq!(fault.code, Code::NotSupported);
    assert!(fault.message.contains("a calls b calls a"), "{fault}");
}

#[test]
fn code_that_doubles_at_each_level_is_refused() {
    for leaf in ["", "st.global.u32 [256], 1;"] {
        let mut functions = format!(".func f0() {{ {leaf} ret; }}\n");
        for level in 1..40 {
            functions += &format!(".func f{level}() {{ call f{0}; call f{0}; ret; }}\n", level - 1);
        }
        let fault = fault(&functions, "call f39;");
        assert!(fault.message.contains("instructions after inlining"), "{fault}");
    }
}

#[test]
fn a_very_deep_chain_is_refused() {
    let mut functions = ".func f0() { ret; }\n".to_string();
    for level in 1..5000 {
        functions += &format!(".func f{level}() {{ call f{}; ret; }}\n", level - 1);
    }
    let fault = fault(&functions, "call f4999;");
    assert!(fault.message.contains("deep"), "{fault}");
}

#[test]
fn a_callee_does_not_see_its_caller() {
    let text = source(".func f() { .reg .b32 %q; mov.u32 %q, %r1; ret; }", "mov.u32 %r1, 3; call f;");
    let fault = lower_text(&text).expect_err("%r1 is the kernel's");
    assert!(fault.message.contains("%r1 is not declared") && fault.message.contains("function f"), "{fault}");
}

#[test]
fn kernels_that_call_a_large_function_have_a_limit_together() {
    let function = format!(".func f() {{ {} ret; }}\n", "membar.cta; ".repeat(10_000));
    let kernels: String = (0..150).map(|n| format!(".visible .entry k{n}() {{ call f; ret; }}\n")).collect();
    let text = format!(".version 8.0\n.target sm_80\n.address_size 64\n{function}{kernels}");
    let lowered = lower::lower_each(&ptx::parse(&text).expect("valid"), &Default::default()).expect("valid");
    assert!(lowered[..100].iter().all(|(_, kernel)| kernel.is_ok()));
    let (_, last) = lowered.last().expect("150");
    let fault = last.as_ref().expect_err("the limit is passed");
    assert_eq!(fault.code, Code::NotSupported);
    assert!(fault.message.contains("the module's kernels have more than"), "{fault}");
}

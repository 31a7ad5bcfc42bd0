//! Where variables and parameters lie, the lines of the source, and what a program says of its kernel.

use cuda_emulator::lower::{self, ModuleVariable};
use cuda_emulator::program::{Class, Op, ParamSlot, Program};
use cuda_emulator::ptx;
use cuda_emulator::ptx::ast::Space;

use crate::{bits, kernel, lower_text, source};

const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

fn variables(declarations: &str) -> Result<Vec<ModuleVariable>, String> {
    let module = ptx::parse(&format!("{HEAD}{declarations}")).expect("valid");
    lower::module_variables(&module).map_err(|fault| fault.message)
}

#[test]
fn module_variables_have_bytes_and_patches() {
    let found = variables(
        ".global .align 4 .u32 count; .const .align 8 .b8 table[4] = {1, 2, 255};
        .global .align 8 .u64 pointers[3] = {generic(count), count+4, 9}; .shared .align 4 .b8 s[8];
        .global .align 2 .u16 halves[4] = {1, 65535}; .global .align 4 .f32 one = 0f3F800000;",
    )
    .expect("valid");
    let names: Vec<&str> = found.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(names, ["count", "table", "pointers", "halves", "one"], "shared memory is not placed by the device");
    assert_eq!((found[0].bytes, found[0].align, found[0].init.pieces.len()), (4, 4, 0));
    assert_eq!((found[1].space, found[1].bytes, found[1].align), (Space::Const, 4, 8));
    assert_eq!(found[1].init.pieces, [(0, vec![1, 2, 255])]);
    assert_eq!(found[2].init.addresses, [(0, "count".to_string(), 0), (8, "count".to_string(), 4)]);
    assert_eq!(found[2].init.pieces, [(16, vec![9, 0, 0, 0, 0, 0, 0, 0])]);
    assert_eq!(found[3].init.pieces, [(0, vec![1, 0, 255, 255])]);
    assert_eq!(found[4].init.pieces, [(0, 1.0f32.to_le_bytes().to_vec())]);
}

#[test]
fn module_variables_that_cannot_be_placed() {
    let cases = [
        (".extern .global .align 4 .u32 far;", "far is declared .extern but nothing defines it"),
        (".global .align 8 .u64 p = nowhere;", "nowhere is no .global or .const variable"),
        (".func f() { ret; } .global .align 8 .u64 p[1] = {f};", "the address of function f is not supported"),
        (".global .u32 g; .global .align 4 .u32 p = g;", "needs 8 bytes"),
        (".shared .align 4 .u32 s; .global .align 8 .u64 p = s;", "s is no .global or .const variable"),
    ];
    for (declarations, part) in cases {
        let message = variables(declarations).expect_err(declarations);
        assert!(message.contains(part), "{message}");
    }
    let both = variables(".extern .global .align 4 .u32 g; .global .align 4 .u32 g;").expect("declared, then defined");
    assert_eq!(both.len(), 1);
}

#[test]
fn a_variable_without_an_address_is_an_error() {
    let module = ptx::parse(&source(".global .u32 g;", "ret;")).expect("valid");
    let fault = lower::lower(&module, &Default::default()).expect_err("no address");
    assert!(fault.message.contains("variable g was given no address"), "{fault}");
}

/// The constant bases of the shared stores, in the order of the code.
fn shared_bases(program: &Program) -> Vec<u64> {
    let store = |op: &Op| match op {
        Op::Store { space: Space::Shared, address, .. } => Some(bits(program, Class::R64, address.base)),
        _ => None,
    };
    program.code.iter().filter_map(|instruction| store(&instruction.op)).collect()
}

#[test]
fn shared_memory_of_module_kernel_and_callee() {
    let declarations = ".shared .align 1 .b8 a[3]; .shared .align 16 .b8 unused[4096]; .shared .align 8 .b8 b[8];
    .extern .shared .align 16 .b8 dynamic[];
    .func f() { .shared .align 4 .b8 inner[4]; st.shared.u32 [inner], 1; ret; }";
    let body = ".shared .align 2 .b8 own[2]; st.shared.u8 [a], 1; st.shared.u64 [b], 1; st.shared.u16 [own], 1;
        call f; call f; st.shared.u32 [dynamic], 1;";
    let program = kernel(declarations, body);
    // a at 0, b at 8, own at 16, inner at 20 for both calls, then the dynamic part at a multiple of 16.
    assert_eq!(shared_bases(&program), [0, 8, 16, 20, 20, 32]);
    assert_eq!((program.static_shared, program.dynamic_shared), (24, 32));
}

#[test]
fn only_named_shared_variables_count() {
    let program = kernel(".shared .align 4 .b8 a[64]; .extern .shared .align 16 .b8 dynamic[];", "ret;");
    assert_eq!((program.static_shared, program.dynamic_shared), (0, 0));
    let program = kernel(".shared .align 4 .b8 a[64];", "mov.u32 %r1, a;");
    assert_eq!((program.static_shared, program.dynamic_shared), (64, 64));
    // Dynamic arrays of several types begin at one address.
    let declarations = ".shared .align 4 .b8 a[4]; .extern .shared .align 4 .b8 x[]; .extern .shared .align 8 .b8 y[];";
    let program = kernel(declarations, "st.shared.u32 [a], 1; st.shared.u32 [x], 1; st.shared.u32 [y], 1;");
    assert_eq!(shared_bases(&program), [0, 8, 8]);
}

#[test]
fn parameters_are_aligned() {
    let text = format!(
        "{HEAD}.entry k(.param .u8 a, .param .align 8 .b8 s[24], .param .u16 h, .param .u64 p, .param .u32 n)
        .maxntid 256, 2, 1 .minnctapersm 3 .maxnreg 64 {{ ret; }}
        .entry none .reqntid 32 {{ }}"
    );
    let programs = lower_text(&text).expect("valid");
    let slot = |name: &str, offset, bytes, align| ParamSlot { name: name.to_string(), offset, bytes, align };
    let expected =
        [slot("a", 0, 1, 1), slot("s", 8, 24, 8), slot("h", 32, 2, 2), slot("p", 40, 8, 8), slot("n", 48, 4, 4)];
    assert_eq!(programs[0].params, expected);
    assert_eq!(programs[0].param_bytes, 52);
    assert_eq!((programs[0].max_threads, programs[0].required_threads), (Some([256, 2, 1]), None));
    assert_eq!((programs[0].min_blocks, programs[0].max_registers), (Some(3), Some(64)));
    assert_eq!((programs[1].name.as_str(), programs[1].param_bytes), ("none", 0));
    assert_eq!(programs[1].required_threads, Some([32, 1, 1]));
}

#[test]
fn local_memory_is_shared_between_scopes() {
    let body = ".local .align 16 .b8 depot[20]; { .local .align 8 .b8 x[8]; } { .local .align 4 .b8 y[4]; }";
    assert_eq!(kernel("", body).local_bytes, 32);
}

#[test]
fn registers_and_predicates_of_every_class_are_reused() {
    let mut body = "ld.param.u64 %rd1, [p0]; ld.global.u32 %r1, [%rd1];".to_string();
    for _ in 0..200 {
        body += "setp.eq.u32 %p1, %r1, 3; @%p1 add.u32 %r1, %r1, 1; cvt.u64.u32 %rd2, %r1; add.u64 %rd1, %rd1, %rd2;";
    }
    let program = kernel("", &format!("{body} st.global.u32 [%rd1], %r1;"));
    let constants = |class| program.presets.iter().filter(|preset| preset.0 == class).count() as u32;
    assert_eq!(program.registers.r32 - constants(Class::R32), 1);
    assert_eq!(program.registers.r64 - constants(Class::R64), 2);
    assert_eq!(program.registers.pred, 1);
    assert_eq!(program.live_registers, 5);
    assert!(program.undefined.is_empty());
}

#[test]
fn lines_name_the_source_through_inlining_and_calls() {
    let text = format!(
        "{HEAD}.func f() {{ .reg .b32 %r1; .loc 2 7 3\n mov.u32 %r1, 1; st.global.u32 [256], %r1; ret; }}
        .entry k() {{ .reg .b32 %r<3>;
        .loc 1 10 1\n mov.u32 %r1, 5;
        .loc 2 30 1, function_name $L__info_string0, inlined_at 1 10 1\n add.u32 %r1, %r1, 1;
        .loc 1 12 1\n call f;
        .loc 1 13 1\n ret; }}
        .file 1 \"/home/user/kernel.cu\"\n.file 2 \"/home/user/helper.cuh\"
        .section .debug_str {{ $L__info_string0: .b8 102, 0 }}"
    );
    let program = lower_text(&text).expect("valid").remove(0);
    let frames: Vec<Vec<(&str, u32)>> = program
        .code
        .iter()
        .map(|i| program.lines[i.line as usize].frames.iter().map(|f| (&*f.file, f.line)).collect())
        .collect();
    let (kernel, helper) = ("/home/user/kernel.cu", "/home/user/helper.cuh");
    assert_eq!(
        frames,
        [
            vec![(kernel, 10)],
            vec![(helper, 30), (kernel, 10)],
            vec![(helper, 7), (kernel, 12)],
            vec![(helper, 7), (kernel, 12)],
            vec![(kernel, 13)],
        ]
    );
    let forms: Vec<&str> = program.code.iter().map(|i| program.lines[i.line as usize].form.as_str()).collect();
    assert_eq!(forms, ["mov.u32", "add.u32", "mov.u32", "st.global.u32", "ret"]);
    assert!(program.lines.iter().all(|line| line.ptx_line > 3));
    // Nothing is listed twice: these five, the call, and the function's last `ret`, which needs no instruction.
    assert_eq!(program.lines.len(), 7);
}

#[test]
fn only_kernels_become_programs() {
    let text = format!("{HEAD}.func f() {{ ret; }} .entry a() {{ ret; }} .entry b() {{ call f; ret; }}");
    let names: Vec<String> = lower_text(&text).expect("valid").into_iter().map(|program| program.name).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn families_and_names_resolve() {
    // A family whose prefix ends in a digit, and a name that only looks like a member.
    let body = ".reg .b32 %q1<5>; .reg .b32 %z7; mov.u32 %q14, 3; mov.u32 %z7, %q14; st.global.u32 [256], %z7;";
    assert_eq!(kernel("", body).registers.r32, 2);
}

//! What the parser refuses, and what it says: one line with the place and the offending text.

use cuda_emulator::fault::{Code, Fault};
use cuda_emulator::ptx::parse;

fn fault(text: &str) -> Fault {
    let fault = parse(text).expect_err(text);
    assert!(!fault.message.contains('\n'), "{}", fault.message);
    assert!(fault.message.len() < 400, "{}", fault.message);
    fault
}

/// The error for a text after the usual head of three lines.
fn item_fault(items: &str) -> String {
    let fault = fault(&format!(".version 9.0\n.target sm_80\n.address_size 64\n{items}"));
    assert_eq!(fault.code, Code::InvalidPtx, "{}", fault.message);
    fault.message
}

/// The error for a statement on line 5.
fn statement_fault(statement: &str) -> String {
    item_fault(&format!(".entry k() {{\n{statement}\n}}\n"))
}

#[track_caller]
fn has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn what_is_not_ptx() {
    for (text, found) in [
        ("", "nothing"),
        ("  \n// a comment\n", "nothing"),
        ("#include <cuda_fp16.h>\n", "\"#include <cuda_fp16.h>\""),
        ("__global__ void k() {}", "\"__global__ void k() {}\""),
        ("\u{7f}ELF\u{2}\u{0}", "\"\\u{7f}ELF\\u{2}\\u{0}\""),
        ("\u{feff}.version 9.0", "\u{feff}.version"),
        (".target sm_80", "\".target sm_80\""),
    ] {
        let fault = fault(text);
        assert_eq!(fault.code, Code::InvalidPtx);
        has(&fault.message, &["not PTX: found ", found, "expected .version"]);
    }
}

#[test]
fn versions_and_targets() {
    for version in ["9.1", "10.0", "4294967295.0"] {
        let fault = fault(&format!("// newer\n.version {version}\n.target sm_80\n"));
        assert_eq!(fault.code, Code::UnsupportedPtxVersion);
        has(&fault.message, &["PTX line 2", &format!(".version {version}"), "at most 9.0"]);
    }
    for text in
        [".version 9", ".version x", ".version 4294967296.0", ".version 9.0", ".version 9.0 .target", ".version"]
    {
        assert_eq!(fault(text).code, Code::InvalidPtx, "{text}");
    }
    has(&fault(".version 9.0\n.target compute_80\n").message, &["PTX line 2", "\"compute_80\"", "sm_80"]);
    has(&fault(".version 9.0\n.target sm_80, fast\n").message, &["\"fast\""]);
    has(
        &fault(".version 9.0\n.target sm_80\n.address_size 32\n").message,
        &["PTX line 3", "found \"32\", expected 64"],
    );
}

#[test]
fn errors_name_line_and_text() {
    has(
        &statement_fault("\tld.global.f32 %f1, [%rd1;"),
        &["PTX line 5: found \";\", expected \"]\", in \"ld.global.f32 %f1, [%rd1;\""],
    );
    has(&statement_fault("mov.u32 %r1 %r2;"), &["PTX line 5: found \"%r2\"", "after an operand of mov"]);
    has(&statement_fault("add.s32 %r1, %r2,;"), &["found \";\", expected an operand"]);
    has(&statement_fault("%r1 = %r2;"), &["found \"%r1\", expected an opcode"]);
    has(&statement_fault("mov.u32 %r1, 08;"), &["found \"08\", expected a number"]);
    has(&statement_fault("é;"), &["found \"é\""]);
    has(&statement_fault("ret; ;"), &["found \";\", expected an instruction"]);
    has(&statement_fault("/* no end"), &["PTX line 5: found \"/* no end"]);
    has(&statement_fault(".pragma \"no end;"), &["PTX line 5", "expected a pragma's text"]);
    has(&item_fault(".entry k() { ret;"), &["the end of the text"]);
    has(&item_fault(".entry k() { ret; } }"), &["found \"}\", expected a directive"]);
    has(&item_fault("mov.u32 %r1, 1;"), &["found \"mov.u32\", expected a directive"]);
    has(&item_fault(".visible .file 1 \"a\""), &["found \".file\""]);
    let long = "x".repeat(100_000);
    has(&statement_fault(&format!("mov.u32 {long} {long};")), &["PTX line 5", "…"]);
}

#[test]
fn what_is_known_and_refused() {
    for (items, what) in [
        (".alias f, g;", ".alias"),
        (".global .attribute(.managed) .u32 x;", ".attribute"),
        (".global .texref t;", ".texref"),
        (".global .u32 x = 0xFF(y);", "\"(\""),
        (".global .u64 x = mask(y);", "mask(…)"),
        (".global .f16 x = 1;", "F16"),
        (".global .f32 x = 1;", "F32"),
        (".global .u8 x = y;", "address"),
        (".global .pred p;", ".pred"),
        (".shared .u32 x = 1;", "initial value"),
        (".local .u32 x;", ".local"),
        (".func f (.reg .b32 x) { ret; }", "register"),
        (".entry k() .unknown 3 { ret; }", ".unknown"),
    ] {
        has(&item_fault(items), &["PTX line 4", what]);
    }
    for (statement, what) in [
        (".reg .v4 .f32 x;", "vector"),
        (".section .debug_str { }", ".section"),
        ("tex.1d.v4.f32.f32 {a, b, c, d}, [t, {x}];", "coordinates"),
        ("mov.u64 %rd1, name+8;", "outside brackets"),
        (".branchtargets A;", "without a label"),
    ] {
        has(&statement_fault(statement), &["PTX line 5", what]);
    }
}

#[test]
fn sizes_have_limits() {
    for items in [
        ".global .b8 x[1000000000000000000];",
        ".global .b8 x[18446744073709551616];",
        ".global .b64 x[68719476736][16];",
        ".global .v4 .b64 x[68719476736];",
        ".global .b8 x[4294967296][4294967296][4294967296];",
        ".shared .b8 x[4294967296];",
        ".global .b8 x[0];",
        ".global .b8 x[];",
        ".global .b8 x[1][1][1][1][1][1][1][1][1];",
        ".global .align 3 .b8 x;",
        ".global .align 0 .b8 x;",
        ".global .align 9223372036854775808 .b8 x;",
        ".global .b8 x[2] = {1, 2, 3};",
        ".global .b8 x[2][2] = {1, 2};",
        ".global .b8 x[2] = {1, 2,};",
        ".global .b8 x = {1};",
        ".entry k() .maxntid 0 { ret; }",
        ".entry k() .maxntid 4294967295, 4294967295, 4294967295 { ret; }",
        ".entry k() .maxntid 4294967296 { ret; }",
        ".entry k() .maxnreg 0 { ret; }",
        ".entry k() { .reg .b32 %r<4000000000>; ret; }",
        ".entry k() { .reg .b32 %r<99999999999999999999>; ret; }",
    ] {
        has(&item_fault(items), &["PTX line 4"]);
    }
}

#[test]
fn values_left_out_take_no_room() {
    let head = ".version 9.0\n.target sm_80\n.address_size 64\n";
    let module = parse(&format!("{head}.global .b8 x[1000][1000000] = {{{{1}}, {{}}, {{3, 4}}}};")).unwrap();
    assert_eq!(module.variables[0].init.pieces, [(0, vec![1]), (2_000_000, vec![3, 4])]);
}

#[test]
fn nesting_has_limits() {
    has(&statement_fault(&"{".repeat(1_000_000)), &["64 deep"]);
    has(&statement_fault(&format!("mov.u32 %r1, {}1;", "(".repeat(1_000_000))), &["32 deep"]);
    has(&statement_fault(&format!("mov.b64 %rd1, {}", "{".repeat(1_000_000))), &["found \"{\""]);
    has(&statement_fault(&format!("call f, {}", "(".repeat(1_000_000))), &["32 deep"]);
    has(&item_fault(&format!(".global .b8 x[2] = {}", "{".repeat(1_000_000))), &["found \"{\""]);
    has(&item_fault(&format!(".section .debug_info {}", "{".repeat(1_000_000))), &["found \"{\""]);
}

#[test]
fn names_defined_twice() {
    has(&item_fault(".global .u32 x;\n.global .u32 x;"), &["PTX line 5: x is defined twice"]);
    has(&item_fault(".func f { ret; }\n.func f { ret; }"), &["PTX line 5: f is defined twice, first on line 4"]);
    has(&item_fault(".file 1 \"a\"\n.file 1 \"b\""), &["PTX line 5: file 1 is declared twice"]);
    has(&statement_fault(".loc 1 5 3, function_name S, inlined_at 1 9 9"), &["no .loc 1 9 9 stands before"]);
}

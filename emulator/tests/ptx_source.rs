//! From an instruction to the user's line: the file table, chains of inlined calls, and how a place is written.

use cuda_emulator::program::{Frame, SourceLine};
use cuda_emulator::ptx::ast::{Instruction, Module, Statement};
use cuda_emulator::ptx::parse;
use cuda_emulator::ptx::source::{frames, inlined_function};

const TOOLKIT: &str = "/opt/nvidia/cu13/bin/..//include/cuda_bf16.hpp";

/// A kernel's statements, with the file table behind it as nvcc writes it.
fn module(statements: &str) -> Module {
    parse(&format!(
        ".version 9.0\n.target sm_80\n.address_size 64\n.entry k()\n{{\n{statements}\n}}
        .file 2 \"/home/me/kernels/ptx.cuh\"\n\t.file\t1 \"/home/me/kernels/matmul.cu\"\n.file 3 \"{TOOLKIT}\"
        .section .debug_str\n{{\n$L__info_string0:\n.b8 95,90,53\n.b8 108,111,97,100,0
        $L__info_string1:\n.b8 97,0,98,99,0\n}}\n"
    ))
    .unwrap()
}

fn instructions(module: &Module) -> Vec<&Instruction> {
    let body = module.functions[0].body.as_ref().unwrap();
    body.iter()
        .filter_map(|statement| match statement {
            Statement::Instruction(instruction) => Some(instruction),
            _ => None,
        })
        .collect()
}

/// Each instruction's place, as a diagnosis writes it.
fn places(statements: &str) -> Vec<String> {
    let module = module(statements);
    let line = |instruction: &&Instruction| SourceLine {
        frames: instruction.source.as_ref().map(|location| frames(&module, location)).unwrap_or_default().into(),
        ptx_line: instruction.line,
        form: instruction.form(),
    };
    instructions(&module).iter().map(|instruction| line(instruction).to_string()).collect()
}

#[test]
fn plain_lines() {
    let places = places("ret;\n.loc 1 24 3\nret;\nret;\n.loc 2 7 1\nret;\n.loc 9 1 1\nret;");
    assert_eq!(places, ["PTX line 6", "matmul.cu:24", "matmul.cu:24", "ptx.cuh:7", "PTX line 13"]);
}

#[test]
fn chains_of_inlined_calls() {
    let places = places(
        ".loc 1 88 3
        .loc 2 31 5, function_name $L__info_string0, inlined_at 1 88 3
        .loc 3 474 1, function_name $L__info_string1+2, inlined_at 2 31 5
        mov.u32 a, 1;
        .loc 1 90 3
        .loc 3 474 1, function_name $L__info_string1+2, inlined_at 1 90 3
        mov.u32 a, 1;",
    );
    assert_eq!(places, ["matmul.cu:88 (in ptx.cuh:31)", "matmul.cu:90"]);
}

#[test]
fn one_helper_called_from_two_lines() {
    let text = ".loc 1 88 3
        .loc 2 31 5, function_name $L__info_string0, inlined_at 1 88 3
        .loc 3 474 1, function_name $L__info_string1, inlined_at 2 31 5
        mov.u32 a, 1;
        .loc 1 90 3
        .loc 2 31 5, function_name $L__info_string0, inlined_at 1 90 3
        .loc 3 474 1, function_name $L__info_string1, inlined_at 2 31 5
        mov.u32 a, 1;";
    let module = module(text);
    let lines: Vec<Vec<u32>> = instructions(&module)
        .iter()
        .map(|instruction| {
            frames(&module, instruction.source.as_ref().unwrap()).iter().map(|frame| frame.line).collect()
        })
        .collect();
    assert_eq!(lines, [[474, 31, 88], [474, 31, 90]]);
}

#[test]
fn names_of_inlined_functions() {
    let module = module(
        ".loc 1 88 3
        .loc 2 31 5, function_name $L__info_string0+2, inlined_at 1 88 3
        ret;
        .loc 2 31 5, function_name $L__info_string1, inlined_at 1 88 3
        ret;
        .loc 2 31 5, function_name $L__info_string1+2, inlined_at 1 88 3
        ret;
        .loc 2 31 5, function_name $L__info_string1+99, inlined_at 1 88 3
        ret;
        .loc 2 31 5, function_name nowhere, inlined_at 1 88 3
        ret;",
    );
    let names: Vec<_> = instructions(&module)
        .iter()
        .map(|instruction| inlined_function(&module, instruction.source.as_ref().unwrap()))
        .collect();
    assert_eq!(names, [Some("5load"), Some("a"), Some("bc"), None, None]);
}

#[test]
fn a_line_of_zero_takes_the_one_before() {
    let places = places(
        ".loc 1 0 0
        ret;
        .loc 1 27 3
        ret;
        .loc 1 0 0
        ret;
        .loc 2 31 5, function_name $L__info_string0, inlined_at 1 27 3
        .loc 1 0 3
        ret;",
    );
    assert_eq!(places, ["PTX line 7", "matmul.cu:27", "near matmul.cu:27", "near matmul.cu:27 (in ptx.cuh:31)"]);
}

#[test]
fn recursion_inlined_into_itself_stays_short() {
    let mut text = String::from(".loc 1 5 3\n.loc 1 0 0\n");
    for _ in 0..10_000 {
        text += ".loc 1 5 3, function_name S, inlined_at 1 5 3\n.loc 1 0 0, function_name S, inlined_at 1 0 0\n.loc 1 0 0\n";
        text += ".loc 1 5 3, function_name S, inlined_at 1 0 0\n";
    }
    let module = module(&(text + "ret;"));
    let source = instructions(&module)[0].source.clone().unwrap();
    assert!(frames(&module, &source).len() <= 64);
}

#[test]
fn which_frame_is_the_users() {
    let line = |files: &[&str]| {
        let frames = files.iter().enumerate().map(|(n, file)| Frame { file: (*file).into(), line: n as u32 + 1 });
        SourceLine { frames: frames.collect(), ptx_line: 9, form: "ret".into() }
    };
    for header in [
        TOOLKIT,
        "/usr/local/cuda/bin/../targets/x86_64-linux/include/cuda_fp16.h",
        "/usr/local/cuda-13.0/include/mma.h",
        "/usr/local/cuda-13.0/targets/x86_64-linux/include/cccl/cub/block/block_reduce.cuh",
        "C:\\CUDA\\v13.0\\include\\crt\\mma.hpp",
        "/x/site-packages/nvidia/cu13/include/cooperative_groups/details/helpers.h",
        "/usr/include/c++/13/bits/move.h",
        "sm_30_intrinsics.hpp",
    ] {
        let line = line(&[header, "/me/a.cu"]);
        assert_eq!(line.user_frame().map(|frame| frame.line), Some(2), "{header}");
    }
    for mine in ["/me/cuda-course/include/tile.cuh", "/me/cudakernels/ptx.cuh", "ptx.cuh", "/me/include/mma.cuh"] {
        let line = line(&[mine, "/usr/include/x.h"]);
        assert_eq!(line.user_frame().map(|frame| frame.line), Some(1), "{mine}");
    }
    assert_eq!(line(&["/me/a.cuh", "/me/b.cuh", "/me/c.cpp", "/me/d.cu"]).to_string(), "c.cpp:3 (in a.cuh:1)");
    assert_eq!(line(&["/me/a.cuh", "/me/b.cuh"]).to_string(), "a.cuh:1");
    assert_eq!(line(&[TOOLKIT, "/usr/include/x.h"]).to_string(), "x.h:2, PTX line 9");
    assert_eq!(line(&[]).to_string(), "PTX line 9");
}

#[test]
fn paths_with_escapes() {
    let module = parse(
        ".version 9.0\n.target sm_80\n.file 7 \"/d\\303\\251/a \\\"b\\\".cu\", 1234567, 89\n.file 3 \"C:\\\\x.cu\"\n.file 5 \"é\"\n",
    )
    .unwrap();
    let files: Vec<_> = module.files.iter().map(|(number, path)| (*number, &**path)).collect();
    assert_eq!(files, [(3, "C:\\x.cu"), (5, "é"), (7, "/dé/a \"b\".cu")]);
}

//! Every form that nvcc makes of the kernels, under every set of flags, is known to the emulator: whole files load, and
//! nothing of their code is lost on the way.

mod support;

use std::collections::BTreeSet;

use cuda_emulator::ptx::ast::{Instruction, Statement};
use cuda_emulator::ptx::parse;
use support::gpu::Gpu;
use support::nvcc::{ALL_FLAGS, ptx, source_path};

fn sources(directory: &str) -> Vec<String> {
    let files = std::fs::read_dir(source_path(directory)).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = files.map(|name| name.into_string().unwrap()).filter(|n| n.ends_with(".cu")).collect();
    names.sort();
    names.iter().map(|name| format!("{directory}/{name}")).collect()
}

fn instructions<'a>(body: &'a [Statement], out: &mut Vec<&'a Instruction>) {
    for statement in body {
        match statement {
            Statement::Instruction(instruction) => out.push(instruction),
            Statement::Scope(inner) => instructions(inner, out),
            _ => {}
        }
    }
}

/// The forms of one file.
fn forms(source: &str, flags: &[&str]) -> BTreeSet<String> {
    let text = ptx(source, flags);
    let title = format!("{source} {}", flags.join(" "));
    let gpu = Gpu::new(&text, 0).unwrap_or_else(|fault| panic!("{title}: {fault}"));
    assert_eq!(gpu.module.kernels.len(), text.matches(".entry ").count(), "{title}: kernels");

    let module = parse(&text).unwrap();
    let mut all = vec![];
    module.functions.iter().filter_map(|f| f.body.as_deref()).for_each(|body| instructions(body, &mut all));
    for opcode in ["bar.sync", "mma.sync", "ldmatrix.sync", "st.global", "ld.shared", "atom.", "shfl.sync", "bra"] {
        let written = text.lines().filter(|line| has_opcode(line, opcode)).count();
        let parsed = all.iter().filter(|i| i.form().starts_with(opcode)).count();
        assert_eq!(parsed, written, "{title}: {opcode}");
    }
    all.iter().map(|instruction| instruction.form()).collect()
}

#[test]
fn all_files_load_with_all_flags() {
    let files = [sources("kernels"), sources("faults")].concat();
    let work: Vec<_> = files.iter().flat_map(|file| ALL_FLAGS.map(|flags| (file, flags))).collect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let all: BTreeSet<String> = std::thread::scope(|scope| {
        let share = |part: &'_ [(&String, &[&str])]| part.iter().flat_map(|(file, flags)| forms(file, flags)).collect();
        let threads: Vec<_> = work
            .chunks(work.len().div_ceil(cores))
            .map(|part| scope.spawn(move || -> BTreeSet<String> { share(part) }))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a file fails")).collect()
    });
    println!("{} forms", all.len());
    assert!(all.len() > 250, "only {} forms were met: {all:?}", all.len());
}

/// Whether a line of PTX holds an instruction: at its start, after a guard, or after the brace of inline assembly.
fn has_opcode(line: &str, opcode: &str) -> bool {
    let line = line.trim_start().trim_start_matches('{').trim_start();
    let line =
        if line.starts_with('@') { line.split_once(char::is_whitespace).map_or("", |(_, rest)| rest) } else { line };
    line.trim_start().starts_with(opcode)
}

//! The checks of the checks: in real kernels, as compiled, every `bar.sync`, `bar.arrive` and `bar.warp.sync` is deleted,
//! and every wait for `cp.async` is deleted and is weakened to leave one more group under way, one change at a time.
//! A change counts as caught if a launch reports a fault or an output changes, under one of several orders. At least 95%
//! must be caught; changes that can't matter are listed in `REDUNDANT` with the reason, and must indeed not be noticed.

mod support;

use std::collections::BTreeMap;

use cuda_emulator::device::Options;
use cuda_emulator::fault::Result;
use support::attention_cases::{attention, decode_attention};
use support::cases::*;
use support::gpu::Gpu;
use support::matmul_cases::{matmul_bf16, matmul_f32};
use support::nvcc::{O3, ptx};
use support::training_cases::{cross_entropy_bf16, cross_entropy_f32, rms_norm};

/// Changes that leave the kernel right: kernel, number of the change in it, why.
const REDUNDANT: &[(&str, usize, &str)] = &[
    ("rms_norm_forward", 1, "block_sum is called once: no earlier reduction reads its shared memory"),
    ("scan_blocks", 10, "in the last round, who is read by others writes back the number that is there already"),
    ("scan_blocks", 11, "after the last round nobody reads the slots"),
    ("scan_blocks", 22, "in the last round, who is read by others writes back the number that is there already"),
    ("scan_blocks", 23, "after the last round nobody reads the slots"),
    ("sum_last_block", 1, "the first call of block_sum: no earlier reduction reads its shared memory"),
    ("sum_last_block", 4, "the barrier before `if (!last)` already stands between the two reductions"),
    ("radix_sort", 9, "the last of the unrolled rounds: a block barrier follows"),
    ("radix_sort", 27, "the last of the unrolled rounds: a block barrier follows"),
];

const SEEDS: std::ops::Range<u64> = 0..4;

/// Kernels of one file, and the inputs that reach all of their barriers.
fn subjects() -> Vec<Vec<Case>> {
    vec![
        vec![matmul_f32(37, 70, 50)],
        vec![matmul_bf16(3, 33, 136, 136), matmul_bf16(4, 16, 8, 200)],
        vec![attention(1, 200, 1, 64), attention(1, 200, 1, 96)],
        vec![decode_attention(1, 37, 2, 1, 2)],
        vec![cross_entropy_f32(3, 131), cross_entropy_bf16(2, 131)],
        vec![rms_norm(5, 130, 2)],
        vec![histogram(1003, 2)],
        vec![transpose(37, 41)],
        vec![scan(500, 96)],
        vec![sum_last_block(1000, 3)],
        vec![producer_consumer(700, 2)],
        vec![radix_sort(700)],
        vec![window_sum(1500, 2), gather_reversed(128)],
    ]
}

/// One change to a line of PTX.
struct Mutation {
    kernel: String,
    /// Its number among the kernel's changes, from 1.
    number: usize,
    /// The instruction, what becomes of it, and the line that it comes from: `scan.cu:17`.
    change: String,
    /// PTX line, and what stands there instead.
    line: usize,
    replacement: String,
}

#[test]
fn missing_synchronisation_is_noticed() {
    let mut table: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let (mut missed, mut stale, mut redundant) = (vec![], vec![], 0);
    for cases in subjects() {
        let text = ptx(&format!("kernels/{}", cases[0].source), O3);
        let whole: Vec<Vec<Vec<f64>>> = cases.iter().map(|case| originals(case, &text)).collect();
        for mutation in mutations(cases[0].source, &text) {
            let changed = apply(&text, &mutation);
            let noticed = cases.iter().zip(&whole).find_map(|(case, whole)| notice(case, &changed, whole));
            let title = format!("{} {}: {}", mutation.kernel, mutation.number, mutation.change);
            let reason =
                REDUNDANT.iter().find(|(kernel, number, _)| *kernel == mutation.kernel && *number == mutation.number);
            match (noticed, reason) {
                (Some(how), None) => {
                    println!("caught     {title}: {how}");
                    let entry = table.entry(mutation.kernel).or_default();
                    *entry = (entry.0 + 1, entry.1 + 1);
                }
                (None, None) => {
                    println!("MISSED     {title}");
                    table.entry(mutation.kernel).or_default().1 += 1;
                    missed.push(title);
                }
                (None, Some((_, _, why))) => {
                    println!("redundant  {title}: {why}");
                    redundant += 1;
                }
                (Some(how), Some(_)) => stale.push(format!("{title}: {how}")),
            }
        }
    }
    for (kernel, (caught, all)) in &table {
        println!("{kernel:30} {caught:3} of {all:3}");
    }
    let (caught, all) = table.values().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    println!("{caught} of {all} caught in {} kernels; {redundant} redundant", table.len());
    assert!(table.len() >= 6 && all >= 60, "only {all} changes of {} kernels were tried", table.len());
    assert!(stale.is_empty(), "listed as redundant, but noticed: {stale:#?}");
    assert!(caught * 100 >= all * 95, "{caught} of {all} caught; missed: {missed:#?}");
}

/// The outputs of the kernel as it is, the same under every order.
fn originals(case: &Case, text: &str) -> Vec<Vec<f64>> {
    let mut all: Vec<Vec<Vec<f64>>> = SEEDS
        .map(|seed| run(case, text, seed).unwrap_or_else(|fault| panic!("{}, seed {seed}: {fault}", case.name)))
        .collect();
    assert!(all.iter().all(|found| *found == all[0]), "{}: the order of warps changes the outputs", case.name);
    case.check(&all[0], 1.0);
    all.swap_remove(0)
}

fn run(case: &Case, text: &str, seed: u64) -> Result<Vec<Vec<f64>>> {
    let options = Options { seed, step_limit: 3_000_000 };
    (case.run)(&mut Gpu::with(text, options)?)
}

/// How a change shows, if it does.
fn notice(case: &Case, text: &str, whole: &[Vec<f64>]) -> Option<String> {
    SEEDS.into_iter().find_map(|seed| match run(case, text, seed) {
        Err(fault) => Some(fault.message.chars().take(60).collect()),
        Ok(found) if same(&found, whole) => None,
        Ok(_) => Some(format!("another output with seed {seed}")),
    })
}

/// Bit for bit, NaN included.
fn same(a: &[Vec<f64>], b: &[Vec<f64>]) -> bool {
    let bits = |values: &[Vec<f64>]| -> Vec<u64> { values.iter().flatten().map(|x| x.to_bits()).collect() };
    bits(a) == bits(b)
}

fn mutations(source: &str, text: &str) -> Vec<Mutation> {
    let files = file_table(text);
    let (mut kernel, mut place, mut found) = (String::new(), 0, Vec::<Mutation>::new());
    for (line, ptx) in text.lines().enumerate() {
        let words: Vec<&str> = ptx.split_whitespace().collect();
        match words[..] {
            [.., ".entry", name] => kernel = name.trim_end_matches('(').to_string(),
            [".loc", file, row, ..] => place = user_line(source, &files, file, row, &words).unwrap_or(place),
            _ => {}
        }
        let statement = words.join(" ");
        for (verb, replacement) in replacements(&statement) {
            let number = found.iter().filter(|mutation| mutation.kernel == kernel).count() + 1;
            let change = format!("{verb} {statement} at {source}:{place}");
            found.push(Mutation { kernel: kernel.clone(), number, change, line, replacement });
        }
    }
    found
}

/// What to try with a statement.
fn replacements(statement: &str) -> Vec<(&'static str, String)> {
    let delete = ("delete", String::new());
    if let Some(count) = statement.strip_prefix("cp.async.wait_group ") {
        let count: u32 = count.trim_end_matches(';').parse().unwrap();
        return vec![delete, ("weaken", format!("cp.async.wait_group {};", count + 1))];
    }
    let single = ["bar.sync", "bar.arrive", "bar.warp.sync", "cp.async.wait_all"];
    if single.iter().any(|op| statement.starts_with(op)) { vec![delete] } else { vec![] }
}

/// Number and name of each `.file`.
fn file_table(text: &str) -> Vec<(String, String)> {
    let files = text.lines().filter_map(|line| line.trim().strip_prefix(".file"));
    let split = files.filter_map(|rest| rest.trim().split_once(char::is_whitespace));
    split.map(|(number, path)| (number.to_string(), path.trim_matches('"').to_string())).collect()
}

/// The line of the .cu file that a `.loc` stands for: its own, or that of the last call that leads there.
fn user_line(source: &str, files: &[(String, String)], file: &str, row: &str, words: &[&str]) -> Option<usize> {
    let ours = |number: &str| files.iter().any(|(n, path)| n == number && path.ends_with(source));
    if ours(file) {
        return row.parse().ok();
    }
    let at = words.iter().position(|word| *word == "inlined_at")?;
    if ours(words.get(at + 1)?) { words.get(at + 2)?.parse().ok() } else { None }
}

fn apply(text: &str, mutation: &Mutation) -> String {
    let line =
        |(i, old): (usize, &str)| if i == mutation.line { mutation.replacement.clone() } else { old.to_string() };
    text.lines().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

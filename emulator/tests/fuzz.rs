//! Mutated PTX of real kernels: it loads and runs or it fails with a code and one line; the process never panics, and no
//! run takes long. The seed of each trial is printed if it does.

mod support;

use cuda_emulator::device::{Launch, Options};
use cuda_emulator::fault::Fault;
use support::Rng;
use support::cases::window_sum;
use support::gpu::Gpu;
use support::nvcc::{DEBUG, O1, O3, ptx};

/// Optimised code, and code with calls and local memory.
const SOURCES: [(&str, &[&str]); 11] = [
    ("kernels/activations.cu", O3),
    ("kernels/activations.cu", O1),
    ("kernels/matmul_small.cu", O3),
    ("kernels/producer_consumer.cu", O3),
    ("kernels/radix_sort.cu", O3),
    ("kernels/scan.cu", DEBUG),
    ("kernels/spin_lock.cu", O3),
    ("kernels/window_sum.cu", O3),
    ("faults/races.cu", O3),
    ("faults/stops.cu", O1),
    ("faults/uninitialised.cu", O3),
];

/// Names the trial when the test panics.
struct Trial(u64);

impl Drop for Trial {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("trial {}", self.0);
        }
    }
}

#[test]
fn mutated_ptx_never_panics() {
    let texts: Vec<String> = SOURCES.iter().map(|(source, flags)| ptx(source, flags)).collect();
    let (mut loaded, mut refused, mut ran, mut failed) = (0, 0, 0, 0);
    for seed in 0..3_000 {
        let trial = Trial(seed);
        let mut rng = Rng::new(seed);
        let text = mutate(&texts[rng.below(texts.len())], &mut rng);
        match Gpu::with(&text, Options { seed, step_limit: 2_000 }) {
            Err(fault) => {
                refused += 1;
                one_line(&fault);
            }
            Ok(mut gpu) => {
                loaded += 1;
                let (good, bad) = launch_all(&mut gpu, &mut rng);
                (ran, failed) = (ran + good, failed + bad);
            }
        }
        drop(trial);
    }
    println!("{refused} refused, {loaded} loaded; of their kernels {ran} ran and {failed} failed");
    assert!(refused > 300 && loaded > 300 && ran > 300 && failed > 300, "the mutations are too mild or too wild");
}

/// A number that fuzzing once met: group and count must not be added carelessly.
#[test]
fn a_wait_for_almost_nothing() {
    let text = ptx("kernels/window_sum.cu", O3).replace("cp.async.wait_group 1;", "cp.async.wait_group 4294967295;");
    let mut gpu = Gpu::new(&text, 0).unwrap();
    let fault = (window_sum(1000, 2).run)(&mut gpu).unwrap_err();
    assert!(fault.message.starts_with("cp.async"), "{fault}");
}

fn one_line(fault: &Fault) {
    assert!(!fault.message.is_empty() && !fault.message.contains('\n'), "{:?}", fault.message);
    assert!(fault.message.len() < 2_000, "{}", fault.message);
}

/// Every kernel once: wide arguments point to a buffer, narrow ones are small numbers.
fn launch_all(gpu: &mut Gpu, rng: &mut Rng) -> (usize, usize) {
    let buffer = gpu.upload(&[1u32; 4096]).unwrap();
    let (mut ran, mut failed) = (0, 0);
    for kernel in gpu.module.kernels.clone() {
        let mut params = vec![0; kernel.param_bytes as usize];
        for slot in &kernel.params {
            let value = if slot.bytes == 8 { buffer } else { rng.below(200) as u64 };
            let bytes = (slot.bytes as usize).min(8);
            params[slot.offset as usize..][..bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
        let launch = Launch {
            kernel: &kernel,
            grid: [2, 1, 1],
            block: [64, 1, 1],
            dynamic_shared: 1024,
            dynamic_shared_limit: 1024,
            params: &params,
            cooperative: false,
        };
        match gpu.device.launch(&launch) {
            Ok(_) => ran += 1,
            Err(fault) => {
                failed += 1;
                one_line(&fault);
            }
        }
    }
    (ran, failed)
}

/// One or two changes: of a character, a word, or whole lines. Most are mild, so that many mutants load and run.
fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    for _ in 0..1 + rng.below(2) {
        let (at, other) = (rng.below(lines.len()), rng.below(lines.len()));
        match rng.below(16) {
            0..3 => drop(lines.remove(at)),
            3 => lines.insert(at, lines[other].clone()),
            4 => lines.swap(at, other),
            5 if at + 1 < lines.len() => lines.swap(at, at + 1),
            6 => lines[at] = change_character(&lines[at], rng),
            7 if rng.below(4) == 0 => lines.truncate(at + 1),
            8 => lines[at] = change_modifier(&lines[at], rng),
            9..12 => lines[at] = change_number(&lines[at], rng),
            12 => {
                let donor = lines[other].clone();
                lines[at] = change_word(&lines[at], &donor, rng);
            }
            _ => lines[at] = change_register(&lines[at], rng),
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    lines.join("\n")
}

fn change_character(line: &str, rng: &mut Rng) -> String {
    let strange: Vec<char> = "{};[],.%@!-\"\\\0é9x \t<".chars().collect();
    let mut characters: Vec<char> = line.chars().collect();
    let at = rng.below(characters.len() + 1);
    let new = strange[rng.below(strange.len())];
    match (rng.below(3), at < characters.len()) {
        (0, true) => characters[at] = new,
        (1, true) => drop(characters.remove(at)),
        _ => characters.insert(at, new),
    }
    characters.into_iter().collect()
}

/// Replaces one of the line's parts for which `fits` holds; parts are runs of letters, digits, `%`, `_` and `-`.
fn change_part(line: &str, rng: &mut Rng, fits: fn(&str) -> bool, new: impl Fn(&str, &mut Rng) -> String) -> String {
    let inside = |c: char| c.is_alphanumeric() || "%_-".contains(c);
    let mut parts: Vec<String> = vec![];
    for c in line.chars() {
        match parts.last_mut() {
            Some(last) if inside(c) && last.ends_with(inside) => last.push(c),
            _ => parts.push(c.to_string()),
        }
    }
    let candidates: Vec<usize> = (0..parts.len()).filter(|&i| fits(&parts[i])).collect();
    if !candidates.is_empty() {
        let at = candidates[rng.below(candidates.len())];
        parts[at] = new(&parts[at], rng);
    }
    parts.concat()
}

/// Another register of the same file.
fn change_register(line: &str, rng: &mut Rng) -> String {
    let register = |part: &str| part.starts_with('%') && part.ends_with(|c: char| c.is_ascii_digit());
    change_part(line, rng, register, |old, rng| {
        format!("{}{}", old.trim_end_matches(|c: char| c.is_ascii_digit()), 1 + rng.below(12))
    })
}

fn change_number(line: &str, rng: &mut Rng) -> String {
    const NUMBERS: [&str; 10] =
        ["0", "1", "-1", "3", "31", "32", "4294967295", "9223372036854775807", "0f7FC00000", "18446744073709551616"];
    let number = |part: &str| part.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    change_part(line, rng, number, |_, rng| NUMBERS[rng.below(NUMBERS.len())].to_string())
}

fn change_modifier(line: &str, rng: &mut Rng) -> String {
    const MODIFIERS: [&str; 16] = [
        "u32", "s32", "s64", "f32", "f64", "b16", "b32", "bf16x2", "v4", "shared", "global", "local", "sync", "wide",
        "lt", "lo",
    ];
    let modifier = |part: &str| MODIFIERS.contains(&part);
    change_part(line, rng, modifier, |_, rng| MODIFIERS[rng.below(MODIFIERS.len())].to_string())
}

/// A word becomes one of another line.
fn change_word(line: &str, donor: &str, rng: &mut Rng) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let donors: Vec<&str> = donor.split_whitespace().collect();
    if words.is_empty() || donors.is_empty() {
        return donor.to_string();
    }
    let (at, new) = (rng.below(words.len()), donors[rng.below(donors.len())]);
    words.iter().enumerate().map(|(i, old)| if i == at { new } else { old }).collect::<Vec<_>>().join(" ")
}

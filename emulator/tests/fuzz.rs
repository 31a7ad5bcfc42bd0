//! Mutated PTX of real kernels: it loads and runs or it fails with a code and one line; the process never panics, and no
//! run takes long. The seed of each trial is printed if it does.

mod support;

use cuda_emulator::device::{Launch, Options};
use cuda_emulator::fault::Fault;
use support::Rng;
use support::gpu::Gpu;
use support::nvcc::{O3, ptx};

const SOURCES: [&str; 7] = [
    "kernels/activations.cu",
    "kernels/matmul_small.cu",
    "kernels/radix_sort.cu",
    "kernels/scan.cu",
    "kernels/window_sum.cu",
    "faults/races.cu",
    "faults/uninitialised.cu",
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
    let texts: Vec<String> = SOURCES.iter().map(|source| ptx(source, O3)).collect();
    let (mut loaded, mut refused, mut ran, mut failed) = (0, 0, 0, 0);
    for seed in 0..400 {
        let trial = Trial(seed);
        let mut rng = Rng::new(seed);
        let text = mutate(&texts[rng.below(texts.len())], &mut rng);
        match Gpu::with(&text, Options { seed, step_limit: 2_000, ..Options::default() }) {
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
    assert!(refused > 40 && loaded > 40 && ran > 20 && failed > 20, "the mutations are too mild or too wild");
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

/// One to four changes: of a character, a word, or whole lines.
fn mutate(text: &str, rng: &mut Rng) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(lines.len());
        let other = rng.below(lines.len());
        match rng.below(9) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[other].clone()),
            2 => lines.swap(at, other),
            3 => lines[at] = change_character(&lines[at], rng),
            4 if rng.below(8) == 0 => lines.truncate(at + 1),
            _ => {
                let donor = lines[other].clone();
                lines[at] = change_word(&lines[at], &donor, rng);
            }
        }
        if lines.is_empty() {
            lines.push(String::new());
        }
    }
    lines.join("\n")
}

fn change_character(line: &str, rng: &mut Rng) -> String {
    const STRANGE: &[char] =
        &['{', '}', ';', '[', ']', ',', '.', '%', '@', '!', '-', '"', '\\', '\0', 'é', '9', 'x', ' ', '\t', '<'];
    let mut characters: Vec<char> = line.chars().collect();
    let at = rng.below(characters.len() + 1);
    let new = STRANGE[rng.below(STRANGE.len())];
    match (rng.below(3), at < characters.len()) {
        (0, true) => characters[at] = new,
        (1, true) => drop(characters.remove(at)),
        _ => characters.insert(at, new),
    }
    characters.into_iter().collect()
}

/// A word becomes one of another line, a number or another modifier.
fn change_word(line: &str, donor: &str, rng: &mut Rng) -> String {
    const NUMBERS: &[&str] =
        &["0", "1", "-1", "31", "32", "4294967295", "9223372036854775807", "18446744073709551616", "0f7FC00000", "0x7"];
    const MODIFIERS: &[&str] =
        &["u32", "s64", "f32", "f64", "b16", "bf16x2", "pred", "v4", "shared", "local", "sync", "wide", "rn", "lo"];
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.is_empty() {
        return donor.to_string();
    }
    let (at, donors) = (rng.below(words.len()), donor.split_whitespace().collect::<Vec<_>>());
    let word = words[at];
    let tail: String =
        word.chars().rev().take_while(|c| ",;)]}(".contains(*c)).collect::<Vec<_>>().into_iter().rev().collect();
    let new = match rng.below(4) {
        0 if !donors.is_empty() => donors[rng.below(donors.len())].trim_end_matches([',', ';']).to_string(),
        1 => NUMBERS[rng.below(NUMBERS.len())].to_string(),
        2 if word.contains('.') => {
            let mut parts: Vec<&str> = word.trim_end_matches([',', ';']).split('.').collect();
            let part = rng.below(parts.len());
            parts[part] = MODIFIERS[rng.below(MODIFIERS.len())];
            parts.join(".")
        }
        _ => format!("%{}{}", ["r", "rd", "f", "p", "rs"][rng.below(5)], rng.below(60)),
    };
    let new = format!("{new}{tail}");
    words.iter().enumerate().map(|(i, old)| if i == at { new.as_str() } else { old }).collect::<Vec<_>>().join(" ")
}

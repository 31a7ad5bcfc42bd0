//! Damaged PTX and damaged fatbins: they load or are refused with a code and one line, in little time and little memory.
//!
//! `FUZZ_INPUTS=1000000 cargo test --release -p cuda-emulator --test fuzz_load` tries more of them, and
//! `FUZZ_FIRST=n` begins with input n: each input comes of its number alone.

mod growth;
mod support;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cuda_emulator::card::Card;
use cuda_emulator::device::{Device, Options};
use cuda_emulator::fatbin;
use cuda_emulator::fault::{Code, Fault};
use support::Rng;
use support::counting::{Counting, peak};
use support::mutate::mutate;
use support::nvcc::{DEBUG, O1, O3, ptx};

#[global_allocator]
static COUNTING: Counting = Counting;

const FATBINS: [&[u8]; 4] = [
    include_bytes!("fatbin/none.fatbin"),
    include_bytes!("fatbin/size.fatbin"),
    include_bytes!("fatbin/speed.fatbin"),
    include_bytes!("fatbin/sm89.fatbin"),
];

/// Memory that a device of these tests has: what a module's variables may take.
const DEVICE_BYTES: u64 = 1 << 20;
/// Bytes that loading may hold at once for each byte of the input, and for any input. A compiler's text takes about 25, the
/// shortest statements of all, such as `{}`, ten times as many.
const BYTES_EACH: usize = 256;
const BYTES_ANYWAY: usize = (1 << 20) + DEVICE_BYTES as usize;
const SECONDS: u64 = 2;

/// What a driver does with a file: the PTX in it, and the module of that. Gives the bytes of the text, too.
fn load(file: &[u8]) -> (usize, Result<(), Fault>) {
    let mut card = Card::named("rtx4090").unwrap();
    card.memory_bytes = DEVICE_BYTES;
    let capability = card.compute_capability;
    let mut device = Device::new(card, Options::default());
    match fatbin::ptx_of_file(file, capability) {
        Ok(text) => (text.len(), device.load(1, &text).map(|_| ())),
        Err(fault) => (0, Err(fault)),
    }
}

/// Loads a file and checks all that must hold whatever is in it. Gives the share of the memory it may take that it took,
/// too.
fn check(file: &[u8]) -> (Result<(), Fault>, f64) {
    let begin = Instant::now();
    let ((text, result), held) = peak(|| load(file));
    let seconds = begin.elapsed().as_secs_f64();
    assert!(seconds < SECONDS as f64, "{seconds} s for {} bytes", file.len());
    let most = BYTES_EACH * file.len().max(text) + BYTES_ANYWAY;
    assert!(held <= most, "{} bytes held for {} bytes, {text} of text", held, file.len());
    if let Err(fault) = &result {
        let message = &fault.message;
        assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
        assert!(message.chars().count() <= 1001, "{message}");
        assert!(
            message
                .split(|c: char| !c.is_alphanumeric() && !"_$%.…".contains(c))
                .all(|name| name.chars().count() <= 81),
            "{message}"
        );
    }
    (result, held as f64 / most as f64)
}

/// Ends the process when an input takes too long to come back at all.
struct Watch {
    number: AtomicU64,
    since: Mutex<Instant>,
    over: AtomicBool,
}

impl Watch {
    fn watch(&self) {
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            if self.since.lock().unwrap().elapsed() > Duration::from_secs(10 * SECONDS) {
                eprintln!("input {} does not come back", self.number.load(Ordering::Relaxed));
                std::process::exit(1);
            }
        }
    }

    fn begin(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
        *self.since.lock().unwrap() = Instant::now();
    }
}

fn setting(name: &str, usual: u64) -> u64 {
    env::var(name).map_or(usual, |value| value.parse().expect(name))
}

/// Tries damaged copies of the files; gives how many loaded.
fn fuzz(name: &str, files: &[Vec<u8>], usual: u64) -> u64 {
    let (first, inputs) = (setting("FUZZ_FIRST", 0), setting("FUZZ_INPUTS", usual));
    println!("{name}: inputs {first} to {}", first + inputs);
    let watch = Watch { number: first.into(), since: Instant::now().into(), over: false.into() };
    let (mut loaded, mut share) = (0, 0f64);
    let input = |number| {
        let mut rng = Rng::new(number);
        let (file, other) = (&files[rng.below(files.len())], &files[rng.below(files.len())]);
        mutate(file, other, &mut rng)
    };
    let mut work = || {
        for number in first..first + inputs {
            watch.begin(number);
            if number % 50_000 == 0 {
                println!("{name}: input {number}");
            }
            let (result, taken) = check(&input(number));
            (loaded, share) = (loaded + result.is_ok() as u64, share.max(taken));
        }
    };
    let result = std::thread::scope(|scope| {
        scope.spawn(|| watch.watch());
        let result = catch_unwind(AssertUnwindSafe(&mut work));
        watch.over.store(true, Ordering::Relaxed);
        result
    });
    if let Err(panic) = result {
        let number = watch.number.load(Ordering::Relaxed);
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{number}"));
        std::fs::write(&kept, input(number)).unwrap();
        eprintln!("{name}: input {number}, kept as {}", kept.display());
        resume_unwind(panic);
    }
    println!("{name}: {loaded} of {inputs} loaded, with at most {:.0}% of the memory allowed", 100.0 * share);
    loaded
}

#[test]
fn damaged_ptx() {
    let compiled = [("kernels/scan.cu", DEBUG), ("kernels/activations.cu", O1), ("kernels/window_sum.cu", O3)];
    let mut files: Vec<Vec<u8>> = compiled.iter().map(|(source, flags)| ptx(source, flags).into_bytes()).collect();
    files.push(include_bytes!("saxpy.ptx").to_vec());
    files.push(include_bytes!("fuzz/everything.ptx").to_vec());
    assert!(fuzz("PTX", &files, 5_000) > 0);
}

#[test]
fn damaged_fatbins() {
    let files: Vec<Vec<u8>> = FATBINS.iter().map(|file| file.to_vec()).collect();
    assert!(fuzz("fatbin", &files, 5_000) > 0);
}

#[test]
fn loading_takes_linear_time() {
    let text = |kernels: usize| {
        let mut text = ".version 8.0\n.target sm_80\n.address_size 64\n".to_string();
        for n in 0..kernels {
            text += &format!(".global .u32 v{n};\n.shared .b8 s{n}[4];\n");
            text += &format!(".visible .entry k{n}(.param .u64 p) {{ st.shared.u8 [s{n}], 1; call f{n}; ret; }}\n");
            text += &format!(".func f{n}() {{ st.global.u32 [v{n}], 1; ret; }}\n");
        }
        text
    };
    growth::assert_linear(4_000, text, |text| load(text.as_bytes()).1.unwrap());
}

/// A module of one kernel.
fn kernel(outside: &str, body: &str) -> Vec<u8> {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    format!("{head}{outside}\n.visible .entry k(.param .u64 p) {{\n{body}\nret;\n}}\n").into_bytes()
}

#[test]
fn a_variable_larger_than_the_card() {
    let fault = check(&kernel(".global .b8 x[1200000000];", "")).0.unwrap_err();
    assert_eq!(fault.code, Code::OutOfMemory);
}

#[test]
fn a_long_file_name_is_kept_once() {
    let lines: String = (1..400).map(|line| format!(".loc 1 {line} 0\nmembar.cta;\n")).collect();
    check(&kernel(&format!(".file 1 \"{}.cu\"", "name".repeat(6_000)), &lines)).0.unwrap();
}

#[test]
fn instructions_share_the_frames_of_their_calls() {
    let calls: String = (2..64).map(|n| format!(".loc 1 {n} 0, function_name S, inlined_at 1 {} 0\n", n - 1)).collect();
    let body = format!(".loc 1 1 0\n{calls}{}", "membar.cta;\n".repeat(4_000));
    check(&kernel(".file 1 \"a.cu\"", &body)).0.unwrap();
}

#[test]
fn branches_share_a_table() {
    let labels = |separator: &str| (0..200).map(|n| format!("L{n}")).collect::<Vec<_>>().join(separator);
    let body = |branches: usize| {
        let branches: String = (0..branches).map(|_| "@%p brx.idx %r, T;\n").collect();
        format!(
            ".reg .pred %p; .reg .b32 %r;\nT: .branchtargets {};\n{branches}{}: membar.cta;",
            labels(", "),
            labels(": membar.cta;\n")
        )
    };
    check(&kernel("", &body(100))).0.unwrap();
    let fault = check(&kernel("", &body(4_000))).0.unwrap_err();
    assert!(fault.message.contains("too large"), "{fault}");
}

#[test]
fn the_shortest_statements() {
    for statement in ["{}", "ret;", "exit;", "{;}", "a:", ".pragma \"\";", "_;"] {
        let _ = check(&kernel("", &statement.repeat(100_000)));
    }
    let labels: String = (0..100_000).map(|n| format!("L{n}:")).collect();
    check(&kernel("", &labels)).0.unwrap();
    let values = check(&kernel(&format!(".global .u64 x[] = {{{}}};", ["1"; 100_000].join(",")), ""));
    values.0.unwrap();
}

#[test]
fn registers_that_live_over_many_blocks() {
    let body = |registers: usize, blocks: usize| {
        let written: String = (0..registers).map(|n| format!("mov.u32 %r{n}, 1;\n")).collect();
        let read: String = (0..registers).map(|n| format!("st.shared.u32 [0], %r{n};\n")).collect();
        let between: String = (0..blocks).map(|n| format!("@%p bra L{n};\nL{n}:\n")).collect();
        format!(".reg .pred %p; .reg .b32 %r<{registers}>;\n{written}{between}{read}")
    };
    check(&kernel("", &body(255, 200))).0.unwrap();
    let fault = check(&kernel("", &body(2_000, 4_000))).0.unwrap_err();
    assert!(fault.message.contains("too many registers live"), "{fault}");
}

#[test]
fn a_long_number_in_a_register_name() {
    let name = format!("%r{}", "0".repeat(20_000));
    let fault = check(&kernel("", &format!(".reg .b32 %r<9>;\nmov.u32 {name}, {name};"))).0.unwrap_err();
    assert!(fault.message.contains("is not declared"), "{fault}");
}

#[test]
fn values_left_out_take_no_room() {
    let zeros: String = (0..100).map(|n| format!(".global .b8 x{n}[2][5000] = {{{{1}}, {{2}}}};\n")).collect();
    check(&kernel(&zeros, "")).0.unwrap();
}

#[test]
fn control_characters_are_escaped() {
    let fault = check(&kernel("", "\u{1b}[31m\u{202e}x\r")).0.unwrap_err();
    assert!(fault.message.contains("\\u{1b}"), "{fault}");
}

//! What production kernels may use and how they have to move data: ptxas says the one, the emulator counts the other.
//!
//! A process of its own: the emulator's report is of all launches of a process, and here that is each case of `ops::cases`
//! once, and each rung of the ladders.
#![cfg(feature = "cuda")]

#[path = "ladders/rungs.rs"]
mod rungs;

use std::collections::BTreeSet;
use std::sync::OnceLock;

use handgrad::Device;
use handgrad::gpu::Gpu;
use handgrad::gpu::modules::{COMPILED, Resources, resources};
use handgrad::ops::cases::{Use, cases};
use handgrad::ops::check::run_once;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

/// The opt-in limit of a block on compute capability 8.9, bytes.
const MOST_SHARED: u64 = 101_376;
/// The kernels whose main loops are held to no bank conflict and full sectors.
const HELD: [&str; 4] = ["matmul_", "attention_forward_", "attention_backward_", "attention_decode_"];

fn is_ladder(file: &str) -> bool {
    file.contains('/')
}

/// The emulator's entries: after the cases with whole tiles, and after all others as well.
fn entries() -> &'static [Vec<Value>; 2] {
    static REPORT: OnceLock<[Vec<Value>; 2]> = OnceLock::new();
    REPORT.get_or_init(|| {
        let gpu = Gpu::emulator().unwrap();
        let (device, mut rng) = (Device::Gpu(gpu.clone()), ChaCha8Rng::seed_from_u64(1));
        let report = || gpu.emulator_report().expect("a report")["kernels"].as_array().expect("kernels").clone();
        let mut run = |wanted: &dyn Fn(Use) -> bool| {
            for case in cases().iter().filter(|case| wanted(case.usage)) {
                for dtype in case.dtypes {
                    let result = run_once(case, &device, *dtype, &mut rng);
                    result.unwrap_or_else(|error| panic!("{} {} in {dtype}: {error:#}", case.op, case.label));
                }
            }
            gpu.synchronize().unwrap();
        };
        run(&|usage| usage == Use::Count);
        let whole_tiles = report();
        run(&|usage| matches!(usage, Use::Check | Use::Edge | Use::Forward));
        rungs::run_all(&gpu);
        [whole_tiles, report()]
    })
}

fn is_of(entry: &Value, kernel: &str) -> bool {
    entry["kernel"] == kernel
}

#[test]
fn the_cases_run_every_kernel() {
    let compiled: BTreeSet<String> = resources().into_iter().map(|r| r.kernel).collect();
    let missing = compiled.iter().filter(|kernel| !entries()[1].iter().any(|entry| is_of(entry, kernel)));
    let missing: Vec<&String> = missing.collect();
    assert!(missing.is_empty(), "in no case: {missing:?}");
}

#[test]
fn no_kernel_spills_on_any_capability() {
    for capability in COMPILED.capabilities {
        let compiled: Vec<Resources> = resources().into_iter().filter(|r| r.capability == *capability).collect();
        assert!(!compiled.is_empty(), "nothing was compiled for {capability}");
        let spilling: Vec<&Resources> =
            compiled.iter().filter(|r| r.spill_stores + r.spill_loads + r.stack > 0).collect();
        assert!(spilling.is_empty(), "{spilling:#?}");
    }
    assert!(COMPILED.capabilities.contains(&89), "compiled for {:?}, expected 89 among them", COMPILED.capabilities);
}

#[test]
fn shared_memory_fits_ada() {
    for entry in &entries()[1] {
        let bytes = |key: &str| entry[key].as_u64().expect("bytes");
        let shared = bytes("static_shared_bytes") + bytes("dynamic_shared_bytes");
        assert!(shared <= MOST_SHARED, "{}: {shared} bytes, expected at most {MOST_SHARED}", entry["kernel"]);
    }
}

#[test]
fn main_loops_have_no_bank_conflicts_and_full_sectors() {
    let mut wrong = Vec::new();
    for r in resources().into_iter().filter(|r| r.capability == 89 && !is_ladder(r.file)) {
        if !HELD.iter().any(|held| r.kernel.starts_with(held)) || r.kernel.ends_with("_unaligned") {
            continue;
        }
        let held: Vec<&Value> = entries()[0].iter().filter(|entry| is_of(entry, &r.kernel)).collect();
        if held.is_empty() {
            wrong.push(format!("{}: in no case that counts", r.kernel));
        }
        for entry in held {
            let number = |part: &str, key: &str| entry[part][key].as_f64().expect("a number");
            let (wavefronts, ideal) = (number("shared", "wavefronts"), number("shared", "wavefronts_ideal"));
            let coalesced = number("global", "efficiency_percent");
            if wavefronts > ideal || coalesced < 95.0 {
                wrong
                    .push(format!("{}: {wavefronts} wavefronts, ideally {ideal}; {coalesced:.1}% coalesced", r.kernel));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_kernel_adds_floats_atomically() {
    for file in COMPILED.files {
        let instructions =
            file.ptx.lines().flat_map(|line| line.split("//").next().unwrap_or_default().split_whitespace());
        for atomic in instructions.filter(|word| word.starts_with("atom.") || word.starts_with("red.")) {
            let float = [".f16", ".bf16", ".f32", ".f64"].iter().any(|ty| atomic.contains(ty));
            assert!(!float, "kernels/{}.cu: {atomic}", file.name);
        }
    }
}

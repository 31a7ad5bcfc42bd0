//! What production kernels may use and how they have to move data: ptxas says the one, the emulator counts the other.
//!
//! A process of its own: the emulator's report is of all launches of a process, and here that is each file's `showcase`.
#![cfg(feature = "cuda")]

use std::collections::BTreeSet;
use std::sync::OnceLock;

use handgrad::gpu::Gpu;
use handgrad::gpu::kernels::FAMILIES;
use handgrad::gpu::modules::{COMPILED, Resources, resources};
use serde_json::Value;

/// The opt-in limit of a block on compute capability 8.9, bytes.
const MOST_SHARED: u64 = 101_376;
/// The kernels whose main loops are held to no bank conflict and full sectors.
const HELD: [&str; 4] = ["matmul_", "attention_forward_", "attention_backward_", "attention_decode_"];

fn is_ladder(file: &str) -> bool {
    file.contains('/')
}

/// The emulator's entries after one showcase of every file.
fn entries() -> &'static [Value] {
    static REPORT: OnceLock<Vec<Value>> = OnceLock::new();
    REPORT.get_or_init(|| {
        let gpu = Gpu::emulator().unwrap();
        for family in FAMILIES {
            (family.showcase)(&gpu).unwrap_or_else(|error| panic!("{}: {error}", family.name));
        }
        gpu.synchronize().unwrap();
        gpu.emulator_report().expect("a report")["kernels"].as_array().expect("kernels").clone()
    })
}

fn entries_of(kernel: &str) -> impl Iterator<Item = &'static Value> {
    entries().iter().filter(move |entry| entry["kernel"] == kernel)
}

#[test]
fn the_showcases_run_every_kernel() {
    let compiled: BTreeSet<String> = resources().into_iter().map(|r| r.kernel).collect();
    let missing: Vec<&String> = compiled.iter().filter(|kernel| entries_of(kernel).next().is_none()).collect();
    assert!(missing.is_empty(), "not in any showcase: {missing:?}");
}

#[test]
fn no_production_kernel_spills_on_ada() {
    let ada: Vec<Resources> = resources().into_iter().filter(|r| r.capability == 89 && !is_ladder(r.file)).collect();
    assert!(!ada.is_empty(), "compiled for {:?}, expected 89 among them", COMPILED.capabilities);
    let spilling: Vec<&Resources> = ada.iter().filter(|r| r.spill_stores + r.spill_loads + r.stack > 0).collect();
    assert!(spilling.is_empty(), "{spilling:#?}");
}

#[test]
fn shared_memory_fits_ada() {
    for entry in entries() {
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
        for entry in entries_of(&r.kernel) {
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

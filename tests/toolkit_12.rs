//! Kernels compiled by the compiler of CUDA 12.9, the way out on a machine whose driver is older than 580, run on the emulator
//! and held against f64. `scripts/test.sh` runs it, after `scripts/setup_nvcc.sh 12.9` has fetched the compiler.
#![cfg(feature = "cuda")]

use handgrad::ops::cases::{Use, cases};
use handgrad::ops::check::check;
use handgrad::{DType, Device};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const NVCC: &str = ".cuda/12.9/bin/nvcc";
/// A file of `kernels/` for each operator of this name.
const FILES: [&str; 4] = ["scale", "swiglu", "embedding", "cross_entropy"];

fn nvcc(arguments: &[&str]) -> Output {
    let output = Command::new(NVCC).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{NVCC}: {error}: run scripts/setup_nvcc.sh 12.9"));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The two calls of `build/kernels.rs`.
fn compile(file: &str, folder: &Path) {
    let path = |ending: &str| folder.join(format!("{file}.{ending}")).to_str().unwrap().to_string();
    let (source, ptx, fatbin) = (format!("kernels/{file}.cu"), path("ptx"), path("fatbin"));
    let options = ["-std=c++17", "-O3", "-lineinfo", "-Ikernels", "-ptx", "-arch=compute_80"];
    nvcc(&[&options[..], &[&source, "-o", &ptx]].concat());
    let target = "arch=compute_80,code=[sm_89]";
    let output = nvcc(&["-fatbin", "-Xptxas", "-v", "-lineinfo", "-gencode", target, &ptx, "-o", &fatbin]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(said.contains("Compiling entry function") && said.contains("registers"), "{said}");
    assert!(fs::metadata(fatbin).unwrap().len() > 1000);
    assert!(fs::read_to_string(ptx).unwrap().contains("release 12.9"));
}

#[test]
fn kernels_of_the_older_compiler_give_the_same_results() {
    let folder = tempfile::tempdir().unwrap();
    FILES.iter().for_each(|file| compile(file, folder.path()));
    // SAFETY: this is the only test of its process, and nothing else reads the environment meanwhile.
    unsafe { std::env::set_var(handgrad::gpu::KERNELS_VARIABLE, folder.path()) };
    let device = Device::open("emulator").unwrap();
    for file in FILES {
        let of_file = |op: &str| op == file || op.starts_with(&format!("{file}_"));
        let mut checked = 0;
        for case in cases().iter().filter(|case| of_file(case.op) && case.usage == Use::Check) {
            for dtype in [DType::F32, DType::Bf16] {
                let worst = check(case, &device, dtype, &mut ChaCha8Rng::seed_from_u64(1)).unwrap();
                assert!(worst.passes(), "{file} in {dtype}: {:.2} of what is allowed, {}", worst.share, worst.place);
                checked += 1;
            }
        }
        assert!(checked > 0, "{file}: no case");
    }
}

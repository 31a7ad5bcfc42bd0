//! Every operator's gradient: backward in f64 against finite differences, and the tuned f32 path against f64.

use handgrad::gradcheck::gradcheck;
use handgrad::ops::cases::{Case, Use, cases};
use handgrad::ops::check::check as check_on;
use handgrad::{DType, Device};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// A new seed for each run; a failure prints it.
fn seed() -> u64 {
    let seed = rand::random();
    println!("seed {seed}");
    seed
}

/// Runs the cases of one operator.
fn check(op: &str) {
    let seed = seed();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.op == op && case.usage != Use::Count).collect();
    assert!(!cases.is_empty(), "no case for {op}");
    for case in &cases {
        if matches!(case.usage, Use::Check | Use::CpuOnly) {
            let inputs = case.inputs(&mut rng);
            let report = gradcheck(&inputs, seed, |tape, x| case.run(tape, x)).unwrap();
            assert!(report.passes(), "{op} {}, seed {seed}: error {:e} at {}", case.label, report.worst, report.place);
        }
        let tuned = check_on(case, &Device::Cpu, DType::F32, &mut rng).unwrap();
        assert!(tuned.passes(), "{op} {}, seed {seed}: {:.2} of the budget, {}", case.label, tuned.share, tuned.place);
    }
}

/// Every file of an operator has cases, and every operator with cases has a test below.
#[test]
fn no_operator_is_forgotten() {
    let mut files: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".rs", ""))
        .filter(|name| !["mod", "cases", "check"].contains(&name.as_str()))
        .collect();
    files.sort();
    let mut ops: Vec<&str> = cases().iter().map(|case| case.op).collect();
    ops.sort();
    ops.dedup();
    assert_eq!(files, ops);
    let tests = include_str!("gradients.rs");
    for op in ops {
        assert!(tests.contains(&format!("check(\"{op}\")")), "no test of {op}");
    }
}

#[test]
fn matmul() {
    check("matmul");
}
#[test]
fn linear() {
    check("linear");
}
#[test]
fn add() {
    check("add");
}
#[test]
fn mul() {
    check("mul");
}
#[test]
fn scale() {
    check("scale");
}
#[test]
fn reshape() {
    check("reshape");
}
#[test]
fn silu() {
    check("silu");
}
#[test]
fn gelu() {
    check("gelu");
}
#[test]
fn swiglu() {
    check("swiglu");
}
#[test]
fn softmax() {
    check("softmax");
}
#[test]
fn rms_norm() {
    check("rms_norm");
}
#[test]
fn layer_norm() {
    check("layer_norm");
}
#[test]
fn rope() {
    check("rope");
}
#[test]
fn qk_norm_rope() {
    check("qk_norm_rope");
}
#[test]
fn attention() {
    check("attention");
}
#[test]
fn embedding() {
    check("embedding");
}
#[test]
fn cross_entropy() {
    check("cross_entropy");
}
#[test]
fn linear_cross_entropy() {
    check("linear_cross_entropy");
}
#[test]
fn adamw() {
    check("adamw");
}
#[test]
fn global_norm() {
    check("global_norm");
}
#[test]
fn cache_write() {
    check("cache_write");
}
#[test]
fn cast() {
    check("cast");
}
#[test]
fn sample() {
    check("sample");
}

//! Every operator's gradient: backward in f64 against finite differences, and the tuned f32 path against f64.

use handgrad::gradcheck::gradcheck;
use handgrad::ops::cases::{Case, cases};
use handgrad::{DType, Tape, Tensor, Var};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

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
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.op == op).collect();
    assert!(!cases.is_empty(), "no case for {op}");
    for case in &cases {
        let inputs = case.inputs(&mut rng);
        let report = gradcheck(&inputs, seed, |tape, x| case.run(tape, x)).unwrap();
        assert!(report.passes(), "{op} {}, seed {seed}: error {:e} at {}", case.label, report.worst, report.place);
        tuned_equals_reference(case, &inputs, &mut rng, seed);
    }
}

/// Outputs and gradients in `dtype` for random cotangents that are the same numbers in both dtypes.
fn run(case: &Case, inputs: &[Tensor], cotangents: &mut Option<Vec<Tensor>>, rng: &mut ChaCha8Rng) -> Vec<Tensor> {
    let dtype = inputs[0].dtype();
    let mut tape = Tape::new();
    let vars: Vec<Var> = inputs.iter().enumerate().map(|(i, x)| tape.leaf(&i.to_string(), x)).collect();
    let outputs = case.run(&mut tape, &vars).unwrap();
    let cotangents = cotangents.get_or_insert_with(|| {
        let draw = |y: &Var| {
            let data = (0..y.value().len()).map(|_| StandardNormal.sample(rng)).collect();
            Tensor::from_vec::<f32>(data, y.shape()).unwrap()
        };
        outputs.iter().map(draw).collect()
    });
    let seeds: Vec<(&Var, Tensor)> =
        outputs.iter().zip(cotangents.iter()).map(|(y, c)| (y, c.to_dtype(dtype).unwrap())).collect();
    let gradients = tape.backward_from(&seeds).unwrap();
    let mut results: Vec<Tensor> = outputs.iter().map(|y| y.value().clone()).collect();
    results.extend((0..inputs.len()).map(|i| gradients.get(&i.to_string()).unwrap().clone()));
    results
}

/// The f32 path, forward and backward, against the f64 reference on inputs rounded to f32; and twice for the same bits.
fn tuned_equals_reference(case: &Case, inputs: &[Tensor], rng: &mut ChaCha8Rng, seed: u64) {
    let rounded: Vec<Tensor> = inputs.iter().map(|x| x.to_dtype(DType::F32).unwrap()).collect();
    let exact: Vec<Tensor> = rounded.iter().map(|x| x.to_dtype(DType::F64).unwrap()).collect();
    let mut cotangents = None;
    let found = run(case, &rounded, &mut cotangents, rng);
    let expected = run(case, &exact, &mut cotangents, rng);
    for (n, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let (found, expected) = (found.to_f64_vec().unwrap(), expected.to_f64_vec().unwrap());
        let scale = expected.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
        for (e, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let ok = (found - expected).abs() <= 5e-6 * scale;
            assert!(ok, "{} {}, seed {seed}: tensor {n}[{e}] is {found}, expected {expected}", case.op, case.label);
        }
    }
    let again = run(case, &rounded, &mut cotangents, rng);
    for (first, second) in found.iter().zip(&again) {
        let bits = |x: &Tensor| x.as_slice::<f32>().unwrap().iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert_eq!(bits(first), bits(second), "{} {}: two runs differ", case.op, case.label);
    }
}

/// Every file of an operator has cases, and every operator with cases has a test below.
#[test]
fn no_operator_is_forgotten() {
    let mut files: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".rs", ""))
        .filter(|name| !["mod", "cases"].contains(&name.as_str()))
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

//! Small tensors for the tests of operators.
#![allow(dead_code, reason = "each test target uses its own part")]

use handgrad::ops::{self, IGNORE_INDEX};
use handgrad::{DType, Tape, Tensor};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

pub fn f32s(data: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_vec(data.to_vec(), shape).unwrap()
}

pub fn f64s(data: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_vec(data.to_vec(), shape).unwrap()
}

pub fn ids(data: &[i32]) -> Tensor {
    Tensor::from_vec(data.iter().map(|&id| id as u32).collect(), &[data.len()]).unwrap()
}

pub fn random(shape: &[usize], seed: u64) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    Tensor::from_vec::<f64>((0..shape.iter().product()).map(|_| StandardNormal.sample(&mut rng)).collect(), shape)
        .unwrap()
}

pub fn close(found: &Tensor, expected: &[f64], tolerance: f64) {
    let found = found.to_f64_vec().unwrap();
    assert_eq!(found.len(), expected.len());
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= tolerance, "found {found:?}, expected {expected:?}");
    }
}

/// Both dtypes: the tuned f32 path and the f64 reference.
pub fn both(x: &Tensor) -> [Tensor; 2] {
    [x.to_dtype(DType::F32).unwrap(), x.to_dtype(DType::F64).unwrap()]
}

pub fn cross_entropy(logits: &Tensor, targets: &[i32]) -> (f64, Tensor) {
    let mut tape = Tape::new();
    let x = tape.leaf("x", logits);
    let loss = ops::cross_entropy(&mut tape, &x, &ids(targets), IGNORE_INDEX).unwrap();
    let value = loss.value().item().unwrap();
    (value, tape.backward(&loss).unwrap().get("x").unwrap().clone())
}

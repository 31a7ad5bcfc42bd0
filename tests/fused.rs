//! Every fused operator computes what the plain operators compute, forward and backward.

mod common;

use common::{close, cross_entropy, f64s, random};
use handgrad::ops::{self, Layout, RopeTable};
use handgrad::{DType, Gradients, Tape, Tensor, Var};

/// Outputs and all gradients of two functions agree, in f32 and f64.
fn same(shapes: &[&[usize]], f: impl Fn(&mut Tape, &[Var]) -> Var, g: impl Fn(&mut Tape, &[Var]) -> Var) {
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F64, 1e-12)] {
        let inputs: Vec<Tensor> =
            shapes.iter().zip(1..).map(|(shape, seed)| random(shape, seed).to_dtype(dtype).unwrap()).collect();
        let run = |f: &dyn Fn(&mut Tape, &[Var]) -> Var| -> (Tensor, Gradients) {
            let mut tape = Tape::new();
            let vars: Vec<Var> = inputs.iter().enumerate().map(|(i, x)| tape.leaf(&i.to_string(), x)).collect();
            let y = f(&mut tape, &vars);
            let cotangent = random(y.shape(), 99).to_dtype(dtype).unwrap();
            let value = y.value().clone();
            (value, tape.backward_from(&[(&y, cotangent)]).unwrap())
        };
        let ((y, found), (expected_y, expected)) = (run(&f), run(&g));
        close(&y, &expected_y.to_f64_vec().unwrap(), tolerance);
        for i in 0..inputs.len() {
            let name = i.to_string();
            close(found.get(&name).unwrap(), &expected.get(&name).unwrap().to_f64_vec().unwrap(), 10.0 * tolerance);
        }
    }
}

#[test]
fn fused_equals_unfused() {
    same(
        &[&[3, 5], &[3, 5]],
        |t, x| ops::swiglu(t, &x[0], &x[1]).unwrap(),
        |t, x| {
            let gate = ops::silu(t, &x[0]).unwrap();
            ops::mul(t, &gate, &x[1]).unwrap()
        },
    );
    same(
        &[&[4, 6], &[4, 6], &[6]],
        |t, x| {
            let (h, y) = ops::rms_norm_residual(t, &x[0], &x[1], &x[2], 1e-5).unwrap();
            ops::add(t, &h, &y).unwrap()
        },
        |t, x| {
            let h = ops::add(t, &x[0], &x[1]).unwrap();
            let y = ops::rms_norm(t, &h, &x[2], 1e-5).unwrap();
            ops::add(t, &h, &y).unwrap()
        },
    );
    let table = RopeTable::new(6, 9, 10000.0).unwrap();
    same(
        &[&[2, 5, 3, 6], &[6]],
        |t, x| ops::qk_norm_rope(t, &x[0], &x[1], 1e-6, &table, 3).unwrap(),
        |t, x| {
            let y = ops::rms_norm(t, &x[0], &x[1], 1e-6).unwrap();
            ops::rope(t, &y, &table, 3).unwrap()
        },
    );
}

#[test]
fn attention_equals_its_composition() {
    let (t, d) = (7, 4);
    let mask: Vec<f64> = (0..t * t).map(|n| if n % t > n / t { f64::NEG_INFINITY } else { 0.0 }).collect();
    same(
        &[&[1, t, 1, d], &[1, t, 1, d], &[1, t, 1, d]],
        |tape, x| ops::attention(tape, &x[0], &x[1], &x[2], true).unwrap(),
        |tape, x| {
            let mut matrix = |x: &Var| ops::reshape(tape, x, &[t, d]).unwrap();
            let (q, k, v) = (matrix(&x[0]), matrix(&x[1]), matrix(&x[2]));
            let scores = ops::matmul(tape, &q, &k, Layout::NT).unwrap();
            let scores = ops::scale(tape, &scores, 1.0 / (d as f64).sqrt()).unwrap();
            let mask = Var::constant(f64s(&mask, &[t, t]).to_dtype(q.value().dtype()).unwrap());
            let scores = ops::add(tape, &scores, &mask).unwrap();
            let p = ops::softmax(tape, &scores).unwrap();
            let out = ops::matmul(tape, &p, &v, Layout::NN).unwrap();
            ops::reshape(tape, &out, &[1, t, 1, d]).unwrap()
        },
    );
}

#[test]
fn cross_entropy_equals_the_log_of_softmax() {
    let targets = [2, 0, 4, 4];
    let picked: Vec<f64> = targets.iter().flat_map(|&t| (0..5).map(move |v| f64::from(u8::from(v == t)))).collect();
    for dtype in [DType::F32, DType::F64] {
        let x = random(&[4, 5], 8).to_dtype(dtype).unwrap();
        let p = ops::softmax(&mut Tape::inference(), &Var::constant(x.clone())).unwrap().value().to_f64_vec().unwrap();
        let expected: f64 = p.iter().zip(&picked).filter(|(_, one)| **one == 1.0).map(|(p, _)| -p.ln() / 4.0).sum();
        let (loss, gradient) = cross_entropy(&x, &targets);
        assert!((loss - expected).abs() < 1e-6);
        let expected: Vec<f64> = p.iter().zip(&picked).map(|(p, one)| (p - one) / 4.0).collect();
        close(&gradient, &expected, 1e-6);
    }
}

//! Checks a gradient against finite differences, in f64.
//!
//! For a function y = f(x₁ … xₙ) and a cotangent u the tape gives gᵢ = (∂y/∂xᵢ)ᵀ u. Independently of the tape, the
//! five-point central difference along a direction v gives
//!
//! ```text
//! ⟨u, ∂y/∂xᵢ v⟩ ≈ [ 8 (φ(h) − φ(−h)) − (φ(2h) − φ(−2h)) ] / 12h,     φ(t) = ⟨u, f(… xᵢ + t v …)⟩
//! ```
//!
//! with an error of O(h⁴), so that right gradients agree to about ten digits. Small functions are checked entry by entry of the
//! whole Jacobian, large ones along random directions. Cotangents are random: with all ones a softmax has the gradient 0
//! and any gradient that is too small would pass. Inputs are also given one at a time with the others as constants,
//! and the gradient must be the same bits.

use crate::dtype::DType;
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// The relative error that every operator of this crate stays below.
pub const RTOL: f64 = 1e-6;
/// Jacobians with at most this many entries are compared whole.
const FULL_JACOBIAN: usize = 4096;
const DIRECTIONS: usize = 4;
const STEP: f64 = 1e-3;

/// What a check found.
#[derive(Clone, Debug)]
pub struct Report {
    /// The worst relative error; infinite if a value was NaN.
    pub worst: f64,
    /// Where it was, in words.
    pub place: String,
    /// Numbers compared.
    pub compared: usize,
}

impl Report {
    pub fn passes(&self) -> bool {
        self.compared > 0 && self.worst <= RTOL
    }

    fn compare(&mut self, found: f64, expected: f64, scale: f64, place: impl Fn() -> String) {
        let error = (found - expected).abs() / found.abs().max(expected.abs()).max(scale);
        self.compared += 1;
        let error = if error.is_nan() { f64::INFINITY } else { error };
        if error > self.worst || self.place.is_empty() {
            self.worst = error;
            self.place = format!("{}: backward gives {found:e}, differences give {expected:e}", place());
        }
    }
}

/// Compares the tape's gradients of `f` at `inputs` (all f64) with finite differences.
///
/// Errors: an input that is not f64, or whatever `f` returns. A wrong gradient is no error but a report that does not pass.
pub fn gradcheck<F>(inputs: &[Tensor], seed: u64, f: F) -> Result<Report>
where
    F: Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>,
{
    for x in inputs {
        ensure!(x.dtype() == DType::F64, "gradcheck: found an input of dtype {}, expected f64", x.dtype());
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let outputs = evaluate(&f, inputs)?;
    let input_len: usize = inputs.iter().map(Tensor::len).sum();
    let output_len: usize = outputs.iter().map(Tensor::len).sum();
    let mut report = Report { worst: 0.0, place: String::new(), compared: 0 };
    let cotangents: Vec<Tensor> = outputs.iter().map(|y| random_like(y, &mut rng)).collect();
    check_one_at_a_time(&f, inputs, &cotangents)?;
    if input_len * output_len <= FULL_JACOBIAN {
        check_jacobian(&f, inputs, &outputs, &mut report)?;
    } else {
        for _ in 0..DIRECTIONS {
            let cotangents: Vec<Tensor> = outputs.iter().map(|y| random_like(y, &mut rng)).collect();
            check_directions(&f, inputs, &cotangents, &mut rng, &mut report)?;
        }
    }
    Ok(report)
}

/// Every entry of the Jacobian: rows from the tape, columns from differences.
fn check_jacobian<F>(f: &F, inputs: &[Tensor], outputs: &[Tensor], report: &mut Report) -> Result<()>
where
    F: Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>,
{
    let output_len: usize = outputs.iter().map(Tensor::len).sum();
    let mut rows = vec![]; // rows[j][i] = gradient of output element j with respect to input i
    for j in 0..output_len {
        rows.push(gradients(f, inputs, &one_hot(outputs, j), None)?);
    }
    for (i, x) in inputs.iter().enumerate() {
        for e in 0..x.len() {
            let mut direction = vec![0.0; x.len()];
            direction[e] = 1.0;
            let column = difference(f, inputs, i, &direction)?;
            let scale = 1e-2 * column.iter().fold(1e-2_f64, |m, v| m.max(v.abs()));
            for (j, &expected) in column.iter().enumerate() {
                let place = || format!("∂ output[{j}] / ∂ input {i}[{e}]");
                report.compare(rows[j][i].as_slice::<f64>()?[e], expected, scale, place);
            }
        }
    }
    Ok(())
}

/// One random direction for each input.
fn check_directions<F>(
    f: &F,
    inputs: &[Tensor],
    cotangents: &[Tensor],
    rng: &mut ChaCha8Rng,
    report: &mut Report,
) -> Result<()>
where
    F: Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>,
{
    let analytic = gradients(f, inputs, cotangents, None)?;
    let u = values(cotangents)?;
    for (i, x) in inputs.iter().enumerate() {
        let direction = random_like(x, rng).to_f64_vec()?;
        let gradient = analytic[i].to_f64_vec()?;
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let expected = inner(&u, &difference(f, inputs, i, &direction)?);
        report.compare(inner(&gradient, &direction), expected, norm.max(1e-4), || format!("input {i}, a direction"));
    }
    Ok(())
}

/// Each input alone as the only leaf: what an operator skips for constants must not change what it computes.
fn check_one_at_a_time<F>(f: &F, inputs: &[Tensor], cotangents: &[Tensor]) -> Result<()>
where
    F: Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>,
{
    let together = gradients(f, inputs, cotangents, None)?;
    for (i, expected) in together.iter().enumerate() {
        let alone = &gradients(f, inputs, cotangents, Some(i))?[i];
        let same = alone.to_f64_vec()?.iter().zip(expected.to_f64_vec()?).all(|(a, b)| a.to_bits() == b.to_bits());
        ensure!(same, "gradcheck: the gradient of input {i} changes when the other inputs are constants");
    }
    Ok(())
}

/// Gradients by the tape for all inputs, or with only one of them as a leaf; zeros where the output does not depend on an input.
fn gradients<F>(f: &F, inputs: &[Tensor], cotangents: &[Tensor], leaf: Option<usize>) -> Result<Vec<Tensor>>
where
    F: Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>,
{
    let mut tape = Tape::new();
    let vars: Vec<Var> = inputs
        .iter()
        .enumerate()
        .map(|(i, x)| match leaf {
            Some(only) if only != i => Var::constant(x.clone()),
            _ => tape.leaf(&i.to_string(), x),
        })
        .collect();
    let outputs = f(&mut tape, &vars)?;
    let seeds: Vec<(&Var, Tensor)> =
        outputs.iter().zip(cotangents.iter().cloned()).filter(|(y, _)| y.needs_gradient()).collect();
    let gradients = tape.backward_from(&seeds)?;
    Ok(inputs
        .iter()
        .enumerate()
        .map(|(i, x)| gradients.get(&i.to_string()).cloned().unwrap_or_else(|| Tensor::zeros(x.shape(), DType::F64)))
        .collect())
}

/// The directional derivative of all outputs along `direction` in input `i`.
fn difference<F>(f: &F, inputs: &[Tensor], i: usize, direction: &[f64]) -> Result<Vec<f64>>
where
    F: Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>,
{
    let at = |t: f64| -> Result<Vec<f64>> {
        let mut moved = inputs.to_vec();
        let x = moved[i].as_mut_slice::<f64>()?;
        for (x, d) in x.iter_mut().zip(direction) {
            *x += t * d;
        }
        values(&evaluate(f, &moved)?)
    };
    let (p1, m1, p2, m2) = (at(STEP)?, at(-STEP)?, at(2.0 * STEP)?, at(-2.0 * STEP)?);
    Ok((0..p1.len()).map(|j| (8.0 * (p1[j] - m1[j]) - (p2[j] - m2[j])) / (12.0 * STEP)).collect())
}

fn evaluate<F>(f: &F, inputs: &[Tensor]) -> Result<Vec<Tensor>>
where
    F: Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>,
{
    let vars: Vec<Var> = inputs.iter().cloned().map(Var::constant).collect();
    let outputs = f(&mut Tape::inference(), &vars).context("gradcheck: forward")?;
    Ok(outputs.iter().map(|y| y.value().clone()).collect())
}

/// Cotangents that pick element `j` of the outputs, counted through all of them.
fn one_hot(outputs: &[Tensor], mut j: usize) -> Vec<Tensor> {
    let mut cotangents = vec![];
    for y in outputs {
        let mut data = vec![0.0; y.len()];
        if let Some(entry) = data.get_mut(j) {
            *entry = 1.0;
        }
        j = j.wrapping_sub(y.len());
        cotangents.push(Tensor::from_vec(data, y.shape()).expect("one value an element"));
    }
    cotangents
}

fn random_like(x: &Tensor, rng: &mut ChaCha8Rng) -> Tensor {
    let data: Vec<f64> = (0..x.len()).map(|_| StandardNormal.sample(rng)).collect();
    Tensor::from_vec(data, x.shape()).expect("one value an element")
}

/// The values of several tensors, one after the other.
fn values(tensors: &[Tensor]) -> Result<Vec<f64>> {
    Ok(tensors.iter().map(Tensor::to_f64_vec).collect::<Result<Vec<_>>>()?.concat())
}

fn inner(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

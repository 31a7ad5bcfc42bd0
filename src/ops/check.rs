//! Holds an operator on a device against f64 on the CPU, case by case.
//!
//! The reference gets the inputs already rounded to the dtype that is checked. Budgets: in bf16, outputs may be off by
//! twice and gradients by three times what a plain bf16 version is, f32 arithmetic with rounded results; this for the worst
//! error and for the root mean square of all. In f32, and where there are too few numbers for a worst case to mean anything,
//! they may be off by a few roundings of the largest number.

use super::cases::{Case, Use};
use crate::device::Device;
use crate::dtype::DType;
use crate::tape::{Tape, Var};
use crate::tensor::Tensor;
use anyhow::{Result, ensure};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// Numbers below which a ratio of two worst errors fails by chance.
const FEW: usize = 100;
/// Roundings of the largest number that few bf16 numbers, and all f32 numbers, may be off by.
const ROUNDINGS: f64 = 4.0;
const F32_ROUNDINGS: f64 = 48.0;

/// Runs a case forward and backward once, with random numbers, for what the device counts. Error: whatever the operator
/// returns.
pub fn run_once(case: &Case, device: &Device, dtype: DType, rng: &mut ChaCha8Rng) -> Result<()> {
    let inputs: Vec<Tensor> = case.inputs(rng).iter().map(|x| x.to_dtype(dtype)).collect::<Result<_>>()?;
    let mut tape = Tape::new();
    let vars = leaves(&mut tape, case, &inputs, device, dtype)?;
    let outputs = case.run(&mut tape, &vars)?;
    let cotangent = |y: &Var| normal(y.shape(), rng)?.to_dtype(y.value().dtype())?.to(device);
    let outputs: Vec<&Var> = outputs.iter().filter(|y| y.needs_gradient()).collect();
    let cotangents: Vec<Tensor> = outputs.iter().copied().map(cotangent).collect::<Result<_>>()?;
    if !outputs.is_empty() {
        tape.backward_from(&outputs.into_iter().zip(cotangents).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// What a check found: the worst error as a share of what is allowed, and where.
#[derive(Clone, Debug)]
pub struct Worst {
    pub share: f64,
    pub place: String,
}

impl Worst {
    pub fn passes(&self) -> bool {
        self.share <= 1.0
    }
}

/// Runs a case forward and backward on `device` in `dtype` and compares with f64. Also runs it twice: the results must be the
/// same bits. Errors: whatever the operator returns; results that differ from run to run.
pub fn check(case: &Case, device: &Device, dtype: DType, rng: &mut ChaCha8Rng) -> Result<Worst> {
    let inputs: Vec<Tensor> = case.inputs(rng).iter().map(|x| x.to_dtype(dtype)).collect::<Result<_>>()?;
    let cotangents = cotangents(case, &inputs, rng)?;
    let exact = run(case, &inputs, &cotangents, &Device::Cpu, DType::F64)?;
    let plain = |tape: &mut Tape, vars: &[Var]| case.run_plain(tape, vars);
    let naive = match dtype {
        DType::Bf16 => run_with(Tape::rounding(dtype), case, &plain, &inputs, &cotangents, &Device::Cpu, DType::F32)?,
        _ => exact.clone(),
    };
    let found = run(case, &inputs, &cotangents, device, dtype)?;
    let again = run(case, &inputs, &cotangents, device, dtype)?;
    let mut worst = Worst { share: 0.0, place: "nothing".to_string() };
    for (i, (found, again)) in found.iter().zip(&again).enumerate() {
        let (name, outputs) = (name(i, cotangents.len()), cotangents.len());
        let values = [&found.to_f64_vec()?, &exact[i].to_f64_vec()?];
        let same = values[0].iter().zip(again.to_f64_vec()?).all(|(a, b)| a.to_bits() == b.to_bits());
        ensure!(same, "{} {}: {name}: a second run gives other bits", case.op, case.label);
        let narrow = dtype == DType::Bf16 && found.dtype() != DType::U32;
        let naive = if narrow { naive[i].to_dtype(dtype)? } else { naive[i].clone() };
        let (naive, factor) = (naive.to_f64_vec()?, if i < outputs { 2.0 } else { 3.0 });
        let allowed = allowed(values[1], &naive, dtype, factor, case.terms);
        for (e, (found, exact)) in values[0].iter().zip(values[1]).enumerate() {
            let same = found == exact || found.is_nan() && exact.is_nan();
            let share = if same { 0.0 } else { (found - exact).abs() / allowed };
            if share.is_nan() || share > worst.share {
                let share = if share.is_nan() { f64::INFINITY } else { share };
                worst =
                    Worst { share, place: format!("{name}[{e}]: found {found:e}, expected {exact:e} ± {allowed:e}") };
            }
        }
        if dtype == DType::Bf16 && values[1].len() >= FEW {
            let (found, naive) = (root_mean_square(values[0], values[1]), root_mean_square(&naive, values[1]));
            let size = root_mean_square(values[1], &vec![0.0; values[1].len()]);
            let share = found / (factor * naive + 0.5 * 2f64.powi(-8) * size).max(f64::MIN_POSITIVE);
            if share > worst.share {
                worst = Worst { share, place: format!("{name}: root mean square of the errors {found:e}") };
            }
        }
    }
    Ok(worst)
}

/// The root mean square of the differences of two lists, where both are finite.
fn root_mean_square(a: &[f64], b: &[f64]) -> f64 {
    let finite = a.iter().zip(b).map(|(a, b)| a - b).filter(|difference| difference.is_finite());
    let (sum, n) = finite.fold((0.0, 0), |(sum, n), difference| (sum + difference * difference, n + 1));
    (sum / f64::from(n.max(1))).sqrt()
}

fn name(i: usize, outputs: usize) -> String {
    if i < outputs { format!("output {i}") } else { format!("gradient of input {}", i - outputs) }
}

/// The error that each number may have.
fn allowed(exact: &[f64], naive: &[f64], dtype: DType, factor: f64, terms: usize) -> f64 {
    let largest = exact.iter().filter(|x| x.is_finite()).fold(1.0f64, |largest, x| largest.max(x.abs()));
    let bf16 = dtype == DType::Bf16;
    if bf16 && exact.len() >= FEW {
        let errors = exact.iter().zip(naive).map(|(exact, naive)| (exact - naive).abs());
        return factor * errors.filter(|error| error.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    }
    if bf16 {
        return ROUNDINGS * 2f64.powi(-8) * largest;
    }
    // A running sum of n numbers of size 1 is about √n, and is rounded n times.
    (F32_ROUNDINGS * largest).max(2.0 * terms as f64) * 2f64.powi(-24)
}

/// Random cotangents in f64, rounded to the inputs' dtype.
fn cotangents(case: &Case, inputs: &[Tensor], rng: &mut ChaCha8Rng) -> Result<Vec<Tensor>> {
    let dtype = inputs[0].dtype();
    let vars: Vec<Var> = inputs.iter().map(|x| Ok(Var::constant(x.to_dtype(DType::F64)?))).collect::<Result<_>>()?;
    case.run(&mut Tape::inference(), &vars)?.iter().map(|y| normal(y.shape(), rng)?.to_dtype(dtype)).collect()
}

fn normal(shape: &[usize], rng: &mut ChaCha8Rng) -> Result<Tensor> {
    let data: Vec<f64> = (0..shape.iter().product()).map(|_| StandardNormal.sample(rng)).collect();
    Tensor::from_vec(data, shape)
}

/// The inputs on the device, as leaves unless no gradient passes the operator.
fn leaves(tape: &mut Tape, case: &Case, inputs: &[Tensor], device: &Device, dtype: DType) -> Result<Vec<Var>> {
    let leaf = |(i, x): (usize, &Tensor)| {
        let x = x.to_dtype(dtype)?.to(device)?;
        Ok(if case.usage == Use::Forward { Var::constant(x) } else { tape.leaf(&i.to_string(), &x) })
    };
    inputs.iter().enumerate().map(leaf).collect()
}

/// The outputs, then, unless the operator has none, the gradients of all inputs.
fn run(case: &Case, inputs: &[Tensor], cotangents: &[Tensor], device: &Device, dtype: DType) -> Result<Vec<Tensor>> {
    run_with(Tape::new(), case, &|tape, vars| case.run(tape, vars), inputs, cotangents, device, dtype)
}

type Operator<'a> = &'a dyn Fn(&mut Tape, &[Var]) -> Result<Vec<Var>>;

fn run_with(
    mut tape: Tape,
    case: &Case,
    operator: Operator,
    inputs: &[Tensor],
    cotangents: &[Tensor],
    device: &Device,
    dtype: DType,
) -> Result<Vec<Tensor>> {
    let vars = leaves(&mut tape, case, inputs, device, dtype)?;
    let outputs = operator(&mut tape, &vars)?;
    let mut results: Vec<Tensor> = outputs.iter().map(|y| y.value().to(&Device::Cpu)).collect::<Result<_>>()?;
    let mut seeds = vec![];
    for (y, cotangent) in outputs.iter().zip(cotangents).filter(|(y, _)| y.needs_gradient()) {
        // A loss is f32 whatever the logits are.
        seeds.push((y, cotangent.to_dtype(y.value().dtype())?.to(device)?));
    }
    if !seeds.is_empty() {
        let mut gradients = tape.backward_from(&seeds)?;
        for (i, x) in inputs.iter().enumerate() {
            let gradient = gradients.remove(&i.to_string()).unwrap_or_else(|| Tensor::zeros(x.shape(), dtype));
            results.push(gradient.to(&Device::Cpu)?);
        }
    }
    Ok(results)
}

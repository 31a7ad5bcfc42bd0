//! Holds an operator on a device against f64 on the CPU, case by case.
//!
//! The reference gets the inputs already rounded to the dtype that is checked. Budgets: in bf16, outputs may be off by
//! twice and gradients by three times what a plain bf16 version is, f32 arithmetic with rounded results; in f32, and where there
//! are too few numbers for a worst case to mean anything, by a few roundings of the largest number.

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
    let tape = if dtype == DType::Bf16 { Tape::rounding(dtype) } else { Tape::new() };
    let naive = run_with(tape, case, &plain, &inputs, &cotangents, &Device::Cpu, DType::F32)?;
    let found = run(case, &inputs, &cotangents, device, dtype)?;
    let again = run(case, &inputs, &cotangents, device, dtype)?;
    let mut worst = Worst { share: 0.0, place: "nothing".to_string() };
    for (i, (found, again)) in found.iter().zip(&again).enumerate() {
        let (name, outputs) = (name(i, cotangents.len()), cotangents.len());
        let values = [&found.to_f64_vec()?, &exact[i].to_f64_vec()?];
        let same = values[0].iter().zip(again.to_f64_vec()?).all(|(a, b)| a.to_bits() == b.to_bits());
        ensure!(same, "{} {}: {name}: a second run gives other bits", case.op, case.label);
        let naive = if found.dtype() == DType::U32 { naive[i].clone() } else { naive[i].to_dtype(dtype)? };
        let allowed = allowed(values[1], &naive.to_f64_vec()?, dtype, if i < outputs { 2.0 } else { 3.0 });
        for (e, (found, exact)) in values[0].iter().zip(values[1]).enumerate() {
            let same = found == exact || found.is_nan() && exact.is_nan();
            let share = if same { 0.0 } else { (found - exact).abs() / allowed };
            if !(share <= worst.share) {
                let share = if share.is_nan() { f64::INFINITY } else { share };
                worst =
                    Worst { share, place: format!("{name}[{e}]: found {found:e}, expected {exact:e} ± {allowed:e}") };
            }
        }
    }
    Ok(worst)
}

fn name(i: usize, outputs: usize) -> String {
    if i < outputs { format!("output {i}") } else { format!("gradient of input {}", i - outputs) }
}

/// The error that each number may have.
fn allowed(exact: &[f64], naive: &[f64], dtype: DType, factor: f64) -> f64 {
    let largest = exact.iter().filter(|x| x.is_finite()).fold(1.0f64, |largest, x| largest.max(x.abs()));
    let bf16 = dtype == DType::Bf16;
    if bf16 && exact.len() >= FEW {
        let errors = exact.iter().zip(naive).map(|(exact, naive)| (exact - naive).abs());
        return factor * errors.filter(|error| error.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    }
    if bf16 { ROUNDINGS * 2f64.powi(-8) * largest } else { F32_ROUNDINGS * 2f64.powi(-24) * largest }
}

/// Random cotangents in f64, rounded to the inputs' dtype.
pub fn cotangents(case: &Case, inputs: &[Tensor], rng: &mut ChaCha8Rng) -> Result<Vec<Tensor>> {
    let dtype = inputs[0].dtype();
    let vars: Vec<Var> = inputs.iter().map(|x| Ok(Var::constant(x.to_dtype(DType::F64)?))).collect::<Result<_>>()?;
    let draw = |y: &Var| {
        let data: Vec<f64> = (0..y.value().len()).map(|_| StandardNormal.sample(rng)).collect();
        Tensor::from_vec(data, y.shape())?.to_dtype(dtype)
    };
    case.run(&mut Tape::inference(), &vars)?.iter().map(draw).collect()
}

/// The outputs, then, unless the operator has none, the gradients of all inputs.
pub fn run(
    case: &Case,
    inputs: &[Tensor],
    cotangents: &[Tensor],
    device: &Device,
    dtype: DType,
) -> Result<Vec<Tensor>> {
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
    let differentiable = case.usage != Use::Forward;
    let mut vars = vec![];
    for (i, x) in inputs.iter().enumerate() {
        let x = x.to_dtype(dtype)?.to(device)?;
        vars.push(if differentiable { tape.leaf(&i.to_string(), &x) } else { Var::constant(x) });
    }
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

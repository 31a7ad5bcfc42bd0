//! `handgrad gradcheck`

use super::{DeviceArgs, argument};
use crate::gradcheck::{RTOL, Report, gradcheck};
use crate::ops::cases::{Case, cases};
use anyhow::{Result, anyhow, ensure};
use clap::Args;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::io::Write;

#[derive(Args)]
pub struct GradcheckArgs {
    /// Only this operator, such as rms_norm
    #[arg(long, value_name = "NAME")]
    op: Option<String>,
    /// Seed of inputs and cotangents [default: a new one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    device: DeviceArgs,
}

/// A table with a row for each operator; status 1 if one fails.
pub fn run(args: GradcheckArgs) -> Result<u8> {
    let device = args.device.open()?;
    let all = cases();
    let mut ops: Vec<&str> = vec![];
    for case in &all {
        if !ops.contains(&case.op) {
            ops.push(case.op);
        }
    }
    if let Some(op) = &args.op {
        if !ops.contains(&op.as_str()) {
            return argument(Err(anyhow!("--op: found {op}, expected one of {}", ops.join(", "))));
        }
        ops.retain(|name| name == op);
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    let mut out = std::io::stdout().lock();
    writeln!(out, "seed {seed}, f64 against finite differences, relative error at most {RTOL:e}\n")?;
    writeln!(out, "{:<14} {:>5} {:>9}  worst error", "operator", "cases", "numbers")?;
    let mut failed = 0;
    for op in ops {
        let cases: Vec<&Case> = all.iter().filter(|case| case.op == op).collect();
        let (worst, label) = check(&cases, seed)?;
        let verdict = if worst.passes() { "pass".to_string() } else { format!("FAIL in {label}: {}", worst.place) };
        failed += usize::from(!worst.passes());
        writeln!(out, "{op:<14} {:>5} {:>9}  {:.1e}  {verdict}", cases.len(), worst.compared, worst.worst)?;
    }
    ensure!(failed == 0, "gradcheck: {failed} operators failed");
    Ok(0)
}

/// The worst report of an operator's cases with that case's label; `compared` counts all of them.
fn check<'a>(cases: &[&'a Case], seed: u64) -> Result<(Report, &'a str)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut worst: Option<(Report, &str)> = None;
    let mut compared = 0;
    for case in cases {
        let report = gradcheck(&case.inputs(&mut rng), seed, |tape, x| case.run(tape, x))?;
        compared += report.compared;
        if worst.as_ref().is_none_or(|(w, _)| report.worst > w.worst) {
            worst = Some((report, &case.label));
        }
    }
    let (mut report, label) = worst.expect("every operator has cases");
    report.compared = compared;
    Ok((report, label))
}

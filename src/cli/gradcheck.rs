//! `handgrad gradcheck`

use super::{DeviceArgs, argument};
use crate::device::Device;
use crate::dtype::DType;
use crate::gradcheck::{RTOL, gradcheck};
use crate::ops::cases::{Case, Use, cases};
use crate::ops::check::check;
use crate::shown::shown;
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

/// A table with a row for each operator; status 1 if one fails. Errors: an unknown operator; a device that cannot be opened.
pub fn run(args: GradcheckArgs) -> Result<u8> {
    let device = args.device.open()?;
    let all = cases();
    let wanted = |case: &&Case| match device {
        Device::Cpu => matches!(case.usage, Use::Check | Use::CpuOnly),
        Device::Gpu(_) => matches!(case.usage, Use::Check | Use::Forward),
    };
    let mut ops: Vec<&str> = all.iter().filter(wanted).map(|case| case.op).collect();
    ops.dedup();
    ops = ops.iter().enumerate().filter(|(i, op)| !ops[..*i].contains(op)).map(|(_, op)| *op).collect();
    if let Some(op) = &args.op {
        if !ops.contains(&op.as_str()) {
            return argument(Err(anyhow!("--op: found {}, expected one of {}", shown(op), ops.join(", "))));
        }
        ops.retain(|name| name == op);
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    let mut out = std::io::stdout().lock();
    let columns = match &device {
        Device::Cpu => {
            writeln!(out, "seed {seed}, f64 against finite differences, relative error at most {RTOL:e}\n")?;
            "  numbers  worst error"
        }
        Device::Gpu(gpu) => {
            writeln!(
                out,
                "seed {seed}, {} against f64 on the CPU: the worst error as a share of its budget\n",
                gpu.name()
            )?;
            "      f32      bf16"
        }
    };
    writeln!(out, "{:<20} {:>5}{columns}", "operator", "cases")?;
    let mut failed = 0;
    for op in ops {
        let cases: Vec<&Case> = all.iter().filter(wanted).filter(|case| case.op == op).collect();
        let (numbers, failure) = match &device {
            Device::Cpu => by_differences(&cases, seed)?,
            device => on_device(&cases, device, seed)?,
        };
        let verdict = failure.as_ref().map_or("pass".to_string(), |place| format!("FAIL in {place}"));
        failed += usize::from(failure.is_some());
        writeln!(out, "{op:<20} {:>5}{numbers}  {verdict}", cases.len())?;
    }
    ensure!(failed == 0, "gradcheck: {failed} operators failed");
    Ok(0)
}

/// The row of an operator by finite differences: numbers compared and the worst error, and where it failed.
fn by_differences(cases: &[&Case], seed: u64) -> Result<(String, Option<String>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut worst, mut compared, mut failure) = (0.0f64, 0, None);
    for case in cases {
        let report = gradcheck(&case.inputs(&mut rng), seed, |tape, x| case.run(tape, x))?;
        compared += report.compared;
        worst = worst.max(report.worst);
        if !report.passes() && failure.is_none() {
            failure = Some(format!("{}: {}", case.label, report.place));
        }
    }
    Ok((format!("{compared:>9}  {worst:.1e}"), failure))
}

/// The row of an operator on a card: the worst share in f32 and in bf16, and where it failed.
fn on_device(cases: &[&Case], device: &Device, seed: u64) -> Result<(String, Option<String>)> {
    let (mut row, mut failure) = (String::new(), None);
    for dtype in [DType::F32, DType::Bf16] {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let (mut share, mut compared) = (0.0f64, 0);
        for case in cases.iter().filter(|case| case.dtypes.contains(&dtype)) {
            let worst = check(case, device, dtype, &mut rng)?;
            (share, compared) = (share.max(worst.share), compared + 1);
            if !worst.passes() && failure.is_none() {
                failure = Some(format!("{} in {dtype}: {}", case.label, worst.place));
            }
        }
        let share = if compared == 0 { "-".to_string() } else { format!("{share:.2}") };
        row += &format!(" {share:>9}");
    }
    Ok((row, failure))
}

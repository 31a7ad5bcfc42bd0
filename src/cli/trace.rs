//! `handgrad trace`: what a model computes, tensor by tensor, for comparing with another engine (chapter 8, Q6).

use super::{DeviceArgs, against, argument, load_model};
use crate::device::Device;
use crate::dtype::DType;
use crate::formats::{rope_layout, safetensors};
use crate::nn::Module;
use crate::ops::{IGNORE_INDEX, cross_entropy};
use crate::shown::{shown, shown_path};
use crate::tape::Tape;
use crate::tensor::Tensor;
use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct TraceArgs {
    /// Model directory
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Token ids; sequences of the same length are separated by ';'
    #[arg(long, value_name = "1,2,3[;4,5,6]")]
    ids: String,
    /// Next tokens, shaped like --ids; -100 does not count. Adds loss and gradients
    #[arg(long, value_name = "2,3,4[;5,6,7]", allow_hyphen_values = true)]
    targets: Option<String>,
    /// Number type to compute in
    #[arg(long, default_value = "f32", value_parser = ["f32", "f64", "bf16"])]
    dtype: String,
    /// The file to write
    #[arg(long, value_name = "FILE.safetensors", required_unless_present = "against")]
    out: Option<PathBuf>,
    /// Compare with a trace of another engine, tensor by tensor; scripts/trace_transformers.py makes one
    #[arg(long, value_name = "FILE.safetensors")]
    against: Option<PathBuf>,
    /// Differences up to this part of a tensor's largest magnitude are none
    #[arg(long, value_name = "X", default_value_t = 1e-5, requires = "against")]
    tolerance: f64,
    #[command(flatten)]
    device: DeviceArgs,
}

pub fn run(args: TraceArgs, quiet: bool) -> Result<u8> {
    let device = args.device.open()?;
    let ids = argument(parse_ids("--ids", &args.ids, 0))?;
    let targets =
        args.targets.as_deref().map(|text| argument(parse_ids("--targets", text, IGNORE_INDEX))).transpose()?;
    if let Some(targets) = &targets {
        let (found, expected) = (targets.shape(), ids.shape());
        argument(if found == expected {
            Ok(())
        } else {
            Err(anyhow!("--targets: found {found:?} ids, expected {expected:?} as in --ids"))
        })?;
    }
    let model = load_model(&args.model, quiet)?;
    let model = match args.dtype.as_str() {
        "f64" => {
            ensure!(device == Device::Cpu, "--dtype: found f64 on {device}, expected f32 or bf16");
            model.to_dtype(DType::F64)?
        }
        "bf16" => model.to(&device, DType::Bf16)?,
        _ => model.to(&device, DType::F32)?,
    };
    if let Some(out) = &args.out {
        let inside_model = same_directory(out.parent().unwrap_or(Path::new("")), &args.model);
        ensure!(
            !inside_model,
            "--out {}: found a path in the model's directory, expected one elsewhere",
            shown_path(out)
        );
    }
    let expected = args.against.as_deref().map(safetensors::read).transpose()?;

    let mut tape = if targets.is_some() { Tape::new() } else { Tape::inference() };
    tape.keep_trace();
    let logits = model.forward(&mut tape, &ids)?;
    let mut tensors = tape.take_trace();
    if let Some(targets) = targets {
        let loss = cross_entropy(&mut tape, &logits, &targets, IGNORE_INDEX)?;
        tensors.push(("loss".to_string(), loss.value().clone()));
        let gradients = tape.backward(&loss)?;
        for parameter in model.parameters() {
            let zeros = || Tensor::zeros(parameter.value.shape(), parameter.value.dtype());
            let gradient = gradients.get(&parameter.name).cloned().unwrap_or_else(zeros).to(&Device::Cpu)?;
            let gradient = rope_layout::to_file(&model.config, &parameter.name, &gradient)?;
            tensors.push((format!("grad.{}", parameter.name), gradient));
        }
    }
    for (_, tensor) in &mut tensors {
        let here = tensor.to(&Device::Cpu)?;
        *tensor = if here.dtype() == DType::Bf16 { here.to_dtype(DType::F32)? } else { here };
    }
    if let Some(out) = &args.out {
        safetensors::write(out, &tensors, &[("format", "pt".to_string())])?;
    }
    if let (Some(path), Some(expected)) = (&args.against, expected) {
        let stdout = &mut std::io::stdout().lock();
        against::compare(&tensors, &expected.tensors, args.tolerance, stdout)
            .with_context(|| path.display().to_string())?;
    }
    Ok(0)
}

fn same_directory(a: &Path, b: &Path) -> bool {
    let full =
        |path: &Path| if path.as_os_str().is_empty() { Path::new(".").canonicalize() } else { path.canonicalize() };
    matches!((full(a), full(b)), (Ok(a), Ok(b)) if a == b)
}

/// `1,2;3,4` as a u32 tensor `[2,2]`; negative numbers down to `least` in two's complement.
fn parse_ids(flag: &str, text: &str, least: i32) -> Result<Tensor> {
    let rows: Vec<Vec<u32>> = text.split(';').map(|row| parse_row(flag, row, least)).collect::<Result<_>>()?;
    let t = rows[0].len();
    for row in &rows {
        ensure!(row.len() == t, "{flag}: found sequences of {t} and {} ids, expected the same length", row.len());
    }
    Tensor::from_vec(rows.concat(), &[rows.len(), t])
}

fn parse_row(flag: &str, row: &str, least: i32) -> Result<Vec<u32>> {
    let parse = |text: &str| {
        let id: i32 = text
            .trim()
            .parse()
            .with_context(|| format!("{flag}: found '{}', expected a number", shown(text.trim())))?;
        ensure!(id >= least, "{flag}: found {id}, expected a number of at least {least}");
        Ok(id as u32)
    };
    row.split(',').map(parse).collect()
}

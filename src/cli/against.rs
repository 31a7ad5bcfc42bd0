//! Two traces side by side: which tensor is the first to differ (chapter 8, Q6).

use crate::tensor::Tensor;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::io::Write;

/// How a tensor compares.
enum Finding {
    /// The largest difference over the largest expected magnitude, and where it stands.
    Error {
        relative: f64,
        at: usize,
        found: f64,
        expected: f64,
    },
    OtherShape(Vec<usize>),
    Missing,
}

/// Prints how the tensors of a trace, in their order of computation, compare with the `expected` of another engine.
///
/// Error: tensors that differ by more than `tolerance` times the largest magnitude expected, by number and name of the
/// first; no tensor of a common name.
pub fn compare(
    trace: &[(String, Tensor)],
    expected: &BTreeMap<String, Tensor>,
    tolerance: f64,
    out: &mut dyn Write,
) -> Result<()> {
    let find = |(name, tensor): &(String, Tensor)| Ok((name.clone(), finding(tensor, expected.get(name))?));
    let findings: Vec<(String, Finding)> = trace.iter().map(find).collect::<Result<_>>()?;
    let differs = |finding: &Finding| match finding {
        Finding::Error { relative, .. } => *relative > tolerance,
        Finding::OtherShape(_) => true,
        Finding::Missing => false,
    };
    let different: Vec<&(String, Finding)> = findings.iter().filter(|(_, finding)| differs(finding)).collect();
    if let Some((name, finding)) = different.first() {
        let shape = trace.iter().find(|(other, _)| other == name).map_or(&[][..], |(_, tensor)| tensor.shape());
        writeln!(out, "first difference: {name} {shape:?}{}\n", detail(finding, shape))?;
    }
    writeln!(out, "{:<40} error", "tensor")?;
    let mut common = 0;
    for (name, finding) in &findings {
        let error = match finding {
            Finding::Error { relative, .. } => format!("{relative:.1e}"),
            Finding::OtherShape(shape) => format!("expected shape {shape:?}"),
            Finding::Missing => continue,
        };
        common += 1;
        writeln!(out, "{name:<40} {error}{}", if differs(finding) { "  differs" } else { "" })?;
    }
    let here: Vec<&str> =
        findings.iter().filter(|(_, f)| matches!(f, Finding::Missing)).map(|(name, _)| name.as_str()).collect();
    let there: Vec<&str> =
        expected.keys().map(String::as_str).filter(|name| trace.iter().all(|(other, _)| other != name)).collect();
    for (place, names) in [("here", here), ("in the file", there)] {
        if !names.is_empty() {
            writeln!(out, "only {place}: {}", names.join(" "))?;
        }
    }
    match different.first() {
        _ if common == 0 => {
            bail!("found no tensor of a name in the trace, expected names such as embed or layers.0.attn")
        }
        Some((name, _)) => {
            bail!(
                "found {} of {common} tensors that differ by more than {tolerance}, the first is {name}",
                different.len()
            )
        }
        None => Ok(()),
    }
}

fn finding(found: &Tensor, expected: Option<&Tensor>) -> Result<Finding> {
    let Some(expected) = expected else { return Ok(Finding::Missing) };
    if found.shape() != expected.shape() {
        return Ok(Finding::OtherShape(expected.shape().to_vec()));
    }
    let (found, expected) = (found.to_f64_vec()?, expected.to_f64_vec()?);
    let largest = expected.iter().fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let (mut worst, mut at) = (0.0, 0);
    for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
        // NaN is no number that could be close.
        let difference =
            if a == b { 0.0 } else { Some((a - b).abs()).filter(|d| !d.is_nan()).unwrap_or(f64::INFINITY) };
        if difference > worst {
            (worst, at) = (difference, i);
        }
    }
    let value = |values: &[f64]| values.get(at).copied().unwrap_or(0.0);
    let relative = if worst == 0.0 { 0.0 } else { worst / largest };
    let relative = if relative.is_nan() { f64::INFINITY } else { relative };
    Ok(Finding::Error { relative, at, found: value(&found), expected: value(&expected) })
}

/// What is said of the first difference behind its name and shape.
fn detail(finding: &Finding, shape: &[usize]) -> String {
    match finding {
        Finding::Error { relative, at, found, expected } => {
            let mut index = vec![0; shape.len()];
            let mut rest = *at;
            for (place, size) in index.iter_mut().zip(shape).rev() {
                (*place, rest) = (rest % size, rest / size);
            }
            format!(" at {index:?}: found {found}, expected {expected}, {relative:.1e} of the largest magnitude")
        }
        Finding::OtherShape(expected) => format!(": expected shape {expected:?}"),
        Finding::Missing => String::new(),
    }
}

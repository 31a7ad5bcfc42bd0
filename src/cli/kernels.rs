//! `handgrad kernels`: what ptxas and the emulator say of every kernel.
//!
//! The kernels run on the emulator with the cases of `ops::cases`, and each is shown at the shape that takes most
//! instructions. A process has one emulated card, so each card is measured in a process of its own. The ladders are
//! launched from tests and benches only: of them there is what ptxas said.

use super::{argument, note};
use crate::device::Device;
use crate::gpu::modules::{COMPILED, Resources, resources};
use crate::gpu::{Gpu, too_old};
use crate::ops::cases::{Case, Use, cases};
use crate::ops::check::run_once;
use crate::shown::shown;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::process::Command;

/// The cards that the emulator knows.
const CARDS: [&str; 2] = ["rtx4090", "h200"];
/// The emulator's variable for its card.
const CARD_VARIABLE: &str = "HANDGRAD_EMULATOR_CARD";

#[derive(Args)]
pub struct KernelsArgs {
    /// Only kernels whose name or file contains this, such as attention_forward
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Only this emulated card: rtx4090 or h200
    #[arg(long, value_name = "NAME")]
    card: Option<String>,
    /// One JSON object a line instead of a table
    #[arg(long)]
    json: bool,
    /// Measures in this process, on the card of the environment
    #[arg(long, hide = true)]
    here: bool,
}

pub fn run(args: KernelsArgs) -> Result<u8> {
    let name = args.kernel.as_deref().unwrap_or("");
    if !resources().iter().any(|r| is_named(r, name)) {
        let known: Vec<&str> = COMPILED.files.iter().map(|file| file.name).collect();
        return argument(Err(anyhow!(
            "--kernel: found {}, expected part of a kernel's name: {}",
            shown(name),
            known.join(", ")
        )));
    }
    let mut out = std::io::stdout().lock();
    if args.here {
        for row in measure(name)? {
            writeln!(out, "{row}")?;
        }
        return Ok(0);
    }
    let card = args.card.as_deref();
    if let Some(card) = card.filter(|card| !CARDS.contains(card)) {
        return argument(Err(anyhow!("--card: found {}, expected one of {}", shown(card), CARDS.join(", "))));
    }
    for card in CARDS.into_iter().filter(|known| card.is_none_or(|card| card == *known)) {
        let rows = measure_on(card, args.kernel.as_deref())?;
        if args.json {
            rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
        } else {
            table(&mut out, &rows)?;
        }
    }
    Ok(0)
}

fn is_named(r: &Resources, name: &str) -> bool {
    r.kernel.contains(name) || r.file.contains(name)
}

/// The rows of one card, from a process of its own.
fn measure_on(card: &str, kernel: Option<&str>) -> Result<Vec<Value>> {
    let program = std::env::current_exe().context("this program's path")?;
    let mut command = Command::new(program);
    command.args(["kernels", "--here"]).env(CARD_VARIABLE, card);
    if let Some(kernel) = kernel {
        command.args(["--kernel", kernel]);
    }
    let output = command.output().context("a process for the card")?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{card}: {}", said.trim_end().trim_start_matches("handgrad: "));
    }
    said.lines().for_each(note);
    String::from_utf8_lossy(&output.stdout).lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Runs the kernels and joins what the emulator counted with what ptxas said.
fn measure(name: &str) -> Result<Vec<Value>> {
    let gpu = Gpu::emulator()?;
    let all = resources();
    let wanted = |r: &&Resources| is_named(r, name);
    run_cases(&gpu, &all.iter().filter(wanted).collect::<Vec<_>>())?;
    let report = gpu.emulator_report().context("the emulator gave no report")?;
    let capability = gpu.limits().capability;
    let compiled = all.iter().filter(wanted).filter(|r| r.capability == capability);
    let mut rows: Vec<Value> = compiled.map(|r| row(&gpu, r, &report)).collect();
    rows.sort_by_key(|row| [&row["file"], &row["kernel"]].map(|text| text.as_str().unwrap_or_default().to_string()));
    if rows.is_empty() {
        let built = || {
            format!(
                "found no machine code for compute capability {capability}: build again with CUDA_COMPUTE_CAP={capability}"
            )
        };
        bail!("{}: {}", gpu.name(), too_old(capability).unwrap_or_else(built));
    }
    Ok(rows)
}

/// Runs the cases until all wanted kernels have run: first those of the operators that the kernels' names begin with, then the
/// others, as some operators use another's kernels, and those at the edges of tiles last. Ladders are no operator's.
fn run_cases(gpu: &Gpu, wanted: &[&Resources]) -> Result<()> {
    let (device, mut rng) = (Device::Gpu(gpu.clone()), ChaCha8Rng::seed_from_u64(1));
    let named = |case: &Case| wanted.iter().any(|r| r.kernel.starts_with(case.op));
    let all = cases();
    let usable = all.iter().filter(|case| case.usage != Use::CpuOnly);
    let (edges, usable): (Vec<&Case>, Vec<&Case>) = usable.partition(|case| case.usage == Use::Edge);
    let (first, others): (Vec<&Case>, Vec<&Case>) = usable.into_iter().partition(|case| named(case));
    let missing = |report: &Value| {
        let ran = |r: &&Resources| {
            report["kernels"].as_array().into_iter().flatten().any(|e| e["kernel"] == r.kernel.as_str())
        };
        wanted.iter().copied().any(|r| !r.file.contains('/') && !ran(&r))
    };
    for group in [first, others, edges] {
        if !missing(&gpu.emulator_report().context("the emulator gave no report")?) {
            break;
        }
        for case in group {
            for dtype in case.dtypes {
                run_once(case, &device, *dtype, &mut rng).with_context(|| format!("{} {}", case.op, case.label))?;
            }
        }
        gpu.synchronize()?;
    }
    Ok(())
}

fn row(gpu: &Gpu, r: &Resources, report: &Value) -> Value {
    let mut row = Map::new();
    let mut put = |key: &str, value: Value| row.insert(key.to_string(), value);
    put("card", json!(gpu.name().trim_end_matches(" (emulated)")));
    put("file", json!(r.file));
    put("kernel", json!(r.kernel));
    put("registers", json!(r.registers));
    put("spill_bytes", json!(r.spill_stores + r.spill_loads));
    put("stack_bytes", json!(r.stack));
    put("static_shared_bytes", json!(r.static_shared));
    // Of several shapes the one with most instructions.
    let entries =
        report["kernels"].as_array().into_iter().flatten().filter(|entry| entry["kernel"] == r.kernel.as_str());
    let entry = entries.max_by_key(|entry| entry["instructions"]["warp"].as_u64());
    let Some(entry) = entry else { return Value::Object(row) };
    let dynamic = entry["dynamic_shared_bytes"].as_u64().unwrap_or(0) as u32;
    let threads: u64 = entry["block"].as_array().into_iter().flatten().filter_map(Value::as_u64).product();
    let occupancy = gpu.limits().multiprocessor.occupancy(threads as u32, r.registers, r.static_shared + dynamic);
    put("dynamic_shared_bytes", json!(dynamic));
    put("grid", entry["grid"].clone());
    put("block", entry["block"].clone());
    put("occupancy_percent", json!(occupancy.percent));
    put("occupancy_limit", json!(occupancy.limit));
    put("coalescing_percent", entry["global"]["efficiency_percent"].clone());
    let wavefronts = |key: &str| entry["shared"][key].as_u64().unwrap_or(0);
    put("bank_conflicts", json!(wavefronts("wavefronts").saturating_sub(wavefronts("wavefronts_ideal"))));
    put("shared_wavefronts", json!(wavefronts("wavefronts")));
    put("instructions", entry["instructions"].clone());
    put("flops", entry["flops"].clone());
    put("roofline", entry["roofline"].clone());
    Value::Object(row)
}

fn table(out: &mut impl Write, rows: &[Value]) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or("-").to_string();
    let card = rows.first().map(|row| text(&row["card"])).unwrap_or_default();
    let width = rows.iter().map(|row| text(&row["kernel"]).len()).max().unwrap_or(6);
    writeln!(out, "{card}: registers and spills from ptxas, occupancy from these, the rest counted by the emulator\n")?;
    writeln!(
        out,
        "{:<width$}  {:>7} {:>4} {:>5} {:>7} {:>9} {:>9} {:>9}  instructions",
        "kernel", "threads", "regs", "spill", "shared", "occupancy", "coalesced", "conflicts"
    )?;
    for row in rows {
        let number = |key: &str| row[key].as_u64().map_or("-".to_string(), |n| n.to_string());
        let percent = |key: &str| row[key].as_f64().map_or("-".to_string(), |x| format!("{x:.0}%"));
        let block: Option<u64> = row["block"].as_array().map(|block| block.iter().filter_map(Value::as_u64).product());
        let threads = block.map_or("-".to_string(), |threads| threads.to_string());
        let shared =
            row["static_shared_bytes"].as_u64().unwrap_or(0) + row["dynamic_shared_bytes"].as_u64().unwrap_or(0);
        writeln!(
            out,
            "{:<width$}  {threads:>7} {:>4} {:>5} {shared:>7} {:>9} {:>9} {:>9}  {}",
            text(&row["kernel"]),
            number("registers"),
            number("spill_bytes"),
            percent("occupancy_percent"),
            percent("coalescing_percent"),
            number("bank_conflicts"),
            mix(&row["instructions"])
        )?;
    }
    writeln!(out)?;
    Ok(())
}

/// The three classes with most instructions: `fma 41%, shared 22%, integer 20%`.
fn mix(instructions: &Value) -> String {
    let total = instructions["warp"].as_f64().unwrap_or(0.0);
    let classes = instructions["by_class"].as_object().into_iter().flatten();
    let mut classes: Vec<(&str, f64)> = classes.filter_map(|(class, n)| Some((class.as_str(), n.as_f64()?))).collect();
    classes.sort_by(|a, b| b.1.total_cmp(&a.1));
    let share = |&(class, n): &(&str, f64)| format!("{class} {:.0}%", 100.0 * n / total.max(1.0));
    classes.iter().take(3).map(share).collect::<Vec<_>>().join(", ")
}

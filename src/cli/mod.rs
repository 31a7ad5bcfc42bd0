//! Arguments, printing and exit status; the work is done in the modules below.

mod against;
mod bench;
mod data;
mod eval;
mod generate;
mod gradcheck;
mod inspect;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(not(feature = "cuda"))]
#[path = "no_kernels.rs"]
mod kernels;
mod main_job;
mod plot;
mod progress;
mod scaling;
mod signals;
mod tokenizer;
mod trace;
mod train;

use crate::device::Device;
use crate::dtype::DType;
use crate::formats::model_dir;
use crate::nn::Transformer;
use crate::shown::message;
use crate::train::BadSetting;
use anyhow::{Result, anyhow};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// An LLM engine written by hand. Without a command: trains the small model of chapter 8 on this project's own sources
/// and lets it write.
#[derive(Parser)]
#[command(name = "handgrad", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    common: Common,
}

#[derive(Subcommand)]
enum Command {
    /// Train a model and write it as a directory
    Train(Box<train::TrainArgs>),
    /// Continue a text
    Generate(generate::GenerateArgs),
    /// Mean loss and perplexity of a model over a whole file
    Eval(eval::EvalArgs),
    /// Every layer's tensors, the logits and, with targets, the loss and all gradients, as a safetensors file
    Trace(trace::TraceArgs),
    /// Parameters, FLOPs and bytes of a model
    Inspect(inspect::InspectArgs),
    /// Time training and generation, with random weights
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// What the published scaling laws say of a model and its tokens
    #[command(subcommand)]
    Scaling(scaling::ScalingCommand),
    /// Draw the curves of training runs
    Plot(plot::PlotArgs),
    /// Encode texts into files of token ids, and look at them
    #[command(subcommand)]
    Data(data::DataCommand),
    /// Learn a byte-pair vocabulary; text to token ids and back
    #[command(subcommand)]
    Tokenizer(tokenizer::TokenizerCommand),
    /// Check every operator's gradient against finite differences, in f64
    Gradcheck(gradcheck::GradcheckArgs),
    /// What ptxas and the emulator say of every CUDA kernel
    Kernels(kernels::KernelsArgs),
}

/// More threads than any machine has cores are a mistake.
const MAX_THREADS: usize = 1024;

#[derive(Args)]
struct Common {
    /// Threads to compute with [default: one for each core]
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    /// Print nothing but results and errors
    #[arg(long, global = true)]
    quiet: bool,
}

/// Runs the program on its own arguments.
pub fn main() -> ExitCode {
    let matches = Cli::command().mut_subcommand("train", train::show_defaults).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS, // the reader of our output has seen enough
        Err(error) => {
            note(&message(format_args!("handgrad: {error:#}")));
            ExitCode::from(if error.is::<BadSetting>() { 2 } else { 1 })
        }
    }
}

/// The exit status, if nothing failed.
fn run(cli: Cli) -> Result<u8> {
    let Common { threads, quiet } = cli.common;
    if let Some(threads) = threads.filter(|n| !(1..=MAX_THREADS).contains(n)) {
        return argument(Err(anyhow!("--threads: found {threads}, expected 1 to {MAX_THREADS}")));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build()?; // 0: one for each core
    // From a thread of the pool, or each product would wait for the pool to wake up.
    pool.install(|| dispatch(cli.command, quiet))
}

fn dispatch(command: Option<Command>, quiet: bool) -> Result<u8> {
    match command {
        None => main_job::run(quiet),
        Some(Command::Train(args)) => train::run(*args, quiet),
        Some(Command::Generate(args)) => generate::run(args, quiet),
        Some(Command::Eval(args)) => eval::run(args, quiet),
        Some(Command::Trace(args)) => trace::run(args, quiet),
        Some(Command::Inspect(args)) => inspect::run(args, quiet),
        Some(Command::Bench(command)) => bench::run(command, quiet),
        Some(Command::Scaling(command)) => scaling::run(command),
        Some(Command::Plot(args)) => plot::run(args, quiet),
        Some(Command::Data(command)) => data::run(command, quiet),
        Some(Command::Tokenizer(command)) => tokenizer::run(command, quiet),
        Some(Command::Gradcheck(args)) => gradcheck::run(args),
        Some(Command::Kernels(args)) => kernels::run(args),
    }
}

/// Marks the error of checking an argument's value as a [`BadSetting`]: exit status 2, as for arguments that clap refuses.
fn argument<T>(checked: Result<T>) -> Result<T> {
    checked.map_err(|error| BadSetting(format!("{error:#}")).into())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| io.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Where to compute.
#[derive(Args)]
struct DeviceArgs {
    /// Where to compute: the CPU, NVIDIA card number N, or an emulated card, on which everything takes very long
    #[arg(long, default_value = "cpu", value_name = "cpu|cuda[:N]|emulator", value_parser = parse_device)]
    device: String,
}

impl DeviceArgs {
    /// Error: a device that is not there, with what is missing and what else there is.
    fn open(&self) -> Result<Device> {
        Device::open(&self.device)
    }
}

/// Where to compute, and in what.
#[derive(Args)]
struct ComputeArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Number type of activations and weights; the CPU computes in f32
    #[arg(long, default_value = "f32", value_parser = ["f32", "bf16"])]
    dtype: String,
}

impl ComputeArgs {
    fn dtype(&self) -> DType {
        if self.dtype == "bf16" { DType::Bf16 } else { DType::F32 }
    }

    /// Moves a model there. Errors: a device that is not there; bf16 on the CPU; out of memory.
    fn place(&self, model: Transformer) -> Result<Transformer> {
        model.to(&self.device.open()?, self.dtype())
    }
}

fn parse_device(text: &str) -> Result<String, String> {
    let index = text.strip_prefix("cuda:").is_some_and(|n| n.parse::<usize>().is_ok());
    if ["cpu", "cuda", "emulator"].contains(&text) || index {
        return Ok(text.to_string());
    }
    Err("expected cpu, cuda, cuda:N or emulator".to_string())
}

/// Reads a model directory; what is odd about it is said on standard error.
fn load_model(dir: &Path, quiet: bool) -> Result<Transformer> {
    model_dir::load_with(dir, &mut |warning| warn(warning, quiet))
}

fn warn(warning: &str, quiet: bool) {
    say(&message(format_args!("handgrad: warning: {warning}")), quiet);
}

/// A line on standard error. If nobody reads it any more, the work goes on.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A line on standard error, unless it is to be quiet there.
fn say(line: &str, quiet: bool) {
    if !quiet {
        note(line);
    }
}

/// 1,234,567
fn thousands(n: usize) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", thousands(n / 1000), n % 1000) }
}

//! `handgrad bench decode`, and what `kv-cache` measures with it.

use super::{BenchArgs, SEED, Spread, random_ids, title};
use crate::cli::say;
use crate::generate::{Request, Sampler, generate};
use crate::nn::Transformer;
use crate::train::memory::inference::check_generation;
use anyhow::Result;
use clap::Args;
use serde_json::json;
use std::time::Instant;

#[derive(Args)]
pub struct DecodeArgs {
    /// chapter8, classic, report-80m or report-197m
    #[arg(long, default_value = "report-80m", value_name = "NAME")]
    preset: String,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    prompt_len: usize,
    /// New tokens that are timed
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    max_new: usize,
    /// Compute the whole sequence again for each token
    #[arg(long)]
    no_cache: bool,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Milliseconds to the first token, and for each further one.
pub struct Times {
    pub prefill_ms: f64,
    pub decode_ms: Vec<f64>,
}

/// Times one prompt and `new` tokens behind the first. Error: a request that the model cannot meet; too little memory.
pub fn measure(model: &Transformer, prompt: &[u32], new: usize, use_cache: bool) -> Result<Times> {
    let vocab_size = model.config.vocab_size;
    let request = Request { prompt, max_new: new + 1, end_of_text: &[], vocab_size, use_cache };
    check_generation(model, std::slice::from_ref(&request))?;
    let (mut times, mut last) = (vec![], Instant::now());
    generate(model, &request, &mut Sampler::new(0.0, 1.0, SEED)?, |_| {
        times.push(1e3 * last.elapsed().as_secs_f64()); // the token was read, so the device has done its work
        last = Instant::now();
        Ok(true)
    })?;
    Ok(Times { prefill_ms: times.remove(0), decode_ms: times })
}

pub fn run(args: &DecodeArgs, quiet: bool) -> Result<u8> {
    let DecodeArgs { prompt_len, max_new, no_cache, .. } = *args;
    let model = args.bench.model(&args.preset, prompt_len.saturating_add(max_new).saturating_add(1))?;
    let prompt = random_ids(model.config.vocab_size, prompt_len, SEED);
    measure(&model, &prompt[..1], 1, !no_cache)?; // the first use of everything
    say("measuring", quiet);
    let times = measure(&model, &prompt, max_new, !no_cache)?;
    let Spread { median, p10, p90 } = Spread::of(times.decode_ms);
    println!(
        "{}: prompt of {prompt_len} tokens in {:.1} ms, then {median:.2} ms a token (p10 {p10:.2}, p90 {p90:.2}) {} a cache",
        title(&args.preset, &args.bench),
        times.prefill_ms,
        if no_cache { "without" } else { "with" }
    );
    args.bench.write(&json!({
        "bench": "decode", "preset": args.preset, "prompt_len": prompt_len, "max_new": max_new, "cache": !no_cache,
        "prefill_ms": times.prefill_ms, "ms_per_token": median, "p10": p10, "p90": p90,
    }))?;
    Ok(0)
}

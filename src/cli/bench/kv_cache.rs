//! `handgrad bench kv-cache`: the report's table (§9.2), ours beside its figures.

use super::decode::measure;
use super::{BenchArgs, SEED, Spread, random_ids, title};
use crate::cli::say;
use anyhow::Result;
use clap::Args;
use serde_json::json;

/// Prompt length; seconds of prefill, of a token without and with a cache, on the report's CPU, which it does not name.
const REPORT: [(usize, f64, f64, f64); 4] = [
    (10, 0.0222, 0.0219, 0.0172),
    (100, 0.0497, 0.0508, 0.0163),
    (1000, 0.3759, 0.3880, 0.0199),
    (10_000, 22.6064, 22.8818, 0.0508),
];
/// New tokens with a cache; without one a token is as slow as the prompt, and one is enough.
const CACHED: usize = 10;

#[derive(Args)]
pub struct KvCacheArgs {
    /// chapter8, classic, report-80m or report-197m
    #[arg(long, default_value = "report-80m", value_name = "NAME")]
    preset: String,
    /// Prompt lengths
    #[arg(long, default_value = "10,100,1000,10000", value_delimiter = ',', value_name = "N,N…",
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    lengths: Vec<usize>,
    #[command(flatten)]
    bench: BenchArgs,
}

pub fn run(args: &KvCacheArgs, quiet: bool) -> Result<u8> {
    let longest = args.lengths.iter().copied().max().unwrap_or(1);
    let model = args.bench.model(&args.preset, longest.saturating_add(CACHED + 1))?;
    let ids = random_ids(model.config.vocab_size, longest, SEED);
    measure(&model, &ids[..1], 1, true)?; // the first use of everything
    println!("{}, random weights; ms, the report's in brackets\n", title(&args.preset, &args.bench));
    println!(
        "{:>8} {:>22} {:>24} {:>22} {:>18}",
        "prompt", "prefill", "token without cache", "token with cache", "speed-up"
    );
    let mut rows = vec![];
    for &n in &args.lengths {
        say(&format!("prompt of {n} tokens"), quiet);
        let cached = measure(&model, &ids[..n], CACHED, true)?;
        let plain = measure(&model, &ids[..n], 1, false)?.decode_ms[0];
        let Spread { median, p10, p90 } = Spread::of(cached.decode_ms);
        // The report's figures are of its 80M model.
        let report = REPORT.iter().find(|row| row.0 == n && args.preset == "report-80m");
        let beside =
            |text: String, theirs: Option<String>| theirs.map_or(text.clone(), |theirs| format!("{text} [{theirs}]"));
        let ms = |seconds: f64| format!("{:.1}", 1e3 * seconds);
        println!(
            "{n:>8} {:>22} {:>24} {:>22} {:>18}",
            beside(format!("{:.1}", cached.prefill_ms), report.map(|row| ms(row.1))),
            beside(format!("{plain:.1}"), report.map(|row| ms(row.2))),
            beside(format!("{median:.2}"), report.map(|row| ms(row.3))),
            beside(format!("{:.1}×", plain / median), report.map(|row| format!("{:.1}×", row.2 / row.3)))
        );
        rows.push(json!({
            "prompt_len": n, "prefill_ms": cached.prefill_ms, "ms_per_token": median, "p10": p10, "p90": p90,
            "ms_per_token_without_cache": plain, "speed_up": plain / median,
        }));
    }
    println!(
        "\nanother processor, so the times differ; the ratio grows with n, as without a cache a token costs a prompt"
    );
    args.bench.write(&json!({"bench": "kv-cache", "preset": args.preset, "rows": rows}))?;
    Ok(0)
}

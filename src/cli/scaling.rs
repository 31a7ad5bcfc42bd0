//! `handgrad scaling`: what the published fits say of a model, its tokens and its FLOPs (report §9.1).

use super::{argument, thousands};
use crate::nn::config::Init;
use crate::nn::{ModelConfig, Transformer};
use crate::train::Recipe;
use crate::train::scaling::{LAWS, Law, training_flops};
use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use std::io::Write;

#[derive(Subcommand)]
pub enum ScalingCommand {
    /// The loss of N parameters after D tokens, and the best N and D for as many FLOPs; without arguments of the report's two
    /// models, beside what it measured
    Predict(PredictArgs),
}

#[derive(Args)]
#[group(id = "what", multiple = true)]
pub struct PredictArgs {
    /// Parameters
    #[arg(long, value_name = "N", requires = "tokens")]
    params: Option<f64>,
    /// Training tokens
    #[arg(long, value_name = "D", requires = "params")]
    tokens: Option<f64>,
    /// FLOPs of training, to be spent best
    #[arg(long, value_name = "C", conflicts_with_all = ["params", "tokens"])]
    flops: Option<f64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand; exit status 0. Errors: numbers that mean nothing; standard output is full.
pub fn run(command: ScalingCommand) -> Result<u8> {
    let ScalingCommand::Predict(args) = command;
    let positive = |name: &str, x: Option<f64>| {
        let checked = (|| {
            ensure!(
                x.is_none_or(|x| x.is_finite() && x > 0.0),
                "--{name}: found {}, expected a positive number",
                x.unwrap_or(0.0)
            );
            Ok(x)
        })();
        argument(checked)
    };
    let (n, d) = (positive("params", args.params)?, positive("tokens", args.tokens)?);
    let flops = positive("flops", args.flops)?;
    let mut out = std::io::stdout().lock();
    match (n, d, flops) {
        (Some(n), Some(d), _) => print(&mut out, &[Model { name: "asked for", n, d, measured: None }], args.json)?,
        (_, _, Some(flops)) => print_best(&mut out, flops, args.json)?,
        _ => {
            let models = reported()?;
            print(&mut out, &models, args.json)?;
            if !args.json {
                conclude(&mut out, &models)?;
            }
        }
    }
    Ok(0)
}

struct Model {
    name: &'static str,
    /// Parameters.
    n: f64,
    /// Training tokens.
    d: f64,
    /// The report's loss.
    measured: Option<f64>,
}

/// The report's two models, with the losses that it states.
fn reported() -> Result<Vec<Model>> {
    let model = |(name, measured): (&'static str, f64)| {
        let config = ModelConfig { init: Init::Zeros, ..ModelConfig::preset(name, None)? };
        let recipe = Recipe::preset(name)?;
        let n = Transformer::new(&config, 0)?.parameter_count() as f64;
        Ok(Model { name, n, d: (recipe.steps * recipe.tokens_per_step()) as f64, measured: Some(measured) })
    };
    [("report-80m", 3.45), ("report-197m", 3.35)].into_iter().map(model).collect()
}

fn print(out: &mut impl Write, models: &[Model], json: bool) -> Result<()> {
    if json {
        let row = |model: &Model| {
            let fits = LAWS.map(|law| (law.name.to_string(), serde_json::json!(law.loss(model.n, model.d))));
            serde_json::json!({
                "model": model.name, "params": model.n, "tokens": model.d, "flops": training_flops(model.n, model.d),
                "measured": model.measured, "predicted": serde_json::Map::from_iter(fits),
            })
        };
        writeln!(out, "{}", serde_json::Value::from_iter(models.iter().map(row)))?;
        return Ok(());
    }
    writeln!(
        out,
        "{:<12} {:>14} {:>16} {:>7} {:>10} {:>9} {:>15} {:>15}",
        "model", "parameters", "tokens", "D/N", "6 N D", "measured", LAWS[0].name, LAWS[1].name
    )?;
    for Model { name, n, d, measured } in models {
        let measured = measured.map_or("-".to_string(), |loss| format!("{loss:.2}"));
        let loss = LAWS.map(|law| law.loss(*n, *d));
        let (parameters, tokens) = (thousands(*n as usize), thousands(*d as usize));
        writeln!(
            out,
            "{name:<12} {parameters:>14} {tokens:>16} {:>7.2} {:>10.2e} {measured:>9} {:>15.3} {:>15.3}",
            d / n,
            training_flops(*n, *d),
            loss[0],
            loss[1]
        )?;
    }
    Ok(())
}

fn print_best(out: &mut impl Write, flops: f64, json: bool) -> Result<()> {
    let best = |law: &Law| {
        let (n, d) = law.best(flops);
        (law.name, n, d, law.loss(n, d))
    };
    if json {
        let row = |law: &Law| {
            let (fit, n, d, loss) = best(law);
            serde_json::json!({"fit": fit, "params": n, "tokens": d, "loss": loss})
        };
        writeln!(out, "{}", serde_json::Value::from_iter(LAWS.iter().map(row)))?;
        return Ok(());
    }
    writeln!(out, "{:<15} {:>12} {:>12} {:>7} {:>7}", "best by", "parameters", "tokens", "D/N", "loss")?;
    for (name, n, d, loss) in LAWS.iter().map(best) {
        writeln!(out, "{name:<15} {n:>12.3e} {d:>12.3e} {:>7.1} {loss:>7.3}", d / n)?;
    }
    Ok(())
}

/// What follows from the numbers above, where the report's text says otherwise.
fn conclude(out: &mut impl Write, models: &[Model]) -> Result<()> {
    writeln!(out)?;
    print_best(out, training_flops(models[0].n, models[0].d), false)?;
    writeln!(
        out,
        "\nThe report expects the model whose D/N is nearer to 20 to have the lower loss. By its own figures the other one has;\n\
         the fits, made on other text with another tokenizer, order the two the other way, and tell neither loss.\n\
         From this it concludes that at about 1e18 FLOPs the best D/N is far below 20. Both fits put it above 20 there."
    )?;
    Ok(())
}

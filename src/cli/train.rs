//! `handgrad train`

use super::progress::Progress;
use super::{ComputeArgs, argument, say, signals, thousands, warn};
use crate::data::TokenRow;
use crate::formats::config_json;
use crate::nn::Module;
use crate::nn::config::Init;
use crate::optim::AdamW;
use crate::shown::shown_path;
use crate::train::recipe::Order;
use crate::train::{Model, Outcome, Placement, Recipe, Resume, Run, Setup, Trainer, VAL_FRACTION};
use anyhow::{Context, Result, bail};
use clap::{Args, Command};
use serde_json::Value;
use std::path::PathBuf;

#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct TrainArgs {
    /// The model: chapter8, classic, report-80m or report-197m; also sets the defaults of the flags below
    #[arg(long, default_value = "chapter8", value_name = "NAME")]
    pub preset: String,
    /// The numbers of training: small (2000 steps of 12 sequences), chapter8 (300 of 16, as the chapter trains), report-80m or
    /// report-197m; sets the defaults of the flags below [default: small; of the report's presets their own]
    #[arg(long = "recipe", value_name = "NAME")]
    pub recipe_name: Option<String>,
    /// How the first weights are drawn: normal, truncated-normal, xavier-normal, xavier-uniform, he-normal or he-uniform
    /// [default: as the model says]
    #[arg(long, value_name = "NAME", value_parser = |name: &str| Init::of_name(name).map_err(|error| error.to_string()))]
    pub init: Option<Init>,
    /// The model from a config.json instead of the preset's
    #[arg(long, value_name = "FILE.json")]
    pub config: Option<PathBuf>,
    /// Text to train on: a file, lines of JSON (.jsonl, .ndjson) with a document in "text" on each, a directory of files, or
    /// of shards that handgrad data encode made [default: this project's own sources and guide]
    #[arg(long, value_name = "FILE|DIR")]
    pub data: Option<PathBuf>,
    /// char: the characters of the data; bytes: 256 bytes; or a tokenizer.json [default: char; of shards, the one that made them]
    #[arg(long, value_name = "char|bytes|FILE.json")]
    pub tokenizer: Option<String>,
    /// The model directory to write
    #[arg(long, value_name = "DIR", required_unless_present = "resume")]
    pub out: Option<PathBuf>,
    /// Replace a training run that --out holds
    #[arg(long)]
    pub overwrite: bool,
    /// Continue a run behind its newest whole checkpoint, or behind the one named, with its model, data and recipe; --out,
    /// --steps, the flags on evaluating, saving and logging, and the place of the same --data may be given anew
    #[arg(long, value_name = "DIR", conflicts_with_all = ["preset", "config", "tokenizer", "overwrite", "val_fraction",
        "init", "recipe_name", "batch_size", "accumulate", "order", "seq_len", "lr", "min_lr", "warmup", "weight_decay", "clip", "beta1", "beta2", "seed"])]
    pub resume: Option<PathBuf>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Compute each block's activations again in backward instead of keeping them: less memory, a third more work
    #[arg(long)]
    pub recompute: bool,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Part of the tokens kept for validation, from the end of the text
    #[arg(long, value_name = "0..1", default_value_t = VAL_FRACTION)]
    pub val_fraction: f64,
}

/// Makes a flag of each field of a recipe, from its help, type and unit.
macro_rules! recipe_args {
    ($($(#[$help:meta])* $field:ident: $type:ty = $unit:literal,)*) => {
        /// Changes to a recipe; [`show_defaults`] adds to the help what each changes.
        #[derive(Args)]
        pub struct RecipeArgs {
            $($(#[$help])* #[arg(long, value_name = $unit)] $field: Option<$type>,)*
        }

        impl RecipeArgs {
            /// `base` with what the command line says.
            fn apply(&self, base: Recipe) -> Recipe {
                let min_lr = self.lr.map_or(base.min_lr, |lr| lr / (base.lr / base.min_lr));
                let base = Recipe { min_lr, ..base };
                Recipe { $($field: self.$field.unwrap_or(base.$field),)* ..base }
            }
        }
    };
}

recipe_args! {
    /// Steps to train
    steps: usize = "N",
    /// Sequences that are computed at once
    batch_size: usize = "N",
    /// Batches whose gradients add up to those of one step, which needs the memory of one
    accumulate: usize = "N",
    /// random: windows begin anywhere, 63% of the tokens are seen in as many steps as cover them; sequential: each window once
    /// in a pass
    order: Order = "random|sequential",
    /// Tokens in a training window, the context of --config; a longer one than a preset's context raises the context
    seq_len: usize = "N",
    /// Peak learning rate
    lr: f64 = "X",
    /// Learning rate of the last step; with --lr, by default as much less as in the preset
    min_lr: f64 = "X",
    /// Steps over which the learning rate rises to its peak; by default fewer in a short run
    warmup: usize = "N",
    /// Decay of matrices per step, times the learning rate
    weight_decay: f64 = "X",
    /// Largest norm of all gradients together; 0 never clips
    clip: f64 = "X",
    /// AdamW's decay of the mean gradient
    beta1: f64 = "X",
    /// AdamW's decay of the mean squared gradient
    beta2: f64 = "X",
    /// Seed of the first weights and of the training windows
    seed: u64 = "N",
    /// Steps between validations; 0: only at the end
    eval_every: usize = "N",
    /// Batches of a validation; 0: the whole validation part
    eval_batches: usize = "N",
    /// Steps between checkpoints, OUT/step-000100 and so on; 0: only at the end
    save_every: usize = "N",
    /// Checkpoints of --save-every that stay, the newest ones; 0: all
    keep: usize = "N",
    /// Keep the checkpoint with the lowest validation loss too, OUT/best-000100 and so on
    keep_best: bool = "true|false",
    /// Steps between lines of metrics.jsonl
    log_every: usize = "N",
    /// Steps in a row that may be left out because their loss or gradient is not finite, before training stops
    max_skipped: usize = "N",
}

/// Trains; exit status 0, or that of the signal that ended it. Errors: those of [`Run::new`] or [`Run::resume`], and of
/// [`Run::train`].
pub fn run(args: TrainArgs, quiet: bool) -> Result<u8> {
    let placement =
        Placement { device: args.compute.device.open()?, dtype: args.compute.dtype(), recompute: args.recompute };
    let mut run = match &args.resume {
        Some(from) => {
            let change = |recipe| args.recipe.apply(recipe);
            let resume = Resume { from, out: args.out.as_deref(), data: args.data.as_deref(), placement };
            let (run, checkpoint) = Run::resume(&resume, change, &mut |warning| warn(warning, quiet))?;
            say(&format!("going on behind step {} of {}", checkpoint.step, shown_path(&checkpoint.name)), quiet);
            run
        }
        None => start(&args, placement)?,
    };
    train(&mut run, quiet)
}

fn start(args: &TrainArgs, placement: Placement) -> Result<Run> {
    let mut base = argument(Recipe::preset(&args.preset))?;
    if let Some(name) = &args.recipe_name {
        base = argument(Recipe::named(name, base.seq_len).context("--recipe"))?;
    }
    let model = match &args.config {
        Some(path) => Model::Config(config_json::read(path)?),
        None => Model::Preset(&args.preset),
    };
    if let Model::Config(config) = &model {
        base.seq_len = config.max_seq_len;
    }
    let mut recipe = args.recipe.apply(base);
    if args.recipe.warmup.is_none() {
        recipe.warmup = recipe.warmup.min(recipe.steps / 10); // A short run must still reach its peak.
    }
    let Some(out) = &args.out else { bail!("--out: expected a directory to write the model to") };
    Run::new(Setup {
        out,
        overwrite: args.overwrite,
        model,
        init: args.init,
        recipe,
        data: args.data.as_deref(),
        tokenizer: args.tokenizer.as_deref(),
        val_fraction: args.val_fraction,
        placement,
    })
}

/// Runs the training and tells the story on standard error. The exit status: 0, or that of the signal that ended it.
/// Errors: those of [`Run::train`].
pub fn train(run: &mut Run, quiet: bool) -> Result<u8> {
    signals::install();
    let mut progress = Progress::new(&run.out, &run.trainer.recipe, run.trainer.step, quiet);
    progress.say(&summary(&run.trainer, &run.data_name));
    let outcome = run.train(&mut progress, &signals::interrupted);
    progress.finish();
    match outcome? {
        Outcome::Finished { .. } => Ok(0),
        Outcome::Interrupted { step } => {
            let out = shown_path(&run.out);
            progress
                .say(&format!("interrupted: step {step} saved to {out}; go on with: handgrad train --resume {out}"));
            Ok(signals::status().unwrap_or(1))
        }
    }
}

fn summary(trainer: &Trainer, corpus: &str) -> String {
    let parameters = trainer.model.parameters();
    let decayed: usize = parameters.iter().filter(|p| AdamW::decays(p)).map(|p| p.value.len()).sum();
    let all = trainer.model.parameter_count();
    format!(
        "{} training and {} validation tokens of {corpus}; {} parameters, {} with weight decay and {} without",
        thousands(trainer.train.len()),
        thousands(trainer.validation.len()),
        thousands(all),
        thousands(decayed),
        thousands(all - decayed),
    )
}

/// Adds the presets' values to the help of the flags that change a recipe.
pub fn show_defaults(command: Command) -> Command {
    let recipe = |preset| serde_json::to_value(Recipe::preset(preset).expect("a preset")).expect("numbers");
    let (small, report, larger) = (recipe("chapter8"), recipe("report-80m"), recipe("report-197m"));
    command.mut_args(|arg| {
        let id = arg.get_id().as_str();
        let (Some(help), Some(small), Some(report)) = (arg.get_help(), small.get(id), report.get(id)) else {
            return arg;
        };
        let larger = &larger[id];
        let more = match (small == report, report == larger) {
            (true, _) => String::new(),
            (false, true) => format!("; report-*: {}", shown(report)),
            (false, false) => format!("; report-80m: {}; report-197m: {}", shown(report), shown(larger)),
        };
        let help = format!("{help} [default: {}{more}]", shown(small));
        arg.help(help)
    })
}

/// 2000, 0.9 or 4e-5: as few characters as say it.
fn shown(number: &Value) -> String {
    if let Some(word) = number.as_str() {
        return word.to_string();
    }
    let Some(x) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let (plain, scientific) = (x.to_string(), format!("{x:e}"));
    if scientific.len() < plain.len() { scientific } else { plain }
}

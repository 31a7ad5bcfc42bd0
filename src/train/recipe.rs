//! The numbers of a training run (report §8.1), with each preset's defaults.

use crate::nn::ModelConfig;
use crate::optim::{AdamWConfig, CosineSchedule};
use crate::shown::quoted;
use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// A value that was asked for and cannot be meant, as opposed to work that fails; `handgrad` exits with 2.
#[derive(Debug)]
pub struct BadSetting(pub String);

impl std::fmt::Display for BadSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSetting {}

/// Which windows of the training tokens a step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Each begins anywhere. In as many windows as fit side by side, 1 − 1/e of the tokens are seen, 63%.
    #[default]
    Random,
    /// One behind the other, each once in a pass.
    Sequential,
}

impl FromStr for Order {
    type Err = String;

    fn from_str(name: &str) -> Result<Order, String> {
        match name {
            "random" => Ok(Order::Random),
            "sequential" => Ok(Order::Sequential),
            _ => Err("expected random or sequential".to_string()),
        }
    }
}

/// Everything but the model and the data that decides what a run computes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Updates of the weights.
    pub steps: usize,
    /// Sequences that are computed at once.
    pub batch_size: usize,
    /// Batches whose gradients add up to those of a step.
    #[serde(default = "one")]
    pub accumulate: usize,
    /// Which windows.
    #[serde(default)]
    pub order: Order,
    /// Tokens in a training window.
    pub seq_len: usize,
    /// Peak learning rate.
    pub lr: f64,
    /// Learning rate of the last step.
    pub min_lr: f64,
    /// Steps until the peak.
    pub warmup: usize,
    /// Decay of matrices per step, times the learning rate.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 never clips.
    pub clip: f64,
    /// AdamW's decay of the mean gradient.
    pub beta1: f64,
    /// AdamW's decay of the mean squared gradient.
    pub beta2: f64,
    /// AdamW's guard against a division by zero.
    pub eps: f64,
    /// Seed of the first weights and of the training windows.
    pub seed: u64,
    /// Steps between evaluations; 0 evaluates only at the end.
    pub eval_every: usize,
    /// Batches of an evaluation; 0 takes the whole validation part.
    pub eval_batches: usize,
    /// Steps between intermediate checkpoints; 0 saves only at the end.
    pub save_every: usize,
    /// How many of the intermediate checkpoints stay, the newest ones; 0 keeps all.
    #[serde(default)]
    pub keep: usize,
    /// Whether the checkpoint with the lowest validation loss stays, too.
    #[serde(default)]
    pub keep_best: bool,
    /// Steps between lines of metrics.
    pub log_every: usize,
    /// Steps in a row that may be left out because their loss or gradient is not finite.
    #[serde(default = "ten")]
    pub max_skipped: usize,
}

/// Of recipes from before there was a choice.
fn one() -> usize {
    1
}

fn ten() -> usize {
    10
}

impl Recipe {
    pub const NAMES: [&str; 4] = ["small", "chapter8", "report-80m", "report-197m"];

    /// The defaults of a preset; windows are as long as its model's context. Error: an unknown name.
    pub fn preset(name: &str) -> Result<Recipe> {
        let context = ModelConfig::preset(name, None)?.max_seq_len;
        Recipe::named(if name.starts_with("report-") { name } else { "small" }, context)
    }

    /// A recipe by its name, for windows of `seq_len` tokens. Error: an unknown name.
    pub fn named(name: &str, seq_len: usize) -> Result<Recipe> {
        let small = Recipe {
            steps: 2000,
            batch_size: 12,
            accumulate: 1,
            order: Order::Random,
            seq_len,
            lr: 1e-3,
            min_lr: 1e-4,
            warmup: 100,
            weight_decay: 0.1,
            clip: 1.0,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            seed: 1,
            eval_every: 500,
            eval_batches: 0,
            save_every: 0,
            keep: 0,
            keep_best: false,
            log_every: 10,
            max_skipped: ten(),
        };
        Ok(match name {
            "small" => small,
            // Chapter 8.2.3: a first look, at a rate that stays where the warm-up ends.
            "chapter8" => Recipe { steps: 300, batch_size: 16, lr: 3e-4, min_lr: 3e-4, beta2: 0.95, ..small },
            // Report §8.1 and §9.1: 1.458 and 0.63 billion tokens in steps of 256 · 768.
            "report-80m" | "report-197m" => Recipe {
                steps: if name == "report-80m" { 7418 } else { 3204 },
                batch_size: 32,
                accumulate: 8,
                lr: 4e-4,
                min_lr: 4e-5,
                warmup: 500,
                beta2: 0.999,
                eval_every: 1000,
                eval_batches: 1000,
                save_every: 1000,
                ..small
            },
            _ => bail!("recipe: found {}, expected one of {}", quoted(name), Recipe::NAMES.join(", ")),
        })
    }

    /// Tokens of one step.
    pub fn tokens_per_step(&self) -> usize {
        self.batch_size * self.accumulate * self.seq_len
    }

    /// The learning rate of each step.
    pub fn schedule(&self) -> CosineSchedule {
        CosineSchedule { max: self.lr, min: self.min_lr, warmup: self.warmup, total: self.steps }
    }

    /// The optimizer's settings.
    pub fn adamw(&self) -> AdamWConfig {
        AdamWConfig { beta1: self.beta1, beta2: self.beta2, eps: self.eps, weight_decay: self.weight_decay }
    }

    /// Error: a [`BadSetting`] for numbers that cannot train, naming the flag, the value and the range.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(|error| BadSetting(error.to_string()).into())
    }

    fn check(&self) -> Result<()> {
        for (flag, value) in [
            ("steps", self.steps),
            ("batch-size", self.batch_size),
            ("accumulate", self.accumulate),
            ("seq-len", self.seq_len),
            ("log-every", self.log_every),
        ] {
            ensure!(value > 0, "--{flag}: found 0, expected at least 1");
        }
        for (flag, value) in [
            ("lr", self.lr),
            ("min-lr", self.min_lr),
            ("weight-decay", self.weight_decay),
            ("clip", self.clip),
            ("eps", self.eps),
        ] {
            ensure!(value.is_finite() && value >= 0.0, "--{flag}: found {value}, expected 0 or a positive number");
        }
        let (warmup, steps) = (self.warmup, self.steps);
        ensure!(warmup <= steps, "--warmup: found {warmup}, expected at most --steps, {steps}");
        ensure!(self.min_lr <= self.lr, "--min-lr: found {}, expected at most --lr, {}", self.min_lr, self.lr);
        for (flag, value) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            ensure!((0.0..1.0).contains(&value), "--{flag}: found {value}, expected 0 to less than 1");
        }
        Ok(())
    }
}

//! Checkpoints (report §7.2): a model directory plus what training needs to go on.
//!
//! `optimizer.safetensors` holds AdamW's moments as `exp_avg.NAME` and `exp_avg_sq.NAME`, in the layout of the model file;
//! `trainer_state.json` the step, the recipe, where the data came from, and the SHA-256 of the other files, which tells a
//! checkpoint that is whole from one that is not.

use super::trainer::{Best, Skipped};
use super::{Recipe, Trainer};
use crate::device::Device;
use crate::formats::safetensors::TensorFile;
use crate::formats::{hex, model_dir, rope_layout, safetensors, write_json};
use crate::nn::Module;
use crate::optim::adamw::Moments;
use crate::shown::{json_error, shown, shown_path};
use crate::tensor::Tensor;
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What `trainer_state.json` says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerState {
    /// Steps done.
    pub step: usize,
    /// Whether the run came to its end, its last evaluation included.
    pub finished: bool,
    /// The run that the checkpoint belongs to; none in a checkpoint that another program made.
    #[serde(default)]
    pub run: String,
    pub source: Source,
    pub recipe: Recipe,
    #[serde(default)]
    pub skipped: Skipped,
    #[serde(default)]
    pub best: Option<Best>,
    /// SHA-256 of the files that cannot be checked otherwise, in hexadecimal; empty where another program made them.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

/// Where the training tokens came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// The full path of `--data`; `None` is the built-in corpus.
    pub data: Option<String>,
    /// Tokens of the whole text, to notice that it changed.
    pub tokens: usize,
    /// Their fingerprint ([`Tokens::fingerprint`](crate::data::Tokens::fingerprint)), to notice that others have come in
    /// their place; like the next one empty where another program made the checkpoint.
    #[serde(default)]
    pub ids: String,
    /// The tokenizer's fingerprint ([`fingerprint`](crate::formats::tokenizer_json::fingerprint)), in hexadecimal.
    #[serde(default)]
    pub tokenizer: String,
    /// The part of the tokens kept for validation, from the end.
    pub val_fraction: f64,
}

/// Files whose bytes are the checkpoint's own. The tokenizer is known by its fingerprint.
const HASHED: [&str; 3] = ["config.json", "model.safetensors", "optimizer.safetensors"];

/// Writes a checkpoint into `dir`, a new directory; `state`: all but the hashes.
///
/// Error: a file that cannot be written.
pub fn write(dir: &Path, trainer: &Trainer, tokenizer: &Tokenizer, mut state: TrainerState) -> Result<()> {
    model_dir::save(dir, &trainer.model, tokenizer, trainer.step)?;
    let mut tensors = vec![];
    for (name, moments) in &trainer.optimizer.moments {
        for (kind, moment) in [("exp_avg", &moments.m), ("exp_avg_sq", &moments.v)] {
            tensors.push((
                format!("{kind}.{name}"),
                rope_layout::to_file(&trainer.model.config, name, &moment.to(&Device::Cpu)?)?,
            ));
        }
    }
    let step = trainer.optimizer.step.to_string();
    safetensors::write(&dir.join("optimizer.safetensors"), &tensors, &[("step", step)])?;
    for file in HASHED {
        state.files.insert(file.to_string(), sha256(&dir.join(file))?);
    }
    write_json(&dir.join("trainer_state.json"), &serde_json::to_value(&state)?)
}

/// Error: a weight that is not finite, by name.
pub fn check_finite(trainer: &Trainer) -> Result<()> {
    for parameter in trainer.model.parameters() {
        let finite = parameter.value.to_f64_vec()?.iter().all(|w| w.is_finite());
        ensure!(finite, "found NaN or infinity in {}, expected finite weights to save", parameter.name);
    }
    Ok(())
}

fn sha256(path: &Path) -> Result<String> {
    let place = || format!("{}: cannot be read", shown_path(path));
    let mut file = File::open(path).with_context(place)?;
    let (mut hash, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece).with_context(place)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&piece[..read]),
        }
    }
}

/// Reads the state of a checkpoint whose files are all there and as they were written. Error: the first that is not.
pub fn read_whole(dir: &Path) -> Result<TrainerState> {
    let state = read(dir)?;
    for (file, expected) in HASHED.iter().filter_map(|file| Some((file, state.files.get(*file)?))) {
        let path = dir.join(file);
        let found = sha256(&path)?;
        ensure!(
            found == *expected,
            "{}: found SHA-256 {found}, expected {} as in trainer_state.json: the file is damaged or of another run",
            shown_path(&path),
            shown(expected)
        );
    }
    Ok(state)
}

/// Reads `trainer_state.json`. Error: it is missing or holds something else.
pub fn read(dir: &Path) -> Result<TrainerState> {
    let path = dir.join("trainer_state.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{}: cannot be read, expected a checkpoint of handgrad train", shown_path(&path)))?;
    serde_json::from_str(&text)
        .map_err(|error| anyhow!("{}: not a trainer state: {}", shown_path(&path), json_error(&error)))
}

/// Gives `trainer`, whose model was loaded from `dir`, the step and moments that stand there.
///
/// Errors: weights, moments and state of different steps; moments that are missing, do not fit or belong to nothing.
pub fn restore(dir: &Path, state: &TrainerState, trainer: &mut Trainer) -> Result<()> {
    let path = dir.join("optimizer.safetensors");
    let mut file = safetensors::read(&path)?;
    let weights = safetensors::read(&dir.join("model.safetensors"))?;
    let (found, expected) = (step_of(&weights).zip(step_of(&file)), (state.step, state.step));
    ensure!(
        found == Some(expected),
        "{}: found weights of step {:?}, moments of step {:?} and a state of step {}, expected the same: the files are of different checkpoints; resume an earlier one",
        shown_path(dir),
        step_of(&weights),
        step_of(&file),
        state.step
    );
    let config = trainer.model.config.clone();
    for parameter in trainer.model.parameters() {
        let name = &parameter.name;
        let mut moment = |kind: &str| -> Result<Tensor> {
            let key = format!("{kind}.{name}");
            let Some(tensor) = file.tensors.remove(&key) else { bail!("{}: {key} is missing", shown_path(&path)) };
            let (found, expected) = (&tensor, &parameter.value);
            ensure!(
                found.shape() == expected.shape() && found.dtype() == expected.dtype(),
                "{}: {key}: found {found:?}, expected {expected:?}",
                shown_path(&path)
            );
            rope_layout::from_file(&config, name, &tensor)?.to(&parameter.value.device())
        };
        let moments = Moments { m: moment("exp_avg")?, v: moment("exp_avg_sq")? };
        trainer.optimizer.moments.insert(name.clone(), moments);
    }
    if let Some(extra) = file.tensors.keys().next() {
        bail!("{}: found {}, expected only moments of the model's parameters", shown_path(&path), shown(extra));
    }
    trainer.step = state.step;
    trainer.optimizer.step = state.step;
    (trainer.skipped, trainer.best) = (state.skipped, state.best);
    Ok(())
}

fn step_of(file: &TensorFile) -> Option<usize> {
    file.metadata.get("step")?.parse().ok()
}

//! A model directory, as Hugging Face lays it out: `config.json`, `model.safetensors`, `tokenizer.json`.

use super::{config_json, generation_config, tokenizer_json, weights};
use crate::device::Device;
use crate::nn::config::Init;
use crate::nn::{ModelConfig, Module, Parameter, Transformer, cost};
use crate::shown::shown_path;
use crate::tensor::Tensor;
use crate::tokenizer::Tokenizer;
use anyhow::{Context, Result, ensure};
use std::collections::HashMap;
use std::path::Path;

/// Tensors of a layer, at least: four of attention, two of the feed-forward, two norms.
const LEAST_TENSORS: usize = 8;

/// Writes the files, each replaced whole. `step` is noted in the weights' file, so that a checkpoint that was torn by a
/// crash can be told.
///
/// Errors: a file that cannot be written; what [`tokenizer_json::write`] refuses; weights that cannot be copied
/// from their device.
pub fn save(dir: &Path, model: &Transformer, tokenizer: &Tokenizer, step: usize) -> Result<()> {
    let here = |p: &Parameter| Ok((p.name.clone(), p.value.to(&Device::Cpu)?));
    let parameters: Vec<(String, Tensor)> = model.parameters().into_iter().map(here).collect::<Result<_>>()?;
    config_json::write(&dir.join("config.json"), &model.config, &generation_config::special_ids(tokenizer))?;
    generation_config::write(dir, tokenizer, model.config.max_seq_len)?;
    weights::save(&dir.join("model.safetensors"), &model.config, &parameters, step)?;
    tokenizer_json::write(&dir.join("tokenizer.json"), tokenizer)
}

/// Reads the model, in f32.
///
/// Errors: a missing directory or file; a bad configuration; a file whose tensors are not exactly the configuration's; too
/// little memory.
pub fn load(dir: &Path) -> Result<Transformer> {
    load_with(dir, &mut |_| ())
}

/// [`load`], with `warn` told of what is odd but no error. Errors: those of [`load`].
pub fn load_with(dir: &Path, warn: &mut dyn FnMut(&str)) -> Result<Transformer> {
    ensure!(
        dir.join("config.json").exists(),
        "{}: found no config.json, expected a model directory (handgrad train --out DIR makes one)",
        shown_path(dir)
    );
    let config = config_json::read(&dir.join("config.json"))?;
    let mut files = weights::Files::in_directory(dir, warn)?;
    check_size(&config, &files)?;
    let bytes = 4.0 * cost::matrix_parameters(&config) as f64; // in f32; one by one they take the place of the new model's
    Device::Cpu.check_memory(bytes, "to read the model").with_context(|| shown_path(files.path()))?;
    // The weights are all read from the file, so none are drawn.
    let mut model = Transformer::new(&ModelConfig { init: Init::Zeros, ..config.clone() }, 0)?;
    model.config = config;
    let expected: Vec<(String, Vec<usize>)> =
        model.parameters().into_iter().map(|p| (p.name.clone(), p.value.shape().to_vec())).collect();
    let config = model.config.clone();
    let mut parameters: HashMap<String, &mut Parameter> =
        model.parameters_mut().into_iter().map(|parameter| (parameter.name.clone(), parameter)).collect();
    files.load(&config, &expected, warn, &mut |name, tensor| {
        if let Some(parameter) = parameters.get_mut(name) {
            parameter.value = tensor;
        }
    })?;
    Ok(model)
}

/// Refuses a configuration that the files cannot fill, before memory is asked for.
fn check_size(config: &ModelConfig, files: &weights::Files) -> Result<()> {
    let place = shown_path(files.path());
    let (tensors, needed) = (files.tensors(), config.n_layer.saturating_mul(LEAST_TENSORS));
    ensure!(
        needed <= tensors,
        "{place}: found {tensors} tensors, expected at least {needed} for the {} layers of config.json",
        config.n_layer
    );
    let (bytes, parameters) = (files.bytes(), cost::matrix_parameters(config));
    ensure!(
        2 * parameters <= u128::from(bytes),
        "{place}: found {bytes} bytes, expected at least 2 for each of the {parameters} parameters of config.json"
    );
    Ok(())
}

/// Reads the tokenizer. Errors: it is missing or bad; it has more tokens than the model's embedding has rows.
pub fn load_tokenizer(dir: &Path, model: &Transformer) -> Result<Tokenizer> {
    let path = dir.join("tokenizer.json");
    ensure!(path.exists(), "{}: found no tokenizer.json, expected one beside the model", shown_path(dir));
    let tokenizer = tokenizer_json::read(&path)?;
    let (tokens, rows) = (tokenizer.vocab_size(), model.config.vocab_size);
    ensure!(
        tokens <= rows,
        "{}: found {tokens} tokens, expected at most the model's vocabulary of {rows}",
        shown_path(path)
    );
    Ok(tokenizer)
}

//! `model.safetensors`: a model's parameters, named and laid out as Hugging Face files have them.
//!
//! Parameters carry their file names inside the program too, so only the rows of q and k change place, in [`rope_layout`].

use super::{rope_layout, safetensors};
use crate::nn::config::ModelConfig;
use crate::shown::{shown, shown_path};
use crate::{DType, Tensor};
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// The output head, which a tied model does not have on its own.
const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";
/// How many tensors an error lists of each kind before it only counts them.
const LISTED: usize = 8;

/// Writes all parameters atomically, in their own dtype. A tied model's one matrix for embedding and head is written once,
/// as the embedding. `step`, the training steps done, goes into the file's metadata. Errors: rows that are not
/// those of the configuration's heads; two parameters of one name; the file cannot be written.
pub fn save(path: &Path, config: &ModelConfig, parameters: &[(String, Tensor)], step: usize) -> Result<()> {
    let mut tensors = Vec::with_capacity(parameters.len());
    for (name, tensor) in parameters {
        if !(config.tie_embeddings && name == HEAD) {
            tensors.push((name.clone(), rope_layout::to_file(config, name, tensor)?));
        }
    }
    // Hugging Face's loader asks for the format.
    safetensors::write(path, &tensors, &[("format", "pt".to_string()), ("step", step.to_string())])
}

/// Reads the parameters that `expected` lists by name and shape, all as f32: f64 is rounded, bf16 and f16 widen
/// exactly. Nothing is returned unless everything fits. Errors: a file that [`safetensors::read`] refuses; one line
/// with all tensors that are missing, unexpected, or of the wrong shape or dtype. Left unread: frequency tables that
/// old files hold (`…rotary_emb.inv_freq`), and the head of a tied model; `warn` is told if it differs from the
/// embedding.
pub fn load(
    path: &Path,
    config: &ModelConfig,
    expected: &[(String, Vec<usize>)],
    warn: &mut dyn FnMut(&str),
) -> Result<HashMap<String, Tensor>> {
    let mut found = safetensors::read(path)?.tensors;
    found.retain(|name, _| !name.ends_with(".rotary_emb.inv_freq"));
    drop_redundant_head(path, config, expected, &mut found, warn);
    let problems = compare(&found, expected);
    ensure!(
        problems.is_empty(),
        "{}: the tensors do not fit the configuration: {}",
        shown_path(path),
        problems.join("; ")
    );
    let mut parameters = HashMap::with_capacity(found.len());
    for (name, tensor) in found {
        let tensor = rope_layout::from_file(config, &name, &tensor.to_dtype(DType::F32)?)?;
        parameters.insert(name, tensor);
    }
    Ok(parameters)
}

/// Removes the head that some files of tied models store a second time.
fn drop_redundant_head(
    path: &Path,
    config: &ModelConfig,
    expected: &[(String, Vec<usize>)],
    found: &mut BTreeMap<String, Tensor>,
    warn: &mut dyn FnMut(&str),
) {
    if !config.tie_embeddings || expected.iter().any(|(name, _)| name == HEAD) {
        return;
    }
    let Some(head) = found.remove(HEAD) else { return };
    let values = |tensor: &Tensor| tensor.to_f64_vec().unwrap_or_default();
    let same = found
        .get(EMBEDDING)
        .is_none_or(|embedding| embedding.shape() == head.shape() && values(embedding) == values(&head));
    if !same {
        warn(&format!(
            "{}: {HEAD} differs from {EMBEDDING}, but tie_word_embeddings is true: the embedding is used for both",
            shown_path(path)
        ));
    }
}

/// Everything that keeps a file's tensors from being the expected ones, a line for each kind.
fn compare(found: &BTreeMap<String, Tensor>, expected: &[(String, Vec<usize>)]) -> Vec<String> {
    let shapes: HashMap<&str, &[usize]> =
        expected.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
    let missing = expected.iter().filter(|(name, _)| !found.contains_key(name));
    let missing: Vec<String> = missing.map(|(name, shape)| format!("{name} {shape:?}")).collect();
    let (mut unexpected, mut misshaped, mut mistyped) = (vec![], vec![], vec![]);
    for (name, tensor) in found {
        let shape = tensor.shape();
        let (shown_name, shown_shape) = (shown(name), shown(format_args!("{shape:?}")));
        match shapes.get(name.as_str()) {
            None => unexpected.push(format!("{shown_name} {shown_shape}")),
            Some(&expected) if expected != shape => {
                misshaped.push(format!("{shown_name}: found {shown_shape}, expected {expected:?}"));
            }
            Some(_) if tensor.dtype() == DType::U32 => {
                mistyped.push(format!("{shown_name}: found whole numbers, expected floats"));
            }
            Some(_) => {}
        }
    }
    let kinds = [
        ("missing", missing),
        ("unexpected", unexpected),
        ("of another shape", misshaped),
        ("of another dtype", mistyped),
    ];
    kinds.iter().filter(|(_, names)| !names.is_empty()).map(|(kind, names)| list(kind, names)).collect()
}

fn list(kind: &str, names: &[String]) -> String {
    let listed = names[..names.len().min(LISTED)].join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => format!("{} {kind}: {listed}", names.len()),
        more => format!("{} {kind}: {listed} and {more} more", names.len()),
    }
}

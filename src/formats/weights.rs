//! `model.safetensors`, or several files with an index: a model's parameters, named and laid out as Hugging Face files have them.
//!
//! Parameters carry their file names inside the program too, so only the rows of q and k change place, in [`rope_layout`].

use super::safetensors::Reader;
use super::{read_json, rope_layout, safetensors};
use crate::nn::config::ModelConfig;
use crate::shown::{quoted, shown, shown_path};
use crate::{DType, Tensor};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// The names of the file, and of the index where there are several.
pub const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
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

/// Where a model's weights lie: in one file, or in several with an index that names the file of each tensor.
pub struct Files {
    /// The file, or the index.
    path: PathBuf,
    readers: Vec<Reader>,
    /// The file of each tensor.
    at: BTreeMap<String, usize>,
}

impl Files {
    /// Opens `model.safetensors`, or what `model.safetensors.index.json` lists; `warn` is told if there are both. Errors: as
    /// [`Files::open`]; neither is there.
    pub fn in_directory(dir: &Path, warn: &mut dyn FnMut(&str)) -> Result<Files> {
        let (single, index) = (dir.join(SINGLE), dir.join(INDEX));
        match (single.exists(), index.exists()) {
            (false, true) => Files::open(&index, warn),
            (true, true) => {
                warn(&format!("{}: found {SINGLE} and {INDEX}; the single file is read", shown_path(dir)));
                Files::open(&single, warn)
            }
            (_, false) => Files::open(&single, warn),
        }
    }

    /// Opens a file, or those of an index that ends in `.json`, and reads their headers. `warn` is told of a tensor that is in
    /// several files: that of the index is read. Errors: what [`Reader::open`] refuses; a bad index.
    pub fn open(path: &Path, warn: &mut dyn FnMut(&str)) -> Result<Files> {
        if path.extension().is_none_or(|ending| ending != "json") {
            let reader = Reader::open(path)?;
            let at = reader.names().into_iter().map(|name| (name, 0)).collect();
            return Ok(Files { path: path.to_path_buf(), readers: vec![reader], at });
        }
        let (names, map) = index(path)?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let readers: Vec<Reader> = names.iter().map(|name| Reader::open(&dir.join(name))).collect::<Result<_>>()?;
        let mut at = BTreeMap::new();
        let mut twice = None;
        for (number, reader) in readers.iter().enumerate() {
            for name in reader.names() {
                let listed = map.get(&name).is_none_or(|&listed| listed == number);
                let first = !at.contains_key(&name);
                if !first {
                    twice = Some(name.clone());
                }
                if first || listed {
                    at.insert(name, number);
                }
            }
        }
        let lost = map.iter().find(|(name, number)| at.get(*name) != Some(number));
        if let Some((name, &number)) = lost {
            bail!("{}: found no {} in it, expected one as in {INDEX}", shown_path(readers[number].path()), shown(name));
        }
        if let Some(name) = twice {
            warn(&format!("{}: found {} in several files; that of the index is read", shown_path(path), shown(name)));
        }
        Ok(Files { path: path.to_path_buf(), readers, at })
    }

    /// For messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.readers.iter().map(Reader::bytes).sum()
    }

    /// How many tensors there are.
    pub fn tensors(&self) -> usize {
        self.at.len()
    }

    fn shape(&self, name: &str) -> &[usize] {
        self.at.get(name).and_then(|&number| self.readers[number].shape(name)).unwrap_or(&[])
    }

    fn read(&mut self, name: &str) -> Result<Tensor> {
        let number = *self.at.get(name).with_context(|| format!("{}: not there", shown(name)))?;
        self.readers[number].read(name)
    }

    /// Reads the parameters that `expected` lists by name and shape, all as f32: f64 is rounded, bf16 and f16 widen
    /// exactly. `keep` gets them one by one, each once, after everything was found to fit. Errors: a tensor that cannot be read; one line with all tensors that are missing, unexpected, or of
    /// the wrong shape or dtype. Left unread: frequency tables that old files hold (`…rotary_emb.inv_freq`), and the head of
    /// a tied model; `warn` is told of the first, and of the second if it differs from the embedding.
    pub fn load(
        &mut self,
        config: &ModelConfig,
        expected: &[(String, Vec<usize>)],
        warn: &mut dyn FnMut(&str),
        keep: &mut dyn FnMut(&str, Tensor),
    ) -> Result<()> {
        let all = self.at.len();
        self.at.retain(|name, _| !name.ends_with(".rotary_emb.inv_freq"));
        if all > self.at.len() {
            let count = all - self.at.len();
            warn(&format!("{}: {count} tables …rotary_emb.inv_freq are not read but computed", shown_path(&self.path)));
        }
        self.drop_redundant_head(config, expected, warn)?;
        let problems = self.compare(expected);
        ensure!(
            problems.is_empty(),
            "{}: the tensors do not fit the configuration: {}",
            shown_path(&self.path),
            problems.join("; ")
        );
        for number in 0..self.readers.len() {
            for name in self.readers[number].names().into_iter().filter(|name| self.at.get(name) == Some(&number)) {
                let tensor = self.readers[number].read(&name)?.to_dtype(DType::F32)?;
                keep(&name, rope_layout::from_file(config, &name, &tensor)?);
            }
        }
        Ok(())
    }

    /// Leaves out the head that some files of tied models store a second time.
    fn drop_redundant_head(
        &mut self,
        config: &ModelConfig,
        expected: &[(String, Vec<usize>)],
        warn: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let there = self.at.contains_key(HEAD);
        if !there || !config.tie_embeddings || expected.iter().any(|(name, _)| name == HEAD) {
            return Ok(());
        }
        let same = !self.at.contains_key(EMBEDDING)
            || (self.shape(HEAD) == self.shape(EMBEDDING)
                && self.read(HEAD)?.to_f64_vec()? == self.read(EMBEDDING)?.to_f64_vec()?);
        self.at.remove(HEAD);
        if !same {
            warn(&format!(
                "{}: {HEAD} differs from {EMBEDDING}, but tie_word_embeddings is true: the embedding is used for both",
                shown_path(&self.path)
            ));
        }
        Ok(())
    }

    /// Everything that keeps the tensors from being the expected ones, a line for each kind.
    fn compare(&self, expected: &[(String, Vec<usize>)]) -> Vec<String> {
        let shapes: HashMap<&str, &[usize]> =
            expected.iter().map(|(name, shape)| (name.as_str(), shape.as_slice())).collect();
        let missing = expected.iter().filter(|(name, _)| !self.at.contains_key(name));
        let missing: Vec<String> = missing.map(|(name, shape)| format!("{name} {shape:?}")).collect();
        let (mut unexpected, mut misshaped, mut mistyped) = (vec![], vec![], vec![]);
        for (name, &number) in &self.at {
            let shape = self.shape(name);
            match shapes.get(name.as_str()) {
                None => unexpected.push(shown(format_args!("{name} {shape:?}"))),
                Some(&expected) if expected != shape => {
                    misshaped
                        .push(format!("{name}: found {}, expected {expected:?}", shown(format_args!("{shape:?}"))));
                }
                Some(_) if self.readers[number].is_whole(name) => {
                    mistyped.push(format!("{name}: found whole numbers, expected floats"));
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
}

/// An index: the names of its files, and the number of that of each tensor. Errors: it cannot be read; it is not JSON; no
/// `weight_map` of tensors to files beside it.
fn index(path: &Path) -> Result<(Vec<String>, BTreeMap<String, usize>)> {
    let json = read_json(path)?;
    let expected = || format!("{}: expected a \"weight_map\" of tensors to files", shown_path(path));
    let map = json.get("weight_map").and_then(Value::as_object).with_context(expected)?;
    let mut files: Vec<String> = vec![];
    let mut numbers = BTreeMap::new();
    for (tensor, file) in map {
        let file = file.as_str().with_context(expected)?;
        let bare = Path::new(file).file_name().is_some_and(|name| name == file);
        ensure!(bare, "{}: found the file {}, expected a name without a directory", shown_path(path), quoted(file));
        let number = files.iter().position(|other| other == file).unwrap_or_else(|| {
            files.push(file.to_string());
            files.len() - 1
        });
        numbers.insert(tensor.clone(), number);
    }
    ensure!(!files.is_empty(), "{}: found no files, expected some", shown_path(path));
    Ok((files, numbers))
}

fn list(kind: &str, names: &[String]) -> String {
    let listed = names[..names.len().min(LISTED)].join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => format!("{} {kind}: {listed}", names.len()),
        more => format!("{} {kind}: {listed} and {more} more", names.len()),
    }
}

//! `model.safetensors` against a configuration.

use super::*;
use std::collections::HashMap;

const Q: &str = "model.layers.0.self_attn.q_proj.weight";
const EMBED: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

fn config(tie_embeddings: bool) -> ModelConfig {
    ModelConfig { n_head: 2, n_kv_head: 1, head_dim: 4, n_embd: 6, tie_embeddings, ..ModelConfig::chapter8(5) }
}

fn parameters() -> Vec<(String, Tensor)> {
    named(&[(EMBED, iota(&[5, 6])), (Q, iota(&[8, 6])), ("model.norm.weight", iota(&[6]))])
}

fn shapes(parameters: &[(String, Tensor)]) -> Vec<(String, Vec<usize>)> {
    parameters.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect()
}

/// Everything that a file or an index gives.
fn load(
    path: &Path,
    config: &ModelConfig,
    expected: &[(String, Vec<usize>)],
    warn: &mut dyn FnMut(&str),
) -> anyhow::Result<HashMap<String, Tensor>> {
    let mut loaded = HashMap::new();
    let mut keep = |name: &str, tensor| assert!(loaded.insert(name.to_string(), tensor).is_none(), "{name} came twice");
    weights::Files::open(path, warn)?.load(config, expected, warn, &mut keep)?;
    Ok(loaded)
}

#[test]
fn weights_round_trip_and_the_file_has_the_other_layout() {
    let (_dir, path) = place("model.safetensors");
    let (config, parameters) = (config(true), parameters());
    weights::save(&path, &config, &parameters, 7).unwrap();
    let loaded = load(&path, &config, &shapes(&parameters), &mut |_| ()).unwrap();
    assert_eq!(loaded.len(), parameters.len());
    for (name, tensor) in &parameters {
        assert_eq!(loaded[name].as_slice::<f32>().unwrap(), tensor.as_slice::<f32>().unwrap(), "{name}");
    }
    let file = safetensors::read(&path).unwrap();
    assert_eq!(file.metadata["format"], "pt");
    let firsts: Vec<f64> = file.tensors[Q].to_f64_vec().unwrap().iter().step_by(6).map(|v| v / 6.0).collect();
    assert_eq!(firsts, [0., 2., 1., 3., 4., 6., 5., 7.]);
}

#[test]
fn all_that_does_not_fit_is_listed_in_one_error() {
    let (_dir, path) = place("model.safetensors");
    let file = named(&[
        (EMBED, iota(&[6, 5])),
        ("extra", iota(&[3])),
        ("model.norm.weight", Tensor::zeros(&[6], DType::U32)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", iota(&[2])),
    ]);
    safetensors::write(&path, &file, &[]).unwrap();
    let result = load(&path, &config(false), &shapes(&parameters()), &mut |_| ());
    assert_says(
        result,
        &[
            "model.safetensors: ",
            "1 missing: model.layers.0.self_attn.q_proj.weight [8, 6]",
            "1 unexpected: extra [3]",
            "1 of another shape: model.embed_tokens.weight: found [6, 5], expected [5, 6]",
            "1 of another dtype: model.norm.weight: found whole numbers",
        ],
    );
    let many: Vec<(String, Vec<usize>)> = (0..30).map(|i| (format!("w{i}"), vec![1])).collect();
    assert_says(load(&path, &config(false), &many, &mut |_| ()), &["30 missing: w0 [1]", "w7 [1] and 22 more"]);
}

#[test]
fn narrow_and_wide_floats_become_f32() {
    let (_dir, path) = place("model.safetensors");
    let parameters = parameters();
    let file: Vec<_> = parameters
        .iter()
        .zip([DType::Bf16, DType::F64, DType::F32])
        .map(|((name, tensor), dtype)| (name.clone(), tensor.to_dtype(dtype).unwrap()))
        .collect();
    safetensors::write(&path, &file, &[]).unwrap();
    let loaded = load(&path, &config(false), &shapes(&parameters), &mut |_| ()).unwrap();
    assert!(loaded.values().all(|tensor| tensor.dtype() == DType::F32));
    assert_eq!(loaded[EMBED].to_f64_vec().unwrap(), iota(&[5, 6]).to_f64_vec().unwrap());
}

#[test]
fn tied_head_is_stored_once_and_a_stored_head_is_left_out() {
    let (_dir, path) = place("model.safetensors");
    let (tied, parameters) = (config(true), parameters());
    let with_head = |head: Tensor| [parameters.clone(), named(&[(HEAD, head)])].concat();
    weights::save(&path, &tied, &with_head(iota(&[5, 6])), 7).unwrap();
    assert!(!safetensors::read(&path).unwrap().tensors.contains_key(HEAD));
    for head in [iota(&[5, 6]), Tensor::zeros(&[5, 6], DType::F32), f32s(&[1.0], &[1])] {
        let same = head.to_f64_vec().unwrap() == iota(&[5, 6]).to_f64_vec().unwrap();
        safetensors::write(&path, &with_head(head), &[]).unwrap();
        let mut warnings = vec![];
        let mut keep = |warning: &str| warnings.push(warning.to_string());
        let loaded = load(&path, &tied, &shapes(&parameters), &mut keep).unwrap();
        assert_eq!(loaded.len(), 3);
        assert_eq!(warnings.len(), usize::from(!same), "{warnings:?}");
        assert_eq!(loaded[EMBED].to_f64_vec().unwrap(), iota(&[5, 6]).to_f64_vec().unwrap());
    }
    assert_says(load(&path, &config(false), &shapes(&parameters), &mut |_| ()), &["1 unexpected: lm_head.weight"]);
}

/// However much smaller than the model it is: what a file is says more than its size.
#[test]
fn what_lies_in_the_place_of_weights_is_told_before_its_size() {
    let (dir, path) = place("model.safetensors");
    config_json::write(&dir.path().join("config.json"), &config(false), &[]).unwrap();
    let load = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        model_dir::load(dir.path())
    };
    assert_says(load(b"<!DOCTYPE html><html></html>"), &["model.safetensors: found an HTML"]);
    assert_says(load(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"), &["Git LFS pointer"]);
    assert_says(load(b"1234567"), &["found 7 bytes"]);
    safetensors::write(&path, &named(&[("a", iota(&[2]))]), &[]).unwrap();
    assert_says(model_dir::load(dir.path()), &["found 1 tensors, expected at least 32 for the 4 layers"]);
    let many: Vec<_> = (0..32).map(|i| (format!("a{i}"), iota(&[2]))).collect();
    safetensors::write(&path, &many, &[]).unwrap();
    assert_says(model_dir::load(dir.path()), &["found 256 bytes, expected at least 2 for each of the"]);
    let whole = fs::read(&path).unwrap();
    assert_says(load(&whole[..whole.len() - 1]), &["cut short"]);
}

#[test]
fn json_files_that_are_something_else_say_what() {
    let (_dir, path) = place("tokenizer.json");
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        tokenizer_json::read(&path)
    };
    assert_says(read(b"version https://git-lfs.github.com/spec/v1\n"), &["tokenizer.json: found a Git LFS pointer"]);
    assert_says(read(b"\n<html>"), &["tokenizer.json: found an HTML"]);
    assert_says(read(b"{"), &["tokenizer.json: not valid JSON", "line 1 column 1"]);
}

/// Weights in two files and what an index says of them.
fn sharded(map: Value) -> (TempDir, PathBuf) {
    let (dir, index) = place("model.safetensors.index.json");
    let all = parameters();
    safetensors::write(&dir.path().join("one.safetensors"), &all[..2], &[]).unwrap();
    safetensors::write(&dir.path().join("two.safetensors"), &all[1..], &[]).unwrap();
    fs::write(&index, json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string()).unwrap();
    (dir, index)
}

#[test]
fn weights_in_several_files_are_those_of_their_index() {
    let (one, two) = ("one.safetensors", "two.safetensors");
    let expected = shapes(&parameters());
    let mut warnings = vec![];
    let (dir, index) = sharded(json!({EMBED: one, Q: two, "model.norm.weight": two}));
    let loaded = load(&index, &config(false), &expected, &mut |line| warnings.push(line.to_string())).unwrap();
    assert_eq!(loaded.len(), 3);
    assert_eq!(loaded[EMBED].to_f64_vec().unwrap(), iota(&[5, 6]).to_f64_vec().unwrap());
    assert!(warnings.len() == 1 && warnings[0].contains("several files") && warnings[0].contains(Q), "{warnings:?}");
    // A single file beside the index is what other programs read, too.
    let in_directory = |warnings: &mut Vec<String>| {
        let files = weights::Files::in_directory(dir.path(), &mut |line| warnings.push(line.to_string()));
        files.map(|files| files.path().to_path_buf())
    };
    let mut warnings = vec![];
    assert_eq!(in_directory(&mut warnings).unwrap(), index);
    let single = dir.path().join("model.safetensors");
    weights::save(&single, &config(false), &parameters(), 0).unwrap();
    assert_eq!(in_directory(&mut warnings).unwrap(), single);
    assert!(warnings.iter().any(|line| line.contains("the single file is read")), "{warnings:?}");
}

#[test]
fn a_bad_index_is_refused() {
    let bad = |map: Value| {
        let (_dir, index) = sharded(map);
        load(&index, &config(false), &shapes(&parameters()), &mut |_| ())
    };
    let one = "one.safetensors";
    assert_says(bad(json!({"model.norm.weight": one})), &[one, "found no model.norm.weight in it"]);
    assert_says(bad(json!({EMBED: "gone.safetensors"})), &["gone.safetensors: cannot be opened"]);
    for outside in ["../one.safetensors", "/one.safetensors", "a/one.safetensors", "..", ""] {
        assert_says(bad(json!({EMBED: outside})), &["index.json: found the file", "expected a name"]);
    }
    assert_says(bad(json!({EMBED: 1})), &["expected a \"weight_map\""]);
    assert_says(bad(json!([])), &["expected a \"weight_map\""]);
    assert_says(bad(json!({})), &["found no files"]);
    assert_says(bad(json!({EMBED: one, Q: one})), &["1 missing: model.norm.weight"]);
}

#[test]
fn what_is_left_unread_on_purpose_is_said() {
    let (_dir, path) = place("model.safetensors");
    let tables = named(&[("model.layers.0.self_attn.rotary_emb.inv_freq", iota(&[2]))]);
    safetensors::write(&path, &[parameters(), tables].concat(), &[]).unwrap();
    let mut warnings = vec![];
    load(&path, &config(false), &shapes(&parameters()), &mut |line| warnings.push(line.to_string())).unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("1 tables …rotary_emb.inv_freq are not read"), "{warnings:?}");
}

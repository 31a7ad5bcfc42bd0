//! Files of tensors, and model directories.

use crate::{Reader, fuzz, scratch};
use half::bf16;
use handgrad::Tensor;
use handgrad::formats::generation_config::end_of_text_ids;
use handgrad::formats::{config_json, model_dir, safetensors, weights};
use handgrad::nn::{ModelConfig, Transformer};
use handgrad::tokenizer::Tokenizer;
use std::fs;

/// Small enough that half of the file is its header.
fn shrunk(config: ModelConfig) -> ModelConfig {
    let n_kv_head = config.n_kv_head / 2;
    ModelConfig { n_layer: 2, n_head: 2, n_kv_head, n_embd: 8, head_dim: 4, n_ff: 6, max_seq_len: 16, ..config }
}

pub fn small() -> Transformer {
    Transformer::new(&shrunk(ModelConfig::chapter8(10)), 1).unwrap()
}

pub fn classic() -> ModelConfig {
    shrunk(ModelConfig::classic(10))
}

#[test]
fn files_of_tensors() {
    let dir = scratch();
    let path = dir.path().join("x.safetensors");
    let tensor = |data: Vec<f32>, shape: &[usize]| Tensor::from_vec(data, shape).unwrap();
    let tensors = [
        ("a".to_string(), tensor(vec![1.0; 6], &[2, 3])),
        ("b".to_string(), Tensor::from_vec(vec![bf16::ONE; 4], &[4]).unwrap()),
        ("empty".to_string(), tensor(vec![], &[0, 3])),
        ("ids".to_string(), Tensor::from_vec(vec![1u32, 2], &[2]).unwrap()),
    ];
    safetensors::write(&path, &tensors, &[("format", "pt".to_string())]).unwrap();
    let other = br#"{"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"i":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}}    "#;
    let other = [&(other.len() as u64).to_le_bytes()[..], other, &[0; 12]].concat();
    let originals = [fs::read(&path).unwrap(), other, b"version https://git-lfs.github.com/spec/v1\n".to_vec()];
    let load = || safetensors::read(&path).map(|_| ());
    fuzz(&Reader { name: "safetensors", share: 1, mib: 1, file: &path, load: &load }, &originals);
}

#[test]
fn weights_of_a_model() {
    let dir = scratch();
    model_dir::save(dir.path(), &small(), &Tokenizer::bytes(true), 3).unwrap();
    let path = dir.path().join("model.safetensors");
    let originals = [fs::read(&path).unwrap()];
    let load = || model_dir::load(dir.path()).map(|_| ());
    fuzz(&Reader { name: "model.safetensors", share: 1, mib: 1, file: &path, load: &load }, &originals);
}

/// Whatever a configuration asks for, the weights beside it bound what is made.
#[test]
fn the_configuration_beside_weights() {
    let dir = scratch();
    model_dir::save(dir.path(), &small(), &Tokenizer::bytes(true), 3).unwrap();
    let path = dir.path().join("config.json");
    let other = serde_json::to_vec_pretty(&config_json::to_json(&classic())).unwrap();
    let originals = [fs::read(&path).unwrap(), other];
    let load = || model_dir::load(dir.path()).map(|_| ());
    fuzz(&Reader { name: "model directory", share: 1, mib: 1, file: &path, load: &load }, &originals);
}

#[test]
fn the_index_of_several_files() {
    let dir = scratch();
    model_dir::save(dir.path(), &small(), &Tokenizer::bytes(true), 3).unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let names = safetensors::Reader::open(&dir.path().join("model.safetensors")).unwrap().names();
    let map: serde_json::Map<_, _> = names.into_iter().map(|name| (name, "model.safetensors".into())).collect();
    let originals = [serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map}).to_string().into_bytes()];
    let load = || weights::Files::open(&index, &mut |_| ()).map(|_| ());
    fuzz(&Reader { name: "index", share: 1, mib: 1, file: &index, load: &load }, &originals);
}

#[test]
fn ids_that_end_a_text() {
    let dir = scratch();
    model_dir::save(dir.path(), &small(), &Tokenizer::bytes(true), 3).unwrap();
    let path = dir.path().join("generation_config.json");
    let other = br#"{"eos_token_id":[1,2],"temperature":0.6,"top_k":20}"#.to_vec();
    let originals = [fs::read(&path).unwrap(), other];
    let load = || end_of_text_ids(dir.path(), &Tokenizer::bytes(true), &mut |_| ()).map(|_| ());
    fuzz(&Reader { name: "generation_config.json", share: 1, mib: 1, file: &path, load: &load }, &originals);
}

//! Cached generation computes what the whole sequence computes, and stops where it must.

use handgrad::generate::{Request, Sampler, Stop, generate};
use handgrad::nn::config::{FeedForwardKind, NormKind, NormPosition, Positions};
use handgrad::nn::{KvCache, ModelConfig, Module, Transformer};
use handgrad::{DType, Device, Tape, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::slice::from_mut;

/// Every row of chapter 8's table, older and newer, and their extremes.
fn models() -> Vec<Transformer> {
    let base = ModelConfig {
        max_seq_len: 20,
        n_layer: 2,
        n_embd: 24,
        head_dim: 6,
        n_ff: 20,
        init: handgrad::nn::config::Init::Normal { std: 0.3 },
        ..ModelConfig::chapter8(19)
    };
    let configs = [
        base.clone(),
        ModelConfig { n_kv_head: 1, qk_norm: false, tie_embeddings: true, ..base.clone() },
        ModelConfig { n_kv_head: 4, norm: NormKind::LayerNorm, ..base.clone() },
        ModelConfig { positions: Positions::Absolute, feed_forward: FeedForwardKind::Gelu, bias: true, ..base.clone() },
        ModelConfig { norm_position: NormPosition::Post, ..base.clone() },
    ];
    configs.iter().map(|config| Transformer::new(config, 11).unwrap()).collect()
}

fn random_ids(n: usize, vocab: u32, seed: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..n).map(|_| rng.random_range(0..vocab)).collect()
}

fn request(prompt: &[u32], max_new: usize, use_cache: bool) -> Request<'_> {
    Request { prompt, max_new, end_of_text: &[], vocab_size: usize::MAX, use_cache }
}

fn greedy(model: &Transformer, request: &Request) -> (Vec<u32>, Stop) {
    let mut tokens = vec![];
    let keep = |id| {
        tokens.push(id);
        Ok(true)
    };
    let stop = generate(model, request, &mut Sampler::greedy(), keep).unwrap();
    (tokens, stop)
}

fn ids(ids: &[u32]) -> Tensor {
    Tensor::from_vec(ids.to_vec(), &[1, ids.len()]).unwrap()
}

/// Logits [T,V] of all positions, computed in pieces with a cache, or at once without.
fn logits(model: &Transformer, tokens: &[u32], pieces: &[usize]) -> Vec<f64> {
    let mut tape = Tape::inference();
    if pieces.is_empty() {
        return model.forward(&mut tape, &ids(tokens)).unwrap().value().to_f64_vec().unwrap();
    }
    let mut cache = KvCache::new(&model.config, 1, tokens.len(), model.dtype(), &Device::Cpu).unwrap();
    let (mut all, mut rest) = (vec![], tokens);
    for &piece in pieces {
        let hidden = model.hidden(&mut tape, &ids(&rest[..piece]), from_mut(&mut cache)).unwrap();
        all.extend(model.logits(&mut tape, &hidden).unwrap().value().to_f64_vec().unwrap());
        rest = &rest[piece..];
    }
    assert_eq!(cache.len(), tokens.len());
    all
}

#[test]
fn cached_equals_uncached_for_every_prompt_length() {
    for model in models() {
        let max = model.config.max_seq_len;
        for prompt_len in 1..=max {
            let prompt = random_ids(prompt_len, 19, prompt_len as u64);
            let cached = greedy(&model, &request(&prompt, max - prompt_len, true));
            let uncached = greedy(&model, &request(&prompt, max - prompt_len, false));
            assert_eq!(cached, uncached, "prompt of {prompt_len}");
            assert_eq!(cached.0.len(), max - prompt_len);
        }
    }
}

#[test]
fn prefill_in_pieces_equals_prefill_in_one() {
    for model in models() {
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 2e-5)] {
            let model = model.to_dtype(dtype).unwrap();
            let tokens = random_ids(9, 19, 5);
            let whole = logits(&model, &tokens, &[]);
            let scale = whole.iter().fold(1.0_f64, |m, x| m.max(x.abs()));
            for pieces in [vec![9], vec![4, 5], vec![8, 1], vec![4, 1, 4], vec![3, 3, 3], vec![1; 9]] {
                for (found, expected) in logits(&model, &tokens, &pieces).iter().zip(&whole) {
                    let ok = (found - expected).abs() <= tolerance * scale;
                    assert!(ok, "{dtype} in pieces {pieces:?}: {found}, expected {expected}");
                }
            }
        }
    }
}

#[test]
fn generation_stops_at_end_of_text() {
    for model in models() {
        let prompt = random_ids(3, 19, 1);
        let (tokens, stop) = greedy(&model, &request(&prompt, 10, true));
        assert_eq!(stop, Stop::MaxNew);
        // Whatever comes at some place becomes the end of text: generation must stop before its first occurrence.
        let end = tokens[4];
        let first = tokens.iter().position(|&id| id == end).unwrap();
        for use_cache in [true, false] {
            let request = Request { end_of_text: &[end], ..request(&prompt, 10, use_cache) };
            assert_eq!(greedy(&model, &request), (tokens[..first].to_vec(), Stop::EndOfText));
        }
    }
}

#[test]
fn ids_without_a_token_are_never_chosen() {
    let mut model = models().remove(0);
    let head = model.lm_head.as_mut().unwrap().weight.value.as_mut_slice::<f32>().unwrap();
    head[18 * 24..].fill(0.0); // id 18 gets the logit 0 …
    let prompt = random_ids(3, 18, 2);
    let best = |model: &Transformer| greedy(model, &Request { vocab_size: 18, ..request(&prompt, 8, true) }).0;
    let before = best(&model);
    let head = model.lm_head.as_mut().unwrap().weight.value.as_mut_slice::<f32>().unwrap();
    for x in &mut head[18 * 24..] {
        *x = 100.0; // … and then, half of the time, one far above all others
    }
    assert_eq!(best(&model), before);
    let mut all = vec![];
    for n in 0..10 {
        all.extend(greedy(&model, &request(&random_ids(3, 18, n), 1, true)).0);
    }
    assert!(all.contains(&18), "the test must be able to fail");
}

#[test]
fn one_prompt_leaves_nothing_for_the_next() {
    let model = models().remove(0);
    let (a, b) = (random_ids(7, 19, 1), random_ids(2, 19, 2));
    let first = greedy(&model, &request(&a, 8, true));
    greedy(&model, &request(&b, 8, true));
    assert_eq!(greedy(&model, &request(&a, 8, true)), first);
}

#[test]
fn nothing_to_generate_is_no_error() {
    let model = models().remove(0);
    assert_eq!(greedy(&model, &request(&[1, 2], 0, true)), (vec![], Stop::MaxNew));
}

#[test]
fn impossible_requests_are_refused_before_any_work() {
    let model = models().remove(0);
    let error = |prompt: &[u32], max_new| {
        let mut calls = 0;
        let count = |_| {
            calls += 1;
            Ok(true)
        };
        let error = generate(&model, &request(prompt, max_new, true), &mut Sampler::greedy(), count).unwrap_err();
        assert_eq!(calls, 0);
        error.to_string()
    };
    assert!(error(&[], 3).contains("empty prompt"));
    let message = error(&[1; 15], 6);
    assert!(message.contains("15") && message.contains('6') && message.contains("20"), "{message}");
    assert!(error(&[1; 21], 0).contains("21"));
    assert!(error(&[1; 2], usize::MAX).contains("at most 20"));
}

#[test]
fn too_many_positions_and_a_cache_in_training_are_refused() {
    let model = models().remove(0);
    let config = &model.config;
    let mut cache = KvCache::new(config, 1, 30, DType::F32, &Device::Cpu).unwrap();
    model.hidden(&mut Tape::inference(), &ids(&[1; 15]), from_mut(&mut cache)).unwrap();
    let error = model.hidden(&mut Tape::inference(), &ids(&[1; 6]), from_mut(&mut cache)).unwrap_err().to_string();
    assert!(error.contains("15 cached") && error.contains("6 new") && error.contains("20"), "{error}");
    assert_eq!(cache.len(), 15);

    let error = model.forward(&mut Tape::new(), &ids(&[1; 21])).unwrap_err().to_string();
    assert!(error.contains("21 new"), "{error}");

    let mut small = KvCache::new(config, 1, 4, DType::F32, &Device::Cpu).unwrap();
    let error = model.hidden(&mut Tape::inference(), &ids(&[1; 5]), from_mut(&mut small)).unwrap_err().to_string();
    assert!(error.contains("at most 4"), "{error}");

    let mut cache = KvCache::new(config, 1, 8, DType::F32, &Device::Cpu).unwrap();
    let error = model.hidden(&mut Tape::new(), &ids(&[1; 3]), from_mut(&mut cache)).unwrap_err().to_string();
    assert!(error.contains("KV cache on a recording tape"), "{error}");
}

#[test]
fn the_cache_holds_kv_heads_only() {
    let config = ModelConfig::chapter8(65);
    let cache = KvCache::new(&config, 3, 64, DType::F32, &Device::Cpu).unwrap();
    assert_eq!(cache.bytes(), 2 * 3 * 4 * 2 * 64 * 32 * 4); // k and v · B · L · Hkv · T · D · bytes
    assert_eq!(handgrad::nn::cost::kv_cache_bytes(&config, 64, 4) * 3, cache.bytes());
}

#[test]
fn a_batch_computes_what_its_rows_compute() {
    let model = models().remove(0);
    let rows: Vec<Vec<u32>> = (0..3).map(|n| random_ids(6, 19, n)).collect();
    let batch = Tensor::from_vec(rows.concat(), &[3, 6]).unwrap();
    let mut cache = KvCache::new(&model.config, 3, 10, DType::F32, &Device::Cpu).unwrap();
    let mut tape = Tape::inference();
    let hidden = model.hidden(&mut tape, &batch, from_mut(&mut cache)).unwrap();
    let found = model.logits(&mut tape, &hidden).unwrap().value().to_f64_vec().unwrap();
    let expected: Vec<f64> = rows.iter().flat_map(|row| logits(&model, row, &[])).collect();
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-4, "{found}, expected {expected}");
    }
    assert!(model.parameters().len() > 10);
}

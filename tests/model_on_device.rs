//! The whole model on a card: layers, loss and gradients, training steps and generation against the CPU. The device is the
//! emulator, or what `HANDGRAD_TEST_DEVICE` names.
#![cfg(feature = "cuda")]

use handgrad::generate::{Request, Sampler, generate, generate_batch};
use handgrad::nn::{ModelConfig, Module, Transformer};
use handgrad::ops::{IGNORE_INDEX, cross_entropy};
use handgrad::train::{Recipe, Trainer};
use handgrad::{DType, Device, Tape, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn device() -> Device {
    Device::open(&std::env::var("HANDGRAD_TEST_DEVICE").unwrap_or("emulator".to_string())).unwrap()
}

/// Chapter 8's model (GQA, QK-Norm, untied), the report's (MHA, tied) and the classic one, as small as kernels allow.
fn configs() -> Vec<ModelConfig> {
    let small = |config: ModelConfig, n_kv_head: usize| ModelConfig {
        max_seq_len: 16,
        n_layer: 2,
        n_head: 2,
        n_kv_head,
        n_embd: 48,
        head_dim: 32,
        n_ff: 80,
        ..config
    };
    vec![small(ModelConfig::chapter8(37), 1), small(ModelConfig::report_80m(40), 2), small(ModelConfig::classic(37), 2)]
}

/// A model whose gains and biases are not 1 and 0.
fn model(config: &ModelConfig) -> Transformer {
    let mut model = Transformer::new(config, 3).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for parameter in model.parameters_mut() {
        for x in parameter.value.as_mut_slice::<f32>().unwrap() {
            *x = 2.0 * *x + rng.random_range(-0.05..0.05);
        }
    }
    model
}

fn ids(seed: u64, b: usize, t: usize) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    Tensor::from_vec((0..b * t).map(|_| rng.random_range(0..37u32)).collect(), &[b, t]).unwrap()
}

/// A name and the numbers.
type Traced = (String, Vec<f64>);

/// Every traced tensor, the loss and every gradient.
fn trace(model: &Transformer) -> Vec<Traced> {
    trace_on(Tape::new(), model)
}

fn trace_on(mut tape: Tape, model: &Transformer) -> Vec<Traced> {
    let (ids, mut targets) = (ids(1, 2, 13), ids(2, 2, 13));
    targets.as_mut_slice::<u32>().unwrap()[5] = IGNORE_INDEX as u32;
    tape.keep_trace();
    let logits = model.forward(&mut tape, &ids).unwrap();
    let mut tensors = tape.take_trace();
    let loss = cross_entropy(&mut tape, &logits, &targets, IGNORE_INDEX).unwrap();
    tensors.push(("loss".to_string(), loss.value().clone()));
    let gradients = tape.backward(&loss).unwrap();
    for parameter in model.parameters() {
        tensors.push((format!("grad.{}", parameter.name), gradients.get(&parameter.name).unwrap().clone()));
    }
    tensors.into_iter().map(|(name, tensor)| (name, tensor.to_f64_vec().unwrap())).collect()
}

/// An error of each tensor as a share of its largest number: `measure` of the single errors.
fn errors(found: &[Traced], expected: &[Traced], measure: fn(&[f64]) -> f64) -> Vec<(String, f64)> {
    let error = |((name, found), (_, expected)): (&Traced, &Traced)| {
        let largest = expected.iter().fold(1e-30f64, |largest, x| largest.max(x.abs()));
        let errors: Vec<f64> = found.iter().zip(expected).map(|(f, e)| (f - e).abs() / largest).collect();
        (name.clone(), measure(&errors))
    };
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(error).collect()
}

fn worst(errors: &[f64]) -> f64 {
    errors.iter().fold(0.0, |worst, &e| if e > worst || e.is_nan() { e } else { worst })
}

fn root_mean_square(errors: &[f64]) -> f64 {
    (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt()
}

#[test]
fn a_trace_in_f32_is_the_cpu_s() {
    let device = device();
    for config in configs() {
        let model = model(&config);
        let expected = trace(&model);
        let on_card = model.to(&device, DType::F32).unwrap();
        let found = trace(&on_card);
        for (name, error) in errors(&found, &expected, worst) {
            assert!(error <= 2e-5, "{name}: {error:e} of the largest number, {config:?}");
        }
        let again = trace(&on_card);
        assert!(found.iter().zip(&again).all(|(a, b)| a == b), "a second run gives other bits");
    }
}

/// Twice the error of a plain bf16 version for what goes forward, three times for gradients; or a few roundings, where
/// both are near nothing. The largest of few errors is a matter of chance, so errors are taken together.
#[test]
fn a_trace_in_bf16_is_near_f64() {
    let device = device();
    for config in configs() {
        let mut model = model(&config);
        // The reference computes with the rounded weights.
        for parameter in model.parameters_mut() {
            parameter.value = parameter.value.to_dtype(DType::Bf16).unwrap().to_dtype(DType::F32).unwrap();
        }
        let exact = trace(&model.to_dtype(DType::F64).unwrap());
        let plain = errors(&trace_on(Tape::rounding(DType::Bf16), &model), &exact, root_mean_square);
        let found = errors(&trace(&model.to(&device, DType::Bf16).unwrap()), &exact, root_mean_square);
        for ((name, found), (_, plain)) in found.iter().zip(plain) {
            let factor = if name.starts_with("grad.") { 3.0 } else { 2.0 };
            let allowed = factor * plain + 1.0 / 1024.0;
            assert!(*found <= allowed, "{name}: {found:e}, allowed {allowed:e}, {config:?}");
        }
    }
}

/// A gradient that is not finite leaves weights and moments as they are, and the report says so.
#[test]
fn a_step_whose_norm_is_not_finite_is_left_out_and_reported() {
    for dtype in [DType::F32, DType::Bf16] {
        let mut trainer = trainer(&configs()[0], &device(), dtype, false);
        trainer.train_step().unwrap();
        let weights = |trainer: &Trainer| -> Vec<Vec<f64>> {
            trainer.model.parameters().iter().map(|p| p.value.to_f64_vec().unwrap()).collect()
        };
        let norm = &mut trainer.model.norm.as_mut().unwrap().weight;
        let broken = Tensor::full(norm.value.shape(), f64::INFINITY, DType::F32).to(&device()).unwrap();
        norm.copy = norm.copy.as_ref().map(|_| handgrad::ops::cast(&broken, DType::Bf16).unwrap());
        norm.value = broken;
        let before = weights(&trainer);
        let reason = trainer.train_step().unwrap().left_out().unwrap();
        assert!(reason.contains("step 2") && reason.contains("expected finite numbers"), "{reason}");
        assert_eq!(weights(&trainer), before);
    }
}

fn trainer(config: &ModelConfig, device: &Device, dtype: DType, recompute: bool) -> Trainer {
    let tokens: Vec<u32> = (0..600u32).map(|i| (i * i + i / 7) % 37).collect();
    let recipe = Recipe { steps: 20, batch_size: 3, seq_len: 13, warmup: 4, ..Recipe::preset("chapter8").unwrap() };
    let mut model = Transformer::new(config, 5).unwrap().to(device, dtype).unwrap();
    model.recompute = recompute;
    Trainer::new(model, recipe, tokens[..500].to_vec(), tokens[500..].to_vec())
}

#[test]
fn twenty_steps_have_the_cpu_s_losses() {
    let device = device();
    for config in configs() {
        let mut here = trainer(&config, &Device::Cpu, DType::F32, false);
        let mut there = trainer(&config, &device, DType::F32, false);
        for step in 1..=20 {
            let (expected, found) = (here.train_step().unwrap(), there.train_step().unwrap());
            let error = (found.loss - expected.loss).abs();
            assert!(error <= 1e-4, "step {step}: loss {}, expected {}", found.loss, expected.loss);
            assert!((found.grad_norm / expected.grad_norm - 1.0).abs() <= 1e-3, "step {step}: {found:?}, {expected:?}");
        }
        let (here, there) = (here.evaluate(&|| false).unwrap().unwrap(), there.evaluate(&|| false).unwrap().unwrap());
        assert!((here - there).abs() <= 1e-4, "validation loss {there}, expected {here}");
    }
}

#[test]
fn bf16_learns_what_f32_learns() {
    let config = &configs()[0];
    let mut f32s = trainer(config, &Device::Cpu, DType::F32, false);
    let mut bf16s = trainer(config, &device(), DType::Bf16, false);
    for step in 1..=20 {
        let (expected, found) = (f32s.train_step().unwrap(), bf16s.train_step().unwrap());
        assert!((found.loss - expected.loss).abs() <= 0.03, "step {step}: {}, expected {}", found.loss, expected.loss);
    }
}

#[test]
fn recomputed_blocks_give_the_same_bits() {
    for (device, dtype) in [(Device::Cpu, DType::F32), (device(), DType::F32), (device(), DType::Bf16)] {
        for config in configs() {
            let run = |recompute: bool| {
                let mut trainer = trainer(&config, &device, dtype, recompute);
                let reports: Vec<_> = (0..2).map(|_| trainer.train_step().unwrap()).collect();
                let weights = trainer.model.parameters().into_iter().map(|p| p.value.to_f64_vec().unwrap());
                (reports.iter().map(|r| r.loss.to_bits()).collect::<Vec<_>>(), weights.collect::<Vec<_>>())
            };
            assert!(run(false) == run(true), "on {device} in {dtype}");
        }
    }
}

#[test]
fn greedy_tokens_are_the_cpu_s_cached_and_not_alone_and_together() {
    let device = device();
    let prompts: [&[u32]; 3] = [&[1, 2, 3], &[7], &[9, 8, 7, 6, 5, 4]];
    for config in configs() {
        let here = model(&config);
        let there = here.clone().to(&device, DType::F32).unwrap();
        let request = |prompt, use_cache| Request { prompt, max_new: 9, end_of_text: &[], vocab_size: 35, use_cache };
        let alone = |model: &Transformer, prompt, use_cache| {
            let mut tokens = vec![];
            let mut keep = |token| {
                tokens.push(token);
                Ok(true)
            };
            generate(model, &request(prompt, use_cache), &mut Sampler::greedy(), &mut keep).unwrap();
            tokens
        };
        let expected: Vec<Vec<u32>> = prompts.iter().map(|prompt| alone(&here, prompt, false)).collect();
        for model in [&here, &there] {
            for use_cache in [true, false] {
                for (prompt, expected) in prompts.iter().zip(&expected) {
                    assert_eq!(&alone(model, prompt, use_cache), expected, "on {}", model.device());
                }
            }
            let requests: Vec<Request> = prompts.iter().map(|prompt| request(prompt, true)).collect();
            let mut together = vec![vec![]; prompts.len()];
            let mut keep = |i: usize, token| {
                together[i].push(token);
                Ok(true)
            };
            generate_batch(model, &requests, &mut Sampler::greedy(), &mut keep).unwrap();
            assert_eq!(together, expected, "together on {}", model.device());
        }
    }
}

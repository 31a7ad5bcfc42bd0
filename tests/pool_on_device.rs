//! The device's memory pool over training steps and a generation. The pool belongs to the whole process, so this is the only
//! test of its program. The device is the emulator, or what `HANDGRAD_TEST_DEVICE` names.
#![cfg(feature = "cuda")]

use handgrad::generate::{Request, Sampler, generate};
use handgrad::nn::{ModelConfig, Transformer};
use handgrad::train::{Recipe, Trainer};
use handgrad::{DType, Device};

fn device() -> Device {
    Device::open(&std::env::var("HANDGRAD_TEST_DEVICE").unwrap_or("emulator".to_string())).unwrap()
}

/// Chapter 8's model as small as kernels allow, in bf16.
fn model(device: &Device) -> Transformer {
    let config = ModelConfig {
        max_seq_len: 16,
        n_layer: 2,
        n_head: 2,
        n_kv_head: 1,
        n_embd: 48,
        head_dim: 32,
        n_ff: 80,
        ..ModelConfig::chapter8(37)
    };
    Transformer::new(&config, 5).unwrap().to(device, DType::Bf16).unwrap()
}

/// Nothing waits for the device between the numbers that are read, and the pool takes nothing from the driver after the
/// first step. When all is dropped, nothing is in use.
#[test]
fn a_step_does_not_wait_and_the_pool_is_empty_at_the_end() {
    let device = device();
    let gpu = device.gpu().unwrap();
    let used = || {
        gpu.synchronize().unwrap();
        gpu.pool().unwrap().used
    };
    assert_eq!(used(), 0, "before anything is allocated");

    let tokens: Vec<u32> = (0..600u32).map(|i| (i * i + i / 7) % 37).collect();
    let recipe = Recipe { steps: 20, batch_size: 3, seq_len: 13, warmup: 4, ..Recipe::preset("chapter8").unwrap() };
    let mut trainer = Trainer::new(model(&device), recipe, tokens[..500].to_vec(), tokens[500..].to_vec());
    // A step's loss and norm are let go before the next step, as the emulator's pool counts every byte.
    trainer.submit_step().unwrap().report().unwrap();
    let (waits, reserved) = (gpu.waits(), gpu.pool().unwrap().reserved);
    assert!(reserved > 0);
    for step in 2..=6 {
        trainer.submit_step().unwrap();
        let now = gpu.pool().unwrap().reserved;
        assert!(now <= reserved, "step {step}: {now} bytes are reserved, {reserved} after the first");
    }
    assert_eq!(gpu.waits(), waits, "a step waited for the device");
    trainer.train_step().unwrap();
    assert!(used() > 0);
    drop(trainer);
    assert_eq!(used(), 0, "after training");

    let model = model(&device);
    let request = Request { prompt: &[1, 2, 3], max_new: 9, end_of_text: &[], vocab_size: 37, use_cache: true };
    let write = || generate(&model, &request, &mut Sampler::greedy(), &mut |_| Ok(true)).unwrap();
    write(); // copies the table of RoPE, too
    let weights = used();
    write();
    assert_eq!(used(), weights, "after a generation with the model still there");
    drop(model);
    assert_eq!(used(), 0, "after a generation");
}

//! The memory of a training step as `train::memory` predicts it, against the most that the device's pool had in use. The
//! device is the emulator, or what `HANDGRAD_TEST_DEVICE` names. One test, so that nothing else allocates meanwhile.
#![cfg(feature = "cuda")]

use handgrad::nn::{ModelConfig, Transformer};
use handgrad::train::memory::{Footprint, Step};
use handgrad::train::{Placement, Recipe, Trainer};
use handgrad::{DType, Device};

/// Chapter 8's model (GQA, QK-Norm, untied), the report's (MHA, tied) and the classic one (LayerNorm, a position table,
/// biases; rows that bf16 kernels do not move in vectors). The report's has its peak in a block, the others at the head.
fn configs() -> Vec<(&'static str, ModelConfig)> {
    let small = |config: ModelConfig, n_kv_head: usize| ModelConfig {
        max_seq_len: 40,
        n_layer: 3,
        n_head: 2,
        n_kv_head,
        n_embd: 16,
        head_dim: 32,
        n_ff: 48,
        ..config
    };
    vec![
        ("chapter8", small(ModelConfig::chapter8(66), 1)),
        ("report", ModelConfig { n_ff: 112, ..small(ModelConfig::report_80m(66), 2) }),
        ("classic", ModelConfig { n_embd: 20, ..small(ModelConfig::classic(66), 2) }),
    ]
}

/// The most bytes that the pool had in use so far, after two steps: the second has the moments, too.
fn measured(config: &ModelConfig, recipe: &Recipe, placement: &Placement) -> f64 {
    let gpu = placement.device.gpu().unwrap();
    gpu.synchronize().unwrap();
    assert_eq!(gpu.pool().unwrap().used, 0, "before anything is allocated");
    let mut model = Transformer::new(config, 5).unwrap().to(&placement.device, placement.dtype).unwrap();
    model.recompute = placement.recompute;
    let tokens: Vec<u32> = (0..2000u32).map(|i| (i * i + i / 7) % 66).collect();
    let mut trainer = Trainer::new(model, recipe.clone(), tokens, vec![]);
    trainer.train_step().unwrap();
    trainer.train_step().unwrap();
    gpu.pool().unwrap().used_high as f64
}

#[test]
fn the_predicted_memory_of_a_step_is_the_pool_s() {
    let device = Device::open(&std::env::var("HANDGRAD_TEST_DEVICE").unwrap_or("emulator".to_string())).unwrap();
    let recipe = Recipe { steps: 2, batch_size: 4, seq_len: 35, ..Recipe::preset("chapter8").unwrap() };
    let configs = configs();
    let mut cases = vec![];
    for (name, config) in &configs {
        for dtype in [DType::F32, DType::Bf16] {
            for (recompute, accumulate) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
                let placement = Placement { device: device.clone(), dtype, recompute };
                let recipe = Recipe { accumulate, ..recipe.clone() };
                let footprint = Step::new(config, &recipe, &placement).footprint();
                cases.push((name, config, recipe, placement, footprint));
            }
        }
    }
    // The pool's mark only rises, so the small ones come first.
    cases.sort_by(|(.., a), (.., b)| a.total().total_cmp(&b.total()));
    for (name, config, recipe, placement, footprint) in cases {
        let (predicted, found) = (footprint.total(), measured(config, &recipe, &placement));
        let case = format!(
            "{name} in {}, recompute {}, accumulate {}",
            placement.dtype, placement.recompute, recipe.accumulate
        );
        let error = predicted / found - 1.0;
        println!("{case}: predicted {predicted}, found {found}, {:+.2}%; {footprint:?}", 100.0 * error);
        let Footprint { activations, workspace, .. } = footprint;
        let least = if placement.recompute { 0.25 } else { 1.0 / 3.0 };
        assert!(activations + workspace >= least * predicted, "{case}: mostly weights, {footprint:?}");
        assert!(error.abs() <= 0.05, "{case}: found {found}, predicted {footprint:?}");
    }
}

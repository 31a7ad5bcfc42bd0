//! The model's parameters: counted, all registered, all trained; and the configurations that cannot be built.

use handgrad::nn::config::{FeedForwardKind, Init, NormKind, NormPosition, Positions};
use handgrad::nn::{ModelConfig, Module, Transformer, cost};
use handgrad::optim::{AdamW, AdamWConfig, clip_grad_norm};
use handgrad::{Tape, Tensor};
use std::collections::HashSet;

/// Every combination of the switches.
fn all_configs() -> Vec<ModelConfig> {
    let base =
        ModelConfig { max_seq_len: 8, n_layer: 2, n_embd: 12, head_dim: 4, n_ff: 10, ..ModelConfig::chapter8(11) };
    let base = ModelConfig { init: Init::Normal { std: 0.3 }, ..base }; // no gradient is small by chance
    let mut configs = vec![];
    for norm_position in [NormPosition::Pre, NormPosition::Post] {
        for norm in [NormKind::LayerNorm, NormKind::RmsNorm] {
            for feed_forward in [FeedForwardKind::Gelu, FeedForwardKind::SwiGlu] {
                for positions in [Positions::Absolute, Positions::Rope] {
                    for bits in 0..16 {
                        configs.push(ModelConfig {
                            norm_position,
                            norm,
                            feed_forward,
                            positions,
                            n_kv_head: if bits & 1 == 0 { 2 } else { 4 },
                            qk_norm: bits & 2 == 0,
                            tie_embeddings: bits & 4 == 0,
                            bias: bits & 8 == 0,
                            ..base.clone()
                        });
                    }
                }
            }
        }
    }
    configs
}

fn batch() -> (Tensor, Tensor) {
    // every token and every position occurs, so that every row of every table is used
    let ids: Vec<u32> = (0..16).map(|n| n * 3 % 11).collect();
    let targets: Vec<u32> = (0..16).map(|n| n * 5 % 11).collect();
    (Tensor::from_vec(ids, &[2, 8]).unwrap(), Tensor::from_vec(targets, &[2, 8]).unwrap())
}

#[test]
fn every_parameter_is_registered_gets_a_gradient_and_moves() {
    let (ids, targets) = batch();
    for config in all_configs() {
        let mut model = Transformer::new(&config, 1).unwrap();
        let before = model.clone();
        let mut tape = Tape::new();
        let loss = model.loss(&mut tape, &ids, &targets).unwrap();

        let mut registered: Vec<String> = model.parameters().iter().map(|p| p.name.clone()).collect();
        registered.sort();
        assert_eq!(registered, tape.leaf_names(), "registered and used by forward: {config:?}");
        let mut mutable: Vec<String> = model.parameters_mut().iter().map(|p| p.name.clone()).collect();
        mutable.sort();
        assert_eq!(registered, mutable);
        assert_eq!(registered.iter().collect::<HashSet<_>>().len(), registered.len(), "names are unique");

        let gradients = tape.backward(&loss).unwrap();
        let clipped = clip_grad_norm(&gradients, &model.parameters(), 1.0).unwrap();
        let settings = AdamWConfig { beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0 };
        AdamW::new(settings).step(model.parameters_mut(), &gradients, &clipped.scale, 1e-2).unwrap();
        for (old, new) in before.parameters().iter().zip(model.parameters()) {
            let gradient = gradients.get(&new.name).unwrap_or_else(|| panic!("{}: no gradient", new.name));
            let largest = gradient.to_f64_vec().unwrap().iter().fold(0.0_f64, |m, g| m.max(g.abs()));
            assert!(largest > 1e-9, "{}: gradient of at most {largest}: {config:?}", new.name);
            let (old, new_values) = (old.value.to_f64_vec().unwrap(), new.value.to_f64_vec().unwrap());
            let moved = old.iter().zip(&new_values).filter(|(a, b)| a != b).count();
            assert!(2 * moved > old.len(), "{}: {moved} of {} moved", new.name, old.len());
        }
    }
}

#[test]
fn presets_have_the_documents_parameters() {
    let parts = |preset: &str| -> Vec<(&str, usize)> {
        let model = Transformer::new(&ModelConfig::preset(preset, None).unwrap(), 0).unwrap();
        let mut parts: Vec<(&str, usize)> =
            cost::components(&model).into_iter().map(|c| (c.name, c.parameters)).collect();
        parts.push(("all", model.parameter_count()));
        parts
    };
    let report_80m = [
        ("token embedding", 25_165_824),
        ("attention", 18_874_368),
        ("feed-forward", 37_748_736),
        ("norms", 13_056),
        ("all", 81_801_984),
    ];
    assert_eq!(parts("report-80m"), report_80m);
    assert_eq!(parts("report-197m").last(), Some(&("all", 197_157_888)));
    assert_eq!(parts("chapter8").last(), Some(&("all", 755_328)));
    assert!(ModelConfig::preset("chapter9", None).unwrap_err().to_string().contains("chapter8, classic"));
}

#[test]
fn weights_are_drawn_as_told() {
    let std_of = |x: &Tensor| {
        let x = x.to_f64_vec().unwrap();
        (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt()
    };
    let model = |init, scale_residual_init| {
        let config = ModelConfig { init, scale_residual_init, ..ModelConfig::chapter8(100) };
        Transformer::new(&config, 3).unwrap()
    };
    let normal = model(Init::Normal { std: 0.02 }, true);
    let near =
        |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 0.03, "{found}, expected {expected}");
    near(std_of(&normal.embed_tokens.weight.value), 0.02);
    near(std_of(&normal.layers[1].attn.q_proj.weight.value), 0.02);
    let scaled = 0.02 / (2.0_f64 * 4.0).sqrt();
    near(std_of(&normal.layers[1].attn.o_proj.weight.value), scaled);
    near(std_of(&normal.layers[3].ffn.down_proj.weight.value), scaled);
    near(std_of(&model(Init::Normal { std: 0.02 }, false).layers[1].attn.o_proj.weight.value), 0.02);
    near(
        std_of(&model(Init::XavierNormal, false).layers[0].ffn.up_proj.weight.value),
        (2.0 / (128.0 + 352.0_f64)).sqrt(),
    );
    near(std_of(&model(Init::HeNormal, false).layers[0].ffn.up_proj.weight.value), (2.0 / 128.0_f64).sqrt());

    let truncated = model(Init::TruncatedNormal { std: 0.02 }, false);
    let largest = truncated.embed_tokens.weight.value.to_f64_vec().unwrap().iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    assert!(largest <= 0.06 + 1e-9 && largest > 0.055, "{largest}");
    let largest = normal.embed_tokens.weight.value.to_f64_vec().unwrap().iter().fold(0.0_f64, |m, x| m.max(x.abs()));
    assert!(largest > 0.06, "{largest}");

    let same = |a: &Transformer, b: &Transformer| {
        let pairs = a.parameters().into_iter().zip(b.parameters());
        pairs.into_iter().all(|(a, b)| a.value.to_f64_vec().unwrap() == b.value.to_f64_vec().unwrap())
    };
    assert!(same(&normal, &model(Init::Normal { std: 0.02 }, true)), "the same seed draws the same weights");
    let other = Transformer::new(&normal.config, 4).unwrap();
    assert!(!same(&normal, &other));
}

#[test]
fn the_first_loss_is_that_of_guessing() {
    let (ids, targets) = batch();
    let model = Transformer::new(&ModelConfig::chapter8(4096), 5).unwrap();
    let loss = model.loss(&mut Tape::inference(), &ids, &targets).unwrap().value().item().unwrap();
    assert!((loss - 4096.0_f64.ln()).abs() < 0.15, "{loss}"); // report §5.2
}

#[test]
fn impossible_configurations_are_refused_by_name() {
    let base = ModelConfig::chapter8(65);
    let cases = [
        (ModelConfig { head_dim: 31, ..base.clone() }, "head_dim is 31"),
        (ModelConfig { n_kv_head: 3, ..base.clone() }, "n_head 4 is not divisible by n_kv_head 3"),
        (ModelConfig { n_layer: 0, ..base.clone() }, "n_layer is 0"),
        (ModelConfig { vocab_size: 0, ..base.clone() }, "vocab_size is 0"),
        (ModelConfig { n_kv_head: 0, ..base.clone() }, "n_kv_head is 0"),
        (ModelConfig { max_seq_len: 0, ..base.clone() }, "max_seq_len is 0"),
        (ModelConfig { rope_theta: f64::NAN, ..base.clone() }, "rope_theta is NaN"),
        (ModelConfig { norm_eps: -1.0, ..base.clone() }, "norm_eps is -1"),
    ];
    for (config, expected) in cases {
        let error = Transformer::new(&config, 0).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}, expected {expected}");
    }
    let odd_without_rope = ModelConfig { head_dim: 31, positions: Positions::Absolute, ..base };
    assert!(Transformer::new(&odd_without_rope, 0).is_ok());
    let error = ModelConfig::default_head_dim(130, 4).unwrap_err().to_string();
    assert!(error.contains("n_embd 130 is not divisible by n_head 4"), "{error}");
    assert_eq!(ModelConfig::default_head_dim(128, 4).unwrap(), 32);
}

#[test]
fn ids_that_are_no_tokens_are_refused() {
    let model = Transformer::new(&ModelConfig::chapter8(11), 0).unwrap();
    let ids = Tensor::from_vec(vec![1_u32, 11], &[1, 2]).unwrap();
    let error = model.forward(&mut Tape::inference(), &ids).unwrap_err().to_string();
    assert!(error.contains("id 11") && error.contains("below 11"), "{error}");
    let empty = Tensor::from_vec(Vec::<u32>::new(), &[1, 0]).unwrap();
    assert!(model.forward(&mut Tape::inference(), &empty).unwrap_err().to_string().contains("no tokens"));
}

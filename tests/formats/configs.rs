//! `config.json`, of ours and of others.

use super::*;

fn round_trip(config: &ModelConfig) {
    let (_dir, path) = place("config.json");
    config_json::write(&path, config, &[]).unwrap();
    assert_eq!(config_json::read(&path).unwrap(), *config);
}

fn qwen3() -> Value {
    config_json::to_json(&ModelConfig::chapter8(65))
}

fn llama() -> Value {
    config_json::to_json(&ModelConfig::report_80m(65))
}

/// `json` with one key set, or removed where the value is null.
fn with(mut json: Value, key: &str, value: Value) -> Value {
    let map = json.as_object_mut().unwrap();
    map.shift_remove(key);
    if !value.is_null() {
        map.insert(key.to_string(), value);
    }
    json
}

#[test]
fn presets_round_trip_under_their_architectures() {
    for (name, model_type) in
        [("chapter8", "qwen3"), ("report-80m", "llama"), ("report-197m", "llama"), ("classic", "handgrad_classic")]
    {
        let config = ModelConfig::preset(name, None).unwrap();
        assert_eq!(config_json::to_json(&config)["model_type"], model_type);
        round_trip(&config);
    }
}

#[test]
fn golden_configs_load() {
    let read = |name: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        config_json::read(&root.join(name).join("config.json")).unwrap()
    };
    let chapter8 = read("chapter8");
    assert!(chapter8.qk_norm && !chapter8.tie_embeddings && !chapter8.bias);
    let report = read("report");
    assert!(!report.qk_norm && report.tie_embeddings && report.norm_eps == 1e-5);
    let classic = read("classic");
    assert!(classic.bias && classic.positions == Positions::Absolute && classic.norm == NormKind::LayerNorm);
    assert!(classic.norm_position == NormPosition::Post && classic.feed_forward == FeedForwardKind::Gelu);
    assert_eq!(classic.init, Init::Normal { std: 0.02 });
}

#[test]
fn head_dim_is_its_own_setting() {
    for (hidden, heads, kv, head_dim) in [(2560, 32, 8, 128), (1024, 16, 8, 128), (5120, 64, 8, 128)] {
        let mut json = qwen3();
        json["hidden_size"] = json!(hidden);
        json["num_attention_heads"] = json!(heads);
        json["num_key_value_heads"] = json!(kv);
        json["head_dim"] = json!(head_dim);
        assert_eq!(config_json::from_json(&json).unwrap().head_dim, 128);
        json["model_type"] = json!("llama");
        let config = config_json::from_json(&with(json, "head_dim", Value::Null)).unwrap();
        assert_eq!(config.head_dim, hidden / heads);
    }
    assert_says(
        config_json::from_json(&with(with(llama(), "hidden_size", json!(132)), "head_dim", Value::Null)),
        &["n_embd 132 is not divisible by n_head 8"],
    );
}

/// The table in `config_json.rs`.
#[test]
fn what_a_file_leaves_out_is_what_the_class_takes() {
    let optional = [
        "max_position_embeddings",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "rope_theta",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "hidden_act",
        "initializer_range",
    ];
    let bare = |json: Value| optional.iter().fold(json, |json, key| with(json, key, Value::Null));
    let found = config_json::from_json(&bare(llama())).unwrap();
    let expected =
        ModelConfig { max_seq_len: 2048, norm_eps: 1e-6, tie_embeddings: false, ..ModelConfig::report_80m(65) };
    let init = found.init;
    assert_eq!(ModelConfig { init: expected.init, ..found }, expected);
    assert_eq!(init, Init::TruncatedNormal { std: 0.02 });
    let mut json = bare(qwen3());
    json["num_attention_heads"] = json!(64);
    let found = config_json::from_json(&json).unwrap();
    assert_eq!((found.max_seq_len, found.n_kv_head, found.head_dim, found.tie_embeddings), (32768, 32, 128, false));
    json["num_key_value_heads"] = Value::Null; // which is not the same as no key
    assert_eq!(config_json::from_json(&json).unwrap().n_kv_head, 64);
}

#[test]
fn rope_theta_is_found_wherever_it_stands() {
    let without = |json| with(json, "rope_theta", Value::Null);
    let inner = |theta: f64| json!({"rope_type": "default", "rope_theta": theta});
    let read = |json: &Value| config_json::from_json(json).map(|config| config.rope_theta);
    for place in ["rope_parameters", "rope_scaling"] {
        assert_eq!(read(&with(without(qwen3()), place, inner(1e6))).unwrap(), 1e6);
        assert_eq!(read(&with(qwen3(), place, inner(1e4))).unwrap(), 1e4);
        let differs = format!("{place}.rope_theta: found 1000000, expected 10000 as in rope_theta");
        assert_says(read(&with(qwen3(), place, inner(1e6))), &[&differs]);
    }
    let both = with(with(without(qwen3()), "rope_parameters", inner(1e5)), "rope_scaling", inner(1e6));
    assert_says(
        read(&both),
        &["rope_scaling.rope_theta: found 1000000, expected 100000 as in rope_parameters.rope_theta"],
    );
    assert_eq!(read(&without(qwen3())).unwrap(), 1e4);
    assert_eq!(read(&without(llama())).unwrap(), 1e4);
}

#[test]
fn stretched_contexts_are_computed_or_refused() {
    let read = |place: &str, value: Value| config_json::from_json(&with(qwen3(), place, value)).map(|c| c.rope_scaling);
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_seq_len: 32 };
    for place in ["rope_parameters", "rope_scaling"] {
        for key in ["rope_type", "type"] {
            let linear = json!({key: "linear", "factor": 2.0});
            assert_eq!(read(place, linear).unwrap(), RopeScaling::Linear { factor: 2.0 });
            let json = json!({key: "llama3", "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32, "rope_theta": 1e4});
            assert_eq!(read(place, json).unwrap(), llama3);
        }
        assert_eq!(read(place, json!({})).unwrap(), RopeScaling::None);
        assert_eq!(read(place, json!({"rope_type": "default", "factor": null})).unwrap(), RopeScaling::None);
        for (value, parts) in [
            (json!({"rope_type": "yarn", "factor": 2.0}), ["rope_type: found 'yarn'", "default, linear or llama3"]),
            (json!({"type": "dynamic", "factor": 2.0}), ["found 'dynamic'", "default, linear or llama3"]),
            (json!({"factor": 2.0}), ["factor: found 2.0", "rope_type 'default'"]),
            (json!({"rope_type": "linear", "factor": 2.0, "beta_fast": 1}), ["beta_fast: found 1", "'linear'"]),
            (json!({"rope_type": "linear"}), ["factor: missing", "a number"]),
            (json!({"rope_type": "linear", "type": "llama3"}), ["type: found 'llama3'", "'linear'"]),
            (json!({"rope_type": "linear", "factor": 0.0}), ["factor is 0", "at least 1"]),
            (
                json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}),
                ["is 4", "smaller"],
            ),
            (json!({"rope_type": "linear", "factor": "2"}), ["factor: found \"2\"", "a number"]),
            (json!("linear"), ["found \"linear\"", "an object"]),
        ] {
            assert_says(read(place, value), &parts);
        }
    }
    // The original context may stand beside the others, and is the whole one if it stands nowhere.
    let bare = json!({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4});
    let outside = with(qwen3(), "original_max_position_embeddings", json!(32));
    let found = config_json::from_json(&with(outside, "rope_scaling", bare.clone())).unwrap();
    assert_eq!(found.rope_scaling, llama3);
    let RopeScaling::Llama3 { original_max_seq_len, .. } = read("rope_scaling", bare).unwrap() else { panic!() };
    assert_eq!(original_max_seq_len, 64);
    let both = with(
        with(qwen3(), "rope_scaling", json!({"type": "linear", "factor": 2.0})),
        "rope_parameters",
        json!({"rope_type": "linear", "factor": 3.0}),
    );
    assert_says(config_json::from_json(&both), &["rope_scaling: found Linear", "as in rope_parameters"]);
    for scaling in [llama3, RopeScaling::Linear { factor: 2.5 }] {
        round_trip(&ModelConfig { rope_scaling: scaling, ..ModelConfig::chapter8(5) });
    }
}

#[test]
fn channels_that_are_not_rotated_are_refused() {
    for key in ["partial_rotary_factor", "rotary_dim"] {
        let (whole, half) = if key == "rotary_dim" { (json!(32), json!(16)) } else { (json!(1.0), json!(0.5)) };
        let inside = |value: &Value| json!({"rope_type": "default", key: value});
        assert!(config_json::from_json(&with(qwen3(), key, whole.clone())).is_ok());
        assert!(config_json::from_json(&with(qwen3(), "rope_parameters", inside(&whole))).is_ok());
        assert_says(config_json::from_json(&with(qwen3(), key, half.clone())), &[key, "every channel is rotated"]);
        let error = format!("rope_parameters.{key}: found");
        assert_says(config_json::from_json(&with(qwen3(), "rope_parameters", inside(&half))), &[&error]);
    }
}

#[test]
fn other_models_are_refused() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("use_sliding_window", json!(true)),
        ("quantization_config", json!({"quant_method": "fp8"})),
        ("layer_types", json!(["full_attention", "sliding_attention"])),
        ("model_type", json!("mistral")),
        ("handgrad_init", json!("uniform")),
    ] {
        assert_says(config_json::from_json(&with(qwen3(), key, value)), &[key, "expected"]);
    }
    let all_full = with(qwen3(), "layer_types", json!(["full_attention"]));
    assert!(config_json::from_json(&all_full).is_ok());
}

#[test]
fn missing_and_mistyped_keys_are_named_with_the_file() {
    let (_dir, path) = place("config.json");
    let read = |json: Value| {
        fs::write(&path, json.to_string()).unwrap();
        config_json::read(&path)
    };
    for key in ["model_type", "vocab_size", "hidden_size", "intermediate_size", "rms_norm_eps", "tie_word_embeddings"] {
        if !["rms_norm_eps", "tie_word_embeddings"].contains(&key) {
            assert_says(read(with(qwen3(), key, Value::Null)), &["config.json: ", key, "missing"]);
        }
        assert_says(read(with(qwen3(), key, json!([1]))), &["config.json: ", key, "found [1], expected "]);
    }
    assert_says(read(with(qwen3(), "vocab_size", json!(-1))), &["vocab_size: found -1, expected a whole number"]);
    assert_says(read(with(qwen3(), "vocab_size", json!(0))), &["vocab_size is 0"]);
    let classic = config_json::to_json(&ModelConfig::classic(5));
    assert_says(
        read(with(classic.clone(), "norm", json!("batch"))),
        &["norm: found \"batch\"", "rms_norm or layer_norm"],
    );
    assert_says(read(with(classic, "bias", Value::Null)), &["bias: missing, expected true or false"]);
    assert_says(read(json!([])), &["not an object"]);
    fs::write(&path, "{\"a\": ").unwrap();
    assert_says(config_json::read(&path), &["config.json: not valid JSON", "line 1"]);
    fs::remove_file(&path).unwrap();
    assert_says(config_json::read(&path), &["config.json: cannot be read", "No such file"]);
}

fn any_config() -> impl Strategy<Value = ModelConfig> {
    let sizes = (1usize..100, 1usize..5, 1usize..3, 1usize..9, 1usize..1000);
    let numbers = (prop::sample::select(vec![1e4, 1e6, 5e5]), prop::sample::select(vec![0.0, 1e-6, 1e-5]));
    let inits = prop::sample::select(vec![
        Init::Normal { std: 0.006 },
        Init::TruncatedNormal { std: 0.02 },
        Init::XavierNormal,
        Init::XavierUniform,
        Init::HeNormal,
        Init::HeUniform,
    ]);
    let flags = any::<[bool; 8]>();
    (sizes, numbers, inits, flags).prop_map(|((vocab, kv, group, half, n_ff), (theta, eps), init, flag)| ModelConfig {
        vocab_size: vocab,
        n_head: kv * group,
        n_kv_head: kv,
        head_dim: 2 * half,
        n_ff,
        rope_theta: theta,
        norm_eps: eps,
        norm_position: if flag[0] { NormPosition::Pre } else { NormPosition::Post },
        norm: if flag[1] { NormKind::RmsNorm } else { NormKind::LayerNorm },
        feed_forward: if flag[2] { FeedForwardKind::SwiGlu } else { FeedForwardKind::Gelu },
        positions: if flag[3] { Positions::Rope } else { Positions::Absolute },
        qk_norm: flag[4],
        tie_embeddings: flag[5],
        bias: flag[6],
        init,
        scale_residual_init: flag[7],
        ..ModelConfig::chapter8(1)
    })
}

proptest! {
    #[test]
    fn any_combination_of_switches_round_trips(config in any_config()) {
        let json = config_json::to_json(&config).to_string();
        prop_assert_eq!(config_json::from_json(&serde_json::from_str(&json).unwrap()).unwrap(), config);
    }
}

//! `config.json`, of ours and of others.

use super::*;

fn round_trip(config: &ModelConfig) {
    let (_dir, path) = place("config.json");
    config_json::write(&path, config).unwrap();
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
        let config = config_json::from_json(&with(json, "head_dim", Value::Null)).unwrap();
        assert_eq!(config.head_dim, hidden / heads);
    }
    assert_says(
        config_json::from_json(&with(with(qwen3(), "hidden_size", json!(130)), "head_dim", Value::Null)),
        &["n_embd 130 is not divisible by n_head 4"],
    );
    let config = config_json::from_json(&with(qwen3(), "num_key_value_heads", Value::Null)).unwrap();
    assert_eq!(config.n_kv_head, 4);
}

#[test]
fn rope_theta_is_found_in_either_place_and_not_guessed() {
    let without = with(qwen3(), "rope_theta", Value::Null);
    let inner = |theta: f64| json!({"rope_type": "default", "rope_theta": theta});
    let read = |json: &Value| config_json::from_json(json).map(|config| config.rope_theta);
    assert_eq!(read(&with(without.clone(), "rope_parameters", inner(1e6))).unwrap(), 1e6);
    assert_eq!(read(&with(qwen3(), "rope_parameters", inner(1e4))).unwrap(), 1e4);
    assert_says(read(&with(qwen3(), "rope_parameters", inner(1e6))), &["rope_theta: found 10000, and 1000000"]);
    assert_says(read(&without), &["rope_theta: missing"]);
    assert_eq!(read(&with(llama(), "rope_theta", Value::Null)).unwrap(), 1e4);
    for (key, value, part) in [
        ("rope_parameters", json!({"rope_type": "yarn", "rope_theta": 1e4}), "yarn"),
        ("rope_scaling", json!({"rope_type": "llama3", "factor": 8}), "llama3"),
        ("rope_scaling", json!({"type": "linear", "factor": 2.0}), "linear"),
        ("rope_scaling", json!({"factor": 2.0}), "rope_scaling.factor: found 2.0"),
    ] {
        assert_says(read(&with(qwen3(), key, value)), &[key, part]);
    }
    let mut explicit = qwen3();
    explicit["rope_scaling"] = Value::Null;
    assert_eq!(read(&explicit).unwrap(), 1e4);
}

#[test]
fn other_models_are_refused() {
    for (key, value) in [
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("use_sliding_window", json!(true)),
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
    for key in ["model_type", "vocab_size", "hidden_size", "rms_norm_eps", "tie_word_embeddings", "intermediate_size"] {
        assert_says(read(with(qwen3(), key, Value::Null)), &["config.json: ", key, "missing"]);
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
        Init::Xavier,
        Init::He,
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

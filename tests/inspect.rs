//! The arithmetic of `handgrad inspect`, held against the documents' numbers and against counts of its own.

use handgrad::nn::{ModelConfig, cost};
use handgrad::train::scaling::{LAWS, training_flops};
use std::process::{Command, Output};

fn inspect(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_handgrad")).arg("inspect").args(args).env("RUST_BACKTRACE", "0").output().unwrap()
}

#[track_caller]
fn shows(args: &[&str], parts: &[&str]) {
    let output = inspect(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let text =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>().join("\n");
    for part in parts {
        assert!(text.contains(part), "{text}\nexpected {part}");
    }
}

#[test]
fn flops_by_component_are_the_report_s() {
    let model = ModelConfig::preset("report-80m", None).unwrap();
    let flops = cost::prefill_flops(&model, 10_000);
    // Report §9.2: 8 L N d², 6 L N d d_ff, 2 L N² d twice, 2 N d V.
    let (l, n, d, ff, v) = (8.0, 1e4, 768.0, 2048.0, 32768.0);
    assert_eq!(flops.projections, 8.0 * l * n * d * d);
    assert_eq!(flops.feed_forward, 6.0 * l * n * d * ff);
    assert_eq!((flops.scores, flops.weighted_sums), (2.0 * l * n * n * d, 2.0 * l * n * n * d));
    assert_eq!(flops.head, 2.0 * n * d * v);
    assert_eq!(cost::crossing(&model), (2.0 * d + 1.5 * ff, 2.0 * d + 1.5 * ff + v / (2.0 * l)));
    // What one token costs agrees with the other count of it.
    let token = cost::decode_flops(&model, 768).total();
    assert_eq!(token as usize, cost::forward_flops(&model, 768));
    shows(
        &["--preset", "report-80m", "--lengths", "10,10000"],
        &["68.5% 60.0%", "n = 4608, with the head's at n = 6656", "10000 491,520,000 245,760,000"],
    );
    // Grouped queries share keys and values, and a table that is not the head is not read.
    shows(&["--preset", "chapter8", "--lengths", "64"], &["for each head of queries: 0.500"]);
    let model = ModelConfig::preset("chapter8", None).unwrap();
    let table = model.vocab_size * model.n_embd;
    assert_eq!(cost::weights_read(&model, 1_000_000), 1_000_000 - table + model.n_embd);
}

#[test]
fn a_run_is_planned_in_the_report_s_numbers() {
    shows(
        &["--preset", "report-80m", "--run", "--tokens", "1458472895", "--hours", "6", "--card", "rtx4090"],
        &[
            "a run of 7,418 steps of 32 × 8 × 768 tokens",
            "tokens of a step 196,608",
            "D/N 17.83",
            "6 N D 7.158e17",
            "all of them 7.984e17",
            "f32 981,623,808",
            "Hoffmann 2022: loss 3.635",
            "250 49,152,000 2.000e-4",
            "500 98,304,000 4.000e-4",
            "7418 1,458,438,144 4.000e-5",
            "67520 tokens/s, 33.1 TFLOP/s by 6 N D, 37.0 with",
            "22.4% with attention's pairs",
            "blocks 56,623,104 69.2%",
        ],
    );
    shows(&["--preset", "report-197m", "--run"], &["3,204 steps", "D/N 3.20"]);
    shows(&["--preset", "chapter8", "--run", "--hours", "1"], &["unknown without --card"]);
}

#[test]
fn a_configuration_is_counted_without_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    // Qwen3-8B, whose weights would not fit here; 8,190,735,360 is the sum of its published shapes.
    let json = serde_json::json!({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128,
        "hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
        "tie_word_embeddings": false, "vocab_size": 151936});
    std::fs::write(&path, json.to_string()).unwrap();
    shows(&["--config", path.to_str().unwrap()], &["parameters 8,190,735,360", "78.3% of a block's"]);
}

#[test]
fn the_fits_have_their_best_where_no_neighbour_is_better() {
    for law in LAWS {
        for flops in [1e15, 7.158e17, 1e24] {
            let (n, d) = law.best(flops);
            assert!((training_flops(n, d) / flops - 1.0).abs() < 1e-9);
            for factor in [0.9, 0.99, 1.01, 1.1] {
                assert!(law.loss(n * factor, d / factor) > law.loss(n, d), "{} {flops:e}", law.name);
            }
        }
    }
}

#[test]
fn arguments_that_mean_nothing_are_refused() {
    for (args, part) in [
        (&["--preset", "chapter8", "--lengths", "0"][..], "0"),
        (&["--preset", "chapter8", "--run", "--hours", "0"], "--hours: found 0"),
        (&["--preset", "chapter8", "--run", "--tokens", "3"], "--tokens: found 3"),
        (&["--preset", "chapter8", "--card", "gtx"], "rtx4090"),
        (&["--preset", "chapter8", "--hours", "1"], "--run"),
        (&["--preset", "chapter8", "--config", "x.json"], "--config"),
    ] {
        let output = inspect(args);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(part), "{args:?}: {error}");
    }
}

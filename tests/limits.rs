//! Where memory is limited, a command that needs more says so in one line, and one that needs less runs.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};

/// A model with a context of 33 million positions, of which none but those in use may cost anything.
const CONFIG: &str = r#"{"model_type": "qwen3", "vocab_size": 256, "max_position_embeddings": 33554432, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "head_dim": 8, "intermediate_size": 64,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "rms_norm_eps": 1e-6}"#;

/// A run with so many KiB of address space.
fn limited(dir: &Path, kib: usize, args: &[&str]) -> Output {
    let script = format!("ulimit -v {kib} && exec timeout 60 \"$0\" --threads 1 --quiet \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_handgrad")]).args(args).current_dir(dir);
    command.output().unwrap()
}

#[track_caller]
fn refused(output: &Output, parts: &[&str]) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    for part in parts.iter().chain(&["memory: found ", "GiB free on cpu (ulimit -v)", "expected about "]) {
        assert!(error.contains(part), "'{part}' in: {error}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("text.txt"), "It was the best of times, it was the worst of times.\n".repeat(8000))
        .unwrap();
    std::fs::write(dir.join("config.json"), CONFIG).unwrap();
    let train = ["train", "--config", "config.json", "--data", "text.txt", "--tokenizer", "bytes", "--seq-len", "16"];
    let short = ["--steps", "1", "--eval-every", "0", "--out", "model"];
    let trained = limited(dir, 1 << 21, &[&train[..], &short].concat());
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let large = ["--batch-size", "400000", "--out", "large"];
    refused(&limited(dir, 1 << 21, &[&train[..], &large].concat()), &["for training", "--batch-size"]);

    let eval = ["eval", "--model", "model", "--data", "text.txt"];
    refused(&limited(dir, 400_000, &eval), &["to evaluate", "--batch-size"]);
    let generate = ["generate", "--model", "model", "--prompt", "It was", "--max-new"];
    refused(&limited(dir, 1 << 21, &[&generate[..], &["30000000"]].concat()), &["to generate", "--max-new"]);
    // About what the allocator takes at a time, of which it needs a small part.
    for kib in [1 << 21, 1_100_000, 600_000] {
        let generated = limited(dir, kib, &[&generate[..], &["5"]].concat());
        assert!(generated.status.success(), "{}", String::from_utf8_lossy(&generated.stderr));
    }
}

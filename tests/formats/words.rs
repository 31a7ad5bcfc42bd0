//! Words that stand in a file enter errors escaped and cut: one line, whatever they are.

use super::*;
use std::process::Output;

const NAMES: [&str; 3] = ["a\nb", "\u{1b}[2J\u{9b}\r", "\u{202E}\u{2028}"];

/// Errors for a word of line breaks, of codes for terminals, and for a long one.
#[track_caller]
fn stays_one_line<T>(read: impl Fn(&str) -> anyhow::Result<T>) {
    for name in NAMES.into_iter().chain([&*"x".repeat(100_000)]) {
        let message = format!("{:#}", read(name).err().expect("an error"));
        assert!(!message.chars().any(|c| c.is_control() || c == '\u{202E}' || c == '\u{2028}'), "{message:?}");
        let length = message.chars().count();
        assert!(length < 600, "{length} characters");
    }
}

#[test]
fn of_a_configuration() {
    let good = config_json::to_json(&ModelConfig::chapter8(5));
    let with = |change: &dyn Fn(&mut Value)| {
        let mut json = good.clone();
        change(&mut json);
        config_json::from_json(&json)
    };
    for key in ["model_type", "hidden_act", "handgrad_init", "vocab_size", "tie_word_embeddings", "rope_theta"] {
        stays_one_line(|word| with(&|json| json[key] = json!(word)));
        stays_one_line(|word| with(&|json| json[key] = json!([[word]])));
    }
    stays_one_line(|word| with(&|json| json["rope_parameters"] = json!({word: 1})));
    stays_one_line(|word| with(&|json| json["rope_scaling"] = json!({"type": word})));
    stays_one_line(|word| with(&|json| json["rope_scaling"] = json!({"factor": word})));
    stays_one_line(|word| with(&|json| json["layer_types"] = json!([word])));
}

#[test]
fn of_a_tokenizer() {
    let chars = tokenizer_json::to_json(&Tokenizer::chars_of(["ab"], true));
    let mut bpe = chars.clone();
    bpe["pre_tokenizer"] = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true});
    bpe["decoder"] = json!({"type": "ByteLevel"});
    let change = |json: &Value, change: &dyn Fn(&mut Value)| {
        let mut json = json.clone();
        change(&mut json);
        tokenizer_json::from_json(&json)
    };
    for json in [&chars, &bpe] {
        stays_one_line(|word| change(json, &|json| json[word] = json!(1)));
        stays_one_line(|word| change(json, &|json| json["model"][word] = json!(1)));
        stays_one_line(|word| change(json, &|json| json["model"]["type"] = json!(word)));
        stays_one_line(|word| change(json, &|json| json["model"] = json!({"type": word})));
        stays_one_line(|word| change(json, &|json| json["model"]["vocab"] = json!({word: word})));
        stays_one_line(|word| change(json, &|json| json["model"]["vocab"]["a"] = json!(word)));
        stays_one_line(|word| change(json, &|json| json["decoder"] = json!({"type": word})));
        stays_one_line(|word| change(json, &|json| json["normalizer"] = json!({"type": word})));
        stays_one_line(|word| change(json, &|json| json["post_processor"] = json!({"type": word})));
        stays_one_line(|word| change(json, &|json| json["added_tokens"][0]["id"] = json!(word)));
        stays_one_line(|word| {
            change(json, &|json| json["added_tokens"] = json!([{"content": word, "id": 1, "lstrip": true}]))
        });
    }
    let steps = |word: &str| json!({"type": "Sequence", "pretokenizers": vec![json!({"type": word}); 50]});
    stays_one_line(|word| change(&bpe, &|json| json["pre_tokenizer"] = steps(word)));
}

#[test]
fn of_a_file_of_tensors() {
    let (_dir, path) = place("x.safetensors");
    let read = |header: Value| {
        let header = header.to_string();
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 8]].concat();
        fs::write(&path, file).unwrap();
        safetensors::read(&path)
    };
    let entry = |dtype: &str, end: usize| json!({"dtype": dtype, "shape": [2], "data_offsets": [0, end]});
    stays_one_line(|word| read(json!({word: 1})));
    stays_one_line(|word| read(json!({word: entry(word, 8)})));
    stays_one_line(|word| read(json!({word: entry("F32", 7)})));
    stays_one_line(|word| read(json!({word: entry("U8", 2)})));
    stays_one_line(|word| read(json!({word: entry("I64", 16)})));
    stays_one_line(|word| read(json!({word: entry("F32", 8), "b": entry("F32", 8)})));
    stays_one_line(|word| read(json!({"__metadata__": {"a": [word]}})));
    stays_one_line(|word| read(json!({"a": {"dtype": "F32", "shape": vec![1; word.len()], "data_offsets": [0, 5]}})));
    stays_one_line(|word| {
        read(json!({word: entry("F32", 8)}))?;
        weights::Files::open(&path, &mut |_| ())?.load(&ModelConfig::chapter8(5), &[], &mut |_| (), &mut |_, _| ())
    });
}

/// Whatever an error holds, the program prints one line.
#[test]
fn of_paths_and_arguments_on_the_command_line() {
    let run = |args: &[&str]| -> Output {
        Command::new(env!("CARGO_BIN_EXE_handgrad")).args(args).output().expect("handgrad runs")
    };
    let word = "no\n\u{1b}[2Jhandgrad: all is well";
    let cases: [&[&str]; 6] = [
        &["train", "--out", "/dev/null/x", "--config", word],
        &["train", "--out", "/dev/null/x", "--preset", word],
        &["train", "--out", "/dev/null/x", "--data", word],
        &["generate", "--prompt", "a", "--model", word],
        &["data", "inspect", word],
        &["gradcheck", "--op", word],
    ];
    for args in cases {
        let output = run(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {text}");
        assert!(text.ends_with('\n') && !text.trim_end().chars().any(char::is_control), "{args:?}: {text:?}");
        assert!(text.contains("all is well"), "{args:?}: {text:?}");
    }
}

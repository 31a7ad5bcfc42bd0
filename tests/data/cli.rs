//! `handgrad data`, and training on what it makes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn run(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    command.args(args).current_dir(dir).env("RUST_BACKTRACE", "0").output().unwrap()
}

#[track_caller]
fn ok(dir: &Path, args: &[&str]) -> (String, String) {
    let output = run(dir, args);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, error) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{args:?}: {error}");
    (out, error)
}

#[track_caller]
fn fails(dir: &Path, status: i32, args: &[&str], parts: &[&str]) {
    let output = run(dir, args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
    assert!(parts.iter().all(|part| error.contains(part)), "{args:?}: {error}");
}

/// A directory with texts, a tokenizer `t.json`, and shards of the texts in `shards`.
fn encoded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = "It was the best of times, it was the worst of times.\n";
    fs::create_dir(dir.path().join("texts")).unwrap();
    for i in 0..20 {
        fs::write(dir.path().join(format!("texts/{i}.txt")), text.repeat(1 + i % 3)).unwrap();
    }
    fs::write(dir.path().join("texts/lines.jsonl"), "{\"text\": \"a \\u200b b\"}\n{\"text\": \"\"}\n").unwrap();
    let train =
        ["tokenizer", "train", "--vocab-size", "300", "--special", "<|endoftext|>", "--out", "t.json", "texts/0.txt"];
    ok(dir.path(), &train);
    let (out, told) = ok(dir.path(), &["data", "encode", "--tokenizer", "t.json", "--out", "shards", "texts"]);
    assert!(out.is_empty() && told.contains("of 21 documents") && told.contains("1 empty documents"), "{told}");
    dir
}

#[test]
fn texts_become_shards_that_can_be_looked_into() {
    let dir = encoded();
    let (shown, _) = ok(dir.path(), &["data", "inspect", "shards", "--documents", "2"]);
    for part in ["documents            21", "duplicate documents  17", "empty documents      0", "U+200B", "2 of 2\n"] {
        assert!(shown.contains(part), "{shown}, expected {part}");
    }
    assert_eq!(shown, ok(dir.path(), &["data", "inspect", "shards", "--documents", "2"]).0);
    fails(dir.path(), 1, &["data", "inspect", "texts"], &["texts", "tokenizer.json"]);
    let again = ["data", "encode", "--tokenizer", "t.json", "--out", "shards", "texts/0.txt"];
    fails(dir.path(), 1, &again, &["shards", "expected a new directory"]);
    let nothing = ["data", "encode", "--tokenizer", "t.json", "--out", "new", "--shard-tokens", "0", "texts"];
    fails(dir.path(), 2, &nothing, &["--shard-tokens"]);
}

#[test]
fn shards_train_the_model_that_their_texts_train() {
    let dir = encoded();
    fs::remove_file(dir.path().join("texts/lines.jsonl")).unwrap(); // as text it would be another document
    ok(dir.path(), &["data", "encode", "--tokenizer", "t.json", "--out", "same", "--quiet", "texts"]);
    let recipe = ["--steps", "4", "--batch-size", "2", "--seq-len", "16", "--quiet"];
    let train =
        |data: &[&str], out: &str| ok(dir.path(), &[&["train", "--out", out, "--data"], data, &recipe].concat());
    train(&["same"], "from-shards");
    train(&["texts", "--tokenizer", "t.json"], "from-texts");
    for file in ["model.safetensors", "tokenizer.json"] {
        let read = |run: &str| fs::read(dir.path().join(run).join(file)).unwrap();
        assert!(read("from-shards") == read("from-texts"), "{file}");
    }
    ok(dir.path(), &["train", "--resume", "from-shards", "--steps", "6", "--quiet"]);
    let eval = |data: &str| ok(dir.path(), &["eval", "--model", "from-shards", "--data", data]).0;
    assert_eq!(eval("same"), eval("texts"));
}

#[test]
fn shards_of_another_tokenizer_are_refused() {
    let dir = encoded();
    let train = ["tokenizer", "train", "--vocab-size", "290", "--special", "<other>", "--out", "u.json", "texts/0.txt"];
    ok(dir.path(), &train);
    let train = ["train", "--data", "shards", "--out", "model", "--tokenizer"];
    fails(dir.path(), 1, &[&train[..], &["u.json"]].concat(), &["shard-00000.tokens", "another tokenizer"]);
    fails(dir.path(), 1, &[&train[..], &["bytes"]].concat(), &["--tokenizer", "bytes", "shards"]);
    assert!(!dir.path().join("model").exists());
    let path = dir.path().join("shards/shard-00000.tokens");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let train = ["train", "--data", "shards", "--out", "model"];
    fails(dir.path(), 1, &train, &["shard-00000.tokens", "rest of 1"]);
    // The directory is still one of shards, and none of texts.
    fs::remove_file(&path).unwrap();
    fails(dir.path(), 1, &train, &["shard-00000.tokens", "not there"]);
    let progress = dir.path().join("shards/progress.json");
    let text = fs::read_to_string(&progress).unwrap();
    fs::write(&progress, text.replace("\"finished\": true", "\"finished\": false")).unwrap();
    fails(dir.path(), 1, &train, &["shards", "unfinished"]);
}

#[test]
fn the_end_of_documents_can_be_named_or_left_out() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("x.jsonl"), "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n").unwrap();
    let train = ["tokenizer", "train", "--vocab-size", "257", "--special", "</s>", "--out", "t.json", "x.jsonl"];
    ok(dir.path(), &train);
    let encode = |out: &str, more: &[&str]| {
        let args = ["data", "encode", "--tokenizer", "t.json", "--out", out];
        [&args[..], more, &["x.jsonl"]].concat().into_iter().map(str::to_string).collect::<Vec<_>>()
    };
    let args = |args: &'static [&'static str], out| encode(out, args);
    let run = |args: Vec<String>| ok(dir.path(), &args.iter().map(String::as_str).collect::<Vec<_>>());
    let fails = |status: i32, args: Vec<String>, parts: &[&str]| {
        fails(dir.path(), status, &args.iter().map(String::as_str).collect::<Vec<_>>(), parts);
    };
    fails(1, args(&[], "a"), &["x.jsonl", "several documents", "--end-of-text"]);
    fails(2, args(&["--end-of-text", "<eot>"], "b"), &["--end-of-text", "t.json", "\"<eot>\""]);
    assert!(run(args(&["--end-of-text", "</s>"], "c")).1.contains("5 tokens of 2 documents"));
    assert!(run(args(&["--end-of-text", "none"], "d")).1.contains("3 tokens of 2 documents"));
    let (shown, _) = ok(dir.path(), &["data", "inspect", "c"]);
    assert!(shown.contains("documents            2"), "{shown}");
}

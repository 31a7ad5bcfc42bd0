//! `handgrad tokenizer`, and training and generating with what it makes.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const TEXT: &str =
    "It was the best of times,\r\nit was the worst of times; ab\0cd.\n\n\nÉtait-ce 1789? <|endoftext|> <&>\n";

fn run_with(dir: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_handgrad"));
    command.args(args).current_dir(dir).env("RUST_BACKTRACE", "0");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(input); // a command that does not read it closes the pipe
    child.wait_with_output().unwrap()
}

#[track_caller]
fn ok(dir: &Path, args: &[&str], input: &[u8]) -> Vec<u8> {
    let output = run_with(dir, args, input);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[track_caller]
fn fails(dir: &Path, status: i32, args: &[&str], input: &[u8], parts: &[&str]) {
    let output = run_with(dir, args, input);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
    assert_eq!(error.trim_end().lines().count(), 1, "{args:?}: {error}");
    for part in parts {
        assert!(error.contains(part), "{args:?}: {error}, expected '{part}'");
    }
}

/// A directory with a text and a tokenizer of 290 tokens that was trained on it.
fn trained() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("text.txt"), TEXT.repeat(20)).unwrap();
    let train =
        ["tokenizer", "train", "--vocab-size", "290", "--special", "<|endoftext|>", "--out", "t.json", "text.txt"];
    assert!(ok(dir.path(), &train, b"").is_empty());
    dir
}

#[test]
fn text_to_ids_and_back_byte_for_byte() {
    let dir = trained();
    let encode = ["tokenizer", "encode", "--tokenizer", "t.json"];
    let decode = ["tokenizer", "decode", "--tokenizer", "t.json"];
    let from_input = ok(dir.path(), &encode, TEXT.as_bytes());
    let ids = String::from_utf8(from_input.clone()).unwrap();
    assert_eq!(ids.lines().count(), 1);
    assert!(ids.split_whitespace().count() < TEXT.len() * 3 / 4);
    assert!(ids.split_whitespace().all(|id| id != "256"), "quoted markers are text");
    std::fs::write(dir.path().join("one.txt"), TEXT).unwrap();
    assert_eq!(ok(dir.path(), &[&encode[..], &["one.txt"]].concat(), b""), from_input);
    assert_eq!(ok(dir.path(), &decode, &from_input), TEXT.as_bytes());
    std::fs::write(dir.path().join("ids"), ids.replace(' ', "\n")).unwrap();
    assert_eq!(ok(dir.path(), &[&decode[..], &["ids"]].concat(), b""), TEXT.as_bytes());

    let allow = ok(dir.path(), &[&encode[..], &["--special-tokens", "allow"]].concat(), b"<|endoftext|>");
    assert_eq!(allow, b"256\n");
    let forbid = [&encode[..], &["--special-tokens", "forbid"]].concat();
    fails(dir.path(), 1, &forbid, b"ab<|endoftext|>", &["<|endoftext|>", "byte 2", "standard input"]);
    assert_eq!(ok(dir.path(), &encode, b""), b"\n");
    assert_eq!(ok(dir.path(), &decode, b""), b"");
}

#[test]
fn threads_change_nothing() {
    let dir = trained();
    let one = std::fs::read(dir.path().join("t.json")).unwrap();
    for threads in ["1", "3"] {
        let mut args =
            vec!["--threads", threads, "tokenizer", "train", "--vocab-size", "290", "--special", "<|endoftext|>"];
        args.extend(["--out", "u.json", "text.txt"]);
        ok(dir.path(), &args, b"");
        assert!(std::fs::read(dir.path().join("u.json")).unwrap() == one, "{threads} threads");
    }
}

#[test]
fn what_is_told_besides() {
    let dir = trained();
    let train = |extra: &[&str]| {
        let args = [&["tokenizer", "train", "--out", "u.json", "text.txt"], extra].concat();
        let output = run_with(dir.path(), &args, b"");
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let early = train(&["--vocab-size", "100000", "--special", "<|endoftext|>"]);
    assert!(early.contains("stopped early") && early.contains("of 100000"), "{early}");
    assert!(train(&["--vocab-size", "260"]).contains("no --special"));
    assert_eq!(train(&["--vocab-size", "260", "--quiet"]), "");
    let export = ["tokenizer", "export", "--tokenizer", "t.json", "--out", "t.tiktoken"];
    let told = String::from_utf8(run_with(dir.path(), &export, b"").stderr).unwrap();
    assert!(told.contains(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+") && told.contains("\"<|endoftext|>\": 256"), "{told}");
    let ranks = std::fs::read_to_string(dir.path().join("t.tiktoken")).unwrap();
    assert_eq!(ranks.lines().count(), 289);
    assert!(ranks.starts_with("AA== 0\nAQ== 1\n"));
}

#[test]
fn bad_input_is_named() {
    let dir = trained();
    std::fs::write(dir.path().join("bad.txt"), b"abc\xFFd").unwrap();
    let train = ["tokenizer", "train", "--out", "u.json"];
    let train = |rest: &[&'static str]| [&train[..], rest].concat();
    fails(dir.path(), 1, &train(&["--vocab-size", "300", "bad.txt"]), b"", &["bad.txt", "0xFF", "offset 3", "--lossy"]);
    fails(dir.path(), 2, &train(&["--vocab-size", "255", "text.txt"]), b"", &["255", "256"]);
    let twice = ["--vocab-size", "300", "--special", "<s>", "--special", "<s>", "text.txt"];
    fails(dir.path(), 2, &train(&twice), b"", &["<s>", "twice"]);
    fails(dir.path(), 2, &train(&["--vocab-size", "300", "--special", "", "text.txt"]), b"", &["empty"]);
    fails(dir.path(), 1, &train(&["--vocab-size", "300", "none.txt"]), b"", &["none.txt"]);
    assert!(!dir.path().join("u.json").exists());
    // Before anything is read: what the text would be found guilty of does not come up.
    for (out, part) in [("none/u.json", "no such directory"), (".", "directory")] {
        fails(
            dir.path(),
            1,
            &["tokenizer", "train", "--out", out, "--vocab-size", "300", "bad.txt"],
            b"",
            &["--out", part],
        );
    }
    ok(dir.path(), &train(&["--vocab-size", "300", "--lossy", "bad.txt"]), b"");

    let encode = ["tokenizer", "encode", "--tokenizer", "t.json"];
    fails(dir.path(), 1, &encode, b"ab\xC3", &["standard input", "0xC3", "offset 2"]);
    let lossy = ok(dir.path(), &[&encode[..], &["--lossy"]].concat(), b"\xC3");
    assert_eq!(ok(dir.path(), &["tokenizer", "decode", "--tokenizer", "t.json"], &lossy), "\u{FFFD}".as_bytes());
    let decode = ["tokenizer", "decode", "--tokenizer", "t.json"];
    fails(dir.path(), 1, &decode, b"97 300", &["id 300", "below 290"]);
    fails(dir.path(), 1, &decode, b"97 -1", &["\"-1\"", "number 2"]);
    fails(dir.path(), 1, &decode, b"97 4294967296", &["4294967296"]);
    fails(dir.path(), 1, &["tokenizer", "decode", "--tokenizer", "text.txt"], b"", &["text.txt", "JSON"]);
    assert_eq!(run_with(dir.path(), &["tokenizer", "train", "--vocab-size", "300"], b"").status.code(), Some(2));
}

#[test]
fn a_model_of_byte_pairs_learns_to_end_its_texts() {
    let dir = trained();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for i in 0..60 {
        std::fs::write(data.join(format!("{i}.txt")), "it was the best of times").unwrap();
    }
    let train =
        ["train", "--data", "data", "--tokenizer", "t.json", "--out", "model", "--steps", "60", "--batch-size", "4"];
    let train = [&train[..], &["--seq-len", "32", "--lr", "3e-3", "--eval-batches", "1", "--quiet"]].concat();
    ok(dir.path(), &train, b"");
    let tokenizer = std::fs::read(dir.path().join("model/tokenizer.json")).unwrap();
    assert!(tokenizer == std::fs::read(dir.path().join("t.json")).unwrap());
    let generate = ["generate", "--model", "model", "--prompt", "it was", "--temperature", "0", "--max-new", "40"];
    let text = String::from_utf8(ok(dir.path(), &generate, b"")).unwrap();
    assert_eq!(text, "it was the best of times\n");
}

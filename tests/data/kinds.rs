//! What a file is, by name and content, and which token ends its documents: the same for every command.

use crate::shards::message;
use handgrad::data::encode::{self, Settings, encode};
use handgrad::data::shard::ShardSet;
use handgrad::data::text::{self, Kind, kind};
use handgrad::data::{Corpus, TokenRow, Tokens, TrainingData};
use handgrad::formats::tokenizer_json;
use handgrad::tokenizer::bpe::train::BpeTrainer;
use handgrad::tokenizer::{END_OF_TEXT, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn encode_into(out: &Path, files: &[PathBuf], tokenizer: &Tokenizer, settings: Settings) -> anyhow::Result<Vec<u32>> {
    encode(files, out, tokenizer, settings, &|_| (), &|| false)?;
    let (row, mut ids) = (Tokens::from(ShardSet::open(out, tokenizer)?), vec![]);
    row.read(0..row.len(), &mut ids)?;
    Ok(ids)
}

/// Ids of bytes, and a token for each text of `added` from 256 on.
fn pairs(added: &[&str]) -> Tokenizer {
    let specials: Vec<String> = added.iter().map(|text| text.to_string()).collect();
    let trainer = BpeTrainer { specials, ..BpeTrainer::new(256 + added.len()) };
    Tokenizer::Bpe(Box::new(trainer.texts([""]).unwrap()))
}

const LINES: &str = "{\"text\": \"a\\nb\"}\n\n{\"id\": 7, \"text\": \"\"}\n{\"text\": \"\\u00e9\\ud83d\\ude00\"}";

#[test]
fn lines_of_json_are_documents_wherever_they_are_read() {
    let folder = Folder::new();
    let documents = ["a\nb", "é😀"];
    let expected: Vec<u32> = documents.iter().flat_map(|text| text.bytes().map(u32::from).chain([256])).collect();
    let tokenizer = Tokenizer::bytes(true);
    let marked = format!("\u{feff}{LINES}");
    // By the name, whatever stands there, and by the content where the name says nothing.
    for (i, (name, content)) in
        [("x.jsonl", LINES), ("x.NDJSON", LINES), ("x", LINES), ("x.json", LINES), ("y.jsonl", &marked), ("y", &marked)]
            .into_iter()
            .enumerate()
    {
        let path = folder.file(name, content);
        assert_eq!(kind(&path).unwrap(), Kind::Lines, "{name}");
        assert_eq!(Corpus::load(&path).unwrap().documents, documents, "{name}");
        let data = TrainingData::open(Some(&path)).unwrap();
        let mut ids = vec![];
        let tokens = data.tokens(&data.tokenizer(Some("bytes")).unwrap()).unwrap();
        tokens.read(0..tokens.len(), &mut ids).unwrap();
        assert_eq!(ids, expected, "{name}");
        let out = folder.path(&format!("out-{i}"));
        assert_eq!(encode_into(&out, &[path], &tokenizer, Settings::default()).unwrap(), expected, "{name}");
    }
    for (name, content) in [("x.txt", LINES), ("prose", "{\"text\": broken\n"), ("list", "[{\"text\": \"a\"}]")] {
        let path = folder.file(name, content);
        assert_eq!(Corpus::load(&path).unwrap().documents, [content], "{name}");
    }
}

#[test]
fn a_tokenizer_learns_from_the_documents_of_lines() {
    let folder = Folder::new();
    let many: String = (0..300).map(|i| format!("{{\"text\": \"caf\\u00e9 {i} \\\"ab\\\"\"}}\n")).collect();
    let path = folder.file("x.jsonl", &many);
    let texts: Vec<String> = (0..300).map(|i| format!("café {i} \"ab\"")).collect();
    let trainer = BpeTrainer { lines: Some(text::LINES), ..BpeTrainer::new(300) };
    let expected = trainer.texts(texts.iter().map(String::as_str)).unwrap();
    for stretch in [7, 100, 1 << 20] {
        let trainer = BpeTrainer { stretch, ..trainer.clone() };
        let learned = trainer.files(std::slice::from_ref(&path), &handgrad::tokenizer::bpe::train::Silent).unwrap();
        assert_eq!(learned, expected, "stretches of {stretch}");
    }
    let bad = folder.file("bad.jsonl", many + "{\"text\": 3}\n");
    let error = message(trainer.files(&[bad], &handgrad::tokenizer::bpe::train::Silent));
    assert!(error.contains("bad.jsonl") && error.contains("line 301") && error.contains("\"text\""), "{error}");
}

#[test]
fn what_holds_no_text_is_refused_by_name_by_every_reader() {
    let folder = Folder::new();
    let ids: Vec<u8> = (0..1800u16).flat_map(|id| (id % 60).to_le_bytes()).collect();
    let header = |magic: u32| [&magic.to_le_bytes()[..], &1u32.to_le_bytes(), &[97; 1016]].concat();
    for (name, content, parts) in [
        ("train.bin", ids.clone(), ["train.bin", "token ids", "meta.pkl"]),
        ("train.bin", b"abc".repeat(100), ["train.bin", "token ids", "handgrad data encode"]),
        ("gpt2.tokens", header(20_240_520), ["llm.c", "token ids", "tokenizer"]),
        ("llama3", header(20_240_801), ["llm.c", "token ids", "tokenizer"]),
        ("shard-00000.tokens", b"HGTOKENS\x01\0\0\0".to_vec(), ["shard of handgrad", "give the directory", "tokens"]),
        ("a.npy", b"\x93NUMPY\x01\0".to_vec(), ["a.npy", "NumPy", "expected"]),
        ("a.parquet", b"PAR1\x15\0".to_vec(), ["a.parquet", "Parquet", "JSON"]),
        ("a.txt", b"\x1F\x8B\x08".to_vec(), ["a.txt", "gzip", "expected"]),
        ("a.jsonl", b"\x28\xB5\x2F\xFD\x04".to_vec(), ["a.jsonl", "zstd", "expected"]),
        ("a.zip", b"PK\x03\x04\0".to_vec(), ["a.zip", "zip", "expected"]),
        ("a.pt", b"\x80\x02}q".to_vec(), ["a.pt", "pickle", "expected"]),
        ("a.gguf", b"GGUF\x03\0".to_vec(), ["a.gguf", "GGUF", "expected"]),
        ("data.txt", b"version https://git-lfs.github.com/spec/v1\n".to_vec(), ["data.txt", "LFS", "git lfs pull"]),
    ] {
        let path = folder.file(name, content);
        let trainer = BpeTrainer { lines: Some(text::LINES), ..BpeTrainer::new(300) };
        let files = [path.clone()];
        let errors = [
            message(Corpus::load(&path)),
            message(encode_into(&folder.path("out"), &files, &Tokenizer::bytes(true), Settings::default())),
            message(trainer.files(&files, &handgrad::tokenizer::bpe::train::Silent)),
        ];
        for error in errors {
            assert!(!error.contains('\n') && parts.iter().all(|part| error.contains(part)), "{error}: {parts:?}");
        }
        // Of a directory, too, the file is named.
        let error = message(Corpus::load(folder.0.path()));
        assert!(error.contains(name) && error.contains(parts[1]), "{error}");
        fs::remove_file(path).unwrap();
        fs::remove_dir_all(folder.path("out")).unwrap();
    }
    let list = folder.file("a.json", " [{\"text\": \"a\"}]");
    assert!(message(Corpus::load(&list)).contains("a.json: found a list of JSON"));
    // A text may begin with any word.
    for text in ["GGUF is a format", "PAR1", "HGTOKENS", "PK"] {
        assert_eq!(Corpus::load(&folder.file("words", text)).unwrap().documents, [text]);
    }
    // A page may be what a model is to learn.
    assert!(Corpus::load(&folder.file("page.html", "<html>")).is_ok());
}

#[test]
fn a_long_first_line_is_read_to_its_end_and_a_pipe_once() {
    let folder = Folder::new();
    let long = "é".repeat(100_000);
    let content = format!("{{\"text\": \"{long}\"}}\n{{\"text\": \"b\"}}\n");
    let path = folder.file("lines", &content);
    assert_eq!(kind(&path).unwrap(), Kind::Lines);
    assert_eq!(Corpus::load(&path).unwrap().documents, [long.as_str(), "b"]);
    assert_eq!(encode::files(&[folder.file("A.JSONL", "").parent().unwrap().to_path_buf()]).unwrap().len(), 1);
    let pipe = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let writer = std::thread::spawn({
        let (pipe, content) = (pipe.clone(), content.clone());
        move || fs::write(pipe, content).unwrap()
    });
    assert_eq!(Corpus::load(&pipe).unwrap().documents, [long.as_str(), "b"]);
    writer.join().unwrap();
}

#[test]
fn text_has_no_nul_bytes() {
    let folder = Folder::new();
    let path = folder.file("ids", "ab\0c");
    for lossy in [false, true] {
        let settings = Settings { lossy, ..Settings::default() };
        let files = std::slice::from_ref(&path);
        let error = message(encode_into(&folder.path("out"), files, &Tokenizer::bytes(true), settings));
        assert!(error.contains("ids: found byte 0x00 at offset 2"), "{error}");
    }
    assert!(message(Corpus::load(&path)).contains("ids: found byte 0x00 at offset 2"));
    // An escape is no such byte: it says what it means.
    let path = folder.file("x.jsonl", "{\"text\": \"a\\u0000\"}");
    assert_eq!(Corpus::load(&path).unwrap().documents, ["a\0"]);
}

#[test]
fn half_a_surrogate_pair_is_an_error_or_a_mark() {
    let folder = Folder::new();
    for (json, text) in [
        (r"a\ud83d b", "a\u{fffd} b"),
        (r"a\ud83d\ud83d\ude00", "a\u{fffd}😀"),
        (r"\ude00\ud83d", "\u{fffd}\u{fffd}"),
        (r"\\ud83d \ud83D\\", "\\ud83d \u{fffd}\\"),
        (r"é\ud83d\u00e9", "é\u{fffd}é"),
    ] {
        let path = folder.file("x.jsonl", format!("{{\"text\": \"b\"}}\n{{\"text\": \"{json}\"}}\n"));
        for error in [
            message(Corpus::load(&path)),
            message(encode_into(
                &folder.path("a"),
                std::slice::from_ref(&path),
                &Tokenizer::bytes(true),
                Settings::default(),
            )),
        ] {
            assert!(error.contains("x.jsonl: line 2") && !error.contains('\n'), "{error}");
        }
        let settings = Settings { lossy: true, ..Settings::default() };
        let out = folder.path("out");
        let ids = encode_into(&out, &[path], &Tokenizer::bytes(true), settings).unwrap();
        let expected: Vec<u32> = [b"b", text.as_bytes()]
            .map(|text| text.iter().map(|&b| u32::from(b)).chain([256]))
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(ids, expected, "{json}");
        fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn documents_that_would_touch_are_an_error_unless_that_is_asked_for() {
    let folder = Folder::new();
    let lines = folder.file("x.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
    let one = folder.file("one.jsonl", "{\"text\": \"ab\"}\n");
    let (nameless, touch) = (pairs(&["</s>"]), Settings { touch: true, ..Settings::default() });
    let out = |name: &str| folder.path(name);
    let error = message(encode_into(&out("a"), std::slice::from_ref(&lines), &nameless, Settings::default()));
    assert!(error.contains("x.jsonl") && error.contains("--end-of-text") && !error.contains('\n'), "{error}");
    assert_eq!(encode_into(&out("b"), std::slice::from_ref(&lines), &nameless, touch).unwrap(), [97, 98, 99]);
    assert_eq!(encode_into(&out("c"), &[one], &nameless, Settings::default()).unwrap(), [97, 98]);
    let data = TrainingData::open(Some(&lines)).unwrap();
    assert!(data.tokens(&nameless).err().unwrap().to_string().contains("--end-of-text"));
    assert!(data.tokens(&pairs(&[END_OF_TEXT])).is_ok());
}

#[test]
fn the_end_token_that_was_chosen_goes_with_the_shards() {
    let folder = Folder::new();
    let lines = folder.file("x.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
    let mut tokenizer = pairs(&[END_OF_TEXT, "</s>"]);
    assert_eq!(tokenizer.end_of_text(), Some(256), "the one of a known name");
    let files = [lines.clone()];
    encode_into(&folder.path("known"), &files, &tokenizer, Settings::default()).unwrap();
    tokenizer.set_end_of_text(Some("</s>")).unwrap();
    let out = folder.path("chosen");
    let ids = encode_into(&out, &files, &tokenizer, Settings::default()).unwrap();
    assert_eq!(ids, [97, 98, 257, 99, 257]);
    let again = TrainingData::open(Some(&out)).unwrap().tokenizer(None).unwrap();
    assert_eq!((again.end_of_text(), &again), (Some(257), &tokenizer));
    // The same file with another end is another tokenizer, and what else a configuration says stays.
    assert!(ShardSet::open(&out, &pairs(&[END_OF_TEXT, "</s>"])).is_err());
    let place = folder.path("kept");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("tokenizer_config.json"), r#"{"chat_template": "{{ a }}", "eos_token": "<s>"}"#).unwrap();
    encode_into(&place, &files, &tokenizer, Settings::default()).unwrap();
    let config = fs::read_to_string(place.join("tokenizer_config.json")).unwrap();
    assert!(config.contains("{{ a }}") && config.contains("\"eos_token\": \"</s>\""), "{config}");
    // Shards of another end token are another run's.
    let error = message(encode_into(&folder.path("known"), &files, &tokenizer, Settings::default()));
    assert!(error.contains("another tokenizer"), "{error}");
    tokenizer.set_end_of_text(None).unwrap();
    let touch = Settings { touch: true, ..Settings::default() };
    assert_eq!(encode_into(&folder.path("none"), &files, &tokenizer, touch).unwrap(), [97, 98, 99]);
    assert_eq!(tokenizer_json::read(&folder.path("none/tokenizer.json")).unwrap().end_of_text(), None);
    let error = message(tokenizer.set_end_of_text(Some("<eot>")));
    assert!(error.contains("\"<eot>\"") && error.contains("added token"), "{error}");
    for mut plain in [Tokenizer::bytes(true), Tokenizer::chars_of(["ab"], true)] {
        assert!(plain.set_end_of_text(Some(END_OF_TEXT)).is_ok());
        assert!(message(plain.set_end_of_text(Some("</s>"))).contains("</s>"));
    }
    assert_eq!(encode::files(&[folder.0.path().to_path_buf()]).unwrap(), [lines]);
}

#[test]
fn a_tokenizer_config_names_the_end_of_texts() {
    let folder = Folder::new();
    let path = folder.path("tokenizer.json");
    tokenizer_json::write(&path, &pairs(&[END_OF_TEXT, "</s>"])).unwrap();
    for (config, end) in [
        (r#"{"eos_token": "</s>"}"#, Some(257)),
        (r#"{"eos_token": {"content": "</s>", "lstrip": false}}"#, Some(257)),
        (r#"{"eos_token": null}"#, None),
        (r#"{"bos_token": "</s>"}"#, Some(256)),
        (r#"{"eos_token": "<missing>"}"#, Some(256)),
    ] {
        folder.file("tokenizer_config.json", config);
        let mut notes = vec![];
        let tokenizer = tokenizer_json::read_with(&path, &mut |note| notes.push(note.to_string())).unwrap();
        assert_eq!(tokenizer.end_of_text(), end, "{config}");
        assert_eq!(notes.len(), usize::from(config.contains("missing")), "{notes:?}");
    }
    // A file of another name is on its own.
    let other = folder.path("other.json");
    fs::copy(&path, &other).unwrap();
    folder.file("tokenizer_config.json", r#"{"eos_token": "</s>"}"#);
    assert_eq!(tokenizer_json::read(&other).unwrap().end_of_text(), Some(256));
}

//! Directories of shards: what may go on, what may begin anew, and what belongs to someone else.

use super::shards::{message, small, tokenizer};
use handgrad::data::encode::{Settings, encode};
use handgrad::data::progress::{Progress, check_finished};
use handgrad::data::shard;
use handgrad::formats::tokenizer_json;
use handgrad::tokenizer::Tokenizer;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// A directory with three texts, which become a shard each, and an empty one.
fn texts() -> (TempDir, Vec<PathBuf>, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = ["a.txt", "b.txt", "c.txt"].iter().map(|name| dir.path().join(name)).collect();
    for file in &files {
        fs::write(file, "the quick brown fox ".repeat(50)).unwrap();
    }
    let out = dir.path().join("out");
    (dir, files, out)
}

fn call(files: &[PathBuf], out: &Path, tokenizer: &Tokenizer) -> anyhow::Result<Progress> {
    encode(files, out, tokenizer, Settings { shard_tokens: 1, ..small(1 << 20) }, &|_| (), &|| false)
}

#[test]
fn changed_files_are_not_gone_on_with() {
    let (_dir, files, out) = texts();
    assert_eq!(call(&files, &out, &tokenizer()).unwrap().shards, 3);
    assert_eq!(call(&files, &out, &tokenizer()).unwrap().shards, 3);
    // As long as before.
    fs::write(&files[1], "the quick brown dog ".repeat(50)).unwrap();
    File::open(&files[1]).unwrap().set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
    assert!(message(call(&files, &out, &tokenizer())).contains("changed files"));
}

#[test]
fn a_run_that_came_to_no_shard_may_be_called_in_another_way() {
    let (_dir, files, out) = texts();
    fs::write(&files[0], b"the quick \xFF").unwrap();
    assert!(message(call(&files, &out, &tokenizer())).contains("offset 10"));
    let done = encode(&files, &out, &Tokenizer::bytes(true), Settings { lossy: true, ..small(64) }, &|_| (), &|| false);
    assert_eq!(done.unwrap().documents, 3);
    assert_eq!(tokenizer_json::read(&out.join("tokenizer.json")).unwrap(), Tokenizer::bytes(true));
}

#[test]
fn missing_and_damaged_shards_are_not_gone_on_with() {
    for number in [0, 2] {
        let (_dir, files, out) = texts();
        call(&files, &out, &tokenizer()).unwrap();
        check_finished(&out).unwrap();
        let path = shard::path(&out, number);
        let name = path.file_name().unwrap().to_str().unwrap();
        fs::write(&path, "half a shard").unwrap();
        assert!(message(call(&files, &out, &tokenizer())).contains(name));
        fs::remove_file(&path).unwrap();
        assert!(message(call(&files, &out, &tokenizer())).contains(name));
        assert!(message(check_finished(&out)).contains(name));
        assert!(shard::is_in(&out));
    }
}

#[test]
fn one_run_at_a_time_writes_a_directory() {
    let (_dir, files, out) = texts();
    fs::create_dir(&out).unwrap();
    let other = File::open(&out).unwrap();
    other.lock().unwrap();
    assert!(message(call(&files, &out, &tokenizer())).contains("another handgrad at work"));
    drop(other);
    call(&files, &out, &tokenizer()).unwrap();
}

#[test]
fn another_tokenizer_is_not_written_over() {
    let (_dir, files, out) = texts();
    fs::create_dir(&out).unwrap();
    let path = out.join("tokenizer.json");
    tokenizer_json::write(&path, &Tokenizer::bytes(true)).unwrap();
    let message = message(call(&files, &out, &tokenizer()));
    assert!(message.contains("tokenizer.json") && message.contains("another tokenizer"), "{message}");
    assert_eq!(tokenizer_json::read(&path).unwrap(), Tokenizer::bytes(true));
    call(&files, &out, &Tokenizer::bytes(true)).unwrap();
}

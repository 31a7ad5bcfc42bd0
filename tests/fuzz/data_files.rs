//! What `data encode` reads and writes: lines of JSON, texts, shards and how far a run is.

use crate::{Reader, fuzz, scratch};
use anyhow::Result;
use handgrad::data::encode::{Settings, encode};
use handgrad::data::progress::check_finished;
use handgrad::data::shard::{self, Format, ShardSet};
use handgrad::data::{TokenRow, Tokens};
use handgrad::tokenizer::{SpecialText, Tokenizer};
use std::fs;
use std::path::{Path, PathBuf};

/// Encodes one file into a new directory.
fn encode_anew(file: &Path, out: &Path, lossy: bool) -> Result<()> {
    let _ = fs::remove_dir_all(out);
    let settings = Settings { lossy, batch: 100, part: 30, specials: SpecialText::Allow, ..Settings::default() };
    let file = PathBuf::from(file);
    encode(&[file], out, &Tokenizer::bytes(true), settings, &|_| (), &|| false).map(|_| ())
}

#[test]
fn lines_of_json() {
    let dir = scratch();
    let (path, out) = (dir.path().join("a.jsonl"), dir.path().join("out"));
    let lines = "{\"text\": \"It was the best of times\", \"id\": 1}\n\n{\"text\": \"\\ud83d\\ude00 <|endoftext|>\"}\n{\"meta\": {\"a\": [1, 2]}, \"text\": \"\"}\n";
    let originals = [lines.as_bytes().to_vec(), lines.repeat(5).replace('\n', "\r\n").into_bytes()];
    let load = || {
        encode_anew(&path, &out, true)?;
        encode_anew(&path, &out, false)
    };
    fuzz(&Reader { name: "JSON lines", share: 4, mib: 2, file: &path, load: &load }, &originals);
}

#[test]
fn texts() {
    let dir = scratch();
    let (path, out) = (dir.path().join("a.txt"), dir.path().join("out"));
    let originals = ["It was the best of times, <|endoftext|> 日本 é 1234\r\n".repeat(4).into_bytes(), vec![]];
    let load = || {
        encode_anew(&path, &out, true)?;
        encode_anew(&path, &out, false)
    };
    fuzz(&Reader { name: "texts", share: 4, mib: 2, file: &path, load: &load }, &originals);
}

#[test]
fn shards() {
    let dir = scratch();
    let (path, tokenizer) = (shard::path(dir.path(), 0), Tokenizer::bytes(true));
    let ids: Vec<u32> = (0..200).collect();
    let wide = Format { width: 4, ..Format::of(&tokenizer) };
    let originals: Vec<Vec<u8>> = [Format::of(&tokenizer), wide]
        .into_iter()
        .map(|format| {
            shard::write(&path, format, &ids).unwrap();
            fs::read(&path).unwrap()
        })
        .collect();
    let load = || {
        let row = Tokens::from(ShardSet::open(dir.path(), &tokenizer)?);
        let mut ids = vec![];
        row.read(0..row.len(), &mut ids)?;
        assert_eq!(ids.len(), row.len());
        row.fingerprint().map(|_| ())
    };
    fuzz(&Reader { name: "shards", share: 1, mib: 1, file: &path, load: &load }, &originals);
}

#[test]
fn progress_of_a_run() {
    let dir = scratch();
    let (text, out) = (dir.path().join("a.txt"), dir.path().join("out"));
    fs::write(&text, "It was the best of times. ".repeat(20)).unwrap();
    let tokenizer = Tokenizer::bytes(true);
    let settings = Settings { shard_tokens: 200, batch: 150, ..Settings::default() };
    let run = |stop: bool| {
        encode(std::slice::from_ref(&text), &out, &tokenizer, settings, &|_| (), &|| {
            stop && shard::path(&out, 0).exists()
        })
    };
    let path = out.join("progress.json");
    let originals = [true, false].map(|stop| {
        run(stop).unwrap();
        fs::read(&path).unwrap()
    });
    let load = || {
        let finished = check_finished(&out);
        run(false)?;
        finished
    };
    fuzz(&Reader { name: "progress.json", share: 4, mib: 2, file: &path, load: &load }, &originals);
}

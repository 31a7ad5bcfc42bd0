//! A damaged progress.json is an error of one line, whichever of its numbers is wrong.

use crate::shards::{message, tokenizer};
use handgrad::data::encode::{Settings, encode};
use handgrad::data::progress::check_finished;
use serde_json::{Value, json};
use std::fs;

#[test]
fn every_number_is_checked_where_it_is_read() {
    let (dir, tokenizer) = (tempfile::tempdir().unwrap(), tokenizer());
    let text = dir.path().join("a.txt");
    fs::write(&text, "the quick brown fox ".repeat(30)).unwrap();
    let (files, out) = ([text], dir.path().join("out"));
    let settings = Settings { shard_tokens: 50, batch: 64, ..Settings::default() };
    let run = || encode(&files, &out, &tokenizer, settings, &|_| (), &|| false);
    run().unwrap();
    let path = out.join("progress.json");
    let good: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let refused = |changes: &[(&str, Value)], word: &str| {
        let mut json = good.clone();
        for (key, value) in changes {
            *json.pointer_mut(key).unwrap_or_else(|| panic!("{key} in {good}")) = value.clone();
        }
        fs::write(&path, json.to_string()).unwrap();
        let said = message(run());
        assert!(said.contains("progress.json") && said.contains(word), "{changes:?}: {said}");
    };
    let unfinished = [("/file", json!(0)), ("/finished", json!(false))];
    let with = |key: &'static str, value: Value| [&unfinished[..], &[(key, value)]].concat();
    refused(&[("/file", json!(2))], "file: found 2, expected at most 1");
    refused(&[("/file", json!(u64::MAX))], "file: found 18446744073709551615");
    refused(&[("/file", json!(0))], "finished: found true");
    refused(&[("/offset", json!(1))], "offset: found 1, expected at most 0");
    for offset in [u64::MAX, 601] {
        refused(&with("/offset", json!(offset)), "offset: found ");
    }
    refused(&with("/line", json!(1)), "line: found 1");
    refused(&[("/tokens", json!(u64::MAX))], "tokens, expected");
    refused(&[("/tokens", json!(0))], "tokens, expected");
    for key in ["/bytes", "/documents", "/empty"] {
        refused(&[(key, json!(u64::MAX))], "expected at most");
    }
    refused(&[("/plan/files/0/bytes", json!(-1))], "invalid value");
    refused(&[("/plan/files", json!([1]))], "not the progress");
    let two = json!([{"path": "a", "bytes": u64::MAX, "changed": 0}, {"path": "b", "bytes": 1, "changed": 0}]);
    refused(&[("/plan/files", two)], "more than 2^64 bytes");
    let said = message(check_finished(&out));
    assert!(said.contains("more than 2^64 bytes"), "{said}");

    fs::write(&path, good.to_string()).unwrap();
    assert_eq!(serde_json::to_value(run().unwrap()).unwrap(), good);
    check_finished(&out).unwrap();
    let mut json = good.clone();
    json["shards"] = json!(u64::MAX);
    fs::write(&path, json.to_string()).unwrap();
    assert!(message(run()).contains("shard-"));
    assert!(message(check_finished(&out)).contains("not there"));
}

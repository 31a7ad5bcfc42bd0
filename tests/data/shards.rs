//! Shards: what is written is read, wherever windows fall; what is damaged is refused; an interrupted run goes on.

use handgrad::data::encode::{self, Settings, encode};
use handgrad::data::inspect::inspect;
use handgrad::data::progress::Progress;
use handgrad::data::shard::{self, Format, HEADER, ShardSet};
use handgrad::data::{TokenRow, Tokens, random_batch, whole_batches};
use handgrad::tokenizer::bpe::train::BpeTrainer;
use handgrad::tokenizer::{SpecialText, Tokenizer};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub fn message<T>(result: anyhow::Result<T>) -> String {
    let message = format!("{:#}", result.err().expect("an error"));
    assert!(!message.contains('\n'), "{message}");
    message
}

pub fn tokenizer() -> Tokenizer {
    let trainer = BpeTrainer { specials: vec!["<|endoftext|>".to_string()], ..BpeTrainer::new(300) };
    Tokenizer::Bpe(Box::new(trainer.texts(["the quick brown fox the quick the"]).unwrap()))
}

/// A directory with shards of these lengths, whose ids count up from 0.
fn shards_of(lengths: &[usize], tokenizer: &Tokenizer) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut first = 0;
    for (number, &len) in lengths.iter().enumerate() {
        let ids: Vec<u32> = (first..first + len as u32).collect();
        shard::write(&shard::path(dir.path(), number), Format::of(tokenizer), &ids).unwrap();
        first += len as u32;
    }
    dir
}

fn all(row: &impl TokenRow) -> Vec<u32> {
    let mut ids = Vec::new();
    row.read(0..row.len(), &mut ids).unwrap();
    ids
}

#[test]
fn shards_are_one_row_wherever_windows_fall() {
    let tokenizer = tokenizer();
    let dir = shards_of(&[5, 1, 0, 100, 0, 0, 2, 0], &tokenizer);
    let row = Tokens::from(ShardSet::open(dir.path(), &tokenizer).unwrap());
    assert_eq!(all(&row), (0..108).collect::<Vec<u32>>());
    for start in 0..108 {
        for end in start..=108 {
            let mut ids = vec![7];
            row.read(start..end, &mut ids).unwrap();
            assert_eq!(ids[1..], (start as u32..end as u32).collect::<Vec<_>>());
        }
    }
    let (train, validation) = row.split_at(100);
    assert_eq!((train.len(), all(&validation)), (100, (100..108).collect()));
    let (_, rest) = validation.split_at(3);
    assert_eq!(all(&rest), [103, 104, 105, 106, 107]);
}

#[test]
fn batches_of_shards_are_those_of_memory() {
    let tokenizer = tokenizer();
    let dir = shards_of(&[9, 30, 1, 60], &tokenizer);
    let row = Tokens::from(ShardSet::open(dir.path(), &tokenizer).unwrap());
    let memory: Vec<u32> = (0..100).collect();
    let ids = |batch: &handgrad::data::Batch| batch.ids.as_slice::<u32>().unwrap().to_vec();
    for seed in 0..20 {
        let rng = || ChaCha8Rng::seed_from_u64(seed);
        let (a, b) = (random_batch(&row, 4, 7, &mut rng()).unwrap(), random_batch(&memory, 4, 7, &mut rng()).unwrap());
        assert_eq!(ids(&a), ids(&b));
    }
    let (a, b) = (whole_batches(&row, 3, 8).unwrap(), whole_batches(&memory, 3, 8).unwrap());
    assert!(a.zip(b).all(|(a, b)| ids(&a.unwrap()) == ids(&b.unwrap())));
}

#[test]
fn width_follows_the_largest_id() {
    let chars = |n: u32| {
        Tokenizer::chars_of([(0..n).map(|i| char::from_u32(0x10000 + i).unwrap()).collect::<String>().as_str()], false)
    };
    assert_eq!(Format::of(&chars(65_536)).width, 2);
    assert_eq!(Format::of(&chars(65_537)).width, 4);
    let dir = tempfile::tempdir().unwrap();
    let path = shard::path(dir.path(), 0);
    let narrow = Format { width: 2, fingerprint: 0 };
    shard::write(&path, narrow, &[65_535]).unwrap();
    for id in [65_536, 151_643] {
        assert!(message(shard::write(&path, narrow, &[1, id])).contains(&format!("id {id},")));
    }
    let wide = chars(65_537);
    shard::write(&path, Format::of(&wide), &[65_536, 0, u32::MAX]).unwrap();
    assert_eq!(all(&Tokens::from(ShardSet::open(dir.path(), &wide).unwrap())), [65_536, 0, u32::MAX]);
    assert_eq!(fs::metadata(&path).unwrap().len(), HEADER as u64 + 12);
}

#[test]
fn damaged_shards_are_refused_and_named() {
    let tokenizer = tokenizer();
    let damage = |change: &dyn Fn(&mut Vec<u8>)| {
        let dir = shards_of(&[3, 4], &tokenizer);
        let path = shard::path(dir.path(), 1);
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        let message = message(ShardSet::open(dir.path(), &tokenizer));
        assert!(message.contains("shard-00001.tokens"), "{message}");
        message
    };
    for (part, change) in [
        ("no tokens", &(|bytes: &mut Vec<u8>| bytes.clear()) as &dyn Fn(&mut Vec<u8>)),
        ("found 63 bytes", &|bytes| bytes.truncate(63)),
        ("found 7 bytes of ids, expected a multiple of 2, not a rest of 1", &|bytes| bytes.truncate(HEADER + 7)),
        ("found 3 ids, expected 4", &|bytes| bytes.truncate(HEADER + 6)),
        ("found 5 ids, expected 4", &|bytes| bytes.extend([0, 0])),
        ("expected \"HGTOKENS\"", &|bytes| bytes[0] = b'X'),
        ("found version 2", &|bytes| bytes[8] = 2),
        ("found 3 bytes for each id", &|bytes| bytes[12] = 3),
        ("another tokenizer", &|bytes| bytes[24] ^= 1),
    ] {
        assert!(damage(change).contains(part), "{}, expected {part}", damage(change));
    }
    let dir = shards_of(&[3, 4, 5], &tokenizer);
    let other = message(ShardSet::open(dir.path(), &Tokenizer::bytes(true)));
    assert!(other.contains("another tokenizer"), "{other}");
    fs::remove_file(shard::path(dir.path(), 1)).unwrap();
    assert!(message(ShardSet::open(dir.path(), &tokenizer)).contains("no shard-00001.tokens"));
    let nothing = message(ShardSet::open(shards_of(&[0, 0], &tokenizer).path(), &tokenizer));
    assert!(nothing.contains("2 shards without any tokens"), "{nothing}");
    assert!(message(ShardSet::open(tempfile::tempdir().unwrap().path(), &tokenizer)).contains("shard-00000.tokens"));
}

#[test]
fn a_shard_that_is_cut_after_opening_is_an_error() {
    let tokenizer = tokenizer();
    for cut in [0, 10, HEADER, HEADER + 7] {
        let dir = shards_of(&[100, 100], &tokenizer);
        let row = Tokens::from(ShardSet::open(dir.path(), &tokenizer).unwrap());
        let path = shard::path(dir.path(), 1);
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut as u64).unwrap();
        let mut ids = Vec::new();
        row.read(0..100, &mut ids).unwrap();
        let found = [
            message(row.read(90..110, &mut ids)),
            message(row.fingerprint()),
            message(whole_batches(&row, 2, 64).unwrap().collect::<anyhow::Result<Vec<_>>>()),
            message(random_batch(&row.split_at(100).1, 1, 64, &mut ChaCha8Rng::seed_from_u64(0))),
        ];
        assert!(found.iter().all(|message| message.contains(path.to_str().unwrap())), "{found:?}");
    }
}

/// More shards than a process may hold open by default.
#[test]
fn a_row_may_have_any_number_of_shards() {
    let tokenizer = tokenizer();
    let dir = shards_of(&[1; 1100], &tokenizer);
    let row = Tokens::from(ShardSet::open(dir.path(), &tokenizer).unwrap());
    assert_eq!(all(&row), (0..1100).collect::<Vec<u32>>());
}

/// The hash that `sha256sum` gives for the hashes that it gives for the pieces.
#[test]
fn a_fingerprint_is_that_of_the_ids_however_they_are_stored() {
    let tokenizer = tokenizer();
    let fingerprint = |ids: Vec<u32>| Tokens::from(ids).fingerprint().unwrap();
    assert_eq!(fingerprint(vec![]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_eq!(fingerprint((0..1000).collect()), "356f5df5b9e9f4d01831042c54b862837b6c2f90d9498a50b5896153414c10cd");
    let long: Vec<u32> = (0..(2 << 20) + 5).map(|i| i % 65_521).collect();
    assert_eq!(fingerprint(long.clone()), "2874bfa59e05f327fb08cbfeedc5a16f376486a77b27f1bbaa2f94055442b482");
    for width in [2, 4] {
        let dir = tempfile::tempdir().unwrap();
        let format = Format { width, ..Format::of(&tokenizer) };
        for (number, ids) in long.chunks(700_001).enumerate() {
            shard::write(&shard::path(dir.path(), number), format, ids).unwrap();
        }
        let row = Tokens::from(ShardSet::open(dir.path(), &tokenizer).unwrap());
        assert_eq!(row.fingerprint().unwrap(), "2874bfa59e05f327fb08cbfeedc5a16f376486a77b27f1bbaa2f94055442b482");
        let (head, tail) = row.split_at(3);
        assert_eq!(head.fingerprint().unwrap(), fingerprint(vec![0, 1, 2]));
        assert_eq!(tail.fingerprint().unwrap(), fingerprint(long[3..].to_vec()));
    }
    let mut other = long.clone();
    other[2_000_000] ^= 1;
    assert_ne!(fingerprint(other), fingerprint(long));
}

/// Runs to the end.
fn run(files: &[PathBuf], out: &Path, tokenizer: &Tokenizer, settings: Settings) -> Progress {
    encode(files, out, tokenizer, settings, &|_| (), &|| false).unwrap()
}

fn ids_in(dir: &Path, tokenizer: &Tokenizer) -> Vec<u32> {
    all(&Tokens::from(ShardSet::open(dir, tokenizer).unwrap()))
}

/// Words and signs at random, of about `size` bytes.
fn random_text(size: usize, rng: &mut ChaCha8Rng) -> String {
    let words = [
        "the",
        " quick",
        " brown",
        "\n\n",
        " fox's",
        " 1234",
        "!?",
        "  ",
        "é",
        " 中文",
        "\r\n",
        "<|endoftext|>",
        "e\u{301}",
    ];
    let mut text = String::new();
    while text.len() < size {
        text.push_str(words[rng.random_range(0..words.len())]);
    }
    text
}

/// Two texts, one without an end of line, an empty one, and lines of JSON; and their documents.
fn corpus() -> (TempDir, Vec<PathBuf>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (a, b) = (random_text(3000, &mut rng), random_text(700, &mut rng));
    let lines: Vec<String> = (0..40).map(|i| random_text(i * 7, &mut rng)).collect();
    let json: String = lines.iter().map(|text| format!("{}\n", serde_json::json!({"id": 1, "text": text}))).collect();
    fs::create_dir(dir.path().join("sub")).unwrap();
    for (name, content) in
        [("a.txt", a.as_str()), ("b.txt", ""), ("c.jsonl", &format!("\n{json}")), ("sub/d.txt", &b), ("e.md", "no")]
    {
        fs::write(dir.path().join(name), content).unwrap();
    }
    let files = encode::files(&[dir.path().to_path_buf()]).unwrap();
    let documents = [vec![a], lines, vec![b]].concat().into_iter().filter(|text| !text.is_empty()).collect();
    (dir, files, documents)
}

pub fn small(batch: usize) -> Settings {
    Settings { shard_tokens: 250, batch, ..Settings::default() }
}

#[test]
fn files_become_the_documents_ids_whatever_the_batches_and_threads() {
    let (_dir, files, documents) = corpus();
    assert_eq!(files.len(), 4);
    for tokenizer in [tokenizer(), Tokenizer::bytes(true), Tokenizer::bytes(false)] {
        let expected = tokenizer.encode_documents(&documents).unwrap();
        for (batch, threads) in [(1, 1), (64, 3), (1000, 2), (1 << 20, 2)] {
            let out = tempfile::tempdir().unwrap();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let done = pool.install(|| run(&files, out.path(), &tokenizer, Settings { touch: true, ..small(batch) }));
            assert!(ids_in(out.path(), &tokenizer) == expected, "batches of {batch}");
            assert_eq!((done.tokens as usize, done.documents as usize), (expected.len(), documents.len()));
            assert_eq!(done.bytes as usize, documents.iter().map(String::len).sum::<usize>());
            assert_eq!(done.empty, 2, "b.txt and the first line of JSON");
            assert!(done.finished);
        }
    }
}

#[test]
fn an_interrupted_run_goes_on_and_writes_the_same() {
    let (_dir, files, _) = corpus();
    let tokenizer = tokenizer();
    let whole = tempfile::tempdir().unwrap();
    run(&files, whole.path(), &tokenizer, small(100));
    let parts = tempfile::tempdir().unwrap();
    let mut runs = 0;
    loop {
        runs += 1;
        let left = Cell::new(12);
        let interrupted = || left.replace(left.get() - 1) == 0;
        let done = encode(&files, parts.path(), &tokenizer, small(100), &|_| (), &interrupted).unwrap();
        if done.finished {
            break;
        }
        // What a crash leaves behind the last shard is replaced.
        fs::write(shard::path(parts.path(), done.shards), "half a shard").unwrap();
    }
    assert!(runs > 2, "{runs}");
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(parts.path()), names(whole.path()));
    for name in names(whole.path()) {
        assert!(fs::read(parts.path().join(&name)).unwrap() == fs::read(whole.path().join(&name)).unwrap(), "{name:?}");
    }
    // Done is done; another plan is refused.
    let again = run(&files, parts.path(), &tokenizer, small(100));
    assert_eq!(again.shards, names(whole.path()).len() - 3);
    for (tokenizer, settings) in [(&Tokenizer::bytes(true), small(100)), (&tokenizer, small(200))] {
        let message = message(encode(&files, parts.path(), tokenizer, settings, &|_| (), &|| false));
        assert!(message.contains("another tokenizer"), "{message}");
    }
}

#[test]
fn special_tokens_in_texts_are_what_was_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.txt");
    fs::write(&path, "the<|endoftext|>fox").unwrap();
    let tokenizer = tokenizer();
    let with = |specials: SpecialText| {
        let out = tempfile::tempdir().unwrap();
        let settings = Settings { specials, ..Settings::default() };
        encode(std::slice::from_ref(&path), out.path(), &tokenizer, settings, &|_| (), &|| false)?;
        anyhow::Ok(ids_in(out.path(), &tokenizer).iter().filter(|&&id| id == 256).count())
    };
    assert_eq!(with(SpecialText::Text).unwrap(), 1);
    assert_eq!(with(SpecialText::Allow).unwrap(), 2);
    let forbidden = message(with(SpecialText::Forbid));
    assert!(["a.txt", "<|endoftext|>", "byte 3,"].iter().all(|part| forbidden.contains(part)), "{forbidden}");
}

#[test]
fn bad_texts_are_named_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let with = |name: &str, content: &[u8], lossy: bool| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        let out = tempfile::tempdir().unwrap();
        let settings = Settings { lossy, ..small(16) };
        encode(&[path], out.path(), &tokenizer(), settings, &|_| (), &|| false).map(|done| done.documents)
    };
    let long = ["the quick brown fox ".repeat(20).as_bytes(), b"\xFF"].concat();
    let line = "{\"text\": \"the\"}\n";
    for (name, content, parts) in [
        ("a.txt", &long[..], ["a.txt", "0xFF at offset 400"]),
        ("a.txt", b"", ["no text", "expected some"]),
        ("b.jsonl", format!("{line}{line}{{\"body\": \"x\"}}\n").as_bytes(), ["b.jsonl: line 3", "\"text\""]),
        ("b.jsonl", format!("{line}\n{{\"text\": 3}}\n").as_bytes(), ["b.jsonl: line 3", "\"text\""]),
        ("b.jsonl", format!("{line}the text").as_bytes(), ["b.jsonl: line 2", "JSON"]),
        ("b.jsonl", format!("{line}[\"the\"]").as_bytes(), ["b.jsonl: line 2", "JSON object"]),
        ("b.jsonl", b"{\"text\": \"\xFF\"}", ["b.jsonl", "0xFF at offset 10"]),
    ] {
        let message = message(with(name, content, false));
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    assert_eq!(with("a.txt", &long, true).unwrap(), 1);
    assert_eq!(with("b.jsonl", b"{\"text\": \"\xFF\"}", true).unwrap(), 1);
    assert!(message(encode::files(&[dir.path().join("none")])).contains("none"));
    fs::create_dir(dir.path().join("empty")).unwrap();
    assert!(message(encode::files(&[dir.path().join("empty")])).contains(".jsonl or .ndjson"));
}

#[test]
fn inspection_counts_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let tokenizer = tokenizer();
    let long = "x".repeat(90);
    let documents = ["the fox", "a\u{200b}b \u{fffd}\u{1}", "the fox", &format!("a {long} b"), "the fox"];
    let mut ids = tokenizer.encode_documents(&documents.map(String::from)).unwrap();
    ids.push(256); // a document of nothing
    shard::write(&shard::path(dir.path(), 0), Format::of(&tokenizer), &ids).unwrap();
    let shards = ShardSet::open(dir.path(), &tokenizer).unwrap();
    let found = inspect(&shards, &tokenizer, 100, 0, &|_| ()).unwrap();
    assert_eq!((found.tokens as usize, found.documents, found.duplicates, found.empty), (ids.len(), 6, 2, 1));
    assert_eq!(found.bytes as usize, documents.iter().map(|text| text.len()).sum::<usize>());
    assert_eq!(found.longest_words[0], (90, long));
    assert_eq!(found.unusual, [('\u{1}', 1), ('\u{200b}', 1), ('\u{fffd}', 1)]);
    assert_eq!(found.samples[..5], documents);
    let mut distinct = ids.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(found.used_ids, distinct.len());
    // Drawn at random: all documents come up, the same seed gives the same.
    let draw = |seed| inspect(&shards, &tokenizer, 1, seed, &|_| ()).unwrap().samples[0].clone();
    assert_eq!(draw(5), draw(5));
    let drawn: std::collections::BTreeSet<String> = (0..60).map(draw).collect();
    assert_eq!(drawn.len(), 4);
    // A long text without blanks is looked at in parts, none of which ends within a character.
    let bytes = Tokenizer::bytes(true);
    let ids = bytes.encode_documents(&["中".repeat(400_000)]).unwrap();
    shard::write(&shard::path(dir.path(), 0), Format::of(&bytes), &ids).unwrap();
    let found = inspect(&ShardSet::open(dir.path(), &bytes).unwrap(), &bytes, 0, 0, &|_| ()).unwrap();
    assert!(found.unusual.is_empty(), "{:?}", found.unusual);
}

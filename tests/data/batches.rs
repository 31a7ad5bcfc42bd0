//! What a corpus reads, and which tokens land in which batch.

use handgrad::data::{Batch, Corpus, random_batch, split, whole_batches};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::Path;

fn message<T>(result: anyhow::Result<T>) -> String {
    format!("{:#}", result.err().expect("an error"))
}

fn row(n: u32) -> Vec<u32> {
    (0..n).collect()
}

fn ids(batch: &Batch) -> &[u32] {
    batch.ids.as_slice().unwrap()
}

fn targets(batch: &Batch) -> &[u32] {
    batch.targets.as_slice().unwrap()
}

fn rng() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(1)
}

#[test]
fn too_few_tokens_for_a_window_is_an_error_with_both_numbers() {
    for n in [0, 8] {
        let message = message(random_batch(&row(n), 1, 8, &mut rng()));
        assert!(message.contains(&format!("found {n}, expected at least 9 ")), "{message}");
    }
    let batch = random_batch(&row(9), 3, 8, &mut rng()).unwrap();
    assert_eq!(batch.ids.shape(), [3, 8]);
    assert_eq!(ids(&batch), [row(8), row(8), row(8)].concat());
    assert_eq!(targets(&batch)[..8], row(9)[1..]);
}

#[test]
fn random_windows_start_everywhere_and_reach_the_last_token() {
    let tokens = row(10);
    let mut count = [0; 6];
    let mut rng = rng();
    for _ in 0..10_000 {
        let batch = random_batch(&tokens, 1, 4, &mut rng).unwrap();
        let start = ids(&batch)[0];
        count[start as usize] += 1;
        assert_eq!(ids(&batch), &row(10)[start as usize..][..4]);
        assert_eq!(targets(&batch), &row(10)[start as usize + 1..][..4]);
    }
    // Expected 1667 each with a standard deviation of 37.
    assert!(count.iter().all(|c| (1450..1900).contains(c)), "{count:?}");
}

#[test]
fn same_seed_draws_the_same_windows() {
    let tokens = row(1000);
    let draw = || ids(&random_batch(&tokens, 8, 16, &mut rng()).unwrap()).to_vec();
    assert_eq!(draw(), draw());
}

#[test]
fn batches_in_order_overlap_by_one_token() {
    for (n, expected) in [(100, 6), (97, 6), (96, 5), (17, 1)] {
        let tokens = row(n);
        let whole = |batch: &Batch| batch.ids.shape() == [2, 8];
        let batches: Vec<Batch> = whole_batches(&tokens, 2, 8).unwrap().map(Result::unwrap).take_while(whole).collect();
        assert_eq!(batches.len(), expected, "{n} tokens");
        for (i, batch) in batches.iter().enumerate() {
            assert_eq!(ids(batch), &tokens[16 * i..16 * i + 16]);
            assert_eq!(targets(batch), &tokens[16 * i + 1..16 * i + 17]);
        }
    }
}

#[test]
fn whole_batches_end_with_fewer_rows_then_a_shorter_row() {
    let tokens = row(24);
    let shapes =
        |t, b| whole_batches(&tokens, b, t).unwrap().map(|x| x.unwrap().ids.shape().to_vec()).collect::<Vec<_>>();
    assert_eq!(shapes(4, 3), [vec![3, 4], vec![2, 4], vec![1, 3]]);
    assert_eq!(shapes(23, 3), [vec![1, 23]]);
    assert_eq!(shapes(100, 3), [vec![1, 23]]);
    assert_eq!(shapes(1, 23), [vec![23, 1]]);
    assert!(message(whole_batches(&row(1), 1, 4)).contains("found 1, expected at least 2 "));
}

#[test]
fn sizes_of_zero_are_errors() {
    assert!(random_batch(&row(9), 0, 4, &mut rng()).is_err());
    assert!(whole_batches(&row(9), 1, 0).is_err());
    assert!(whole_batches(&row(9), 0, 4).is_err());
    assert!(random_batch(&row(9), 1, usize::MAX, &mut rng()).is_err());
}

#[test]
fn split_keeps_the_tail_for_validation() {
    let tokens = vec![0; 1_115_394];
    let (train, val) = split(&tokens, 0.1, 64).unwrap();
    assert_eq!((train.len(), val.len()), (1_003_854, 111_540));
    for (n, fraction, expected) in
        [(10, 0.1, 9), (10, 0.9, 1), (100, 0.55, 45), (100, 0.3, 70), (10, 0.15, 8), (10, 0.0, 10)]
    {
        let (tokens, fraction) = (row(n), fraction);
        let (train, val) = split(&tokens, fraction, 0).unwrap();
        assert_eq!(train.len(), expected, "{n} tokens, {fraction}");
        assert_eq!([train, val].concat(), tokens);
    }
}

#[test]
fn split_refuses_what_leaves_no_window() {
    let tokens = row(100);
    for fraction in [1.0, -0.1, f64::NAN] {
        assert!(message(split(&tokens, fraction, 8)).contains("fraction"));
    }
    assert!(message(split(&tokens, 0.08, 8)).contains("validation tokens: found 8, expected at least 9 "));
    assert!(message(split(&tokens, 0.92, 8)).contains("training tokens: found 8, expected at least 9 "));
    assert!(message(split(&[], 0.0, 8)).contains("training tokens: found 0, expected at least 9 "));
    assert!(split(&tokens, 0.0, 99).unwrap().1.is_empty());
}

proptest! {
    #[test]
    fn whole_batches_predict_every_token_once(n in 2u32..200, batch in 1usize..6, t in 1usize..12) {
        let tokens = row(n);
        let (mut seen, mut whole) = (Vec::new(), 0);
        for b in whole_batches(&tokens, batch, t).unwrap().map(Result::unwrap) {
            prop_assert!(b.ids.shape()[0] <= batch && b.ids.shape()[1] <= t);
            whole += usize::from(b.ids.shape() == [batch, t]);
            for (id, target) in ids(&b).iter().zip(targets(&b)) {
                prop_assert_eq!(id + 1, *target);
            }
            seen.extend_from_slice(targets(&b));
        }
        prop_assert_eq!(seen, &tokens[1..]);
        prop_assert_eq!(whole, (tokens.len() - 1) / (batch * t));
    }
}

#[test]
fn file_is_one_document_byte_for_byte() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("text.txt");
    let text = "\u{feff}a\r\nb\u{1}c\n\n\n\u{1F600} d\r";
    fs::write(&path, text).unwrap();
    let corpus = Corpus::load(&path).unwrap();
    assert_eq!(corpus.documents, [text]);
    assert_eq!(corpus.bytes(), text.len());
    assert_eq!(corpus.name, path.display().to_string());
}

#[test]
fn directory_is_a_document_per_file_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for folder in ["b", ".hidden"] {
        fs::create_dir(path(folder)).unwrap();
    }
    for name in ["c.txt", "b/2", "b/1", "a.md", ".d", ".hidden/x"] {
        fs::write(path(name), name).unwrap();
    }
    fs::write(path("empty"), "").unwrap();
    assert_eq!(Corpus::load(dir.path()).unwrap().documents, ["a.md", "b/1", "b/2", "c.txt"]);
}

#[test]
fn directory_that_links_to_itself_ends() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), "a").unwrap();
    std::os::unix::fs::symlink(dir.path(), dir.path().join("loop")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("a"), dir.path().join("link")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("gone"), dir.path().join("dangling")).unwrap();
    assert_eq!(Corpus::load(dir.path()).unwrap().documents, ["a", "a"]);
}

#[test]
fn corpus_errors_name_the_path_and_what_was_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    assert!(message(Corpus::load(dir.path())).contains("no files"));
    fs::write(path("empty"), "").unwrap();
    assert!(message(Corpus::load(&path("empty"))).contains("empty file"));
    assert!(message(Corpus::load(dir.path())).contains("1 files, all empty"));
    fs::write(path("bad"), b"ab\xC3\xA9\xFFz").unwrap();
    for place in [path("bad").as_path(), dir.path()] {
        let message = message(Corpus::load(place));
        assert!(message.contains("bad: found byte 0xFF at offset 4"), "{message}");
    }
    let message = message(Corpus::load(Path::new("/no/such/corpus.txt")));
    assert!(message.contains("/no/such/corpus.txt") && message.contains("expected a text file"), "{message}");
}

#[test]
fn builtin_corpus_is_the_sources_as_they_are() {
    let corpus = Corpus::builtin();
    let files: Vec<&str> = Corpus::builtin_files().collect();
    assert!(files.is_sorted() && files.contains(&"src/data/corpus.rs"));
    assert_eq!(files.len(), corpus.documents.len());
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, document) in files.iter().zip(&corpus.documents) {
        assert_eq!(*document, fs::read_to_string(root.join(file)).unwrap(), "{file}");
    }
    assert!(corpus.bytes() > 50_000);
}

//! The trainer against the report's loop written plainly, and against itself on other threads and in other stretches.

use super::{allowing, message, ordinary, wrapped};
use handgrad::formats::tokenizer_json;
use handgrad::tokenizer::bpe::train::{BpeTrainer, Silent, Watcher};
use handgrad::tokenizer::bpe::{BpeTokenizer, Pattern, Specials};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

type Bytes = Vec<u8>;

/// The report's loop: count all pairs, take the most frequent and of those the greatest, merge it everywhere from the
/// left.
fn plainly(pieces: &BTreeMap<&str, u64>, merges: usize) -> Vec<(Bytes, Bytes)> {
    let mut words: Vec<(Vec<Bytes>, u64)> =
        pieces.iter().map(|(piece, &count)| (piece.bytes().map(|byte| vec![byte]).collect(), count)).collect();
    let mut learned = Vec::new();
    while learned.len() < merges {
        let mut counts: BTreeMap<(Bytes, Bytes), u64> = BTreeMap::new();
        for (word, count) in &words {
            for pair in word.windows(2) {
                *counts.entry((pair[0].clone(), pair[1].clone())).or_default() += count;
            }
        }
        let Some((best, _)) = counts.into_iter().max_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0))) else { break };
        for (word, _) in &mut words {
            let mut i = 0;
            while i + 1 < word.len() {
                if (&word[i], &word[i + 1]) == (&best.0, &best.1) {
                    let right = word.remove(i + 1);
                    word[i].extend(right);
                }
                i += 1;
            }
        }
        learned.push(best);
    }
    learned
}

fn counted<'a>(texts: &[&'a str]) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    for piece in texts.iter().flat_map(|text| Pattern::Gpt2.pieces(text)) {
        *counts.entry(piece).or_default() += 1;
    }
    counts
}

fn merges_of(tokenizer: &BpeTokenizer) -> Vec<(Bytes, Bytes)> {
    let parts = tokenizer.parts();
    let bytes = |id: u32| parts.tokens[id as usize].clone().unwrap();
    parts.merges.iter().map(|&(left, right)| (bytes(left), bytes(right))).collect()
}

fn learn(texts: &[&str], merges: usize) -> BpeTokenizer {
    BpeTrainer::new(256 + merges).texts(texts.iter().copied()).unwrap()
}

fn shown(tokenizer: &BpeTokenizer) -> String {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    merges_of(tokenizer).iter().map(|(l, r)| format!("{}+{}", text(l), text(r))).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_plain(texts: &[&str], merges: usize) {
    let expected = plainly(&counted(texts), merges);
    let mut found = merges_of(&learn(texts, merges));
    // Two merges that make the same bytes are one token: to fill the vocabulary, more of them may be needed.
    found.truncate(expected.len());
    assert_eq!(found, expected, "{texts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn merges_equal_the_plain_trainers_where_ties_abound(texts in prop::collection::vec("[abc ]{0,12}", 0..12), merges in 0usize..40) {
        assert_plain(&texts.iter().map(String::as_str).collect::<Vec<_>>(), merges);
    }

    #[test]
    fn merges_equal_the_plain_trainers_on_runs(texts in prop::collection::vec("(a{1,9}b?){1,4}", 1..8), merges in 0usize..40) {
        assert_plain(&texts.iter().map(String::as_str).collect::<Vec<_>>(), merges);
    }

    #[test]
    fn merges_equal_the_plain_trainers_on_any_text(texts in prop::collection::vec(super::texts(), 0..5), merges in 0usize..60) {
        assert_plain(&texts.iter().map(String::as_str).collect::<Vec<_>>(), merges);
    }
}

#[test]
fn merges_equal_the_plain_trainers_on_real_text() {
    let text = include_str!("../../docs/guide.md");
    let found = learn(&[text], 300);
    assert_eq!(merges_of(&found), plainly(&counted(&[text]), 300));
}

#[test]
fn ties_go_to_the_greatest_pair_whatever_the_order_of_the_text() {
    let words = ["qa", "qa", "zb", "zb"];
    let reversed: Vec<&str> = words.iter().rev().copied().collect();
    for _ in 0..20 {
        assert_eq!(shown(&learn(&words, 2)), "z+b q+a");
        assert_eq!(shown(&learn(&reversed, 2)), "z+b q+a");
    }
    // Of equal left parts the greater right part; a longer part is greater than its own beginning.
    assert_eq!(shown(&learn(&["ax", "ay"], 2)), "a+y a+x");
    // Bytes count as they are, not as the characters that print them: 0xFF is printed as itself, 0x00 as U+0100.
    assert_eq!(merges_of(&learn(&["\0\u{1}", "~~"], 1)), [(vec![b'~'], vec![b'~'])]);
}

#[test]
fn overlapping_places_of_a_pair_all_count() {
    let tokenizer = learn(&["aaaaa", "bc", "bc", "bc"], 2);
    assert_eq!(shown(&tokenizer), "a+a b+c");
    assert_eq!(ordinary(&tokenizer, "aaaaa"), [256, 256, 97]);
}

#[test]
fn counts_that_fell_stay_reachable_and_training_stops_when_nothing_is_left() {
    let texts = ["ab", "abc", "bcd", "bc"];
    let tokenizer = learn(&texts, 10);
    assert_eq!(shown(&tokenizer), "b+c bc+d a+bc a+b");
    assert_eq!(tokenizer.vocab_size(), 260);
    for text in texts {
        assert_eq!(ordinary(&tokenizer, text).len(), 1, "{text}");
    }
}

#[test]
fn text_with_nothing_to_merge_gives_a_smaller_vocabulary() {
    for texts in [vec![], vec![""], vec!["H"]] {
        assert_eq!(learn(&texts, 10).vocab_size(), 256);
    }
    let blanks = learn(&["   "], 10);
    assert_eq!(blanks.parts().merges, [(32, 32), (256, 32)]);
    assert_eq!(blanks.vocab_size(), 258);
}

#[test]
fn special_tokens_are_boundaries_and_get_the_ids_after_the_bytes() {
    let specials = vec!["<|end|>".to_string(), "<|end|><|end|>".to_string()];
    let trainer = BpeTrainer { specials, ..BpeTrainer::new(270) };
    let tokenizer = trainer.texts(["ab<|end|>ab<|end|><|end|>ab"]).unwrap();
    assert_eq!(shown(&tokenizer), "a+b");
    assert_eq!(allowing(&tokenizer, "<|end|>ab<|end|><|end|>"), [256, 258, 257]);
    // A special token that the text never has is fine.
    assert_eq!(shown(&trainer.texts(["ab"]).unwrap()), "a+b");
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let check = |vocab_size: usize, specials: &[&str]| {
        let specials = specials.iter().map(|text| text.to_string()).collect();
        BpeTrainer { specials, ..BpeTrainer::new(vocab_size) }.check().map(|_: Specials| ())
    };
    for (vocab_size, specials, parts) in [
        (255, &[][..], ["found 255", "at least 256"]),
        (257, &["<a>", "<b>"], ["found 257", "at least 258"]),
        (1000, &["<a>", "<a>"], ["<a>", "twice"]),
        (1000, &[""], ["empty", "special"]),
        (1000, &["a"], ["\"a\"", "ordinary"]),
        (1000, &["Ġthe"], ["Ġthe", "ordinary"]),
        (usize::MAX, &[], ["vocabulary size", "below"]),
    ] {
        let message = message(check(vocab_size, specials));
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
    check(256, &[]).unwrap();
    check(259, &["<|endoftext|>", "中 文", "é́"]).unwrap();
}

/// Files in a directory of their own.
fn files(contents: &[&[u8]]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().unwrap();
    let write = |(i, content): (usize, &&[u8])| {
        let path = dir.path().join(format!("{i}.txt"));
        std::fs::write(&path, content).unwrap();
        path
    };
    let paths = contents.iter().enumerate().map(write).collect();
    (dir, paths)
}

fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn files_in_any_stretches_on_any_threads_are_the_texts(
        texts in prop::collection::vec(prop::collection::vec(super::texts(), 0..6), 1..4),
        stretch in 1usize..200,
        threads in 1usize..4,
        pattern in prop::sample::select(&Pattern::ALL[..]),
    ) {
        let texts: Vec<String> = texts.iter().map(|parts| parts.concat()).collect();
        // One with a letter before a blank, where a cut would be safe but for the token.
        let specials = ["<|endoftext|>", "a b", "b"].map(String::from).to_vec();
        let trainer = BpeTrainer { specials: specials[..2].to_vec(), pattern, stretch, ..BpeTrainer::new(400) };
        let expected = trainer.texts(texts.iter().map(String::as_str)).unwrap();
        let (_dir, paths) = files(&texts.iter().map(String::as_bytes).collect::<Vec<_>>());
        let found = on_threads(threads, || trainer.files(&paths, &Silent)).unwrap();
        prop_assert_eq!(merges_of(&found), merges_of(&expected));
    }

    #[test]
    fn first_invalid_byte_is_named_from_any_stretch(before in super::texts(), after in super::texts(), stretch in 1usize..100) {
        let content = [before.as_bytes(), b"\xFF", after.as_bytes(), b"\xC3"].concat();
        let (_dir, paths) = files(&[b"fine", &content]);
        let trainer = BpeTrainer { stretch, ..BpeTrainer::new(300) };
        for threads in [1, 3] {
            let message = message(on_threads(threads, || trainer.files(&paths, &Silent)));
            prop_assert!(message.contains("1.txt") && message.contains(&format!("0xFF at offset {},", before.len())), "{}", message);
        }
        let lossy = BpeTrainer { lossy: true, ..trainer };
        let expected = lossy.texts(["fine", &String::from_utf8_lossy(&content)]).unwrap();
        prop_assert_eq!(merges_of(&lossy.files(&paths, &Silent).unwrap()), merges_of(&expected));
    }
}

#[test]
fn a_text_without_any_place_to_cut_is_one_stretch() {
    let text = "=".repeat(100_000);
    let (_dir, paths) = files(&[text.as_bytes()]);
    let trainer = BpeTrainer { stretch: 1000, ..BpeTrainer::new(266) };
    let found = trainer.files(&paths, &Silent).unwrap();
    assert_eq!(merges_of(&found), merges_of(&trainer.texts([text.as_str()]).unwrap()));
}

#[test]
fn newline_runs_are_seen() {
    let text = "a\n\n\n\nb";
    let (_dir, paths) = files(&[text.as_bytes(); 100]);
    let found = BpeTrainer::new(258).files(&paths, &Silent).unwrap();
    // The run gives its last newline to what follows: three together, in each of 100.
    assert_eq!(found.parts().merges, [(10, 10), (256, 10)]);
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let (dir, paths) = files(&[b"text"]);
    let trainer = BpeTrainer::new(300);
    let message_of = |path: PathBuf| message(trainer.files(&[paths[0].clone(), path], &Silent));
    assert!(message_of(dir.path().join("none")).contains("none"));
    assert!(message_of(dir.path().to_path_buf()).contains("directory"));
    assert!(message_of(PathBuf::from("/dev/null")).contains("/dev/null"));
}

#[test]
fn empty_files_are_no_error() {
    let (_dir, paths) = files(&[b"", b"aa", b""]);
    assert_eq!(shown(&BpeTrainer::new(300).files(&paths, &Silent).unwrap()), "a+a");
    assert_eq!(BpeTrainer::new(300).files(&paths[..1], &Silent).unwrap().vocab_size(), 256);
}

#[test]
fn watcher_hears_every_byte_and_every_merge() {
    #[derive(Default)]
    struct Heard(Mutex<(u64, Vec<(usize, usize)>)>);
    impl Watcher for Heard {
        fn read(&self, bytes: u64) {
            self.0.lock().unwrap().0 += bytes;
        }
        fn merged(&self, done: usize, all: usize) {
            self.0.lock().unwrap().1.push((done, all));
        }
    }
    let (_dir, paths) = files(&[b"ab abc", b"bcd bc"]);
    let heard = Heard::default();
    BpeTrainer { stretch: 4, ..BpeTrainer::new(260) }.files(&paths, &heard).unwrap();
    assert_eq!(heard.0.into_inner().unwrap(), (12, vec![(1, 4), (2, 4), (3, 4), (4, 4)]));
}

#[test]
fn a_saved_tokenizer_is_the_one_that_was_trained() {
    // Its merges have newlines, blanks, NUL, quotes, backslashes and signs of other file formats.
    let text = "x\n\n\n\ny  \0\0 \"\"\\\\ ## \t\t é中 <SEP> \u{1}\u{7f}\u{a0}\u{ad} 😀😀\r\n\r\n".repeat(9);
    let specials = ["<SEP>", "<|a b|>", "\n<#>"].map(String::from).to_vec();
    let dir = tempfile::tempdir().unwrap();
    for pattern in Pattern::ALL {
        for vocab_size in [259, 264, 320] {
            let trainer = BpeTrainer { specials: specials.clone(), pattern, ..BpeTrainer::new(vocab_size) };
            let trained = trainer.texts([text.as_str()]).unwrap();
            let path = dir.path().join("tokenizer.json");
            tokenizer_json::write(&path, &wrapped(&trained)).unwrap();
            let loaded = tokenizer_json::read(&path).unwrap();
            assert_eq!(loaded, wrapped(&trained), "{pattern:?} {vocab_size}");
            let text = format!("x<SEP>y{text}<|a b|>\n<#>");
            assert_eq!(loaded.encode(&text).unwrap(), allowing(&trained, &text));
            assert_eq!(loaded.encode("x<SEP>y").unwrap()[1], 256);
        }
    }
}

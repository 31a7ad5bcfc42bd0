//! Special tokens in texts: the ids of a file are those of its text, however large it is and wherever it is cut.

use crate::shards::message;
use handgrad::data::encode::{Settings, encode};
use handgrad::data::shard::ShardSet;
use handgrad::data::{TokenRow, Tokens};
use handgrad::tokenizer::bpe::split::{Behavior, RegexSplit};
use handgrad::tokenizer::bpe::train::BpeTrainer;
use handgrad::tokenizer::bpe::{BpeTokenizer, Matching, SpecialToken, Split};
use handgrad::tokenizer::{END_OF_TEXT, SpecialText, Tokenizer};
use proptest::prelude::*;
use std::fs;

/// Specials that contain, begin and overlap one another; the last one begins a text.
const SPECIALS: [&str; 5] = [END_OF_TEXT, "<|endoftext|> b", "a1 a", "1 ", "<s>"];
const PIECES: [&str; 12] =
    ["a", "aaaa", "1", " ", "<|endoftext|>", "<|endof", "text|>", "<s>", "é", "!", "<|endoftext|> b", "a1 a1 a"];

fn tokenizers() -> Vec<Tokenizer> {
    let trainer = BpeTrainer { specials: vec![END_OF_TEXT.to_string()], ..BpeTrainer::new(270) };
    let mut parts = trainer.texts(["aaaa <|endof 1 text aaaa1 endoftext endoftext"]).unwrap().parts().clone();
    let first = parts.tokens.len() as u32 + 1;
    let token = |(id, text): (u32, &&str)| SpecialToken::new(id, text);
    parts.specials = (first..).zip(&SPECIALS).map(token).collect();
    parts.begin = Some(first + 4);
    let many = BpeTokenizer::new(parts.clone()).unwrap();
    // The same with conditions, in normalised text, and cut into pieces by an expression that nobody knows places to cut for.
    let matching = Matching { single_word: true, lstrip: true, rstrip: true, normalized: true };
    parts.specials.iter_mut().for_each(|token| token.matching = matching);
    parts.nfc = true;
    let minding = BpeTokenizer::new(parts.clone()).unwrap();
    parts.splits = vec![Split::Regex(RegexSplit::new(r"a+1?|\s+$", Behavior::MergedWithNext, false).unwrap())];
    let foreign = BpeTokenizer::new(parts).unwrap();
    let chars = |end| Tokenizer::chars_of(PIECES, end);
    let plain = [Tokenizer::bytes(true), Tokenizer::bytes(false), chars(true), chars(false)];
    let pairs = [many, minding, foreign].map(|tokenizer| Tokenizer::Bpe(Box::new(tokenizer)));
    plain.into_iter().chain(pairs).collect()
}

/// What encoding one file of `text` gives.
fn ids(text: &str, tokenizer: &Tokenizer, settings: Settings, threads: usize) -> anyhow::Result<Vec<u32>> {
    // In memory, where there is such a place: every shard is flushed to the disk.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let (file, out) = (dir.path().join("a.txt"), dir.path().join("out"));
    fs::write(&file, text)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
    pool.install(|| encode(&[file], &out, tokenizer, settings, &|_| (), &|| false))?;
    let (row, mut ids) = (Tokens::from(ShardSet::open(&out, tokenizer)?), vec![]);
    row.read(0..row.len(), &mut ids)?;
    Ok(ids)
}

/// The text's ids, with what begins and ends a document where the text does not say it itself.
fn document(mut ids: Vec<u32>, tokenizer: &Tokenizer) -> Vec<u32> {
    if let Some(begin) = tokenizer.begin_of_text().filter(|begin| ids.first() != Some(begin)) {
        ids.insert(0, begin);
    }
    ids.extend(tokenizer.end_of_text().filter(|end| ids.last() != Some(end)));
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(25))]
    #[test]
    fn ids_are_those_of_the_text_wherever_it_is_cut(
        pieces in prop::collection::vec(prop::sample::select(&PIECES[..]), 1..60),
        batch in 1usize..80,
        part in 1usize..80,
        threads in 1usize..4,
    ) {
        let text = pieces.concat();
        for tokenizer in tokenizers() {
            for specials in [SpecialText::Text, SpecialText::Allow, SpecialText::Forbid] {
                let settings = Settings { specials, batch, part, ..Settings::default() };
                let found = ids(&text, &tokenizer, settings, threads);
                match tokenizer.encode_as(&text, specials) {
                    Ok(expected) => prop_assert_eq!(found.unwrap(), document(expected, &tokenizer)),
                    Err(error) => prop_assert_eq!(
                        message(found).contains("found the special token"),
                        error.to_string().contains("found the special token")
                    ),
                }
            }
        }
    }
}

#[test]
fn a_special_token_across_the_parts_of_a_large_file_is_one() {
    let part = Settings::default().part;
    for tokenizer in tokenizers().into_iter().take(5).step_by(2) {
        for before in [part - 13, part - 12, part - 3, part - 1, part] {
            let text = "a".repeat(before) + END_OF_TEXT + " 1!";
            let with = |specials| ids(&text, &tokenizer, Settings { specials, ..Settings::default() }, 2);
            let expected = tokenizer.encode_as(&text, SpecialText::Allow).unwrap();
            assert!(with(SpecialText::Allow).unwrap() == document(expected, &tokenizer), "{tokenizer:?}, {before}");
            assert!(message(with(SpecialText::Forbid)).contains("found the special token"), "{tokenizer:?}, {before}");
        }
    }
}

#[test]
fn a_text_that_says_where_it_begins_and_ends_gets_no_second_token() {
    let all = tokenizers();
    let many = &all[4];
    let (begin, end) = (many.begin_of_text().unwrap(), many.end_of_text().unwrap());
    let with = |text: &str, specials| ids(text, many, Settings { specials, ..Settings::default() }, 1).unwrap();
    for text in ["a", "<s>a", "a<|endoftext|>", "<s>a<|endoftext|>"] {
        let found = with(text, SpecialText::Allow);
        assert_eq!(found, [begin, u32::from(b'a'), end], "{text}");
        let quoted = with(text, SpecialText::Text);
        assert_eq!(
            quoted.iter().filter(|&&id| id == begin || id == end).count(),
            2,
            "{text}: it is text like any other"
        );
    }
    assert_eq!(with("<s><|endoftext|>", SpecialText::Allow), [begin, end]);
}

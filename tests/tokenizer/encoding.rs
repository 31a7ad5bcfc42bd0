//! Byte pairs: which merges apply, how fast, and back again.

use super::{bpe, message, ordinary, texts, wrapped};
use handgrad::tokenizer::bpe::train::BpeTrainer;
use handgrad::tokenizer::bpe::{BpeParts, BpeTokenizer, Pattern, split};
use handgrad::tokenizer::{SpecialText, StreamDecoder};
use proptest::prelude::*;

/// One piece, plainly: of all pairs the one of the lowest rank, at its leftmost place, until there is none.
fn plainly(tokenizer: &BpeTokenizer, piece: &[u8]) -> Vec<u32> {
    let parts = tokenizer.parts();
    let mut ids: Vec<u32> = piece.iter().map(|&byte| tokenizer.id_of(&[byte]).unwrap()).collect();
    loop {
        let rank = |i: usize| parts.merges.iter().position(|&pair| pair == (ids[i], ids[i + 1]));
        let best = (0..ids.len().saturating_sub(1)).filter_map(|i| Some((rank(i)?, i))).min();
        let Some((_, i)) = best else { return ids };
        let bytes = |id: u32| parts.tokens[id as usize].clone().unwrap();
        ids[i] = tokenizer.id_of(&[bytes(ids[i]), bytes(ids[i + 1])].concat()).unwrap();
        ids.remove(i + 1);
    }
}

fn text_plainly(tokenizer: &BpeTokenizer, text: &str) -> Vec<u32> {
    let pieces = split::pieces(&tokenizer.parts().splits, text).unwrap();
    pieces.into_iter().flat_map(|piece| plainly(tokenizer, piece.as_bytes())).collect()
}

/// Merges drawn at random, not learned: tokens may be made in several ways, and ranks need not ascend with length.
fn random_bpe() -> impl Strategy<Value = BpeTokenizer> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..40).prop_map(|draws| {
        let mut texts: Vec<String> = ["a", "b", "c"].map(String::from).to_vec();
        let mut merges: Vec<(String, String)> = Vec::new();
        for (left, right) in draws {
            let (left, right) = (left.get(&texts).clone(), right.get(&texts).clone());
            let merged = format!("{left}{right}");
            if merged.len() < 9 && !texts.contains(&merged) {
                texts.push(merged);
                merges.push((left, right));
            }
        }
        // Learned in another order than made: shuffled by text, which is as good as random.
        let parts = bpe(&merges.iter().map(|(l, r)| (l.as_str(), r.as_str())).collect::<Vec<_>>(), &[]).parts().clone();
        let mut shuffled = parts.merges.clone();
        shuffled.sort_by_key(|&(left, right)| (left * 7919 + right * 104729) % 1009);
        BpeTokenizer::new(BpeParts { merges: shuffled, ..parts }).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn merging_equals_the_plain_way(tokenizer in random_bpe(), text in "[abc]{1,200}") {
        prop_assert_eq!(ordinary(&tokenizer, &text), plainly(&tokenizer, text.as_bytes()));
    }

    #[test]
    fn short_pieces_merge_like_long_ones(tokenizer in random_bpe(), texts in prop::collection::vec("[abc]{1,60}", 1..20)) {
        for text in texts {
            prop_assert_eq!(ordinary(&tokenizer, &text), plainly(&tokenizer, text.as_bytes()));
        }
    }
}

/// A tokenizer that has learned something from English, in each pattern.
fn learned(pattern: Pattern) -> BpeTokenizer {
    let trainer = BpeTrainer { pattern, specials: vec!["<|endoftext|>".to_string()], ..BpeTrainer::new(600) };
    let text = include_str!("../../docs/guide.md");
    trainer.texts([text, "naïve 中文中文 😀😀😀 123123 \r\n\r\n"]).unwrap()
}

#[test]
fn cached_pieces_are_what_merging_makes() {
    for pattern in Pattern::ALL {
        let tokenizer = learned(pattern);
        // More distinct pieces than either table holds, of every length about the limits, and each several times.
        let word = |i: usize| {
            format!(
                " {}{:x}",
                &"abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"[..i % 40],
                i * 2654435761 % 97_001
            )
        };
        let text: String = (0..30_000).flat_map(|i| [word(i), word(i / 7), word(i % 13)]).collect();
        let expected: Vec<Vec<u32>> =
            vec![text_plainly(&tokenizer, &text[..20_000]), text_plainly(&tokenizer, &text[text.len() - 20_000..])];
        for _ in 0..2 {
            ordinary(&tokenizer, &text);
            assert_eq!(ordinary(&tokenizer, &text[..20_000]), expected[0]);
            assert_eq!(ordinary(&tokenizer, &text[text.len() - 20_000..]), expected[1]);
        }
    }
}

#[test]
fn merges_apply_by_rank_and_not_from_the_left() {
    let tokenizer = bpe(&[("b", "c"), ("a", "b")], &[]);
    assert_eq!(ordinary(&tokenizer, "abc"), [97, 256]);
    assert_eq!(ordinary(&tokenizer, "ababc"), [257, 97, 256]);
}

#[test]
fn whole_pieces_skip_the_merges_where_the_file_says_so() {
    // "abc" is a token, but its own merge needs "ab", which the rank of "bc" prevents.
    let tokenizer = bpe(&[("b", "c"), ("a", "b"), ("ab", "c")], &[]);
    assert_eq!(ordinary(&tokenizer, "abc"), [97, 256]);
    let whole = BpeTokenizer::new(BpeParts { whole_pieces: true, ..tokenizer.parts().clone() }).unwrap();
    assert_eq!(ordinary(&whole, "abc"), [258]);
    assert_eq!(ordinary(&whole, "abcabc"), [97, 256, 97, 256]);
}

#[test]
fn one_long_word_takes_near_linear_time() {
    // In square time this would take hours.
    let tokenizer = bpe(&[("a", "a"), ("aa", "aa"), ("aaaa", "aaaa")], &[]);
    let run = |n: usize| ordinary(&tokenizer, &"a".repeat(n));
    assert_eq!(run(15), [258, 257, 256, 97]);
    let ids = run(1_000_003);
    assert_eq!((ids.len(), &ids[ids.len() - 3..]), (125_002, &[258, 256, 97][..]));
    let mut state = 1u32;
    let mut letter = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 24) as u8 % 26)
    };
    let letters: String = (0..100_000).map(|_| letter()).collect();
    let mut long: Vec<String> = ["^", "-", "0", " ", "\n"].iter().map(|c| c.repeat(1_000_000)).collect();
    long.push(letters);
    for pattern in Pattern::ALL {
        let tokenizer = wrapped(&learned(pattern));
        for text in &long {
            let ids = tokenizer.encode(text).unwrap();
            assert!(tokenizer.decode(&ids).unwrap() == text.as_bytes(), "{pattern:?} {}", &text[..1]);
        }
    }
}

#[test]
fn nothing_and_nul_and_line_ends() {
    let tokenizer = bpe(&[("b", "\0")], &["<s>"]);
    let any = wrapped(&tokenizer);
    assert!(any.encode("").unwrap().is_empty() && any.decode(&[]).unwrap().is_empty());
    assert_eq!(any.encode("<s>").unwrap(), [256]);
    assert_eq!(any.encode_batch(&["a", "", "<s>"], SpecialText::Allow).unwrap(), [vec![97], vec![], vec![256]]);
    assert_eq!(any.encode("ab\0cd").unwrap(), [97, 98, 0, 99, 100]);
    for text in ["ab\0cd", "a\r\nb", "a\r\n\r\nb\r", "\u{feff}x"] {
        assert_eq!(any.decode(&any.encode(text).unwrap()).unwrap(), text.as_bytes());
    }
}

#[test]
fn id_without_a_token_is_an_error_that_names_it() {
    let mut parts = bpe(&[], &[]).parts().clone();
    parts.tokens.resize(299, None);
    parts.tokens.push(Some(b"ab".to_vec()));
    for id in 256..299 {
        parts.tokens[id] = (id != 280).then(|| format!("token{id}").into_bytes());
    }
    let tokenizer = wrapped(&BpeTokenizer::new(parts).unwrap());
    assert_eq!(tokenizer.vocab_size(), 300);
    for (id, part) in [(280, "gap"), (300, "below 300"), (u32::MAX, "below 300")] {
        let message = message(tokenizer.decode(&[97, id]));
        assert!(message.contains(&format!("id {id},")) && message.contains(part), "{message}");
        assert!(StreamDecoder::new(&tokenizer).push(id).is_err());
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let good = bpe(&[("a", "b")], &[]).parts().clone();
    let tokens = |id: usize, token: Option<&str>| {
        let mut tokens = good.tokens.clone();
        tokens[id] = token.map(|text| text.as_bytes().to_vec());
        BpeParts { tokens, ..good.clone() }
    };
    let merges = |merges: &[(u32, u32)]| BpeParts { merges: merges.to_vec(), ..good.clone() };
    for (parts, expected) in [
        (tokens(7, None), "byte 0x07"),
        (tokens(256, Some("c")), "\"c\" at ids 99 and 256"),
        (tokens(256, Some("")), "id 256"),
        (tokens(256, Some("ac")), "no token for \"ab\""),
        (merges(&[(97, 300)]), "id 300"),
        (merges(&[(97, 98), (97, 98)]), "merge 0 already"),
    ] {
        let message = message(BpeTokenizer::new(parts));
        assert!(message.contains(expected), "{message}, expected {expected}");
    }
}

#[test]
fn a_character_split_over_tokens_streams_when_it_is_whole() {
    let stream = |ids: &[u32]| {
        let tokenizer = wrapped(&bpe(&[("a", "b")], &["<s>"]));
        let mut decoder = StreamDecoder::new(&tokenizer);
        let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        pieces.push(decoder.flush());
        pieces
    };
    assert_eq!(stream(&[0xF0, 0x9F, 0x98, 0x80]), ["", "", "", "\u{1F600}", ""]);
    assert_eq!(stream(&[0xF0, 0x9F, 0x98]), ["", "", "", "\u{FFFD}"]);
    assert_eq!(stream(&[0xE2, 0x82, 0x41]), ["", "", "\u{FFFD}A", ""]);
    assert_eq!(stream(&[0xE2, 257, 256]), ["", "\u{FFFD}ab", "<s>", ""]);
}

#[test]
fn a_long_text_in_parallel_parts_has_the_ids_of_the_whole() {
    let words =
        ["It's", " we'LL", "  two", "\r\n", "\n\n\n", " 12345", "中文", " naïve", "<|endoftext|>", " 😀", "!?", "\t"];
    let mut state = 7u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        words[(state >> 33) as usize % words.len()]
    };
    let mut text = String::new();
    while text.len() < 3_500_000 {
        text.push_str(draw());
    }
    let unbroken = " ".repeat(1_200_000);
    for pattern in Pattern::ALL {
        let tokenizer = learned(pattern);
        for specials in [SpecialText::Text, SpecialText::Allow] {
            let serial: Vec<Vec<u32>> =
                [text.as_str(), "", &unbroken].map(|text| tokenizer.encode(text, specials).unwrap()).to_vec();
            let parallel = wrapped(&tokenizer).encode_batch(&[text.as_str(), "", &unbroken], specials).unwrap();
            assert!(serial == parallel, "{pattern:?} {specials:?}");
        }
    }
}

#[test]
fn normalising_tokenizers_see_composed_characters() {
    let tokenizer = BpeTokenizer::new(BpeParts { nfc: true, ..learned(Pattern::Qwen2).parts().clone() }).unwrap();
    assert_eq!(ordinary(&tokenizer, "e\u{301}"), ordinary(&tokenizer, "é"));
    // Also where parts are cut: between a letter and what combines with it is no place for that.
    let text = "abc e\u{301} ".repeat(300_000);
    let parallel = wrapped(&tokenizer).encode_batch(&[text.as_str()], SpecialText::Text).unwrap();
    assert!(parallel[0] == ordinary(&tokenizer, &text.replace("e\u{301}", "é")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_text_comes_back(text in texts()) {
        for pattern in Pattern::ALL {
            let bpe = LEARNED.with(|all| all[pattern as usize].clone());
            let ids = ordinary(&bpe, &text);
            prop_assert_eq!(&ids, &text_plainly(&bpe, &text));
            let tokenizer = wrapped(&bpe);
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes());
            let with_specials = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&with_specials).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn any_bytes_come_back(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xF5, Just(b' ')], 0..60)) {
        let bpe = LEARNED.with(|all| all[0].clone());
        let ids = bpe.encode_bytes(&bytes).unwrap();
        let tokenizer = wrapped(&bpe);
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), &bytes[..]);
        if let Ok(text) = std::str::from_utf8(&bytes) {
            prop_assert_eq!(ids, ordinary(&bpe, text));
        }
    }
}

thread_local! {
    static LEARNED: [BpeTokenizer; 3] = Pattern::ALL.map(learned);
}

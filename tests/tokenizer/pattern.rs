//! The scanner against the regular expressions it stands for.

use super::texts;
use fancy_regex::Regex;
use handgrad::tokenizer::bpe::Pattern;
use proptest::prelude::*;

fn reference(pattern: Pattern) -> Regex {
    Regex::new(pattern.regex()).unwrap()
}

fn by_regex<'a>(regex: &Regex, text: &'a str) -> Vec<&'a str> {
    regex.find_iter(text).map(|found| found.unwrap().as_str()).collect()
}

#[track_caller]
fn assert_same(regex: &Regex, pattern: Pattern, text: &str) {
    let expected = by_regex(regex, text);
    let mut found = pattern.pieces(text);
    for (i, expected) in expected.iter().enumerate() {
        assert_eq!(found.next(), Some(*expected), "{pattern:?}, piece {i}");
    }
    assert_eq!(found.next(), None, "{pattern:?}");
    assert_eq!(expected.concat(), text, "the pieces are the text");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn scanner_equals_regex_on_any_text(text in texts()) {
        for pattern in Pattern::ALL {
            let regex = REFERENCES.with(|all| all[pattern as usize].clone());
            prop_assert_eq!(pattern.pieces(&text).collect::<Vec<_>>(), by_regex(&regex, &text), "{:?}", pattern);
        }
    }
}

thread_local! {
    static REFERENCES: [Regex; 3] = Pattern::ALL.map(reference);
}

#[test]
fn scanner_equals_regex_on_every_code_point() {
    let all: Vec<char> = (0..=char::MAX as u32).filter_map(char::from_u32).collect();
    for pattern in Pattern::ALL {
        let regex = reference(pattern);
        for block in all.chunks(4096) {
            let text: String = block.iter().flat_map(|&c| ['x', c, 'y', ' ', c, c, '1', c, ' ']).collect();
            assert_same(&regex, pattern, &text);
        }
    }
}

#[test]
fn scanner_equals_regex_on_all_short_texts_of_what_matters() {
    let parts = ["a", "S", "ſ", "1", "²", "'", "-", " ", "\n", "\r", "\t", "\u{85}", "\u{a0}", "\u{301}", "é", "l"];
    let mut texts = vec![String::new()];
    for len in 0..4 {
        let longest: Vec<String> = texts.iter().filter(|text| text.chars().count() == len).cloned().collect();
        texts.extend(longest.iter().flat_map(|text| parts.iter().map(move |part| format!("{text}{part}"))));
    }
    for pattern in Pattern::ALL {
        let regex = reference(pattern);
        for text in &texts {
            assert_eq!(pattern.pieces(text).collect::<Vec<_>>(), by_regex(&regex, text), "{pattern:?} {text:?}");
        }
    }
}

#[track_caller]
fn assert_splits(pattern: Pattern, text: &str, expected: &str) {
    let shown = pattern.pieces(text).collect::<Vec<_>>().join("|");
    assert_eq!(shown, expected, "{pattern:?}");
}

const NEWER: [Pattern; 2] = [Pattern::Qwen2, Pattern::Llama3];

#[test]
fn whitespace_run_gives_its_last_blank_to_the_next_word() {
    let code = "def f():\n    return  x";
    assert_splits(Pattern::Gpt2, "a  b", "a| | b");
    assert_splits(Pattern::Gpt2, "a   b\n\n  c", "a|  | b|\n\n | c");
    assert_splits(Pattern::Gpt2, code, "def| f|():|\n   | return| | x");
    assert_splits(Pattern::Gpt2, "x  \n", "x|  \n");
    for pattern in NEWER {
        assert_splits(pattern, "a  b", "a| | b");
        assert_splits(pattern, "a   b\n\n  c", "a|  | b|\n\n| | c");
        assert_splits(pattern, code, "def| f|():\n|   | return| | x");
        assert_splits(pattern, "x  \n", "x|  \n");
    }
}

#[test]
fn contractions_depend_on_case_and_place() {
    assert_splits(Pattern::Gpt2, "I'M we'LL", "I|'|M| we|'|LL");
    assert_splits(Pattern::Gpt2, "'sound", "'s|ound");
    assert_splits(Pattern::Gpt2, "he'd've", "he|'d|'ve");
    for pattern in NEWER {
        assert_splits(pattern, "I'M we'LL", "I|'M| we|'LL");
        assert_splits(pattern, "'sound", "'s|ound");
        assert_splits(pattern, "he'd've", "he|'d|'ve");
    }
}

#[test]
fn digits_group_as_the_family_wants() {
    let odd = "\u{b2}\u{bd}\u{2167}\u{663}";
    assert_splits(Pattern::Gpt2, "12345", "12345");
    assert_splits(Pattern::Gpt2, odd, odd);
    assert_splits(Pattern::Llama3, "12345", "123|45");
    assert_splits(Pattern::Llama3, odd, "\u{b2}\u{bd}\u{2167}|\u{663}");
    assert_splits(Pattern::Qwen2, "12345", "1|2|3|4|5");
    assert_splits(Pattern::Qwen2, odd, "\u{b2}|\u{bd}|\u{2167}|\u{663}");
    assert_splits(Pattern::Gpt2, "(x):\n", "(|x|):|\n");
    for pattern in NEWER {
        assert_splits(pattern, "(x):\n", "(x|):\n");
    }
    for pattern in Pattern::ALL {
        assert_splits(pattern, "->", "->");
    }
}

#[test]
fn carriage_returns_stay_where_they_are() {
    assert_splits(Pattern::Gpt2, "a\r\nb", "a|\r|\n|b");
    assert_splits(Pattern::Gpt2, "a\r\n\r\nb", "a|\r\n\r|\n|b");
    for pattern in NEWER {
        assert_splits(pattern, "a\r\nb", "a|\r\n|b");
    }
}

//! Characters and bytes: ids, round trips, bytes that are not text, and streaming.

use super::message;
use handgrad::tokenizer::{CharTokenizer, END_OF_TEXT, SpecialText, StreamDecoder, Tokenizer};
use proptest::prelude::*;

#[test]
fn char_ids_follow_code_points_and_end_of_text_is_last() {
    let tokenizer = Tokenizer::chars_of(["hello\n", "é!"], true);
    assert_eq!(tokenizer.vocab_size(), 8);
    assert_eq!(tokenizer.end_of_text(), Some(7));
    // \n ! e h l o é
    assert_eq!(tokenizer.encode("hello\n!é").unwrap(), [3, 2, 4, 4, 5, 0, 1, 6]);
    assert_eq!(tokenizer.decode(&[6, 7]).unwrap(), "é<|endoftext|>".as_bytes());

    let without = Tokenizer::chars_of(["hello\n"], false);
    assert_eq!((without.vocab_size(), without.end_of_text()), (5, None));
}

#[test]
fn byte_ids_are_the_bytes() {
    let tokenizer = Tokenizer::bytes(true);
    assert_eq!((tokenizer.vocab_size(), tokenizer.end_of_text()), (257, Some(256)));
    assert_eq!(tokenizer.encode("aé").unwrap(), [97, 0xC3, 0xA9]);
    let without = Tokenizer::bytes(false);
    assert_eq!((without.vocab_size(), without.end_of_text()), (256, None));
}

#[test]
fn unknown_character_is_named_with_its_place() {
    let tokenizer = Tokenizer::chars_of(["abc é"], true);
    let message = message(tokenizer.encode("é\u{7f}"));
    for part in ["'\\u{7f}'", "U+007F", "byte 2", "5 characters"] {
        assert!(message.contains(part), "{part} in: {message}");
    }
    let documents = ["ab".to_string(), "abx".to_string()];
    assert!(self::message(tokenizer.encode_documents(&documents)).contains("document 2 of 2: "));
    let tokenizer = Tokenizer::chars_of(["ab"], true);
    assert!(self::message(tokenizer.encode("a<|endoftext|>bx")).contains("byte 15"));
}

#[test]
fn quoted_end_of_text_is_text_or_token_or_error_as_asked() {
    let bytes = Tokenizer::bytes(true);
    let text = "a<|endoftext|>";
    let as_text = [97, 60, 124, 101, 110, 100, 111, 102, 116, 101, 120, 116, 124, 62];
    assert_eq!(bytes.encode_ordinary(text).unwrap(), as_text);
    assert_eq!(bytes.encode("<|endoftext|>a<|endoftext|><|endoftext|>").unwrap(), [256, 97, 256, 256]);
    let message = message(bytes.encode_as(text, SpecialText::Forbid));
    assert!(message.contains("<|endoftext|>") && message.contains("byte 1,"), "{message}");
    assert_eq!(Tokenizer::bytes(false).encode(text).unwrap(), as_text);
    let chars = Tokenizer::chars_of([END_OF_TEXT], true);
    assert_eq!(chars.encode_ordinary(END_OF_TEXT).unwrap().len(), 13);
    assert_eq!(chars.encode("<|endoftext|>").unwrap(), [10]);
}

#[test]
fn documents_end_with_end_of_text_where_there_is_one() {
    let documents = ["ab".to_string(), String::new(), "c".to_string()];
    assert_eq!(Tokenizer::bytes(true).encode_documents(&documents).unwrap(), [97, 98, 256, 256, 99, 256]);
    assert_eq!(Tokenizer::bytes(false).encode_documents(&documents).unwrap(), [97, 98, 99]);
}

#[test]
fn nul_and_crlf_survive() {
    let text = "ab\0cd\r\n\r\ne";
    let bytes = Tokenizer::bytes(false);
    assert_eq!(bytes.encode("ab\0cd").unwrap(), [97, 98, 0, 99, 100]);
    for tokenizer in [bytes, Tokenizer::chars_of([text], false)] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text.as_bytes());
    }
}

#[test]
fn id_outside_the_vocabulary_is_an_error() {
    for (tokenizer, size) in [
        (Tokenizer::bytes(true), 257),
        (Tokenizer::bytes(false), 256),
        (Tokenizer::chars_of(["abc"], true), 4),
        (Tokenizer::chars_of(["abc"], false), 3),
    ] {
        for id in [size, 300, u32::MAX] {
            let message = message(tokenizer.decode(&[0, id]));
            assert!(message.contains(&format!("id {id},")) && message.contains(&format!("below {size} ")), "{message}");
            assert!(StreamDecoder::new(&tokenizer).push(id).is_err());
        }
    }
}

#[test]
fn empty_input_is_empty_output() {
    for tokenizer in [Tokenizer::bytes(true), Tokenizer::chars_of([], true), Tokenizer::chars_of([], false)] {
        assert!(tokenizer.encode("").unwrap().is_empty());
        assert!(tokenizer.decode(&[]).unwrap().is_empty());
        assert!(tokenizer.encode_documents(&[]).unwrap().is_empty());
        assert_eq!(StreamDecoder::new(&tokenizer).flush(), "");
    }
    let tokenizer = Tokenizer::chars_of([], true);
    assert_eq!((tokenizer.vocab_size(), tokenizer.end_of_text()), (1, Some(0)));
    assert_eq!(tokenizer.encode_documents(&[String::new()]).unwrap(), [0]);
}

#[test]
fn repeated_character_in_a_vocabulary_is_an_error() {
    assert!(message(CharTokenizer::from_chars(vec!['b', 'a', 'b'], false)).contains("'b' at ids 0 and 2"));
    let tokenizer = Tokenizer::Char(CharTokenizer::from_chars(vec!['b', 'a'], true).unwrap());
    assert_eq!(tokenizer.encode("ab").unwrap(), [1, 0]);
}

/// What each token releases, and what the flush does.
fn stream(ids: &[u32]) -> Vec<String> {
    let tokenizer = Tokenizer::bytes(true);
    let mut decoder = StreamDecoder::new(&tokenizer);
    let mut pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
    pieces.push(decoder.flush());
    pieces
}

#[test]
fn streaming_holds_back_only_what_can_still_become_a_character() {
    assert_eq!(stream(&[0xF0, 0x9F, 0x98, 0x80]), ["", "", "", "\u{1F600}", ""]);
    assert_eq!(stream(&[0xF0, 0x9F, 0x98]), ["", "", "", "\u{FFFD}"]);
    assert_eq!(stream(&[0xE2, 0x82, 0x41]), ["", "", "\u{FFFD}A", ""]);
    assert_eq!(stream(&[0xFF, 0x80, 0x41]), ["\u{FFFD}", "\u{FFFD}", "A", ""]);
    // A token of several bytes cuts a character short.
    assert_eq!(stream(&[0xC3, 256]), ["", "\u{FFFD}<|endoftext|>", ""]);
}

proptest! {
    #[test]
    fn round_trip(text: String) {
        for end_of_text in [false, true] {
            for tokenizer in [Tokenizer::bytes(end_of_text), Tokenizer::chars_of([text.as_str()], end_of_text)] {
                let ids = tokenizer.encode_ordinary(&text).unwrap();
                prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                prop_assert!(!ids.iter().any(|&id| Some(id) == tokenizer.end_of_text()));
                prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text.as_bytes());
            }
        }
    }

    #[test]
    fn streamed_pieces_join_to_the_lossy_decoding(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80u8..0xF5], 0..40)) {
        let ids: Vec<u32> = bytes.iter().map(|&b| b.into()).collect();
        prop_assert_eq!(stream(&ids).concat(), String::from_utf8_lossy(&bytes));
    }
}

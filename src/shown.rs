//! Words of others in messages: what stands in a file, in a path or on the command line may hold line breaks, codes that
//! steer a terminal, or a hundred thousand letters. A message shows it on one line, and of what is long the beginning.

use std::fmt::{Display, Write};
use std::path::Path;

/// Characters of a name or a value; a path may have more, as its end says most; a message, which is made of such parts.
const NAME: usize = 80;
const PATH: usize = 1000;
const MESSAGE: usize = 2000;

/// A name or a value: control characters are escaped, and after 80 characters it ends with `…`.
pub fn shown(value: impl Display) -> String {
    cut(value, NAME)
}

/// A text in quotes, as Rust writes it, cut in the same way.
pub fn quoted(text: impl AsRef<str>) -> String {
    shown(format_args!("{:?}", text.as_ref()))
}

/// A path, in the same way, but up to 1,000 characters of it.
pub fn shown_path(path: impl AsRef<Path>) -> String {
    cut(path.as_ref().display(), PATH)
}

/// A whole message, in the same way, up to 2,000 characters: what is printed whatever stands in an error.
pub fn message(message: impl Display) -> String {
    cut(message, MESSAGE)
}

/// What reading JSON says, with its place at the end, however long the words are that it quotes.
pub fn json_error(error: &serde_json::Error) -> String {
    let (text, place) = (error.to_string(), format!(" at line {} column {}", error.line(), error.column()));
    match text.strip_suffix(&place) {
        Some(reason) => shown(reason) + &place,
        None => shown(text),
    }
}

fn cut(value: impl Display, most: usize) -> String {
    let mut cut = Cut { text: String::new(), left: most };
    // An error says that the rest is not wanted.
    let _ = write!(cut, "{value}");
    cut.text
}

/// Takes so many characters and no more, so that a long value is never written out.
struct Cut {
    text: String,
    left: usize,
}

impl Write for Cut {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for c in text.chars() {
            if self.left == 0 {
                self.text.push('…');
                return Err(std::fmt::Error);
            }
            self.left -= 1;
            match is_harmless(c) {
                true => self.text.push(c),
                false => self.text.extend(c.escape_default()),
            }
        }
        Ok(())
    }
}

/// Whether a character stays on its line, in its place and in its direction.
fn is_harmless(c: char) -> bool {
    const STEERING: [std::ops::RangeInclusive<char>; 4] =
        ['\u{200B}'..='\u{200F}', '\u{2028}'..='\u{202E}', '\u{2060}'..='\u{206F}', '\u{FEFF}'..='\u{FEFF}'];
    !c.is_control() && !STEERING.iter().any(|range| range.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped() {
        assert_eq!(shown("a\nb\r\t\u{1b}[2J\u{9b}\0"), r"a\nb\r\t\u{1b}[2J\u{9b}\u{0}");
        assert_eq!(shown("\u{2028}\u{202E}\u{FEFF}\u{200B}"), r"\u{2028}\u{202e}\u{feff}\u{200b}");
        assert_eq!(
            shown("naïve 'quotes' \"and\" C:\\ 日本 🦀 e\u{301}"),
            "naïve 'quotes' \"and\" C:\\ 日本 🦀 e\u{301}"
        );
    }

    #[test]
    fn what_is_long_is_cut_at_a_character() {
        let name = "é".repeat(80);
        assert_eq!(shown(&name), name);
        assert_eq!(shown(format!("{name}x")), format!("{name}…"));
        assert_eq!(shown_path("p".repeat(999)).chars().count(), 999);
        assert_eq!(message("m".repeat(100_000)).chars().count(), 2001);
        assert_eq!(shown(format_args!("{:?}", "\n".repeat(100))), format!("\"{}\\…", "\\n".repeat(39)));
    }

    #[test]
    fn an_error_of_json_keeps_its_place() {
        let error = |text: &str| json_error(&serde_json::from_str::<Vec<u64>>(text).unwrap_err());
        assert_eq!(error("[1,\n2}"), "expected `,` or `]` at line 2 column 2");
        let long = error(&format!("[\"{}\"]", "x".repeat(100_000)));
        assert!(long.contains("… at line 1 column 1") && long.chars().count() < 140, "{long}");
        let value = serde_json::from_value::<u64>(serde_json::json!("a\nb")).unwrap_err();
        assert_eq!(json_error(&value), "invalid type: string \"a\\nb\", expected u64");
    }
}

//! What went wrong, as a CUDA error code with a one-line diagnosis.

use std::fmt;

/// The `CUresult` values that the emulator returns (`cuda.h`, CUDA 13).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Code {
    InvalidValue = 1,
    OutOfMemory = 2,
    NotInitialized = 3,
    Deinitialized = 4,
    NoDevice = 100,
    InvalidDevice = 101,
    InvalidImage = 200,
    InvalidContext = 201,
    NoBinaryForGpu = 209,
    UnsupportedLimit = 215,
    InvalidPtx = 218,
    UnsupportedPtxVersion = 222,
    FileNotFound = 301,
    SharedObjectSymbolNotFound = 302,
    InvalidHandle = 400,
    IllegalState = 401,
    NotFound = 500,
    NotReady = 600,
    IllegalAddress = 700,
    LaunchOutOfResources = 701,
    LaunchTimeout = 702,
    PrimaryContextActive = 708,
    ContextIsDestroyed = 709,
    Assert = 710,
    HostMemoryAlreadyRegistered = 712,
    HostMemoryNotRegistered = 713,
    IllegalInstruction = 715,
    MisalignedAddress = 716,
    LaunchFailed = 719,
    CooperativeLaunchTooLarge = 720,
    NotPermitted = 800,
    NotSupported = 801,
    Unknown = 999,
}

/// An error: its code for programs, its text for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Fault {
    pub code: Code,
    /// One line: what was found, what was expected, where.
    pub message: String,
}

impl Fault {
    /// Whatever of the input the message repeats, it stays one line of a bearable length. Names may be in it as they are;
    /// other texts of the input go through [`shown`].
    pub fn new(code: Code, message: impl AsRef<str>) -> Fault {
        Fault { code, message: line(message.as_ref(), SHOWN, MOST) }
    }
}

/// Characters of one text of the input that a message shows.
pub const SHOWN: usize = 80;
/// Characters of a whole message.
const MOST: usize = 1000;

/// A text of the input as messages show it: its beginning on one line.
pub fn shown(text: &str) -> String {
    line(text, SHOWN, SHOWN)
}

/// A text with its control characters escaped, cut where a name in it or the whole grows too long.
fn line(text: &str, most_of_name: usize, most: usize) -> String {
    let mut line = String::with_capacity(text.len().min(most));
    let (mut length, mut name) = (0, 0);
    for c in text.chars() {
        if length == most {
            line.push('…');
            break;
        }
        name = if c.is_alphanumeric() || matches!(c, '_' | '$' | '%' | '.') { name + 1 } else { 0 };
        match c {
            _ if name == most_of_name + 1 => line.push('…'),
            _ if name > most_of_name => continue,
            '…' if line.ends_with('…') => continue,
            '\t' => line.push(' '),
            // Control characters, and those that begin a new line or turn the direction of what follows.
            _ if c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                line.extend(c.escape_default());
            }
            _ => line.push(c),
        }
        length += 1;
    }
    line
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

pub type Result<T> = std::result::Result<T, Fault>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_the_input() {
        let fault = |text: &str| Fault::new(Code::InvalidPtx, text).message;
        assert_eq!(fault("a b\tc"), "a b c");
        assert_eq!(fault("x\r\n\0\u{1b}[2J\u{202e}y…é"), "x\\r\\n\\u{0}\\u{1b}[2J\\u{202e}y…é");
        let long = "n".repeat(30_000);
        assert_eq!(fault(&format!("found {long} here {long}")), format!("found {0}… here {0}…", "n".repeat(80)));
        assert_eq!(fault(&"a b ".repeat(9999)).chars().count(), MOST + 1);
        assert_eq!(shown(&"a b ".repeat(9999)).chars().count(), SHOWN + 1);
        assert_eq!(shown(&"n".repeat(80)), "n".repeat(80));
        let path = "/directory".repeat(20);
        assert_eq!(fault(&format!("{path}/a.cu:12")), format!("{path}/a.cu:12"));
    }
}

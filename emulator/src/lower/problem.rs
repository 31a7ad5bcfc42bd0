//! What is wrong with an instruction, until its place is known.

use crate::fault::{Code, Fault};

#[derive(Debug)]
pub enum Problem {
    /// One line without a place; the caller knows the instruction and adds it.
    Here(Code, String),
    /// Already placed: an instruction of a function that was being inlined.
    Placed(Fault),
}

pub type Outcome<T> = Result<T, Problem>;

impl From<String> for Problem {
    fn from(reason: String) -> Problem {
        Problem::Here(Code::InvalidPtx, reason)
    }
}

/// The PTX breaks a rule of the language.
pub fn invalid<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Problem::Here(Code::InvalidPtx, reason.into()))
}

/// The PTX may be right, but the emulator does not do this.
pub fn unsupported<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Problem::Here(Code::NotSupported, reason.into()))
}

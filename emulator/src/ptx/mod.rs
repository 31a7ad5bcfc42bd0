//! PTX text to its parts.
//!
//! A hand-written lexer and a recursive descent over it, one pass, strict: what is not known is an error that names it.
//! Work and memory are linear in the text; nesting and sizes have limits, so that no text can exhaust the stack or the
//! memory. (PTX ISA, "Syntax", "Directives".)

pub mod ast;
mod constants;
mod cursor;
mod debug;
mod functions;
mod lexer;
mod module;
mod operands;
pub mod source;
mod statements;
mod variables;

use crate::fault::Result;

/// Parses the text of a PTX file.
pub fn parse(text: &str) -> Result<ast::Module> {
    module::parse(text)
}

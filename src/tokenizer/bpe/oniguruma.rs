//! The dialect in which files write regular expressions, which is Oniguruma's, in that of `fancy-regex`.
//!
//! | in a file | here |
//! |---|---|
//! | `^`, `$` | at every line: `(?m:^)`, `(?m:$)` |
//! | `\w` | letters, marks, digits, connectors; outside of brackets also `²³¹¼½¾` |
//! | `x{1,3}+` | repeats `x{1,3}`, while in `fancy-regex` it never gives back: refused |
//! | `\b`, `\h`, `[[:alpha:]]`, `(?m)` and the like | other characters, or none such: refused |
//!
//! All else means the same in both.

use anyhow::{Result, bail};
use std::iter::Peekable;
use std::str::Chars;

const WORD: &str = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}";
/// What `\w` is, too, where it stands outside of brackets.
const ODD: &str = "²³¹¼½¾";

/// The expression for `fancy-regex`. Error: a construct that the dialects read differently.
pub fn translated(source: &str) -> Result<String> {
    let mut rest = source.chars().peekable();
    let (mut out, mut classes) = (String::with_capacity(source.len()), 0u32);
    while let Some(c) = rest.next() {
        match c {
            '\\' => escape(&mut rest, classes > 0, &mut out)?,
            '[' => {
                if classes > 0 && rest.peek() == Some(&':') {
                    bail!("found a class [:…:], expected one as \\p{{…}}");
                }
                classes += 1;
                out.push('[');
                out.extend(rest.next_if_eq(&'^'));
            }
            ']' if classes > 0 => {
                classes -= 1;
                out.push(']');
            }
            _ if classes > 0 => out.push(c),
            '^' | '$' => out.push_str(&format!("(?m:{c})")),
            '(' => group(&mut rest, &mut out)?,
            '{' => quantifier(&mut rest, &mut out)?,
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// What follows a backslash.
fn escape(rest: &mut Peekable<Chars>, in_class: bool, out: &mut String) -> Result<()> {
    match (rest.next(), in_class) {
        (Some('w'), true) => out.push_str(WORD),
        (Some('w'), false) => out.push_str(&format!("[{WORD}{ODD}]")),
        (Some('W'), true) => out.push_str(&format!("[^{WORD}]")),
        (Some('W'), false) => out.push_str(&format!("[^{WORD}{ODD}]")),
        (Some(c @ ('p' | 'P' | 'x' | 'u' | 'k' | 'g')), _) => {
            out.extend(['\\', c]);
            if rest.peek() == Some(&'{') {
                take_through('}', rest, out);
            }
        }
        (Some(c), _) if c.is_ascii_alphabetic() && !"dDsSntrfvae".contains(c) && !(c == 'A' || c == 'z') => {
            bail!("found \\{c}, expected what all programs read alike");
        }
        (c, _) => out.extend(Some('\\').into_iter().chain(c)),
    }
    Ok(())
}

/// What follows an opening parenthesis: of flags only that of case is one for both.
fn group(rest: &mut Peekable<Chars>, out: &mut String) -> Result<()> {
    out.push('(');
    if rest.next_if_eq(&'?').is_some() {
        out.push('?');
        while let Some(flag) = rest.next_if(|c| c.is_ascii_alphabetic() || *c == '-') {
            if flag != 'i' && flag != '-' {
                bail!("found the flag {flag:?}, expected none but i");
            }
            out.push(flag);
        }
    }
    Ok(())
}

/// What follows an opening brace.
fn quantifier(rest: &mut Peekable<Chars>, out: &mut String) -> Result<()> {
    out.push('{');
    if rest.peek() == Some(&',') {
        bail!("found {{,…}}, expected {{0,…}}");
    }
    take_through('}', rest, out);
    if rest.peek() == Some(&'+') {
        bail!("found {{…}}+, which repeats in files and elsewhere never gives back, expected (?:…{{…}})+");
    }
    Ok(())
}

fn take_through(end: char, rest: &mut Peekable<Chars>, out: &mut String) {
    for c in rest.by_ref() {
        out.push(c);
        if c == end {
            break;
        }
    }
}

//! The steps by which a file says how text is cut into pieces, where they are not one of the three known patterns alone.
//!
//! ```text
//! pieces  = [text]
//! pieces  = all pieces of step(piece) for piece in pieces      for each step
//! ```
//!
//! A step finds what its regular expression matches, and the gaps between; [`Behavior`] says what becomes of them. The
//! known patterns are steps, too, and keep their scanners. Expressions run on `fancy-regex`, see `oniguruma`.

use super::oniguruma::translated;
use super::pattern::Pattern;
use crate::shown::{message, quoted};
use anyhow::{Context, Result, anyhow, bail};
use fancy_regex::Regex;
use std::ops::Range;

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Split {
    Known(Pattern),
    Regex(RegexSplit),
}

/// What becomes of matches and of the gaps between them, which are pieces of their own unless this joins them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// Nothing is joined.
    Isolated,
    /// Matches are left out of the text.
    Removed,
    /// A match joins the gap before it.
    MergedWithPrevious,
    /// A match joins the gap behind it.
    MergedWithNext,
    /// Matches that touch are one.
    Contiguous,
}

impl Behavior {
    pub const ALL: [Behavior; 5] = [
        Behavior::Isolated,
        Behavior::Removed,
        Behavior::MergedWithPrevious,
        Behavior::MergedWithNext,
        Behavior::Contiguous,
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Behavior::Isolated => "Isolated",
            Behavior::Removed => "Removed",
            Behavior::MergedWithPrevious => "MergedWithPrevious",
            Behavior::MergedWithNext => "MergedWithNext",
            Behavior::Contiguous => "Contiguous",
        }
    }

    /// Whether two neighbours become one piece, each a match or a gap.
    fn joins(self, before: bool, here: bool) -> bool {
        match self {
            Behavior::Isolated | Behavior::Removed => false,
            Behavior::MergedWithPrevious => !before && here,
            Behavior::MergedWithNext => before && !here,
            Behavior::Contiguous => before == here,
        }
    }
}

/// A step with a regular expression of its own.
#[derive(Clone, Debug)]
pub struct RegexSplit {
    source: String,
    behavior: Behavior,
    /// Whether the gaps count as matches, and the matches as gaps.
    invert: bool,
    regex: Regex,
}

impl PartialEq for RegexSplit {
    fn eq(&self, other: &RegexSplit) -> bool {
        (&self.source, self.behavior, self.invert) == (&other.source, other.behavior, other.invert)
    }
}

impl RegexSplit {
    /// Error: an expression that cannot be read, or means something else in the dialect of files.
    pub fn new(source: &str, behavior: Behavior, invert: bool) -> Result<RegexSplit> {
        let regex = translated(source).and_then(|source| Regex::new(&source).map_err(|error| anyhow!(message(error))));
        let regex = regex
            .with_context(|| format!("found {}, expected a regular expression that can be read", quoted(source)))?;
        Ok(RegexSplit { source: source.to_string(), behavior, invert, regex })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    pub fn behavior(&self) -> Behavior {
        self.behavior
    }

    pub fn invert(&self) -> bool {
        self.invert
    }

    /// Matches and gaps in order.
    fn spans(&self, text: &str) -> Result<Vec<(Range<usize>, bool)>> {
        let (mut spans, mut end) = (Vec::new(), 0);
        for found in self.regex.find_iter(text) {
            let found = found.with_context(|| {
                format!("pattern {}: gave up on a text of {} bytes", quoted(&self.source), text.len())
            })?;
            if end < found.start() {
                spans.push((end..found.start(), self.invert));
            }
            spans.push((found.range(), !self.invert));
            end = found.end();
        }
        if end < text.len() {
            spans.push((end..text.len(), self.invert));
        }
        Ok(spans)
    }

    fn push_pieces<'a>(&self, text: &'a str, pieces: &mut Vec<&'a str>) -> Result<()> {
        let mut joined: Vec<(Range<usize>, bool)> = Vec::new();
        for (span, is_match) in self.spans(text)? {
            match joined.last_mut() {
                Some((last, was_match)) if self.behavior.joins(*was_match, is_match) => {
                    (last.end, *was_match) = (span.end, is_match);
                }
                _ => joined.push((span, is_match)),
            }
        }
        let removed = |is_match: bool| is_match && self.behavior == Behavior::Removed;
        let kept = joined.into_iter().filter(|(span, is_match)| !span.is_empty() && !removed(*is_match));
        pieces.extend(kept.map(|(span, _)| &text[span]));
        Ok(())
    }
}

/// The pieces that the steps make of a text. Error: an expression that gave up, as one may that backtracks.
pub fn pieces<'a>(steps: &[Split], text: &'a str) -> Result<Vec<&'a str>> {
    let mut pieces = if text.is_empty() { vec![] } else { vec![text] };
    for step in steps {
        let mut next = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match step {
                Split::Known(pattern) => next.extend(pattern.pieces(piece)),
                Split::Regex(split) => split.push_pieces(piece, &mut next)?,
            }
        }
        pieces = next;
    }
    Ok(pieces)
}

/// The expression of a single step. Error: several steps, or none.
pub fn one_regex(steps: &[Split]) -> Result<&str> {
    match steps {
        [Split::Known(pattern)] => Ok(pattern.regex()),
        [Split::Regex(split)] => Ok(&split.source),
        _ => bail!("pre-tokenizer: found {} steps, expected one regular expression", steps.len()),
    }
}

//! The text that a model learns from: a list of documents, from files or built in.

use super::text;
use crate::shown::shown_path;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// (path, text) of the project's own guide and sources, as they were at build time.
const BUILTIN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/corpus.rs"));

/// Documents under a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Corpus {
    /// Where the text came from, for messages.
    pub name: String,
    pub documents: Vec<String>,
}

impl Corpus {
    /// The documents of a file, see [`text`], or of the files in a directory and its subdirectories, by path;
    /// what is hidden or empty there is left out. Text is taken byte by byte as it is: line endings are kept.
    /// Errors, each with the path: nothing there, no text; those of [`text::read`].
    pub fn load(path: &Path) -> Result<Corpus> {
        let place = shown_path(path);
        let meta = fs::metadata(path)
            .with_context(|| format!("{place}: cannot be opened, expected a text file or a directory of text files"))?;
        let mut files = Vec::new();
        if meta.is_dir() {
            list(path, &mut files)?;
            files.sort();
            ensure!(!files.is_empty(), "{place}: found no files in the directory, expected text files");
        } else {
            files.push(path.to_path_buf());
        }
        let mut documents = Vec::with_capacity(files.len());
        for file in &files {
            documents.extend(text::read(file)?.into_iter().filter(|text| !text.is_empty()));
        }
        match (documents.is_empty(), meta.is_dir()) {
            (true, true) => bail!("{place}: found {} files, all empty, expected text", files.len()),
            (true, false) => bail!("{place}: found an empty file, expected text"),
            (false, _) => Ok(Corpus { name: place.to_string(), documents }),
        }
    }

    /// The project's own guide and sources, a document per file: text that is always at hand.
    pub fn builtin() -> Corpus {
        let documents = BUILTIN.iter().map(|(_, text)| text.to_string()).collect();
        Corpus { name: "built-in corpus".to_string(), documents }
    }

    /// The files that [`Corpus::builtin`] was made of: paths within the project, in the order of the documents.
    pub fn builtin_files() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|&(path, _)| path)
    }

    /// Bytes of all documents.
    pub fn bytes(&self) -> usize {
        self.documents.iter().map(String::len).sum()
    }
}

/// Adds every file below `directory` that is not hidden. Links to files count, links to directories do not: they may go round
/// in circles. Error: a directory that cannot be listed.
pub(super) fn list(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let place = || format!("{}: cannot be listed", shown_path(directory));
    for entry in fs::read_dir(directory).with_context(place)? {
        let entry = entry.with_context(place)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        if entry.file_type().with_context(place)?.is_dir() {
            list(&path, files)?;
        } else if path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

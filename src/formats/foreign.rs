//! What a file is that is not what its name says: a download often brings something else.

/// What the first bytes of a file say it is, with what to do; `None` where nothing is recognised. It is asked only about
/// a file that cannot be of the format that was expected, as any of these bytes may begin a file of another format, too.
pub fn recognised(start: &[u8]) -> Option<&'static str> {
    let text = start.trim_ascii_start();
    let is_page = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text).starts_with(b"<");
    let page = "an HTML or XML page, expected the file itself: the download did not get it";
    if is_page { Some(page) } else { archive(start) }
}

/// As [`recognised`], of what is no text.
pub fn archive(start: &[u8]) -> Option<&'static str> {
    let pickle = start.len() > 1 && start[0] == 0x80 && (2..=5).contains(&start[1]);
    let kinds: [(bool, &str); 8] = [
        (
            start.starts_with(b"version https://git-lfs"),
            "a Git LFS pointer, expected the file itself: fetch it with 'git lfs pull'",
        ),
        (start.starts_with(b"PK\x03\x04"), "a zip archive (a PyTorch file?), expected the file itself"),
        (pickle, "a Python pickle (a PyTorch file?), expected the file itself"),
        (start.starts_with(b"\x1F\x8B"), "a gzip archive, expected the file itself"),
        (start.starts_with(b"\x28\xB5\x2F\xFD"), "a zstd archive, expected the file itself"),
        (start.starts_with(b"GGUF"), "a GGUF file, expected the format of Hugging Face"),
        (start.starts_with(b"\x93NUMPY"), "a NumPy array, expected the file that it was made of"),
        (start.starts_with(b"PAR1"), "a Parquet file, expected text, or lines of JSON with a document in \"text\""),
    ];
    kinds.into_iter().find_map(|(is, kind)| is.then_some(kind))
}

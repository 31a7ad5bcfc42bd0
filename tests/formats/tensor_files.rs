//! The safetensors format: every dtype, and every way in which a file can be damaged.

use super::*;
use half::{bf16, f16};

/// A file of a header and data, whatever they are.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

#[track_caller]
fn refused(bytes: &[u8], parts: &[&str]) {
    let (_dir, path) = place("bad.safetensors");
    fs::write(&path, bytes).unwrap();
    assert_says(safetensors::read(&path), &[&["bad.safetensors: "], parts].concat());
}

fn read(bytes: &[u8]) -> safetensors::TensorFile {
    let (_dir, path) = place("good.safetensors");
    fs::write(&path, bytes).unwrap();
    safetensors::read(&path).unwrap()
}

fn one(dtype: &str, data: &[u8], n: usize) -> Tensor {
    let header = json!({"a": {"dtype": dtype, "shape": [n], "data_offsets": [0, data.len()]}});
    read(&file(&header.to_string(), data)).tensors["a"].clone()
}

#[test]
fn every_dtype_comes_back_bit_for_bit() {
    let (_dir, path) = place("a.safetensors");
    let tensors = named(&[
        ("z", Tensor::from_vec(vec![0.013994001f32, -0.0, f32::INFINITY, f32::MIN_POSITIVE], &[2, 2]).unwrap()),
        ("scalar", Tensor::scalar(0.1f64)),
        ("half", Tensor::from_vec(vec![bf16::from_f32(1.5); 3], &[3]).unwrap()),
        ("ids", Tensor::from_vec(vec![0u32, u32::MAX], &[1, 2]).unwrap()),
        ("empty", Tensor::zeros(&[0, 4], DType::F32)),
    ]);
    let metadata = [("b", "2".to_string()), ("a", "é\n".to_string())];
    safetensors::write(&path, &tensors, &metadata).unwrap();
    let back = safetensors::read(&path).unwrap();
    assert_eq!(back.metadata.into_iter().collect::<Vec<_>>(), [("a".into(), "é\n".into()), ("b".into(), "2".into())]);
    assert_eq!(back.tensors.len(), tensors.len());
    for (name, tensor) in &tensors {
        let found = &back.tensors[name];
        assert_eq!((found.shape(), found.dtype()), (tensor.shape(), tensor.dtype()), "{name}");
        let bits = |t: &Tensor| t.to_f64_vec().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(found), bits(tensor), "{name}");
    }
    let bytes = fs::read(&path).unwrap();
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()) % 8, 0);
    let reversed: Vec<_> = tensors.iter().rev().cloned().collect();
    safetensors::write(&path, &reversed, &metadata).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes, "order of the arguments does not matter");
    let twice = named(&[("a", iota(&[1])), ("a", iota(&[2]))]);
    assert_says(safetensors::write(&path, &twice, &[]), &["a: found twice"]);
}

#[test]
fn sixteen_bit_floats_decode_exactly() {
    let bytes = |words: &[u16]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let words = [0x3F80, 0x4049, 0x8000, 0x0001, 0x7F80, 0xFF80, 0x7FC0];
    let b = one("BF16", &bytes(&words), 7).to_dtype(DType::F32).unwrap();
    let b = b.as_slice::<f32>().unwrap();
    assert_eq!(b[..2], [1.0, 3.140625]);
    assert!(b[2] == 0.0 && b[2].is_sign_negative() && b[6].is_nan());
    assert_eq!(b[3..6], [f32::from_bits(0x0001_0000), f32::INFINITY, f32::NEG_INFINITY]);
    let h = one("F16", &bytes(&[0x3C00, 0x0001, 0x0400, 0x7BFF, 0x8001]), 5);
    let tiny = f16::from_bits(1).to_f32();
    assert_eq!(h.as_slice::<f32>().unwrap(), [1.0, tiny, 6.103_515_6e-5, 65504.0, -tiny]);
    assert_eq!(tiny, 5.960_464_5e-8);
}

#[test]
fn integers_become_u32_and_too_large_ones_are_refused() {
    let bytes = |v: &[i64]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let ids = one("I64", &bytes(&[5, -100, i32::MAX.into()]), 3);
    assert_eq!(ids.as_slice::<u32>().unwrap(), [5, -100i32 as u32, i32::MAX as u32]);
    let ids = one("I32", &(-100i32).to_le_bytes(), 1);
    assert_eq!(ids.as_slice::<u32>().unwrap(), [-100i32 as u32]);
    let header = r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    refused(&file(header, &bytes(&[1 << 40])), &["a: found 1099511627776"]);
    refused(&file(&header.replace("I64", "U64"), &[0; 8]), &["a: found dtype U64"]);
}

#[test]
fn data_cut_short_or_too_long_is_refused() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    refused(&file(header, &[0; 7]), &["\"a\": found 7 bytes of data, expected 8", "cut short"]);
    refused(&file(header, &[0; 9]), &["found 9 bytes of data, expected 8"]);
}

#[test]
fn absurd_header_lengths_are_refused_before_reserving_memory() {
    for length in [u64::MAX, 1 << 40, 100_000_001] {
        refused(&[&length.to_le_bytes()[..], b"{}"].concat(), &[&length.to_string(), "at most 100000000"]);
    }
    refused(&[&99_999_999u64.to_le_bytes()[..], b"{}"].concat(), &["99999999 bytes, but the file has only 2"]);
}

#[test]
fn large_headers_load() {
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    for length in [99_994, 100_000] {
        let padded = header.to_string() + &" ".repeat(length - header.len());
        assert_eq!(read(&file(&padded, &1.5f32.to_le_bytes())).tensors["a"].item().unwrap(), 1.5);
    }
}

#[test]
fn garbage_is_refused_and_each_kind_says_what_it_is() {
    refused(b"", &["found 0 bytes"]);
    refused(b"1234567", &["found 7 bytes"]);
    refused(&[0; 8], &["header length of 0"]);
    refused(&[&2u64.to_le_bytes()[..], &[0xFF, 0xFE]].concat(), &["invalid UTF-8 at byte 0"]);
    refused(&file("[]", b""), &["not an object"]);
    refused(&file("{}x", b""), &["not valid JSON", "trailing characters"]);
    refused(&file(&"[".repeat(5000), b""), &["not valid JSON", "recursion limit"]);
    refused(&file(r#"{"a":3}"#, b""), &["\"a\"", "expected dtype, shape and data_offsets"]);
    refused(
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
        &["Git LFS pointer", "git lfs pull"],
    );
    refused(b"<!DOCTYPE html><html></html>", &["HTML"]);
    refused(b"\n\n <html>...</html>", &["HTML"]);
    refused(b"\xEF\xBB\xBF<?xml version='1.0'?>", &["XML"]);
    refused(b"<html/>", &["HTML"]);
    refused(b"PK\x03\x04 and so on", &["zip archive"]);
    refused(b"\x80\x02}q\x00.....", &["Python pickle"]);
    refused(b"\x1F\x8B\x08\x08........", &["gzip"]);
    refused(b"GGUF\x03\x00\x00\x00\x01", &["GGUF"]);
    let (dir, path) = place("gone.safetensors");
    assert_says(safetensors::read(&path), &["gone.safetensors: cannot be opened", "No such file"]);
    assert_says(safetensors::read(dir.path()), &["directory"]);
}

/// A header's length may begin with the byte of a `<`, or with a blank and then one, or as a pickle does.
#[test]
fn a_header_length_that_looks_like_text_is_a_length() {
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    for length in [0x3C, 0x3C20, 0x3C0A, 0x0280, 0x0480, 0x8B1F] {
        let padded = header.to_string() + &" ".repeat(length - header.len());
        let whole = file(&padded, &1.5f32.to_le_bytes());
        assert_eq!(read(&whole).tensors["a"].item().unwrap(), 1.5, "{length:#x}");
        refused(&whole[..whole.len() - 1], &["cut short"]);
        refused(&whole[..40], &[&format!("header length of {length} bytes, but the file has only 32")]);
        refused(&file(&padded.replace("{", "<"), &[0; 4]), &["header: not valid JSON"]);
    }
}

#[test]
fn shape_and_byte_range_must_agree() {
    let entry =
        |shape: &str, range: &str| format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{range}}}}}"#);
    refused(&file(&entry("[1000,1000]", "[0,8]"), &[0; 8]), &["\"a\": found 8 bytes, expected 4000000"]);
    refused(&file(&entry("[-2]", "[0,8]"), &[0; 8]), &["\"a\"", "-2"]);
    refused(&file(&entry("[2]", "[8,0]"), &[0; 8]), &["\"a\"", "expected an end behind the start"]);
    refused(&file(&entry("[4294967296,4294967296]", "[0,8]"), &[0; 8]), &["overflows"]);
    refused(&file(&entry("[1]", "[4,8]"), &[0; 8]), &["offset"]);
    let two = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    refused(&file(two, &[0; 4]), &["offset"]);
}

#[test]
fn unaligned_data_loads() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let bytes = file(header, &[0, 0, 0xC0, 0x3F, 0, 0, 0, 0xC0]);
    assert_eq!(bytes.len() - 8, 62);
    assert_eq!(read(&bytes).tensors["a"].as_slice::<f32>().unwrap(), [1.5, -2.0]);
}

proptest! {
    #[test]
    fn damaged_files_never_panic(place in 0usize..150, byte: u8, cut in 0usize..150) {
        let header = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   "#;
        let mut bytes = file(header, &[1; 8]);
        let len = bytes.len();
        bytes[place % len] = byte;
        bytes.truncate(len - cut % len);
        let (_dir, path) = super::place("x");
        fs::write(&path, bytes).unwrap();
        let _ = safetensors::read(&path);
    }
}

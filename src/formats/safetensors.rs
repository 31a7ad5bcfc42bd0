//! Files of named tensors: eight bytes of header length, a JSON header, then the numbers of all tensors in a row, little-endian.
//!
//! Reading copies number by number, so nothing depends on where in the file a tensor begins. A header is believed only after
//! it has been compared with the file's length: no file, however it lies, makes the reader reserve more than a small
//! multiple of its own size.

use super::{atomic, foreign};
use crate::dtype::Element;
use crate::shown::{json_error, quoted, shown, shown_path};
use crate::{DType, Tensor};
use anyhow::{Context, Result, anyhow, bail, ensure};
use half::{bf16, f16};
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes before the header, which hold its length.
const LENGTH_BYTES: usize = 8;
/// The format's own limit for a header, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Everything in a file.
#[derive(Clone, Debug)]
pub struct TensorFile {
    pub tensors: BTreeMap<String, Tensor>,
    pub metadata: BTreeMap<String, String>,
}

/// Reads a whole file. F32, F64, BF16 and U32 keep their type; F16 becomes f32; I32 and I64 become u32, negative
/// numbers as two's complement. Errors, each one line with the path: the file cannot be read; it is no safetensors
/// file, damaged or cut off; a tensor of another type.
pub fn read(path: &Path) -> Result<TensorFile> {
    let mut reader = Reader::open(path)?;
    let mut tensors = BTreeMap::new();
    for name in reader.names() {
        let tensor = reader.read(&name)?;
        tensors.insert(name, tensor);
    }
    let metadata = reader.header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    Ok(TensorFile { tensors, metadata })
}

/// A file whose header was read and checked, and whose tensors are read one by one.
pub struct Reader {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// Where the tensors' bytes begin, and how many there are.
    start: u64,
    bytes: u64,
}

impl Reader {
    /// Errors: as [`read`], but for tensors of another type.
    pub fn open(path: &Path) -> Result<Reader> {
        let open = || {
            let mut file = File::open(path).context("cannot be opened, expected a safetensors file")?;
            let meta = file.metadata()?;
            ensure!(meta.is_file(), "found a directory or device, expected a safetensors file");
            let (header, bytes) = read_header(&mut file, meta.len())?;
            let header = parse_header(&header, bytes)?;
            Ok(Reader { path: path.to_path_buf(), file, header, start: meta.len() - bytes, bytes })
        };
        open().with_context(|| shown_path(path))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The names of all tensors, in the order of the file, so that it is read from front to back.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Of a tensor that is not there `None`.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.header.info(name)?.shape)
    }

    /// Whether a tensor holds whole numbers.
    pub fn is_whole(&self, name: &str) -> bool {
        let floats = [Dtype::F32, Dtype::F64, Dtype::BF16, Dtype::F16];
        self.header.info(name).is_some_and(|info| !floats.contains(&info.dtype))
    }

    /// Errors: no tensor of that name; one of a type that is not read; the file cannot be read any more.
    pub fn read(&mut self, name: &str) -> Result<Tensor> {
        let read = || {
            let info = self.header.info(name).context("not in the header")?;
            let (start, end) = info.data_offsets;
            let mut bytes = vec![0; end - start];
            self.file.read_exact_at(&mut bytes, self.start + start as u64).context("cannot be read")?;
            decode(info, &bytes)
        };
        read().with_context(|| shown(name)).with_context(|| shown_path(&self.path))
    }
}

/// The header's bytes and the number of bytes after it.
fn read_header(file: &mut File, len: u64) -> Result<(Vec<u8>, u64)> {
    let mut length = [0; LENGTH_BYTES];
    let header = match len >= LENGTH_BYTES as u64 {
        true => {
            file.read_exact(&mut length)?;
            u64::from_le_bytes(length)
        }
        false => u64::MAX,
    };
    if header > MAX_HEADER {
        refuse_other_formats(file)?;
    }
    ensure!(
        len >= LENGTH_BYTES as u64,
        "found {len} bytes, expected a safetensors file (at least {LENGTH_BYTES} bytes)"
    );
    ensure!(header <= MAX_HEADER, "found a header length of {header} bytes, expected at most {MAX_HEADER}");
    ensure!(header > 0, "found a header length of 0 bytes, expected a JSON object");
    let rest = len - LENGTH_BYTES as u64;
    ensure!(
        header <= rest,
        "found a header length of {header} bytes, but the file has only {rest} bytes after the length"
    );
    let mut bytes = vec![0; header as usize];
    file.read_exact(&mut bytes)?;
    Ok((bytes, rest - header))
}

/// Says what a file is that was downloaded in place of the weights. A length that a header can have is never taken for
/// text: such files have a byte other than 0 among the last four of the eight, which in a length are the highest.
fn refuse_other_formats(file: &mut File) -> Result<()> {
    let mut start = Vec::new();
    file.rewind()?;
    file.take(512).read_to_end(&mut start)?;
    foreign::recognised(&start).map_or(Ok(()), |kind| bail!("found {kind}"))
}

/// The header, checked: every tensor's bytes are as many as its shape needs, and together they are all of the data.
fn parse_header(bytes: &[u8], data_len: u64) -> Result<Metadata> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| anyhow!("header: found invalid UTF-8 at byte {}, expected JSON", e.valid_up_to()))?;
    let json: Value = serde_json::from_str(text).map_err(|e| anyhow!("header: not valid JSON: {}", json_error(&e)))?;
    let Value::Object(entries) = json else {
        bail!("header: found JSON that is not an object, expected one entry for each tensor");
    };
    for (name, entry) in entries.iter().filter(|(name, _)| *name != "__metadata__") {
        check_entry(entry, data_len).with_context(|| quoted(name))?;
    }
    // The format's own library has the last word, on gaps and overlaps among other things.
    let header: Metadata = serde_json::from_str(text).map_err(|e| anyhow!("header: {}", json_error(&e)))?;
    let end = header.data_len() as u64;
    ensure!(end == data_len, "found {data_len} bytes of data, expected {end} as the header says");
    Ok(header)
}

/// One tensor's entry on its own: dtype, shape and byte range fit together and into the data.
fn check_entry(entry: &Value, data_len: u64) -> Result<()> {
    let info = TensorInfo::deserialize(entry)
        .map_err(|e| anyhow!("header entry: {}; expected dtype, shape and data_offsets", json_error(&e)))?;
    let (start, end) = info.data_offsets;
    let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |bits, &n| bits.checked_mul(n));
    let shape = || shown(format_args!("{:?}", info.shape));
    let bits = bits.with_context(|| format!("found shape {}, which overflows, expected a size in bytes", shape()))?;
    ensure!(start <= end, "found bytes {start} to {end}, expected an end behind the start");
    ensure!(end as u64 <= data_len, "found {data_len} bytes of data, expected {end}: the file was cut short");
    ensure!(
        (end - start).checked_mul(8) == Some(bits),
        "found {} bytes, expected {} for {} {}",
        end - start,
        bits / 8,
        info.dtype,
        shape()
    );
    Ok(())
}

fn decode(info: &TensorInfo, bytes: &[u8]) -> Result<Tensor> {
    let shape = &info.shape;
    match info.dtype {
        Dtype::F32 => numbers(bytes, shape, f32::from_le_bytes),
        Dtype::F64 => numbers(bytes, shape, f64::from_le_bytes),
        Dtype::BF16 => numbers(bytes, shape, bf16::from_le_bytes),
        Dtype::F16 => numbers(bytes, shape, |b| f16::from_le_bytes(b).to_f32()),
        // The bits of a negative i32 are kept as they are.
        Dtype::U32 | Dtype::I32 => numbers(bytes, shape, u32::from_le_bytes),
        Dtype::I64 => {
            let narrow = chunks::<8>(bytes).map(|chunk| {
                let value = i64::from_le_bytes(chunk);
                let id =
                    i32::try_from(value).map_err(|_| anyhow!("found {value}, expected a number that fits 32 bits"))?;
                Ok(id as u32)
            });
            Tensor::from_vec(narrow.collect::<Result<Vec<u32>>>()?, shape)
        }
        other => bail!("found dtype {other}, expected F32, F64, BF16, F16, U32, I32 or I64"),
    }
}

/// `N` bytes for each number.
fn numbers<const N: usize, E: Element>(bytes: &[u8], shape: &[usize], number: fn([u8; N]) -> E) -> Result<Tensor> {
    Tensor::from_vec(chunks(bytes).map(number).collect(), shape)
}

fn chunks<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.chunks_exact(N).map(|chunk| {
        let mut array = [0; N];
        array.copy_from_slice(chunk);
        array
    })
}

/// Writes a file atomically: u32 as U32, the other types as themselves. The same tensors make the same bytes, in whatever
/// order they are given. Error: two tensors of one name, or the file cannot be written.
pub fn write(path: &Path, tensors: &[(String, Tensor)], metadata: &[(&str, String)]) -> Result<()> {
    let mut sorted: Vec<&(String, Tensor)> = tensors.iter().collect();
    // Wide types first: then every tensor begins at a multiple of its own element size.
    sorted.sort_by_key(|(name, tensor)| (std::cmp::Reverse(tensor.dtype().size()), name));
    let (header, data_len) = header(&sorted, metadata).with_context(|| shown_path(path))?;
    let total = LENGTH_BYTES + header.len() + data_len;
    atomic::write_sized(path, Some(total as u64), |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        sorted.iter().try_for_each(|(_, tensor)| encode(tensor, file))
    })
}

/// The header, padded with blanks to a multiple of 8 bytes, and the bytes of all tensors.
fn header(tensors: &[&(String, Tensor)], metadata: &[(&str, String)]) -> Result<(Vec<u8>, usize)> {
    let mut entries = Map::new();
    if !metadata.is_empty() {
        let metadata: Map<String, Value> = metadata.iter().map(|(k, v)| (k.to_string(), json!(v))).collect();
        entries.insert("__metadata__".to_string(), metadata.into());
    }
    let mut offset = 0;
    for (name, tensor) in tensors {
        let end = offset + tensor.bytes();
        let info = json!({"dtype": file_dtype(tensor.dtype()), "shape": tensor.shape(), "data_offsets": [offset, end]});
        ensure!(entries.insert(name.clone(), info).is_none(), "{name}: found twice, expected every tensor once");
        offset = end;
    }
    let mut header = serde_json::to_vec(&entries)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    ensure!(header.len() as u64 <= MAX_HEADER, "{}", SafeTensorError::HeaderTooLarge);
    Ok((header, offset))
}

fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::Bf16 => Dtype::BF16,
        DType::U32 => Dtype::U32,
    }
}

fn encode(tensor: &Tensor, file: &mut dyn Write) -> Result<()> {
    match tensor.dtype() {
        DType::F32 => put(tensor.as_slice()?, f32::to_le_bytes, file),
        DType::F64 => put(tensor.as_slice()?, f64::to_le_bytes, file),
        DType::Bf16 => put(tensor.as_slice()?, bf16::to_le_bytes, file),
        DType::U32 => put(tensor.as_slice()?, u32::to_le_bytes, file),
    }
}

fn put<const N: usize, E: Element>(numbers: &[E], bytes: fn(E) -> [u8; N], file: &mut dyn Write) -> Result<()> {
    // In pieces: a call of the writer per number would cost more than the writing.
    for piece in numbers.chunks(1 << 14) {
        let piece: Vec<u8> = piece.iter().flat_map(|&x| bytes(x)).collect();
        file.write_all(&piece)?;
    }
    Ok(())
}

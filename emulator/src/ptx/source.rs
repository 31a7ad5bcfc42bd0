//! From a `.loc` to lines of source code, and to the line that is the user's own.
//!
//! An instruction inlined through several functions has one frame for each, innermost first. Headers of the CUDA toolkit
//! do not count; of the rest, one in a `.cu` or `.cpp` file goes before the user's headers, since a helper in a header
//! seldom knows which call of it went wrong. (PTX ISA, "Debugging Directives: .loc".)

use std::fmt;

use super::ast::{Location, Module};
use crate::program::{Frame, SourceLine};

/// The frames of a location, innermost first. A line of 0 is one that the compiler did not keep; the frames after it
/// are then those of the last line before it. A file without a `.file` has no frame.
pub fn frames(module: &Module, location: &Location) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut next = Some(location);
    while let Some(location) = next {
        if let Ok(index) = module.files.binary_search_by_key(&location.file, |(number, _)| *number) {
            frames.push(Frame { file: module.files[index].1.clone(), line: location.line });
        }
        next = location.inlined_at.as_deref();
    }
    frames
}

/// The (mangled) name of the inlined function that a location lies in.
pub fn inlined_function<'m>(module: &'m Module, location: &Location) -> Option<&'m str> {
    let (label, offset) = location.function.as_ref()?;
    let (_, text) = module.strings.iter().find(|(name, _)| name == label)?;
    text.get(*offset as usize..)?.split('\0').next()
}

impl SourceLine {
    /// The frame that a diagnosis names: none if the instruction has no lines outside the toolkit.
    pub fn user_frame(&self) -> Option<&Frame> {
        let mut user = self.user_frames();
        user.find(|frame| is_source(&frame.file)).or_else(|| self.user_frames().next())
    }

    fn user_frames(&self) -> impl Iterator<Item = &Frame> {
        self.frames.iter().filter(|frame| frame.line > 0 && !is_toolkit(&frame.file))
    }
}

/// `matmul.cu:88`, `matmul.cu:88 (in ptx.cuh:31)`, `near matmul.cu:88` or `PTX line 123`.
impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let near = if self.frames.first().is_some_and(|frame| frame.line == 0) { "near " } else { "" };
        let Some(frame) = self.user_frame() else {
            // In a header alone: its outermost line comes closest to the user's code.
            return match self.frames.iter().rev().find(|frame| frame.line > 0) {
                Some(frame) => write!(f, "{near}{}:{}, PTX line {}", file_name(&frame.file), frame.line, self.ptx_line),
                None => write!(f, "PTX line {}", self.ptx_line),
            };
        };
        write!(f, "{near}{}:{}", file_name(&frame.file), frame.line)?;
        match self.user_frames().next() {
            Some(inner) if inner != frame => write!(f, " (in {}:{})", file_name(&inner.file), inner.line),
            _ => Ok(()),
        }
    }
}

/// The last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// A file that is compiled rather than included.
fn is_source(path: &str) -> bool {
    let (_, extension) = file_name(path).rsplit_once('.').unwrap_or(("", ""));
    matches!(extension, "cu" | "cpp" | "cc" | "cxx" | "c" | "C")
}

/// A header of the CUDA toolkit or of the host's compiler. nvcc names its own as `…/bin/../include/…`; the directories
/// and names below catch those of other installations.
fn is_toolkit(path: &str) -> bool {
    let path = path.replace('\\', "/").replace("//", "/");
    if is_source(&path) {
        return false;
    }
    if path.starts_with("/usr/include/") || path.starts_with("/usr/lib/") {
        return true;
    }
    let mut directories: Vec<&str> = path.split('/').collect();
    let name = directories.pop().unwrap_or("");
    if let Some(include) = directories.iter().rposition(|&directory| directory == "include") {
        // `include/crt`, `include/cccl/cub`, or `cuda-13.0/include`, `nvidia/cu13/include`.
        let inside = directories.get(include + 1).copied().unwrap_or("");
        let known_inside = ["crt", "cccl", "cuda", "cub", "thrust", "nv", "cooperative_groups"].contains(&inside);
        let from_bin = directories[..include].windows(2).any(|pair| pair == ["bin", ".."]);
        if known_inside || from_bin || directories[..include].iter().any(|&directory| is_installation(directory)) {
            return true;
        }
    }
    is_toolkit_name(name)
}

/// The directory of an installation: `cuda`, `cuda-13.0`, `cu13`.
fn is_installation(directory: &str) -> bool {
    let version = directory.strip_prefix("cuda-").or_else(|| directory.strip_prefix("cu"));
    directory == "cuda"
        || version.is_some_and(|version| {
            !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        })
}

/// Names that the toolkit's device headers have.
fn is_toolkit_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".hpp").or_else(|| name.strip_suffix(".h")) else { return false };
    let of_architecture = stem.strip_prefix("sm_").is_some_and(|rest| {
        rest.ends_with("_intrinsics") || rest.ends_with("_atomic_functions") || rest.ends_with("_rt")
    });
    let listed = [
        "cooperative_groups",
        "cuda_awbarrier",
        "cuda_bf16",
        "cuda_fp16",
        "cuda_fp4",
        "cuda_fp6",
        "cuda_fp8",
        "cuda_pipeline",
        "device_atomic_functions",
        "device_functions",
        "math_functions",
        "mma",
    ];
    of_architecture || listed.contains(&stem)
}

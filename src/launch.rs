//! A launch: a kernel's name, a grid, and the tensors and numbers it takes.
//!
//! ```text
//! gpu.launch("rms_norm_forward", &grid, &[In(&x), In(&gain), Out(&y), int(rows), F32(eps)])
//! ```
//!
//! The dtype of the tensors picks the entry: `NAME_bf16VARIANT` if one of them is bf16, else `NAME_f32VARIANT`, or
//! `NAMEVARIANT` where the kernel knows one dtype only. What is passed is checked against the parameters that the
//! compiled PTX lists, the tensors against the device and the alignment of the entry, the grid against the card. The
//! operator has checked the shapes against each other, on either device, before it comes here.

use crate::dtype::DType;
use crate::gpu::{Entry, Gpu, Grid, LaunchError, Param, Value};
use crate::tensor::Tensor;

pub use Arg::{Absent, F32, In, Int, Into, Out};

/// What a kernel gets for one parameter.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// A tensor to read.
    In(&'a Tensor),
    /// A tensor to write, whose storage is its own; it may be read too, and be `In` as well for work in place.
    Out(&'a Tensor),
    /// A part of a tensor to write, whose owner answers for whoever sees the whole.
    Into(&'a Tensor),
    /// A null pointer, for an operand that the kernel can do without.
    Absent,
    Int(i64),
    F32(f32),
}

/// A size as an argument.
pub fn int(n: usize) -> Arg<'static> {
    Int(i64::try_from(n).unwrap_or(i64::MAX))
}

impl<'a> Arg<'a> {
    /// An operand that may be absent.
    pub fn optional(tensor: Option<&'a Tensor>) -> Arg<'a> {
        tensor.map_or(Absent, In)
    }

    fn tensor(self) -> Option<&'a Tensor> {
        match self {
            In(tensor) | Out(tensor) | Into(tensor) => Some(tensor),
            _ => None,
        }
    }
}

impl Gpu {
    /// Submits a kernel to the device's stream; an empty grid launches nothing.
    ///
    /// Errors: no such kernel; arguments that are not its own; a tensor on another device, misaligned, without elements,
    /// or to be written though others share it; a block, grid or shared memory beyond the card's limits; what the
    /// driver says.
    pub fn launch(&self, kernel: &str, grid: &Grid, args: &[Arg]) -> Result<(), LaunchError> {
        if grid.blocks.contains(&0) {
            return Ok(());
        }
        let dtypes: Vec<DType> = args.iter().filter_map(|arg| arg.tensor()).map(Tensor::dtype).collect();
        let dtype = if dtypes.contains(&DType::Bf16) { DType::Bf16 } else { DType::F32 };
        let variant = grid.variant;
        let entry = self.entry(&format!("{kernel}_{dtype}{variant}"));
        let entry = entry.or_else(|| self.entry(&format!("{kernel}{variant}")));
        let unknown = || LaunchError::Unknown { kernel: format!("{kernel}_{dtype}{variant}") };
        let entry = entry.ok_or_else(unknown)?;
        check_kinds(entry, args)?;
        let values = args.iter().enumerate().map(|(i, arg)| self.value(entry, i, arg));
        self.submit(entry, grid, &values.collect::<Result<Vec<Value>, LaunchError>>()?)
    }

    fn value(&self, entry: &Entry, argument: usize, arg: &Arg) -> Result<Value, LaunchError> {
        let kernel = || entry.name.to_string();
        if let Some(tensor) = arg.tensor() {
            return self.pointer(entry, argument, tensor, matches!(arg, Out(_)));
        }
        match (arg, entry.params[argument]) {
            (Int(n), Param::Bits32) => match i32::try_from(*n) {
                Ok(n) => Ok(Value::Bits32(n as u32)),
                Err(_) => Err(LaunchError::Range {
                    kernel: kernel(),
                    what: format!("argument {argument}"),
                    found: n.to_string(),
                    expected: format!("at most {}", i32::MAX),
                }),
            },
            (Int(n), _) => Ok(Value::Bits64(*n as u64)),
            (F32(x), _) => Ok(Value::F32(*x)),
            _ => Ok(Value::Bits64(0)),
        }
    }

    fn pointer(&self, entry: &Entry, argument: usize, tensor: &Tensor, own: bool) -> Result<Value, LaunchError> {
        let kernel = entry.name.to_string();
        if tensor.gpu() != Some(self) {
            let (found, expected) = (tensor.device().to_string(), self.name().to_string());
            return Err(LaunchError::Device { kernel, argument, found, expected });
        }
        if own && !tensor.is_unique() {
            return Err(LaunchError::Shared { kernel, argument });
        }
        let address = tensor.address();
        if address == 0 {
            return Err(LaunchError::Null { kernel, argument });
        }
        // Ids are read one by one by every kernel.
        let single = entry.name.ends_with("_unaligned") || tensor.dtype() == DType::U32;
        let expected = if single { tensor.dtype().size() as u64 } else { 16 };
        if !address.is_multiple_of(expected) {
            return Err(LaunchError::Misaligned { kernel, argument, address, expected });
        }
        Ok(Value::Bits64(address))
    }
}

/// Holds the arguments against the entry's parameters.
fn check_kinds(entry: &Entry, args: &[Arg]) -> Result<(), LaunchError> {
    let fits = |(arg, param): (&Arg, &Param)| match arg {
        In(_) | Out(_) | Into(_) | Absent => matches!(param, Param::Pointer | Param::Bits64),
        Int(_) => matches!(param, Param::Bits64 | Param::Bits32),
        F32(_) => *param == Param::F32,
    };
    if args.len() == entry.params.len() && args.iter().zip(entry.params).all(fits) {
        return Ok(());
    }
    let kind = |arg: &Arg| match arg {
        In(tensor) | Out(tensor) | Into(tensor) => format!("{tensor:?}"),
        other => format!("{other:?}"),
    };
    let found: Vec<String> = args.iter().map(kind).collect();
    let expected: Vec<String> = entry.params.iter().map(|param| format!("{param:?}")).collect();
    let (found, expected) = (found.join(", "), expected.join(", "));
    Err(LaunchError::Arguments { kernel: entry.name.to_string(), found, expected })
}

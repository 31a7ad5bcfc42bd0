//! The tensor: shared storage on a device, a place in it, a shape and an element type.
//!
//! Tensors are immutable, contiguous and row-major. Clones, reshapes and windows on the first axis share the numbers, and
//! there are no strided views: a transpose is a flag of `matmul`, and heads are split by reshaping `[B,T,C]` to
//! `[B,T,H,D]`. Whoever owns a value alone may write it: see [`Tensor::as_mut_slice`] and [`launch`](crate::launch).
//!
//! [`Tensor::to`] is the one copy between devices. Only what brings numbers to the host waits for a device:
//! `to(&Device::Cpu)`, [`Tensor::item`] and [`Tensor::to_f64_vec`].

use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::gpu::{Gpu, LaunchError, Memory};
use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The numbers of a tensor, by element type and device.
enum Storage {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bf16(Vec<bf16>),
    U32(Vec<u32>),
    Gpu(Memory),
}

/// An immutable n-dimensional array, contiguous in row-major order.
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    /// The first element's place in the storage.
    offset: usize,
    shape: Vec<usize>,
    dtype: DType,
}

impl Storage {
    fn of<E: Element>(data: Vec<E>) -> Storage {
        match E::DTYPE {
            DType::F32 => Storage::F32(bytemuck::cast_vec(data)),
            DType::F64 => Storage::F64(bytemuck::cast_vec(data)),
            DType::Bf16 => Storage::Bf16(bytemuck::cast_vec(data)),
            DType::U32 => Storage::U32(bytemuck::cast_vec(data)),
        }
    }

    /// All bytes of a storage on the CPU.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Storage::F32(data) => Some(bytemuck::cast_slice(data)),
            Storage::F64(data) => Some(bytemuck::cast_slice(data)),
            Storage::Bf16(data) => Some(bytemuck::cast_slice(data)),
            Storage::U32(data) => Some(bytemuck::cast_slice(data)),
            Storage::Gpu(_) => None,
        }
    }

    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match self {
            Storage::F32(data) => Some(bytemuck::cast_slice_mut(data)),
            Storage::F64(data) => Some(bytemuck::cast_slice_mut(data)),
            Storage::Bf16(data) => Some(bytemuck::cast_slice_mut(data)),
            Storage::U32(data) => Some(bytemuck::cast_slice_mut(data)),
            Storage::Gpu(_) => None,
        }
    }
}

impl Tensor {
    fn whole(storage: Storage, shape: &[usize], dtype: DType) -> Tensor {
        Tensor { storage: Arc::new(storage), offset: 0, shape: shape.to_vec(), dtype }
    }

    /// A tensor over `data`, on the CPU. Error: the shape's product is not the number of values.
    pub fn from_vec<E: Element>(data: Vec<E>, shape: &[usize]) -> Result<Tensor> {
        let expected: usize = shape.iter().product();
        ensure!(data.len() == expected, "tensor: found {} values, expected {expected} for shape {shape:?}", data.len());
        Ok(Tensor::whole(Storage::of(data), shape, E::DTYPE))
    }

    /// A tensor of one repeated value, on the CPU.
    pub fn full(shape: &[usize], value: f64, dtype: DType) -> Tensor {
        let len = shape.iter().product();
        let storage = match dtype {
            DType::F32 => Storage::F32(vec![value as f32; len]),
            DType::F64 => Storage::F64(vec![value; len]),
            DType::Bf16 => Storage::Bf16(vec![bf16_of(value); len]),
            DType::U32 => Storage::U32(vec![value as u32; len]),
        };
        Tensor::whole(storage, shape, dtype)
    }

    /// Zeros, on the CPU.
    pub fn zeros(shape: &[usize], dtype: DType) -> Tensor {
        Tensor::full(shape, 0.0, dtype)
    }

    /// Zeros on `device`. Errors: out of memory, a shape beyond what can be addressed.
    pub fn zeros_on(shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        match device {
            Device::Cpu => Ok(Tensor::zeros(shape, dtype)),
            Device::Gpu(gpu) => {
                let mut memory = gpu.alloc(byte_len(shape, dtype)?)?;
                memory.clear()?;
                Ok(Tensor::whole(Storage::Gpu(memory), shape, dtype))
            }
        }
    }

    /// A tensor on a card for a kernel to write whole: its values are unknown. Errors: as [`Tensor::zeros_on`].
    pub fn empty(shape: &[usize], dtype: DType, gpu: &Gpu) -> Result<Tensor> {
        Ok(Tensor::whole(Storage::Gpu(gpu.alloc(byte_len(shape, dtype)?)?), shape, dtype))
    }

    /// A tensor of no dimensions: one number, shape `[]`, on the CPU.
    pub fn scalar<E: Element>(value: E) -> Tensor {
        Tensor::whole(Storage::of(vec![value]), &[], E::DTYPE)
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "an empty tensor is one of length 0, asked for nowhere")]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn device(&self) -> Device {
        self.gpu().map_or(Device::Cpu, |gpu| Device::Gpu(gpu.clone()))
    }

    /// The card it lies on; `None` on the CPU.
    pub fn gpu(&self) -> Option<&Gpu> {
        match &*self.storage {
            Storage::Gpu(memory) => Some(memory.gpu()),
            _ => None,
        }
    }

    /// The device address of the first element; 0 on the CPU and where there is no element.
    pub(crate) fn address(&self) -> u64 {
        match &*self.storage {
            Storage::Gpu(memory) if self.len() > 0 => memory.address() + (self.offset * self.dtype.size()) as u64,
            _ => 0,
        }
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }

    /// The shape seen as a matrix: (product of all but the last dimension, last dimension).
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.shape.split_last() {
            Some((&cols, leading)) => (leading.iter().product(), cols),
            None => (1, 1),
        }
    }

    /// A window on the first axis: `range` of it, the numbers shared. Error: the range is not in the axis.
    pub fn rows(&self, range: Range<usize>) -> Result<Tensor> {
        let Some((&rows, rest)) = self.shape.split_first() else {
            bail!("rows: found a tensor of no dimensions, expected at least one")
        };
        ensure!(range.start <= range.end && range.end <= rows, "rows: found {range:?}, expected a part of 0..{rows}");
        let shape = [&[range.len()], rest].concat();
        let offset = self.offset + range.start * rest.iter().product::<usize>();
        Ok(Tensor { storage: self.storage.clone(), offset, shape, dtype: self.dtype })
    }

    fn byte_range(&self) -> Range<usize> {
        let size = self.dtype.size();
        self.offset * size..(self.offset + self.len()) * size
    }

    /// The values. Errors: the tensor holds another element type, or lies on a card.
    pub fn as_slice<E: Element>(&self) -> Result<&[E]> {
        ensure!(self.dtype == E::DTYPE, "tensor {:?}: found dtype {}, expected {}", self.shape, self.dtype, E::DTYPE);
        let bytes = self.storage.bytes().with_context(|| self.not_here())?;
        Ok(bytemuck::cast_slice(&bytes[self.byte_range()]))
    }

    /// The values for writing; they are copied first if another tensor shares them. Errors: as [`Tensor::as_slice`].
    pub fn as_mut_slice<E: Element>(&mut self) -> Result<&mut [E]> {
        ensure!(self.dtype == E::DTYPE, "tensor {:?}: found dtype {}, expected {}", self.shape, self.dtype, E::DTYPE);
        self.make_unique()?;
        let (range, message) = (self.byte_range(), self.not_here());
        let storage = Arc::get_mut(&mut self.storage).context("tensor: found storage that another thread took")?;
        Ok(bytemuck::cast_slice_mut(&mut storage.bytes_mut().context(message)?[range]))
    }

    fn not_here(&self) -> String {
        format!("tensor {:?}: found it on {}, expected it on the cpu", self.shape, self.device())
    }

    /// Whether no other tensor shares the storage.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    /// Copies the values if another tensor shares them, so that they may be written in place. For whoever owns the value:
    /// initialisation, optimizer, gradient accumulation, KV cache. Error: no memory for the copy.
    pub fn make_unique(&mut self) -> Result<()> {
        if self.is_unique() {
            return Ok(());
        }
        let storage = match &*self.storage {
            Storage::Gpu(memory) => Storage::Gpu(memory.copy(self.byte_range())?),
            _ => self.host_copy()?,
        };
        *self = Tensor::whole(storage, &self.shape, self.dtype);
        Ok(())
    }

    fn host_copy(&self) -> Result<Storage> {
        Ok(match self.dtype {
            DType::F32 => Storage::F32(self.as_slice()?.to_vec()),
            DType::F64 => Storage::F64(self.as_slice()?.to_vec()),
            DType::Bf16 => Storage::Bf16(self.as_slice()?.to_vec()),
            DType::U32 => Storage::U32(self.as_slice()?.to_vec()),
        })
    }

    /// The same values on `device`; shared if they are there already. Copying to the host waits for the device.
    ///
    /// Errors: out of memory; what went wrong in work that the device was given before.
    pub fn to(&self, device: &Device) -> Result<Tensor> {
        let storage = match (&*self.storage, device) {
            (Storage::Gpu(memory), Device::Gpu(gpu)) if memory.gpu() != gpu => {
                return self.to(&Device::Cpu)?.to(device);
            }
            (Storage::Gpu(_), Device::Gpu(_)) => return Ok(self.clone()),
            (Storage::Gpu(memory), Device::Cpu) => {
                let mut storage = Tensor::zeros(&self.shape, self.dtype).storage;
                let to = Arc::get_mut(&mut storage).and_then(Storage::bytes_mut).context("to: a new tensor")?;
                memory.download(self.byte_range().start, to)?;
                return Ok(Tensor { storage, offset: 0, shape: self.shape.clone(), dtype: self.dtype });
            }
            (storage, Device::Gpu(gpu)) => {
                ensure!(self.dtype != DType::F64, "to: found dtype f64, expected f32, bf16 or u32 on {device}");
                let bytes = storage.bytes().context("to: a tensor on the cpu")?;
                Storage::Gpu(gpu.upload(&bytes[self.byte_range()])?)
            }
            (_, Device::Cpu) => return Ok(self.clone()),
        };
        Ok(Tensor::whole(storage, &self.shape, self.dtype))
    }

    /// Copies `source` over the elements from `at` on, counted in elements of the whole tensor. For whoever owns the
    /// value. Errors: another dtype or device; no room.
    pub fn write_at(&mut self, at: usize, source: &Tensor) -> Result<()> {
        ensure!(
            self.dtype == source.dtype && self.device() == source.device() && at + source.len() <= self.len(),
            "write: found {source:?} on {} for element {at}, expected a part of {self:?} on {}",
            source.device(),
            self.device()
        );
        self.make_unique()?;
        let size = self.dtype.size();
        match (&*self.storage, &*source.storage) {
            (Storage::Gpu(to), Storage::Gpu(from)) => {
                Ok(from.copy_to(source.offset * size, to, (self.offset + at) * size, source.bytes())?)
            }
            _ => {
                let start = (self.offset + at) * size;
                let from = source.storage.bytes().with_context(|| source.not_here())?;
                let storage = Arc::get_mut(&mut self.storage).context("write: storage of its own")?;
                let to = storage.bytes_mut().context("write: a tensor on the cpu")?;
                to[start..start + source.bytes()].copy_from_slice(&from[source.byte_range()]);
                Ok(())
            }
        }
    }

    /// The same values under another shape. Error: the shapes differ in length.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        let expected: usize = shape.iter().product();
        ensure!(
            expected == self.len(),
            "reshape: found {:?} ({}), expected {shape:?} ({expected})",
            self.shape,
            self.len()
        );
        Ok(Tensor { shape: shape.to_vec(), ..self.clone() })
    }

    /// The values converted to `dtype` on the CPU, rounded to nearest. Errors: ids do not convert to or from floats; a
    /// tensor on a card, where [`ops::cast`](crate::ops::cast()) converts.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        match (self.dtype, dtype) {
            (DType::F32, DType::F64) => self.converted(|x: f32| x as f64),
            (DType::F32, DType::Bf16) => self.converted(bf16::from_f32),
            (DType::F64, DType::F32) => self.converted(|x: f64| x as f32),
            (DType::F64, DType::Bf16) => self.converted(bf16_of),
            (DType::Bf16, DType::F32) => self.converted(bf16::to_f32),
            (DType::Bf16, DType::F64) => self.converted(bf16::to_f64),
            _ => bail!("tensor {:?}: cannot convert {} to {dtype}", self.shape, self.dtype),
        }
    }

    fn converted<A: Element, B: Element>(&self, convert: impl Fn(A) -> B) -> Result<Tensor> {
        Tensor::from_vec(self.as_slice::<A>()?.iter().map(|&x| convert(x)).collect(), &self.shape)
    }

    /// All values as `f64`, for comparing and printing; waits for the device. Error: what went wrong on it.
    pub fn to_f64_vec(&self) -> Result<Vec<f64>> {
        let here = self.to(&Device::Cpu)?;
        Ok(match self.dtype {
            DType::F32 => here.as_slice::<f32>()?.iter().map(|&x| x as f64).collect(),
            DType::F64 => here.as_slice::<f64>()?.to_vec(),
            DType::Bf16 => here.as_slice::<bf16>()?.iter().map(|x| x.to_f64()).collect(),
            DType::U32 => here.as_slice::<u32>()?.iter().map(|&x| x as f64).collect(),
        })
    }

    /// The only value of a one-element tensor; waits for the device. Errors: another number of elements; what went wrong
    /// on the device.
    pub fn item(&self) -> Result<f64> {
        ensure!(self.len() == 1, "item: found shape {:?}, expected one element", self.shape);
        Ok(self.to_f64_vec()?[0])
    }

    /// Whether two tensors share storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }
}

/// The nearest bf16, by way of an f32 whose last bit tells whether anything was cut off, so that rounding twice is rounding
/// once. (`bf16::from_f64` looks at half of the bits: what is just above a tie is a tie to it.)
fn bf16_of(x: f64) -> bf16 {
    let near = x as f32;
    let cut = f64::from(near) != x && !x.is_nan() && near.to_bits() & 1 == 0;
    let away = f64::from(near).abs() < x.abs();
    let odd = if away { near.to_bits() + 1 } else { near.to_bits().wrapping_sub(1) };
    bf16::from_f32(if cut { f32::from_bits(odd) } else { near })
}

/// Bytes of a shape. Error: more than 63 bits can tell, at 8 for each element.
fn byte_len(shape: &[usize], dtype: DType) -> Result<usize, LaunchError> {
    let len = shape.iter().try_fold(1usize, |product, &x| product.checked_mul(x));
    let len = len.filter(|&len| len <= (i64::MAX / 8) as usize);
    len.map(|len| len * dtype.size()).ok_or_else(|| LaunchError::Overflow { shape: shape.to_vec() })
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

//! The tensor: shared storage, a shape and an element type.
//!
//! Tensors are immutable, contiguous and row-major. Clones and reshapes share the numbers, and there
//! are no strided views: a transpose is a flag of `matmul`, and heads are split by reshaping `[B,T,C]` to `[B,T,H,D]`.

use crate::dtype::{DType, Element, Float};
use anyhow::{Result, bail, ensure};
use half::bf16;
use std::fmt;
use std::sync::Arc;

/// The numbers of a tensor, by element type.
#[derive(Clone)]
pub enum Storage {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bf16(Vec<bf16>),
    U32(Vec<u32>),
}

/// An immutable n-dimensional array, contiguous in row-major order.
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    shape: Vec<usize>,
}

impl Tensor {
    /// A tensor over `data`. Error: the shape's product is not the number of values.
    pub fn from_vec<E: Element>(data: Vec<E>, shape: &[usize]) -> Result<Tensor> {
        let expected: usize = shape.iter().product();
        ensure!(data.len() == expected, "tensor: found {} values, expected {expected} for shape {shape:?}", data.len());
        Ok(Tensor { storage: Arc::new(E::wrap(data)), shape: shape.to_vec() })
    }

    /// A tensor of one repeated value.
    pub fn full(shape: &[usize], value: f64, dtype: DType) -> Tensor {
        let len = shape.iter().product();
        let storage = match dtype {
            DType::F32 => Storage::F32(vec![value as f32; len]),
            DType::F64 => Storage::F64(vec![value; len]),
            DType::Bf16 => Storage::Bf16(vec![bf16::from_f64(value); len]),
            DType::U32 => Storage::U32(vec![value as u32; len]),
        };
        Tensor { storage: Arc::new(storage), shape: shape.to_vec() }
    }

    pub fn zeros(shape: &[usize], dtype: DType) -> Tensor {
        Tensor::full(shape, 0.0, dtype)
    }

    /// A tensor of no dimensions: one number, shape `[]`.
    pub fn scalar<E: Element>(value: E) -> Tensor {
        Tensor { storage: Arc::new(E::wrap(vec![value])), shape: vec![] }
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
        match *self.storage {
            Storage::F32(_) => DType::F32,
            Storage::F64(_) => DType::F64,
            Storage::Bf16(_) => DType::Bf16,
            Storage::U32(_) => DType::U32,
        }
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype().size()
    }

    /// The shape seen as a matrix: (product of all but the last dimension, last dimension).
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.shape.split_last() {
            Some((&cols, leading)) => (leading.iter().product(), cols),
            None => (1, 1),
        }
    }

    /// The values. Error: the tensor holds another element type.
    pub fn as_slice<E: Element>(&self) -> Result<&[E]> {
        match E::view(&self.storage) {
            Some(data) => Ok(data),
            None => bail!("tensor {:?}: found dtype {}, expected {}", self.shape, self.dtype(), E::DTYPE),
        }
    }

    /// The values for writing; they are copied first if another tensor shares them.
    /// For whoever owns the value: initialisation, optimizer, gradient accumulation, KV cache.
    pub fn as_mut_slice<E: Element>(&mut self) -> Result<&mut [E]> {
        let dtype = self.dtype();
        match E::view_mut(Arc::make_mut(&mut self.storage)) {
            Some(data) => Ok(data),
            None => bail!("tensor {:?}: found dtype {dtype}, expected {}", self.shape, E::DTYPE),
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
        Ok(Tensor { storage: self.storage.clone(), shape: shape.to_vec() })
    }

    /// The values converted to `dtype`, rounded to nearest. Ids do not convert to or from floats.
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let storage = match (&*self.storage, dtype) {
            (Storage::F32(x), DType::F64) => Storage::F64(x.iter().map(|&v| v as f64).collect()),
            (Storage::F32(x), DType::Bf16) => Storage::Bf16(x.iter().map(|&v| bf16::from_f32(v)).collect()),
            (Storage::F64(x), DType::F32) => Storage::F32(x.iter().map(|&v| v as f32).collect()),
            (Storage::F64(x), DType::Bf16) => Storage::Bf16(x.iter().map(|&v| bf16::from_f64(v)).collect()),
            (Storage::Bf16(x), DType::F32) => Storage::F32(x.iter().map(|v| v.to_f32()).collect()),
            (Storage::Bf16(x), DType::F64) => Storage::F64(x.iter().map(|v| v.to_f64()).collect()),
            _ => bail!("tensor {:?}: cannot convert {} to {dtype}", self.shape, self.dtype()),
        };
        Ok(Tensor { storage: Arc::new(storage), shape: self.shape.clone() })
    }

    /// All values as `f64`, for comparing and printing.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        match &*self.storage {
            Storage::F32(x) => x.iter().map(|&v| v as f64).collect(),
            Storage::F64(x) => x.clone(),
            Storage::Bf16(x) => x.iter().map(|v| v.to_f64()).collect(),
            Storage::U32(x) => x.iter().map(|&v| v as f64).collect(),
        }
    }

    /// The only value of a one-element tensor. Error: it has another number of elements.
    pub fn item(&self) -> Result<f64> {
        ensure!(self.len() == 1, "item: found shape {:?}, expected one element", self.shape);
        Ok(self.to_f64_vec()[0])
    }

    /// `self += other`, in place when nothing shares the storage. Error: shape or dtype differ.
    pub fn accumulate(&mut self, other: &Tensor) -> Result<()> {
        ensure!(self.shape == other.shape, "accumulate: found shape {:?}, expected {:?}", other.shape, self.shape);
        match self.dtype() {
            DType::F32 => add_into::<f32>(self.as_mut_slice()?, other.as_slice()?),
            DType::F64 => add_into::<f64>(self.as_mut_slice()?, other.as_slice()?),
            dtype => bail!("accumulate: found dtype {dtype}, expected f32 or f64"),
        }
        Ok(())
    }

    /// Whether two tensors share storage.
    pub fn shares_storage(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }
}

fn add_into<F: Float>(sum: &mut [F], x: &[F]) {
    for (s, &x) in sum.iter_mut().zip(x) {
        *s += x;
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype(), self.shape)
    }
}

//! Element types of tensors.
//!
//! [`DType`] is the tag a tensor carries, [`Element`] ties a Rust type to its tag, and [`Float`] is what a reference
//! operator needs of a number: it is written once and runs in `f32` and in `f64`.

use crate::cpu::simd::Number;
use crate::tensor::Storage;
use half::bf16;
use std::fmt;

/// The element type of a [`Tensor`](crate::Tensor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// Activations, weights and gradients by default.
    F32,
    /// Gradient checks and golden values; CPU only.
    F64,
    /// Storage with conversion on the CPU; arithmetic on the card.
    Bf16,
    /// Token ids.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::Bf16 => "bf16",
            DType::U32 => "u32",
        })
    }
}

/// A Rust type that tensors can hold.
pub trait Element: bytemuck::Pod + Send + Sync {
    const DTYPE: DType;
    fn wrap(data: Vec<Self>) -> Storage;
    fn view(storage: &Storage) -> Option<&[Self]>;
    fn view_mut(storage: &mut Storage) -> Option<&mut [Self]>;
}

/// A floating-point type that operators compute in: `f32` or `f64`.
pub trait Float: Element + Number {
    fn of(value: f64) -> Self;
    fn f64(self) -> f64;
}

impl Float for f32 {
    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }
    fn f64(self) -> f64 {
        self as f64
    }
}

impl Float for f64 {
    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }
    fn f64(self) -> f64 {
        self
    }
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    fn wrap(data: Vec<f32>) -> Storage {
        Storage::F32(data)
    }
    fn view(storage: &Storage) -> Option<&[f32]> {
        if let Storage::F32(data) = storage { Some(data) } else { None }
    }
    fn view_mut(storage: &mut Storage) -> Option<&mut [f32]> {
        if let Storage::F32(data) = storage { Some(data) } else { None }
    }
}

impl Element for f64 {
    const DTYPE: DType = DType::F64;
    fn wrap(data: Vec<f64>) -> Storage {
        Storage::F64(data)
    }
    fn view(storage: &Storage) -> Option<&[f64]> {
        if let Storage::F64(data) = storage { Some(data) } else { None }
    }
    fn view_mut(storage: &mut Storage) -> Option<&mut [f64]> {
        if let Storage::F64(data) = storage { Some(data) } else { None }
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    fn wrap(data: Vec<bf16>) -> Storage {
        Storage::Bf16(data)
    }
    fn view(storage: &Storage) -> Option<&[bf16]> {
        if let Storage::Bf16(data) = storage { Some(data) } else { None }
    }
    fn view_mut(storage: &mut Storage) -> Option<&mut [bf16]> {
        if let Storage::Bf16(data) = storage { Some(data) } else { None }
    }
}

impl Element for u32 {
    const DTYPE: DType = DType::U32;
    fn wrap(data: Vec<u32>) -> Storage {
        Storage::U32(data)
    }
    fn view(storage: &Storage) -> Option<&[u32]> {
        if let Storage::U32(data) = storage { Some(data) } else { None }
    }
    fn view_mut(storage: &mut Storage) -> Option<&mut [u32]> {
        if let Storage::U32(data) = storage { Some(data) } else { None }
    }
}

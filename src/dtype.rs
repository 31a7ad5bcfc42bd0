//! Element types of tensors.
//!
//! [`DType`] is the tag a tensor carries, [`Element`] ties a Rust type to its tag, and [`Float`] is what a reference
//! operator needs of a number: it is written once and runs in `f32` and in `f64`.

use crate::cpu::simd::Number;
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
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}

impl Element for f64 {
    const DTYPE: DType = DType::F64;
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
}

impl Element for u32 {
    const DTYPE: DType = DType::U32;
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

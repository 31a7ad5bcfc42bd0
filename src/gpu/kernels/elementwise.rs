//! What the launches of elementwise kernels (`kernels/elementwise.cuh`) share: the variant and the grid.

use crate::gpu::{Arg, Config, Gpu, GpuFloat, Kernel, Result};

/// Threads of a block, as in the header.
pub(super) const THREADS: u32 = 256;

/// Elements of the type in 16 bytes.
pub(super) fn most<E: GpuFloat>() -> usize {
    16 / size_of::<E>()
}

/// Whether every pointer is a multiple of 16 bytes.
pub(super) fn aligned(pointers: &[Arg]) -> bool {
    pointers.iter().all(|arg| matches!(arg, Arg::Pointer(address) if address.is_multiple_of(16)))
}

/// `f32` or `bf16`, and `_unaligned` for the kernels that move single elements.
pub(super) fn variant<E: GpuFloat>(aligned: bool) -> String {
    format!("{}{}", E::SUFFIX, if aligned { "" } else { "_unaligned" })
}

/// The kernel over the first `n` elements of its operands, whose pointers come first; then n, then `rest`. An aligned
/// thread takes `width` elements.
pub(super) fn launch<E: GpuFloat>(
    gpu: &Gpu,
    kernel: &Kernel,
    width: usize,
    pointers: &[Arg],
    n: usize,
    rest: &[Arg],
) -> Result<()> {
    let aligned = aligned(pointers);
    let config = Config::linear(n.div_ceil(if aligned { width } else { 1 }), THREADS)?;
    let args = [pointers, &[Arg::I64(n as i64)], rest].concat();
    gpu.launch(kernel, &variant::<E>(aligned), config, &args)
}

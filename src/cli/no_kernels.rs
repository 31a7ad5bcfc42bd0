//! `handgrad kernels` of a build without CUDA: says how to build one with it.

use anyhow::{Result, bail};
use clap::Args;

#[derive(Args)]
pub struct KernelsArgs {
    /// Whatever is asked, there are no kernels here
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _any: Vec<String>,
}

/// Error: always.
pub fn run(_: KernelsArgs) -> Result<u8> {
    bail!(
        "kernels: found a build without CUDA support, expected one with it: scripts/setup_nvcc.sh, then cargo build --release --features cuda and cargo build --release -p cuda-emulator"
    )
}

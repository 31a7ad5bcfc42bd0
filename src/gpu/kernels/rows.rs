//! How the kernels on rows (`kernels/rows.cuh`) divide their work: which variant, which grid. Everything follows from
//! the shape, so that a sum over rows has the same order on every card.

use crate::gpu::{Arg, Check, Config, Gpu, GpuFloat, Kernel, Param, Result, View, ViewMut};

/// Threads of a block at most, and what `__launch_bounds__` says.
const THREADS: usize = 256;
const WARP: usize = 32;
/// Threads of a grid that sums over rows; a power of two that fills the cards.
const SUMMING_THREADS: usize = 1 << 16;

/// Stage two of a sum over rows: partial, one or two outputs, parts, columns, whether to add.
pub(super) const SUM_PARAMS: &[Param] = &[Param::Pointer, Param::Pointer, Param::I32, Param::I64, Param::I32];

/// Who works on rows of `cols` elements: a warp on each, or, if they are `long`, a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teams {
    rows: usize,
    cols: usize,
    aligned: bool,
    long: bool,
    /// of a block
    threads: usize,
}

impl Teams {
    /// `addresses_aligned`: every address is a multiple of 16. A row of more than `warp_cols` elements is long.
    pub fn new<E: GpuFloat>(rows: usize, cols: usize, warp_cols: usize, addresses_aligned: bool) -> Teams {
        let width = 16 / size_of::<E>();
        let aligned = addresses_aligned && cols.is_multiple_of(width);
        let long = cols > warp_cols;
        let vectors = if aligned { cols / width } else { cols };
        let threads = if long { vectors.next_multiple_of(WARP).min(THREADS) } else { THREADS };
        Teams { rows, cols, aligned, long, threads }
    }

    pub fn variant<E: GpuFloat>(self) -> String {
        let long = if self.long { "_long" } else { "" };
        format!("{}{long}{}", E::SUFFIX, if self.aligned { "" } else { "_unaligned" })
    }

    /// Threads that share a row.
    fn size(self) -> usize {
        if self.long { self.threads } else { WARP }
    }

    /// A team for each row.
    pub fn config(self) -> Result<Config> {
        let mut config = Config::linear(self.rows * self.size(), self.threads as u32)?;
        config.block = [self.threads as u32, 1, 1];
        Ok(config)
    }

    /// Teams that go through all rows and sum over them, each thread `own` columns of a window.
    pub fn summing_config(self, check: Check, own: usize) -> Result<Config> {
        let blocks = (self.rows * self.size()).div_ceil(self.threads).min(SUMMING_THREADS / self.threads);
        let windows = self.cols.div_ceil(own * self.size());
        let windows = if windows <= 65_535 {
            windows as u32
        } else {
            return Err(check.range("cols", self.cols, format!("at most {}", 65_535 * own * self.size())));
        };
        Ok(Config { grid: [blocks as u32, windows, 1], block: [self.threads as u32, 1, 1], shared_bytes: 0 })
    }
}

/// Checks the shape and gives its number of elements. Errors: no column, a product too large.
pub(super) fn check_shape(check: Check, rows: usize, cols: usize) -> Result<usize> {
    check.positive("cols", cols)?;
    check.product("x", &[rows, cols])
}

/// Stage two: `partial` `[parts, cols]` summed over its rows to `total` `[cols]`, or added to it.
pub(super) fn sum_partials(
    gpu: &Gpu,
    kernel: &Kernel,
    partial: View<f32>,
    total: &mut ViewMut<f32>,
    parts: u32,
    cols: usize,
    accumulate: bool,
) -> Result<()> {
    let args = [partial.arg(), total.arg(), Arg::I32(parts as i32), Arg::I64(cols as i64), Arg::I32(accumulate.into())];
    gpu.launch(kernel, "", sum_config(cols)?, &args)
}

/// A lane for each column, 32 warps for the rows.
pub(super) fn sum_config(cols: usize) -> Result<Config> {
    let mut config = Config::linear(cols, WARP as u32)?;
    config.block = [1024, 1, 1];
    Ok(config)
}

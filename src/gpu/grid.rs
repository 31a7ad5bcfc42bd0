//! Blocks, threads and variants: how kernels on elements and on rows divide their work. Everything follows from the shape, so
//! that a sum over rows has the same order on every card.
//!
//! The numbers that a kernel shares with its launch stand in `kernels/shared.h`, which nvcc and build.rs both read.

/// How a launch is cut, and which of a kernel's variants it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    pub blocks: [usize; 3],
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: usize,
    /// What follows the dtype in the entry's name: `""`, `_long`, `_64`, `_unaligned`.
    pub variant: &'static str,
}

/// The constants of `kernels/shared.h`.
pub mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}

use shared::{ELEMENTWISE_THREADS, ROW_THREADS, SUMMING_THREADS, WARP};

impl Grid {
    /// Enough blocks of `threads` threads for `work` threads.
    pub fn linear(work: usize, threads: usize) -> Grid {
        Grid::blocks(work.div_ceil(threads), threads)
    }

    /// `blocks` blocks of `threads` threads, in one dimension.
    pub fn blocks(blocks: usize, threads: usize) -> Grid {
        Grid { blocks: [blocks, 1, 1], threads: [threads as u32, 1, 1], shared_bytes: 0, variant: "" }
    }

    pub fn variant(self, variant: &'static str) -> Grid {
        Grid { variant, ..self }
    }

    /// A thread for each 16 bytes of the widest operand's `n` elements, `size` bytes each.
    pub fn elementwise(n: usize, size: usize) -> Grid {
        Grid::linear(n.div_ceil(16 / size), ELEMENTWISE_THREADS)
    }
}

/// Whether rows of `cols` elements of `size` bytes are moved 16 bytes at a time: each begins at a multiple of that.
/// Other rows are for the `_unaligned` entry.
pub fn in_vectors(cols: usize, size: usize) -> bool {
    (cols * size).is_multiple_of(16)
}

/// Who works on rows of `cols` elements: a warp on each, or, if they are long, a block.
#[derive(Clone, Copy, Debug)]
pub struct Teams {
    rows: usize,
    cols: usize,
    variant: &'static str,
    /// Threads of a block, and those that share a row.
    threads: usize,
    size: usize,
}

impl Teams {
    /// For rows of `cols` elements of `size` bytes. A row of more than `warp_cols` elements is long.
    pub fn new(rows: usize, cols: usize, size: usize, warp_cols: usize) -> Teams {
        let vectors = if in_vectors(cols, size) { cols * size / 16 } else { cols };
        let variant = match (cols > warp_cols, in_vectors(cols, size)) {
            (false, true) => "",
            (false, false) => "_unaligned",
            (true, true) => "_long",
            (true, false) => "_long_unaligned",
        };
        let threads = if cols > warp_cols { vectors.next_multiple_of(WARP).min(ROW_THREADS) } else { ROW_THREADS };
        let size = if cols > warp_cols { threads } else { WARP };
        Teams { rows, cols, variant, threads, size }
    }

    /// A team for each row.
    pub fn grid(self) -> Grid {
        Grid::linear(self.rows * self.size, self.threads).variant(self.variant)
    }

    /// Teams that go through all rows and sum over them, each thread `own` columns of a window. The blocks along x are
    /// the parts that [`sum_parts`] adds up.
    pub fn summing_grid(self, own: usize) -> Grid {
        let blocks = (self.rows * self.size).div_ceil(self.threads).min(SUMMING_THREADS / self.threads);
        let windows = self.cols.div_ceil(own * self.size);
        Grid { blocks: [blocks, windows, 1], ..self.grid() }
    }
}

/// The second stage of a sum over rows: a lane for each column, 32 warps for the parts.
pub fn sum_parts(cols: usize) -> Grid {
    Grid { threads: [1024, 1, 1], ..Grid::linear(cols, WARP) }
}

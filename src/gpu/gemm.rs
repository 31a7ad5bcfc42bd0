//! How the matrix product (`kernels/matmul.cu`, `kernels/matmul_f32.cu`) is cut into tiles, and K into parts, on a card.

use super::grid::Grid;
use super::grid::shared::{
    MATMUL_BF16_STAGES, MATMUL_BF16_STEP, MATMUL_F32_STEP, MATMUL_REDUCE_VECTOR, MATMUL_SMALL_TILE, MATMUL_THREADS,
    MATMUL_TILE,
};

/// The sizes of `batch` products `[m,k] × [k,n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    pub batch: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Tiles of 128×128 or, for few rows in bf16, 64×128; and K in `splits` parts, summed apart, of so many steps each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    product: Product,
    /// On the tensor cores.
    bf16: bool,
    tile: Tile,
    pub splits: usize,
    pub split_steps: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tile {
    Large,
    Small,
    /// 128×128 for rows that are not moved 16 bytes at a time.
    Unaligned,
}

/// Nanoseconds on an RTX 4090, by which tilings are compared: guesses until one is measured.
struct Cost {
    /// A step of a large tile, and of a small one.
    step: f64,
    small_step: f64,
    /// What a block takes besides its steps.
    block: f64,
    /// The launch of the second kernel, and what it and the first take for an element of a part.
    reduce: f64,
    part: f64,
}

const TENSOR_COST: Cost = Cost { step: 800.0, small_step: 450.0, block: 2000.0, reduce: 3000.0, part: 0.004 };
const F32_COST: Cost = Cost { step: 400.0, ..TENSOR_COST };
const MOST_SPLITS: usize = 32;

impl Tiling {
    /// The tiling with the least estimated time on so many multiprocessors; of equal ones the first in order of splits.
    /// Elements have `size` bytes; `aligned`: all rows begin at multiples of 16 bytes.
    pub fn new(multiprocessors: usize, product: Product, size: usize, aligned: bool) -> Tiling {
        let bf16 = size == 2;
        let tiles: &[Tile] = match (aligned, bf16) {
            (false, _) => &[Tile::Unaligned],
            (true, true) => &[Tile::Large, Tile::Small],
            (true, false) => &[Tile::Large],
        };
        let steps = product.k.div_ceil(if bf16 { MATMUL_BF16_STEP } else { MATMUL_F32_STEP }).max(1);
        let cut = |tile: Tile, splits: usize| {
            let split_steps = steps.div_ceil(splits); // no split is without a step
            Tiling { product, bf16, tile, splits: steps.div_ceil(split_steps), split_steps }
        };
        let all = (1..=steps.min(MOST_SPLITS)).flat_map(|splits| tiles.iter().map(move |&tile| cut(tile, splits)));
        let best = all.map(|tiling| (tiling.time(multiprocessors), tiling)).min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.map_or(cut(tiles[0], 1), |(_, tiling)| tiling)
    }

    /// This tiling with another number of splits, for tests.
    pub fn with_splits(self, splits: usize) -> Tiling {
        let steps = self.product.k.div_ceil(if self.bf16 { MATMUL_BF16_STEP } else { MATMUL_F32_STEP }).max(1);
        let split_steps = steps.div_ceil(splits.max(1));
        Tiling { splits: steps.div_ceil(split_steps), split_steps, ..self }
    }

    fn tile_rows(&self) -> usize {
        if self.tile == Tile::Small { MATMUL_SMALL_TILE } else { MATMUL_TILE }
    }

    /// Blocks of one split.
    fn tiles(&self) -> usize {
        let Product { batch, m, n, .. } = self.product;
        m.div_ceil(self.tile_rows()) * n.div_ceil(MATMUL_TILE) * batch
    }

    fn time(&self, multiprocessors: usize) -> f64 {
        let cost = if self.bf16 { TENSOR_COST } else { F32_COST };
        let Product { batch, m, n, .. } = self.product;
        let waves = ((self.tiles() * self.splits) as f64 / multiprocessors.max(1) as f64).ceil();
        let step = if self.tile == Tile::Small { cost.small_step } else { cost.step };
        let elements = batch as f64 * m as f64 * n as f64;
        let parts = if self.splits > 1 { cost.reduce + elements * self.splits as f64 * cost.part } else { 0.0 };
        waves * (self.split_steps as f64 * step + cost.block) + parts
    }

    /// The launch of the product; `into_f32`: bf16 operands, f32 result.
    pub fn grid(&self, into_f32: bool) -> Grid {
        let variant = match (self.tile, self.bf16 && into_f32) {
            (Tile::Large, false) => "",
            (Tile::Small, false) => "_64",
            (Tile::Unaligned, false) => "_unaligned",
            (Tile::Large, true) => "_f32",
            (Tile::Small, true) => "_f32_64",
            (Tile::Unaligned, true) => "_f32_unaligned",
        };
        let stage = (self.tile_rows() + MATMUL_TILE) * MATMUL_BF16_STEP * 2;
        let shared_bytes = if self.bf16 { MATMUL_BF16_STAGES * stage } else { 0 };
        Grid { shared_bytes, ..Grid::blocks(self.tiles() * self.splits, MATMUL_THREADS) }.variant(variant)
    }

    /// The launch that adds up the splits' parts of `len` elements each.
    pub fn reduce_grid(len: usize) -> Grid {
        Grid::linear(len.div_ceil(MATMUL_REDUCE_VECTOR), MATMUL_THREADS)
    }
}

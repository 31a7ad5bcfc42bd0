//! Every kernel against a product in f64: layouts, tile edges, guards around C, and equal bits for equal sums.

use super::*;
use crate::cpu::simd::{Level, level};

const SEED: u64 = 20_250_601;
const GUARD: f32 = 1234.5;

/// xorshift64*: numbers in [-1, 1).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32
    }

    fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next() as f32 / (1u64 << 31) as f32 - 1.0).collect()
    }
}

/// How a matrix lies in memory.
#[derive(Clone, Copy, Debug)]
enum StorageOrder {
    RowMajor,
    ColMajor,
    /// Row-major with gaps between rows, like one head of several.
    Rows,
    /// No contiguous direction.
    Strided,
}

const STORAGE_ORDERS: [StorageOrder; 4] =
    [StorageOrder::RowMajor, StorageOrder::ColMajor, StorageOrder::Rows, StorageOrder::Strided];

fn matrix(data: &[f32], rows: usize, cols: usize, order: StorageOrder) -> MatRef<'_> {
    let (row_stride, col_stride) = match order {
        StorageOrder::RowMajor => (cols, 1),
        StorageOrder::ColMajor => (1, rows),
        StorageOrder::Rows => (cols + 5, 1),
        StorageOrder::Strided => (2 * cols + 3, 2),
    };
    // Exactly as long as it must be.
    MatRef { data: &data[..extent(rows, cols, row_stride, col_stride)], row_stride, col_stride }
}

fn kernels() -> impl Iterator<Item = &'static Kernel> {
    [Level::Portable, Level::Avx2, Level::Avx512].into_iter().filter(|&l| l <= level()).map(kernel)
}

struct GemmCase {
    m: usize,
    n: usize,
    k: usize,
    a: StorageOrder,
    b: StorageOrder,
    accumulate: bool,
}

/// Computes the case in `parts` parts and checks it against f64. Returns the valid elements of C.
fn check(kernel: &'static Kernel, case: &GemmCase, parts: usize, rng: &mut Rng) -> Vec<f32> {
    let &GemmCase { m, n, k, a, b, accumulate } = case;
    let (a_data, b_data) = (rng.vec(2 * m * k + 5 * m + 3 * k + 8), rng.vec(2 * k * n + 5 * k + 3 * n + 8));
    let (a, b) = (matrix(&a_data, m, k, a), matrix(&b_data, k, n, b));
    let c_stride = n + 3;
    let mut c = vec![GUARD; m * c_stride + 7];
    let old = rng.vec(m * n);
    for i in 0..m {
        for j in 0..n {
            c[i * c_stride + j] = if accumulate { old[i * n + j] } else { f32::NAN };
        }
    }
    parallel(kernel, CheckedProduct::new(m, n, k, a, b, &mut c, c_stride, accumulate), parts);
    let mut out = Vec::with_capacity(m * n);
    for (i, row) in c.chunks(c_stride).enumerate() {
        let valid = if i < m { n } else { 0 };
        assert!(row[valid..].iter().all(|&x| x == GUARD), "row {i} of {m}x{n}x{k} wrote beyond its end");
        out.extend_from_slice(&row[..valid]);
    }
    for i in 0..m {
        for j in 0..n {
            let start = if accumulate { old[i * n + j] as f64 } else { 0.0 };
            let (mut want, mut magnitude) = (start, start.abs());
            for p in 0..k {
                let a = a.data[i * a.row_stride + p * a.col_stride] as f64;
                let b = b.data[p * b.row_stride + j * b.col_stride] as f64;
                want += a * b;
                magnitude += (a * b).abs();
            }
            // The bound of recursive summation, (k + 1)·u·(|A||B| + |C|); without fused multiply-add one u more.
            let bound = (k + 2) as f64 * 0.5 * f32::EPSILON as f64 * magnitude;
            let error = (out[i * n + j] as f64 - want).abs();
            assert!(error <= bound, "{:?} {m}x{n}x{k} at ({i}, {j}): |{error:e}| > {bound:e}", kernel.level);
        }
    }
    out
}

/// Sizes around every tile edge, thinned to a manageable number of triples.
#[test]
fn tile_edges() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for kernel in kernels() {
        let Kernel { mr, nr, .. } = *kernel;
        let ms = [1, 2, 3, 5, mr - 1, mr, mr + 1, 2 * mr + 1, 5 * mr + 3];
        let ns = [1, 2, 3, 5, nr - 1, nr, nr + 1, 3 * nr + 7, 4 * nr + 1];
        let ks = [1, 2, 3, 5, 7, 8, 9, 33, KC - 1, KC, KC + 1, 2 * KC + 9];
        for m in ms {
            for n in ns {
                for _ in 0..3 {
                    let k = ks[rng.next() as usize % ks.len()];
                    let (a, b) = (STORAGE_ORDERS[rng.next() as usize % 4], STORAGE_ORDERS[rng.next() as usize % 4]);
                    let accumulate = rng.next().is_multiple_of(2);
                    check(kernel, &GemmCase { m, n, k, a, b, accumulate }, 1, &mut rng);
                }
            }
        }
    }
}

#[test]
fn layouts() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    for kernel in kernels() {
        for a in STORAGE_ORDERS {
            for b in STORAGE_ORDERS {
                for (m, n, k) in [(1, 70, 20), (29, 70, 20), (29, 150, 300), (70, 33, 17)] {
                    for accumulate in [false, true] {
                        check(kernel, &GemmCase { m, n, k, a, b, accumulate }, 1, &mut rng);
                    }
                }
            }
        }
    }
}

#[test]
fn block_edges() {
    println!("seed {SEED}");
    let mut rng = Rng(SEED);
    let (a, b) = (StorageOrder::ColMajor, StorageOrder::ColMajor);
    for kernel in kernels() {
        for (m, n) in [(MC - 1, 33), (MC, 5), (MC + 1, 40), (2 * MC + 1, 3), (3, NC - 1), (14, NC), (13, NC + 1)] {
            for k in [9, KC + 1] {
                check(kernel, &GemmCase { m, n, k, a, b, accumulate: k == 9 }, 1, &mut rng);
            }
        }
        check(kernel, &GemmCase { m: MC + 1, n: NC + 1, k: 3, a, b, accumulate: false }, 1, &mut rng);
    }
}

#[test]
fn empty_dimensions() {
    let mut rng = Rng(SEED);
    for kernel in kernels() {
        for (m, n, k) in [(0, 5, 3), (5, 0, 3), (5, 3, 0), (0, 0, 0), (0, 70, 40), (4, 0, 40), (4, 70, 0)] {
            for accumulate in [false, true] {
                for parts in [1, 2] {
                    for b in [StorageOrder::RowMajor, StorageOrder::ColMajor] {
                        check(kernel, &GemmCase { m, n, k, a: StorageOrder::RowMajor, b, accumulate }, parts, &mut rng);
                    }
                }
            }
        }
    }
}

/// However C is divided, each element has the same bits.
#[test]
fn parts_do_not_change_bits() {
    for kernel in kernels() {
        for (m, n, k) in [(1, 200, 300), (7, 64, 300), (50, 100, 520), (100, 33, 40), (97, 131, 257)] {
            for (a, b) in
                [(StorageOrder::RowMajor, StorageOrder::ColMajor), (StorageOrder::ColMajor, StorageOrder::RowMajor)]
            {
                let case = GemmCase { m, n, k, a, b, accumulate: true };
                let whole = check(kernel, &case, 1, &mut Rng(SEED));
                for parts in [2, 3, 7] {
                    let divided = check(kernel, &case, parts, &mut Rng(SEED));
                    assert!(
                        whole.iter().zip(&divided).all(|(x, y)| x.to_bits() == y.to_bits()),
                        "{m}x{n}x{k}, {parts}"
                    );
                }
            }
        }
    }
}

/// The public entry points on pools of one and two threads, and row by row.
#[test]
fn threads_and_row_count_do_not_change_bits() {
    println!("seed {SEED}");
    let (m, n, k) = (150, 352, 300);
    let mut rng = Rng(SEED);
    let (a_data, b_data) = (rng.vec(m * k), rng.vec(k * n));
    for (a, b) in [(StorageOrder::RowMajor, StorageOrder::ColMajor), (StorageOrder::RowMajor, StorageOrder::RowMajor)] {
        let (a, b) = (matrix(&a_data, m, k, a), matrix(&b_data, k, n, b));
        let on_threads = |threads| {
            let mut c = vec![f32::NAN; m * n];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| gemm(m, n, k, a, b, &mut c, n, false));
            c
        };
        let one = on_threads(1);
        assert!(one == on_threads(2), "one and two threads differ");
        let mut rows = vec![f32::NAN; m * n];
        for (i, c) in rows.chunks_exact_mut(n).enumerate() {
            gemm_serial(1, n, k, MatRef { data: &a.data[i * k..], ..a }, b, c, n, false);
        }
        assert!(one == rows, "a single row differs from the same row among many");
    }
}

#[test]
#[should_panic(expected = "B [4, 3] does not fit")]
fn short_slice_is_refused() {
    let data = [0.0; 12];
    let b = MatRef { data: &data[..11], row_stride: 3, col_stride: 1 };
    gemm(2, 3, 4, MatRef { data: &data, row_stride: 4, col_stride: 1 }, b, &mut [0.0; 6], 3, false);
}

#[test]
#[should_panic(expected = "rows of C overlap")]
fn overlapping_rows_are_refused() {
    let data = [0.0; 12];
    let x = MatRef { data: &data, row_stride: 3, col_stride: 1 };
    gemm(2, 3, 3, x, x, &mut [0.0; 12], 2, false);
}

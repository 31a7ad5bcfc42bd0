//! Matrix multiply in f32: C = A·B or C += A·B with any strides, blocked for the caches after Goto and BLIS.
//!
//! ```text
//!                        n ──── jc: NC ─────┐
//!                  k ┌───────┬──────────────┤
//!              pc: KC│       │ NR│ NR│ …    │  B panels: KC × NR, packed, one at a time in L1
//!                    └───────┴──────────────┘
//!        k: pc KC
//!      ┌─────────┐   ┌───────┬──────────────┐
//!   ic │ MR      │   │       │ tile         │  tile: MR × NR in registers, see microkernel.rs
//!   MC │ MR      │   │       │              │
//!      ├─────────┤   ├───────┴──────────────┤
//!    m │         │   │          C           │
//!      └─────────┘   └──────────────────────┘
//!      A blocks: MC × KC in L2
//! ```
//!
//! A panel of B is packed just before its first tile needs it, so a product that reads it once finds it in L1.
//! Operands that already lie well are read in place. Threads get disjoint rectangles of C and run the serial product on them.
//!
//! Every element of C is summed over k in blocks of KC, in order inside the block and from block to block. Neither
//! the shape, nor the element's position, nor the number of threads changes a bit of it.

mod few_rows;
mod microkernel;
mod pack;
#[cfg(test)]
mod tests;

use self::microkernel::{Kernel, MAX_MR, MAX_NR, TileOperands, kernel};
use self::pack::{Lanes, pack};
use crate::cpu::simd;
use std::cell::RefCell;

/// A matrix inside a slice: element (i, j) is data[i * row_stride + j * col_stride].
#[derive(Clone, Copy)]
pub struct MatRef<'a> {
    pub data: &'a [f32],
    pub row_stride: usize,
    pub col_stride: usize,
}

/// Length of a block along k; part of the order of summation, hence the same for every kernel.
const KC: usize = 256;
/// Rows of an A block, a multiple of every MR; a small part of L2, which panels of B and C pass through as well.
const MC: usize = 144;
/// Columns of a B block, a multiple of every NR.
const NC: usize = 1024;
/// Multiply-adds below which a thread is not worth waking.
const MIN_WORK: usize = 1 << 19;

/// C = A·B, or C += A·B if `accumulate`; A is `[m, k]`, B is `[k, n]`, row i of C is `c[i * c_stride..][..n]`.
/// Big products are spread over the threads of the current rayon pool.
///
/// Panics if a matrix does not fit its slice or if the rows of C overlap.
#[allow(clippy::too_many_arguments, reason = "the usual signature of a GEMM")]
pub fn gemm(m: usize, n: usize, k: usize, a: MatRef, b: MatRef, c: &mut [f32], c_stride: usize, accumulate: bool) {
    let product = CheckedProduct::new(m, n, k, a, b, c, c_stride, accumulate);
    let parts = (m.max(MAX_MR) * n * k / MIN_WORK).clamp(1, rayon::current_num_threads());
    parallel(kernel(simd::level()), product, parts);
}

/// [`gemm`] on the calling thread, for small products inside an already parallel loop.
#[allow(clippy::too_many_arguments, reason = "the usual signature of a GEMM")]
pub fn gemm_serial(
    m: usize,
    n: usize,
    k: usize,
    a: MatRef,
    b: MatRef,
    c: &mut [f32],
    c_stride: usize,
    accumulate: bool,
) {
    serial(kernel(simd::level()), CheckedProduct::new(m, n, k, a, b, c, c_stride, accumulate));
}

/// A product whose operands were checked against their slices, and which alone accesses its rectangle of C.
struct CheckedProduct<'a> {
    m: usize,
    n: usize,
    k: usize,
    a: MatRef<'a>,
    b: MatRef<'a>,
    c: *mut f32,
    c_stride: usize,
    accumulate: bool,
    exclusive: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: `c` stands for an exclusive borrow of the elements of its rectangle, and f32 is Send.
unsafe impl Send for CheckedProduct<'_> {}

impl<'a> CheckedProduct<'a> {
    #[allow(clippy::too_many_arguments, reason = "the usual signature of a GEMM")]
    fn new(
        m: usize,
        n: usize,
        k: usize,
        a: MatRef<'a>,
        b: MatRef<'a>,
        c: &'a mut [f32],
        c_stride: usize,
        accumulate: bool,
    ) -> Self {
        assert!(extent(m, k, a.row_stride, a.col_stride) <= a.data.len(), "A [{m}, {k}] does not fit its slice");
        assert!(extent(k, n, b.row_stride, b.col_stride) <= b.data.len(), "B [{k}, {n}] does not fit its slice");
        assert!(extent(m, n, c_stride, 1) <= c.len(), "C [{m}, {n}] does not fit its slice");
        assert!(m <= 1 || n <= c_stride, "rows of C overlap: {n} columns at stride {c_stride}");
        let c = c.as_mut_ptr();
        CheckedProduct { m, n, k, a, b, c, c_stride, accumulate, exclusive: std::marker::PhantomData }
    }

    /// Rows 0..at and at..m as two products.
    fn split_rows(self, at: usize) -> (Self, Self) {
        assert!(0 < at && at < self.m);
        let a = MatRef { data: tail(self.a.data, at * self.a.row_stride), ..self.a };
        // SAFETY: row `at` exists, so its start lies within C; the two row ranges are disjoint.
        let c = unsafe { self.c.add(at * self.c_stride) };
        (CheckedProduct { m: at, ..self }, CheckedProduct { m: self.m - at, a, c, ..self })
    }

    /// Columns 0..at and at..n as two products.
    fn split_columns(self, at: usize) -> (Self, Self) {
        assert!(0 < at && at < self.n);
        let b = MatRef { data: tail(self.b.data, at * self.b.col_stride), ..self.b };
        // SAFETY: column `at` exists, so its start lies within C; the two column ranges are disjoint.
        let c = unsafe { self.c.add(at) };
        (CheckedProduct { n: at, ..self }, CheckedProduct { n: self.n - at, b, c, ..self })
    }

    /// C = 0 or C += 0, the product over an empty k.
    fn empty(&self) {
        for i in 0..self.m {
            if !self.accumulate {
                // SAFETY: row i < m of C holds n elements, borrowed by this product alone.
                unsafe { std::slice::from_raw_parts_mut(self.c.add(i * self.c_stride), self.n) }.fill(0.0);
            }
        }
    }
}

/// One past the index of the last element of a matrix.
fn extent(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> usize {
    if rows == 0 || cols == 0 {
        return 0;
    }
    let last = |count: usize, stride: usize| (count - 1).checked_mul(stride);
    last(rows, row_stride)
        .and_then(|r| r.checked_add(last(cols, col_stride)?)?.checked_add(1))
        .expect("matrix extent overflows")
}

/// data[from..], empty when `from` lies behind the end, as it may for a matrix without elements.
fn tail(data: &[f32], from: usize) -> &[f32] {
    data.get(from..).unwrap_or_default()
}

/// Halves the product until there is one part per thread.
fn parallel(kernel: &'static Kernel, product: CheckedProduct, parts: usize) {
    if parts <= 1 {
        return serial(kernel, product);
    }
    let left = parts / 2;
    let row = product.m * left / parts;
    let column = (product.n * left / parts).next_multiple_of(kernel.nr);
    // Time of the larger part, in register tiles' columns plus what packing its operands costs.
    let time = |m: usize, n: usize| m * n.next_multiple_of(kernel.nr) + 8 * (m + n);
    let by_rows = if row == 0 { usize::MAX } else { time(product.m - row, product.n) };
    let by_columns = if column >= product.n { usize::MAX } else { time(product.m, column.max(product.n - column)) };
    let (first, second) = match by_rows.min(by_columns) {
        usize::MAX => return serial(kernel, product),
        best if best == by_rows => product.split_rows(row),
        _ => product.split_columns(column),
    };
    rayon::join(|| parallel(kernel, first, left), || parallel(kernel, second, parts - left));
}

/// Packed operands, kept by each thread from call to call.
#[derive(Default)]
struct Buffers {
    a: Vec<CacheLine>,
    b: Vec<CacheLine>,
}

/// The unit of the buffers, so that panels start on cache lines.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct CacheLine([f32; 16]);

/// The first `len` floats of a buffer that grows as needed.
fn reserve(buffer: &mut Vec<CacheLine>, len: usize) -> &mut [f32] {
    let lines = len.div_ceil(16);
    if buffer.len() < lines {
        buffer.resize(lines, bytemuck::Zeroable::zeroed());
    }
    &mut bytemuck::cast_slice_mut(buffer)[..len]
}

fn serial(kernel: &Kernel, product: CheckedProduct) {
    thread_local! {
        static BUFFERS: RefCell<Buffers> = RefCell::default();
    }
    if product.m == 0 || product.n == 0 {
        return;
    }
    if product.k == 0 {
        return product.empty();
    }
    let product = match few_rows::columns_done(kernel.level, &product) {
        0 => product,
        done if done == product.n => return,
        done => product.split_columns(done).1,
    };
    BUFFERS.with_borrow_mut(|buffers| {
        // A few rows read each panel of B once: blocks along n are then only as wide as keeps pages of B together.
        let nc = if product.m <= kernel.mr { NC / 4 } else { NC };
        for jc in (0..product.n).step_by(nc) {
            for pc in (0..product.k).step_by(KC) {
                for ic in (0..product.m).step_by(MC) {
                    let block = CacheBlock {
                        ic,
                        jc,
                        pc,
                        mc: MC.min(product.m - ic),
                        nc: nc.min(product.n - jc),
                        kc: KC.min(product.k - pc),
                    };
                    macrokernel(kernel, &product, &block, buffers);
                }
            }
        }
    });
}

/// The part of a product that one call of the macrokernel covers.
struct CacheBlock {
    ic: usize,
    jc: usize,
    pc: usize,
    mc: usize,
    nc: usize,
    kc: usize,
}

/// A panel ready for the microkernel: element (lane, p) is data[lane * lane_stride + p * k_stride].
struct Panel<'a> {
    data: &'a [f32],
    lane_stride: usize,
    k_stride: usize,
}

/// All tiles of one block: panels of B outside, so that each stays in L1 while the A block passes by.
fn macrokernel(kernel: &Kernel, product: &CheckedProduct, block: &CacheBlock, buffers: &mut Buffers) {
    let Kernel { level, mr, nr, .. } = *kernel;
    let &CacheBlock { ic, jc, pc, mc, nc, kc } = block;
    let (a, b) = (product.a, product.b);
    // A in place saves packing where few panels of B reuse it, unless the rows of a tile would share their cache sets.
    let a_in_place = a.col_stride == 1 && nc <= 8 * nr && !a.row_stride.is_multiple_of(1024);
    // B in place is read in long strides, which pays only if hardly any tile reads it again.
    let b_in_place = b.col_stride == 1 && product.m <= 2 * mr;
    // With one block of A, each panel of B is used up before the next is packed.
    let once = product.m <= MC;
    let a_buffer = reserve(&mut buffers.a, if a_in_place { 0 } else { mc.next_multiple_of(mr) * kc });
    let b_buffer = reserve(&mut buffers.b, if once { nr * kc } else { nc.next_multiple_of(nr) * kc });
    let a_source = &a.data[ic * a.row_stride + pc * a.col_stride..];
    if !a_in_place {
        let (lane_stride, k_stride) = (a.row_stride, a.col_stride);
        pack(level, a_buffer, mr, Lanes { data: a_source, lanes: mc, lane_stride, kc, k_stride });
    }
    for j in (0..nc).step_by(nr) {
        let columns = nr.min(nc - j);
        let b_source = &b.data[pc * b.row_stride + (jc + j) * b.col_stride..];
        let b_panel = if b_in_place && columns == nr {
            Panel { data: b_source, lane_stride: 1, k_stride: b.row_stride }
        } else {
            let panel = &mut b_buffer[if once { 0 } else { j * kc }..][..nr * kc];
            if ic == 0 {
                let (lane_stride, k_stride) = (b.col_stride, b.row_stride);
                pack(level, panel, nr, Lanes { data: b_source, lanes: columns, lane_stride, kc, k_stride });
            }
            Panel { data: panel, lane_stride: 1, k_stride: nr }
        };
        for i in (0..mc).step_by(mr) {
            let rows = mr.min(mc - i);
            let a_panel = if a_in_place {
                Panel { data: &a_source[i * a.row_stride..], lane_stride: a.row_stride, k_stride: 1 }
            } else {
                Panel { data: &a_buffer[i * kc..], lane_stride: 1, k_stride: mr }
            };
            // SAFETY: row ic + i and column jc + j exist in C.
            let c = unsafe { product.c.add((ic + i) * product.c_stride + jc + j) };
            let add = product.accumulate || pc > 0;
            tile(kernel, rows, columns, kc, &a_panel, &b_panel, c, product.c_stride, add);
        }
    }
}

/// One tile; at the right edge of C, whole vectors go to a scratch tile and the valid columns from there to C.
#[allow(clippy::too_many_arguments, reason = "called from one place; a struct would only repeat the names")]
#[inline]
fn tile(
    kernel: &Kernel,
    rows: usize,
    columns: usize,
    kc: usize,
    a: &Panel,
    b: &Panel,
    c: *mut f32,
    c_row: usize,
    add: bool,
) {
    debug_assert!(extent(rows, kc, a.lane_stride, a.k_stride) <= a.data.len());
    debug_assert!(extent(kc, kernel.nr, b.k_stride, 1) <= b.data.len());
    let compute = kernel.tiles[rows - 1];
    let (a, a_row, a_k, b, b_k) = (a.data.as_ptr(), a.lane_stride, a.k_stride, b.data.as_ptr(), b.k_stride);
    if columns == kernel.nr {
        // SAFETY: panels cover rows × kc and kc × NR; rows × NR elements at `c` belong to this product.
        unsafe { compute(&TileOperands { kc, a, a_row, a_k, b, b_k, c, c_row, add }) };
        return;
    }
    let mut scratch = [0.0f32; MAX_MR * MAX_NR];
    // SAFETY: as above, and the scratch tile has room for MR rows of the widest NR.
    unsafe { compute(&TileOperands { kc, a, a_row, a_k, b, b_k, c: scratch.as_mut_ptr(), c_row: MAX_NR, add: false }) };
    for (i, row) in scratch.chunks_exact(MAX_NR).take(rows).enumerate() {
        // SAFETY: row i < rows of the tile has `columns` elements in C, borrowed by this product alone.
        let c = unsafe { std::slice::from_raw_parts_mut(c.add(i * c_row), columns) };
        for (c, x) in c.iter_mut().zip(row) {
            *c = if add { *c + x } else { *x };
        }
    }
}

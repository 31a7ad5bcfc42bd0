//! Loops over rows on all cores and in wide vectors, with results that do not depend on how many cores there are.
//!
//! A row function that carries `#[inline(always)]` is compiled for the machine's vector unit (see [`vectorize`]); without
//! it the result is the same, only slower.

use super::simd::{Number, vectorize};
use rayon::prelude::*;

/// Fewer elements than this are not worth waking a thread for.
const MIN_ELEMENTS: usize = 8192;
/// Rows whose contributions are added up one after the other before partial sums meet. A constant, so that the order of
/// additions is the same with any number of threads.
const ROWS_PER_SUM: usize = 64;

/// Calls `row(i, out_row)` for each row of `out`, in parallel.
pub fn par_rows<F: Number>(out: &mut [F], cols: usize, row: impl Fn(usize, &mut [F]) + Sync) {
    if cols == 0 {
        return;
    }
    let rows_per_task = MIN_ELEMENTS.div_ceil(cols);
    out.par_chunks_mut(rows_per_task * cols).enumerate().for_each(|(task, chunk)| {
        vectorize(
            #[inline(always)]
            || {
                for (i, out_row) in chunk.chunks_exact_mut(cols).enumerate() {
                    row(task * rows_per_task + i, out_row);
                }
            },
        )
    });
}

/// [`par_rows`] for functions that also give one number per row, such as a norm's `rstd`.
pub fn par_rows_with<F: Number>(
    out: &mut [F],
    cols: usize,
    per_row: &mut [F],
    row: impl Fn(usize, &mut [F]) -> F + Sync,
) {
    if cols == 0 {
        return;
    }
    let rows_per_task = MIN_ELEMENTS.div_ceil(cols);
    let tasks = out.par_chunks_mut(rows_per_task * cols).zip(per_row.par_chunks_mut(rows_per_task));
    tasks.enumerate().for_each(|(task, (chunk, numbers))| {
        vectorize(
            #[inline(always)]
            || {
                for (i, (out_row, number)) in chunk.chunks_exact_mut(cols).zip(numbers).enumerate() {
                    *number = row(task * rows_per_task + i, out_row);
                }
            },
        )
    });
}

/// `row(i)` for each of `rows` rows of `cols` elements, in parallel.
pub fn map_rows<T: Send>(rows: usize, cols: usize, row: impl Fn(usize) -> T + Sync + Send) -> Vec<T> {
    (0..rows)
        .into_par_iter()
        .with_min_len(MIN_ELEMENTS.div_ceil(cols.max(1)))
        .map(|i| {
            vectorize(
                #[inline(always)]
                || row(i),
            )
        })
        .collect()
}

/// The sum over `rows` rows of what `add_row(i, sum)` adds to `sum[..cols]`: gradients of gains and biases.
pub fn sum_over_rows<F: Number>(rows: usize, cols: usize, add_row: impl Fn(usize, &mut [F]) + Sync) -> Vec<F> {
    let partial_sums: Vec<Vec<F>> = (0..rows.div_ceil(ROWS_PER_SUM))
        .into_par_iter()
        .with_min_len(MIN_ELEMENTS.div_ceil(ROWS_PER_SUM * cols.max(1)))
        .map(|block| {
            let mut sum = vec![F::zero(); cols];
            vectorize(
                #[inline(always)]
                || {
                    for i in block * ROWS_PER_SUM..rows.min((block + 1) * ROWS_PER_SUM) {
                        add_row(i, &mut sum);
                    }
                },
            );
            sum
        })
        .collect();
    let mut total = vec![F::zero(); cols];
    for partial in partial_sums {
        for (t, p) in total.iter_mut().zip(partial) {
            *t += p;
        }
    }
    total
}

/// f(x) for each element, in parallel.
pub fn map<F: Number>(x: &[F], f: impl Fn(F) -> F + Sync) -> Vec<F> {
    let mut y = vec![F::zero(); x.len()];
    y.par_chunks_mut(MIN_ELEMENTS).zip(x.par_chunks(MIN_ELEMENTS)).for_each(|(y, x)| {
        vectorize(
            #[inline(always)]
            || y.iter_mut().zip(x).for_each(|(y, &x)| *y = f(x)),
        )
    });
    y
}

/// f(a, b) for each pair of elements, in parallel.
pub fn zip<F: Number>(a: &[F], b: &[F], f: impl Fn(F, F) -> F + Sync) -> Vec<F> {
    let mut y = vec![F::zero(); a.len()];
    let chunks = y.par_chunks_mut(MIN_ELEMENTS).zip(a.par_chunks(MIN_ELEMENTS)).zip(b.par_chunks(MIN_ELEMENTS));
    chunks.for_each(|((y, a), b)| {
        vectorize(
            #[inline(always)]
            || y.iter_mut().zip(a.iter().zip(b)).for_each(|(y, (&a, &b))| *y = f(a, b)),
        )
    });
    y
}

/// f(a, b, c) for each triple of elements, in parallel.
pub fn zip3<F: Number>(a: &[F], b: &[F], c: &[F], f: impl Fn(F, F, F) -> F + Sync) -> Vec<F> {
    let mut y = vec![F::zero(); a.len()];
    let ab = a.par_chunks(MIN_ELEMENTS).zip(b.par_chunks(MIN_ELEMENTS));
    y.par_chunks_mut(MIN_ELEMENTS).zip(ab).zip(c.par_chunks(MIN_ELEMENTS)).for_each(|((y, (a, b)), c)| {
        vectorize(
            #[inline(always)]
            || y.iter_mut().zip(a.iter().zip(b).zip(c)).for_each(|(y, ((&a, &b), &c))| *y = f(a, b, c)),
        )
    });
    y
}

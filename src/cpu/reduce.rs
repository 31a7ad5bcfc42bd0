//! Sums and maxima of a row, in 16 parts side by side: more accurate than one running sum, in an order that is always the
//! same, and in a form that the compiler can keep in vector registers.

use super::simd::Number;

const LANES: usize = 16;

/// Σ f(x)
#[inline(always)]
pub fn sum_of<F: Number>(x: &[F], f: impl Fn(F) -> F) -> F {
    let mut partial = [F::zero(); LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            partial[lane] += f(chunk[lane]);
        }
    }
    for (p, &x) in partial.iter_mut().zip(rest) {
        *p += f(x);
    }
    partial.into_iter().sum()
}

/// Σ a b
#[inline(always)]
pub fn sum_of_products<F: Number>(a: &[F], b: &[F]) -> F {
    let mut partial = [F::zero(); LANES];
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            partial[lane] += a[lane] * b[lane];
        }
    }
    for (p, (&a, &b)) in partial.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *p += a * b;
    }
    partial.into_iter().sum()
}

/// The largest value, −∞ of none. NaNs are skipped: whoever then takes exp(x − max) meets them again.
#[inline(always)]
pub fn max_of<F: Number>(x: &[F]) -> F {
    let larger = |a: F, b: F| if b > a { b } else { a };
    let mut partial = [F::neg_infinity(); LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            partial[lane] = larger(partial[lane], chunk[lane]);
        }
    }
    partial.iter().chain(rest).fold(F::neg_infinity(), |max, &x| larger(max, x))
}

//! temporary
#[derive(Clone, Copy)]
pub struct MatRef<'a> {
    pub data: &'a [f32],
    pub row_stride: usize,
    pub col_stride: usize,
}
pub fn gemm(m: usize, n: usize, k: usize, a: MatRef, b: MatRef, c: &mut [f32], c_stride: usize, accumulate: bool) {
    gemm_serial(m, n, k, a, b, c, c_stride, accumulate)
}
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
    for i in 0..m {
        for j in 0..n {
            let s: f32 = (0..k)
                .map(|l| a.data[i * a.row_stride + l * a.col_stride] * b.data[l * b.row_stride + j * b.col_stride])
                .sum();
            let c = &mut c[i * c_stride + j];
            *c = if accumulate { *c + s } else { s };
        }
    }
}

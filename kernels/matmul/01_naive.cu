// Matrix product, rung 1: one thread computes one element of C and reads everything from global memory.
//
// C[i,j] = Σ_l A[i,l] B[l,j]. All f32 and row-major: a [M,K], b [K,N], c [M,N]; any M, N, K.
// Threads: a block of (32, 8) has 32 rows and 8 columns of C; x is the row, so a warp is 32 rows of one column.
// Shared memory: none.
// Moved: each element of C reads a row of A and a column of B, 8K bytes for 2K FLOPs. A warp's 32 rows of A lie K
// apart: 32 sectors of 32 bytes a load, of which 4 bytes each are used; the element of B is one sector, the same for
// all lanes.
// Numerics: f32, one fused multiply-add for each l, ascending.
// Not yet measured on a card.

// The counter to watch: global sectors. 33 of them for the 32 multiply-adds of a warp, efficiency 15 %.

extern "C" __global__ void __launch_bounds__(256)
    ladder_matmul_01_naive(const float *a, const float *b, float *c, long m, long n, long k) {
    long row = blockIdx.x * 32L + threadIdx.x, column = blockIdx.y * 8L + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (long l = 0; l < k; l++) sum = fmaf(a[row * k + l], b[l * n + column], sum);
    c[row * n + column] = sum;
}

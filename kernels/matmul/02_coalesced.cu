// Matrix product, rung 2: the lanes of a warp are neighbours in memory.
//
// C[i,j] = Σ_l A[i,l] B[l,j]. All f32 and row-major: a [M,K], b [K,N], c [M,N]; any M, N, K.
// Threads: a block of (32, 8) has 8 rows and 32 columns of C; x is the column, so a warp is 32 columns of one row.
// Shared memory: none.
// Moved: each element of C still reads 8K bytes for 2K FLOPs. A warp's load of B is 128 bytes in a row, 4 sectors,
// all of them used; the element of A is one sector, the same for all lanes.
// Numerics: f32, one fused multiply-add for each l, ascending.
// Not yet measured on a card.

// Changed: x and y have swapped their meanings, nothing else. What one instruction of a warp reads should lie
// together, because memory moves in sectors of 32 bytes. The counter: global sectors, from 33 to 5 for each
// multiply-add of a warp.

extern "C" __global__ void __launch_bounds__(256)
    ladder_matmul_02_coalesced(const float *a, const float *b, float *c, long m, long n, long k) {
    long row = blockIdx.x * 8L + threadIdx.y, column = blockIdx.y * 32L + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (long l = 0; l < k; l++) sum = fmaf(a[row * k + l], b[l * n + column], sum);
    c[row * n + column] = sum;
}

// Matrix product, rung 5: four floats move with one instruction.
//
// C[i,j] = Σ_l A[i,l] B[l,j]. All f32 and row-major: a [M,K], b [K,N], c [M,N]; any M, N, K.
// Threads: 256 have a tile of 128×128 of C. Thread (x, y), x, y < 16, owns rows 4y + i and 64 + 4y + i, columns 4x +
// j and 64 + 4x + j, i, j < 4; and fetches four neighbours of each tile: of A in row t/2, of B in row t/32.
// Shared memory: a_smem [8 of K][128 rows + 4], transposed, so that a thread's rows are neighbours too; b_smem [8 of
// K] [128 columns]. A warp stores 16 rows at two depths 4 apart: the padding puts these 16 banks apart, without
// conflicts.
// Moved: as in rung 4, 8K/128 bytes for 2K FLOPs.
// Numerics: f32, one fused multiply-add for each l, ascending.
// Not yet measured on a card.

// Changed: loads and stores of 16 bytes, to global and shared memory; the tile of A had to be transposed for it. Rows
// that do not begin at a multiple of 16 bytes go element by element. The counter: instructions; 4 shared loads where
// there were 16, beside the 64 multiply-adds of each step. Sectors and wavefronts stay: as many bytes move.
#include <cstdint>

constexpr int TILE = 128, STEP = 8, THREADS = 256, PADDING = 4;

// Elements column … column + 3 of a row, column being a multiple of 4; those beyond its end are zero.
__device__ __forceinline__ float4 load4(const float *row, long column, long columns, bool aligned) {
    float4 to = {};
    if (aligned) {
        if (column < columns) to = reinterpret_cast<const float4 *>(row)[column / 4];
        return to;
    }
    if (column < columns) to.x = row[column];
    if (column + 1 < columns) to.y = row[column + 1];
    if (column + 2 < columns) to.z = row[column + 2];
    if (column + 3 < columns) to.w = row[column + 3];
    return to;
}

// The vector is addressed by its own index: from the address of an element nvcc makes four stores of some of them.
__device__ __forceinline__ void store4(float *row, long column, long columns, bool aligned, float4 from) {
    if (aligned) {
        if (column < columns) reinterpret_cast<float4 *>(row)[column / 4] = from;
        return;
    }
    if (column < columns) row[column] = from.x;
    if (column + 1 < columns) row[column + 1] = from.y;
    if (column + 2 < columns) row[column + 2] = from.z;
    if (column + 3 < columns) row[column + 3] = from.w;
}

// Whether every row of a matrix begins at a multiple of 16 bytes; its length is then one of 4 elements.
__device__ __forceinline__ bool rows_aligned(const float *matrix, long columns) {
    return reinterpret_cast<uintptr_t>(matrix) % 16 == 0 && columns % 4 == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ladder_matmul_05_vectorised(const float *a, const float *b, float *c, long m, long n, long k) {
    __shared__ __align__(16) float a_smem[STEP][TILE + PADDING], b_smem[STEP][TILE];
    int thread = threadIdx.x, x = thread % 16, y = thread / 16;
    int a_row = thread / 2, a_depth = thread % 2 * 4, b_depth = thread / 32, b_column = thread % 32 * 4;
    long row0 = blockIdx.x * (long)TILE, column0 = blockIdx.y * (long)TILE;
    bool a_aligned = rows_aligned(a, k), b_aligned = rows_aligned(b, n), c_aligned = rows_aligned(c, n);
    __align__(16) float sum[8][8] = {};

    for (long k0 = 0; k0 < k; k0 += STEP) {
        float4 a_regs = {}, b_regs = {};
        if (row0 + a_row < m) a_regs = load4(a + (row0 + a_row) * k, k0 + a_depth, k, a_aligned);
        if (k0 + b_depth < k) b_regs = load4(b + (k0 + b_depth) * n, column0 + b_column, n, b_aligned);
        a_smem[a_depth][a_row] = a_regs.x;
        a_smem[a_depth + 1][a_row] = a_regs.y;
        a_smem[a_depth + 2][a_row] = a_regs.z;
        a_smem[a_depth + 3][a_row] = a_regs.w;
        *reinterpret_cast<float4 *>(&b_smem[b_depth][b_column]) = b_regs;
        __syncthreads();  // both tiles are complete
#pragma unroll
        for (int depth = 0; depth < STEP; depth++) {
            __align__(16) float a_own[8], b_own[8];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                *reinterpret_cast<float4 *>(a_own + half * 4) =
                    *reinterpret_cast<float4 *>(&a_smem[depth][half * 64 + y * 4]);
                *reinterpret_cast<float4 *>(b_own + half * 4) =
                    *reinterpret_cast<float4 *>(&b_smem[depth][half * 64 + x * 4]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++) sum[i][j] = fmaf(a_own[i], b_own[j], sum[i][j]);
        }
        __syncthreads();  // nobody still reads the tiles that the next step overwrites
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        long row = row0 + i / 4 * 64 + y * 4 + i % 4;
        if (row >= m) continue;
#pragma unroll
        for (int half = 0; half < 2; half++)
            store4(c + row * n, column0 + half * 64 + x * 4, n, c_aligned,
                   *reinterpret_cast<float4 *>(sum[i] + half * 4));
    }
}

// Matrix product, rung 7: tiles arrive while others are multiplied, and lie where ldmatrix finds them without
// conflicts.
//
// C[i,j] = Σ_l A[i,l] B[l,j]. All bf16 and row-major: a [M,K], b [K,N], c [M,N]; any M, K and N multiples of 8,
// pointers multiples of 16 bytes.
// Threads: as in rung 6, 8 warps with 64×32 each of a tile of 128×128.
// Shared memory: three stages of A [128 rows][4 chunks] and B [32 of K][16 chunks], 48 KiB together; a chunk is 16
// bytes, 8 elements. Swizzle: chunk c of row r lies at c ^ (r/2 mod 4) in A and at c ^ (r mod 8) in B, so the 8 rows
// of an ldmatrix cover all 32 banks. What lies outside the matrices is zero-filled by the copy.
// Moved: as in rung 6, 4K/128 bytes for 2K FLOPs.
// Numerics: products exact, sums in f32, in the order of the tensor core; C is rounded to bf16 once.
// Not yet measured on a card.

// Changed: cp.async copies to shared memory past the registers, two tiles ahead of the one in use, and one barrier a
// step is left. The counters: shared wavefronts, down to their ideal; no global loads any more, cp.async instead.
// That copies and products overlap is what a card gains most from, and no counter shows it.
#include "common.cuh"
#include "ptx.cuh"

constexpr int TILE = 128, STEP = 32, STAGES = 3, THREADS = 256, CHUNK = 8;
constexpr int A_CHUNKS = STEP / CHUNK, B_CHUNKS = TILE / CHUNK;  // of one row

struct Stage {
    uint4 a[TILE][A_CHUNKS], b[STEP][B_CHUNKS];
};

__device__ __forceinline__ uint4 *a_chunk(Stage &stage, int row, int chunk) {
    return &stage.a[row][chunk ^ (row / 2 % 4)];
}

__device__ __forceinline__ uint4 *b_chunk(Stage &stage, int depth, int chunk) {
    return &stage.b[depth][chunk ^ (depth % 8)];
}

// Begins to copy the tiles whose corners are a and b; the rest of each, beyond the matrices, is filled with zeros.
__device__ __forceinline__ void load_tiles(Stage &stage, const bf16 *a, const bf16 *b, int rows, int columns,
                                           int depths, long n, long k) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE * A_CHUNKS; i += THREADS) {
        int row = i / A_CHUNKS, chunk = i % A_CHUNKS;
        bool inside = row < rows && chunk * CHUNK < depths;
        ptx::copy_async_16(a_chunk(stage, row, chunk), inside ? a + row * k + chunk * CHUNK : a, inside ? 16 : 0);
    }
#pragma unroll 1  // the registers would not suffice for more
    for (int i = threadIdx.x; i < STEP * B_CHUNKS; i += THREADS) {
        int depth = i / B_CHUNKS, chunk = i % B_CHUNKS;
        bool inside = depth < depths && chunk * CHUNK < columns;
        ptx::copy_async_16(b_chunk(stage, depth, chunk), inside ? b + depth * n + chunk * CHUNK : b, inside ? 16 : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ladder_matmul_07_pipelined(const bf16 *a, const bf16 *b, bf16 *c, long m, long n, long k) {
    __shared__ Stage stages[STAGES];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    long row0 = blockIdx.x * (long)TILE, column0 = blockIdx.y * (long)TILE;
    a += row0 * k, b += column0, c += row0 * n + column0;                          // the tiles' corners
    int rows = min(m - row0, (long)TILE), columns = min(n - column0, (long)TILE);  // inside the matrices
    float sum[4][4][4] = {};

    long left = k;  // of K, not yet copied: a and b move along with it
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        if (left > 0) load_tiles(stages[stage], a, b, rows, columns, min(left, (long)STEP), n, k);
        a += STEP, b += STEP * n, left -= STEP;
        ptx::copy_async_commit();
    }
    int now = 0, next = STAGES - 1;  // the stage in use, and the one that is filled
    for (long k0 = 0; k0 < k; k0 += STEP) {
        ptx::copy_async_wait<STAGES - 2>();  // this thread's part of the stage in use has arrived
        __syncthreads();                     // everybody's has; and nobody still reads the stage that is filled next
        if (left > 0) load_tiles(stages[next], a, b, rows, columns, min(left, (long)STEP), n, k);
        a += STEP, b += STEP * n, left -= STEP;
        ptx::copy_async_commit();
#pragma unroll
        for (int depth = 0; depth < STEP; depth += 16) {
            uint32_t a_regs[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                ptx::load_matrix_x4(a_regs[i], a_chunk(stages[now], warp_row + i * 16 + lane % 16,
                                                       depth / CHUNK + lane / 16));
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                uint32_t b_regs[4];
                ptx::load_matrix_x4_transposed(b_regs, b_chunk(stages[now], depth + lane % 16,
                                                               warp_column / CHUNK + j + lane / 16));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    ptx::mma_bf16(sum[i][j], a_regs[i], b_regs[0], b_regs[1]);
                    ptx::mma_bf16(sum[i][j + 1], a_regs[i], b_regs[2], b_regs[3]);
                }
            }
        }
        next = now;
        now = now + 1 < STAGES ? now + 1 : 0;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = warp_row + i * 16 + half * 8 + lane / 4, column = warp_column + j * 8 + lane % 4 * 2;
                if (row < rows && column < columns)
                    *reinterpret_cast<uint32_t *>(c + row * n + column) =
                        ptx::pack_bf16(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
}

// C [M,N] = A [M,K] · B [K,N] on the tensor cores: bf16, row-major, f32 accumulators. K and N are multiples of 8 (rows
// are copied 16 bytes at a time); M is any.
//
// Block tile 128×128×32, eight warps as 2×4, each 64×32 = 4×4 products m16n8k16. STAGES tiles are under way at once:
// while one is multiplied, the next ones arrive by cp.async. Rows beyond the matrices are filled with zeros.
// Shared memory, in chunks of 16 bytes (8 elements), swizzled so that the 8 rows of an ldmatrix lie in distinct banks:
//   A [128 rows][4 chunks]: chunk c of row r at c ^ (r/2 mod 4); B [32 rows][16 chunks]: at c ^ (r mod 8).
#include "ptx.cuh"

namespace {

constexpr int TILE_M = 128, TILE_N = 128, TILE_K = 32, THREADS = 256;
constexpr int A_BYTES = TILE_M * TILE_K * 2, B_BYTES = TILE_K * TILE_N * 2, STAGE_BYTES = A_BYTES + B_BYTES;

__device__ __forceinline__ char *a_chunk(char *stage, int row, int chunk) {
    return stage + (row * 4 + (chunk ^ (row / 2 % 4))) * 16;
}

__device__ __forceinline__ char *b_chunk(char *stage, int row, int chunk) {
    return stage + A_BYTES + (row * 16 + (chunk ^ (row % 8))) * 16;
}

__device__ __forceinline__ void load_tiles(char *stage, const __nv_bfloat16 *a, const __nv_bfloat16 *b, int row0,
                                           int column0, int k0, int m, int n, int k) {
#pragma unroll
    for (int i = threadIdx.x; i < A_BYTES / 16; i += THREADS) {
        int row = i / 4, chunk = i % 4, depth = k0 + chunk * 8;
        bool inside = row0 + row < m && depth < k;
        const __nv_bfloat16 *from = inside ? a + (size_t)(row0 + row) * k + depth : a;
        ptx::copy_async_16(a_chunk(stage, row, chunk), from, inside ? 16 : 0);
    }
#pragma unroll
    for (int i = threadIdx.x; i < B_BYTES / 16; i += THREADS) {
        int row = i / 16, chunk = i % 16, column = column0 + chunk * 8;
        bool inside = k0 + row < k && column < n;
        const __nv_bfloat16 *from = inside ? b + (size_t)(k0 + row) * n + column : b;
        ptx::copy_async_16(b_chunk(stage, row, chunk), from, inside ? 16 : 0);
    }
}

template <int STAGES>
__device__ __forceinline__ void matmul(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c, int m, int n,
                                       int k) {
    extern __shared__ __align__(128) char smem[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    int row0 = blockIdx.y * TILE_M, column0 = blockIdx.x * TILE_N;
    int tiles = (k + TILE_K - 1) / TILE_K;
    float sum[4][4][4] = {};

#pragma unroll
    for (int t = 0; t < STAGES - 1; t++) {
        if (t < tiles) load_tiles(smem + t * STAGE_BYTES, a, b, row0, column0, t * TILE_K, m, n, k);
        ptx::copy_async_commit();
    }
    for (int t = 0; t < tiles; t++) {
        ptx::copy_async_wait<STAGES - 2>();  // this thread's part of tile t has arrived
        __syncthreads();                     // everybody's has; and nobody still reads the stage that is filled next
        int next = t + STAGES - 1;
        if (next < tiles)
            load_tiles(smem + next % STAGES * STAGE_BYTES, a, b, row0, column0, next * TILE_K, m, n, k);
        ptx::copy_async_commit();

        char *stage = smem + t % STAGES * STAGE_BYTES;
#pragma unroll
        for (int half = 0; half < TILE_K / 16; half++) {
            uint32_t a_regs[4][4], b_regs[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                ptx::load_matrix_x4(a_regs[i], a_chunk(stage, warp_row + i * 16 + lane % 16, half * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < 2; j++)
                ptx::load_matrix_x4_transposed(
                    b_regs[j], b_chunk(stage, half * 16 + lane % 16, (warp_column + j * 16) / 8 + lane / 16));
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    ptx::mma_bf16(sum[i][j], a_regs[i], b_regs[j / 2][j % 2 * 2], b_regs[j / 2][j % 2 * 2 + 1]);
        }
    }

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = row0 + warp_row + i * 16 + half * 8 + lane / 4;
                int column = column0 + warp_column + j * 8 + lane % 4 * 2;
                if (row < m && column < n)
                    *reinterpret_cast<uint32_t *>(c + (size_t)row * n + column) =
                        ptx::pack_bf16(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_bf16_3_stages(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c, int m, int n, int k) {
    matmul<3>(a, b, c, m, n, k);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_bf16_4_stages(const __nv_bfloat16 *a, const __nv_bfloat16 *b, __nv_bfloat16 *c, int m, int n, int k) {
    matmul<4>(a, b, c, m, n, k);
}

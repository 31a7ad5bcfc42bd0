// Matrix product, rung 6: bf16 operands, multiplied by the tensor cores.
//
// C[i,j] = Σ_l A[i,l] B[l,j]. All bf16 and row-major: a [M,K], b [K,N], c [M,N]; any M, K and N multiples of 8,
// pointers multiples of 16 bytes.
// Threads: 8 warps have a tile of 128×128 of C, as 2×4 tiles of 64×32; a warp's is 4×4 products m16n8k16 for each 16
// of K. Lane l holds rows l/4 and l/4 + 8, columns 2(l mod 4) and the next, of each 16×8 accumulator.
// Shared memory: a_smem [128 rows][32 of K], b_smem [32 of K][128 columns], row-major: the 8 rows that ldmatrix reads
// at once lie in the same few banks, 4-fold and 8-fold conflicts. What lies outside the matrices is stored as zero.
// Moved: as in rung 5 for each element, now of 2 bytes: 4K/128 bytes for 2K FLOPs.
// Numerics: products exact, sums in f32, in the order of the tensor core; C is rounded to bf16 once.
// Not yet measured on a card.

// Changed: one mma instruction of a warp does 2048 multiply-adds instead of 32. ldmatrix hands out operands in the
// layout that it wants. The counters: tensor-core FLOPs; instructions, 8 times fewer. But the shared wavefronts are
// 4 times their ideal.
#include "common.cuh"
#include "ptx.cuh"

constexpr int TILE = 128, STEP = 32, THREADS = 256, CHUNK = 8;  // a chunk: 16 bytes

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ladder_matmul_06_tensor_cores(const bf16 *a, const bf16 *b, bf16 *c, long m, long n, long k) {
    __shared__ __align__(16) bf16 a_smem[TILE][STEP], b_smem[STEP][TILE];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int warp_row = warp / 4 * 64, warp_column = warp % 4 * 32;
    long row0 = blockIdx.x * (long)TILE, column0 = blockIdx.y * (long)TILE;
    a += row0 * k, b += column0, c += row0 * n + column0;                          // the tiles' corners
    int rows = min(m - row0, (long)TILE), columns = min(n - column0, (long)TILE);  // inside the matrices
    float sum[4][4][4] = {};

    for (long k0 = 0; k0 < k; k0 += STEP) {
        int depths = min(k - k0, (long)STEP);
#pragma unroll
        for (int i = threadIdx.x; i < TILE * STEP / CHUNK; i += THREADS) {
            int row = i / (STEP / CHUNK), depth = i % (STEP / CHUNK) * CHUNK;
            bool inside = row < rows && depth < depths;
            *reinterpret_cast<uint4 *>(&a_smem[row][depth]) =
                inside ? *reinterpret_cast<const uint4 *>(a + row * k + k0 + depth) : uint4{};
        }
#pragma unroll
        for (int i = threadIdx.x; i < STEP * TILE / CHUNK; i += THREADS) {
            int depth = i / (TILE / CHUNK), column = i % (TILE / CHUNK) * CHUNK;
            bool inside = depth < depths && column < columns;
            *reinterpret_cast<uint4 *>(&b_smem[depth][column]) =
                inside ? *reinterpret_cast<const uint4 *>(b + (k0 + depth) * n + column) : uint4{};
        }
        __syncthreads();  // both tiles are complete
#pragma unroll
        for (int depth = 0; depth < STEP; depth += 16) {
            uint32_t a_regs[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                ptx::load_matrix_x4(a_regs[i], &a_smem[warp_row + i * 16 + lane % 16][depth + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                uint32_t b_regs[4];
                ptx::load_matrix_x4_transposed(b_regs,
                                               &b_smem[depth + lane % 16][warp_column + j * 8 + lane / 16 * 8]);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    ptx::mma_bf16(sum[i][j], a_regs[i], b_regs[0], b_regs[1]);
                    ptx::mma_bf16(sum[i][j + 1], a_regs[i], b_regs[2], b_regs[3]);
                }
            }
        }
        __syncthreads();  // nobody still reads the tiles that the next step overwrites
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

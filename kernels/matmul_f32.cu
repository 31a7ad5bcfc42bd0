// C = op(A) · op(B) + residual in f32, on the ordinary cores.
//   NN: A [M,K] B [K,N]    NT: A [M,K] B [N,K]    TN: A [K,M] B [K,N]    C and residual [M,N]
// Shapes: a_gmem [batches] matrices `a_stride` elements apart, b_gmem likewise (a stride of 0 shares one), c_gmem
//   [splits, batches, M, N], residual_gmem [batches, M, N] or null; it may be c_gmem: then the product is accumulated.
//   With several splits each sums its own part of K, C is a workspace, and matmul_reduce_f32 (matmul.cu) adds them up.
// Threads: a block computes a tile of 128×128; 16×16 threads own 8×8 sums each: rows 4y … 4y+3 and the four 64 further,
//   columns 4x … 4x+3 and the four 64 further. A warp is 4 rows by 8 columns of threads: its loads from shared memory
//   are 16 bytes wide and meet no bank twice. A step multiplies 8 deep in K, while each thread holds 4 + 4 elements of
//   the next step in registers.
// Shared memory: two stages of A and B, each [8 of K][128 + 4] floats, 16.5 KB in all. Rows stored along K are
//   transposed on the way in; the 4 words between rows put the two halves of 8 k into different halves of the banks.
// Bytes: (tiles of N) · M·K + (tiles of M) · N·K elements read, mostly from L2, M·N written. FLOPs: 2·M·N·K.
// Numerics: one fused multiply-add a product, k ascending; parts of a split in ascending order, then the residual.
//   Elements outside count as zeros and meet only elements outside, so a NaN or an infinity stays in its row or column.
// Not yet measured on a card.
#include "matmul.cuh"

namespace {

constexpr int TILE = MATMUL_TILE, TILE_K = MATMUL_F32_STEP, THREADS = MATMUL_THREADS, PITCH = TILE + 4;
static_assert(TILE == 16 * 8 && THREADS == 16 * 16, "16 × 16 threads with 8 × 8 sums each");

using Tile = float[TILE_K][PITCH];

// One operand as a block sees it: rows × length in global memory. Of each tile a thread moves four elements: neighbours
// in a row or, where those can't be loaded at once, every so many rows one, so that neighbouring lanes take neighbours.
template <bool K_INNER, bool ALIGNED>
struct Operand {
    static constexpr int LENGTH = K_INNER ? TILE_K : TILE, COUNT = TILE * TILE_K / THREADS;
    static_assert(COUNT == 4, "16 bytes a thread");

    const float *gmem;
    int rows, length;
    int row0, column0;  // of the tile to be fetched next
    float regs[COUNT];

    __device__ Operand(const float *gmem, int outer, int k, int outer0, int k0)
        : gmem(gmem), rows(K_INNER ? outer : k), length(K_INNER ? k : outer), row0(K_INNER ? outer0 : k0),
          column0(K_INNER ? k0 : outer0) {}

    // Where in the tile the i-th element of this thread lies.
    static __device__ __forceinline__ int tile_row(int i) {
        return ALIGNED ? threadIdx.x * COUNT / LENGTH : threadIdx.x / LENGTH + i * (THREADS / LENGTH);
    }
    static __device__ __forceinline__ int tile_column(int i) {
        return ALIGNED ? threadIdx.x * COUNT % LENGTH + i : threadIdx.x % LENGTH;
    }

    // Fetches this thread's part of a tile; the next call takes the tile that follows along K.
    __device__ __forceinline__ void fetch() {
        constexpr int AT_ONCE = ALIGNED ? COUNT : 1;
#pragma unroll
        for (int i = 0; i < COUNT; i += AT_ONCE) {
            int row = row0 + tile_row(i), column = column0 + tile_column(i);
            float part[AT_ONCE] = {};
            if (row < rows && column < length) load_vector(part, gmem + (size_t)row * length + column);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) regs[i + j] = part[j];
        }
        (K_INNER ? column0 : row0) += TILE_K;
    }

    __device__ __forceinline__ void put(Tile &smem) const {
        if (ALIGNED && !K_INNER) {
            store_vector_shared(&smem[tile_row(0)][tile_column(0)], regs);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                (K_INNER ? smem[tile_column(i)][tile_row(i)] : smem[tile_row(i)][tile_column(i)]) = regs[i];
        }
    }
};

// Sums [i][j] of a thread: i and j count through four neighbours and then the four that lie 64 further.
using Sums = float[2][4][2][4];

// UNROLL steps of k may be interleaved; the unaligned kernels have the registers for 2.
template <int UNROLL>
__device__ __forceinline__ void multiply(Sums &sums, const Tile &a_smem, const Tile &b_smem, int row, int column) {
#pragma unroll UNROLL
    for (int k = 0; k < TILE_K; k++) {
        float a_regs[2][4], b_regs[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            load_vector(a_regs[half], &a_smem[k][half * 64 + row]);
            load_vector(b_regs[half], &b_smem[k][half * 64 + column]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float &sum = sums[i / 4][i % 4][j / 4][j % 4];
                sum = fmaf(a_regs[i / 4][i % 4], b_regs[j / 4][j % 4], sum);
            }
    }
}

__device__ __forceinline__ void store(Sums &sums, float *c_gmem, const float *residual_gmem, int row0, int column0,
                                      int m, int n) {
    bool fours = rows_of_fours(c_gmem, residual_gmem, n);
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row0 + i / 4 * 64 + i % 4, column = column0 + half * 64;
            if (row >= m || column >= n) continue;
            size_t at = (size_t)row * n + column;
            if (fours) {
                finish(c_gmem, residual_gmem, at, sums[i / 4][i % 4][half]);
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    float value[1] = {sums[i / 4][i % 4][half][j]};
                    if (column + j < n) finish(c_gmem, residual_gmem, at + j, value);
                }
            }
        }
}

template <Layout LAYOUT, bool ALIGNED>
__device__ __forceinline__ void matmul(const float *a_gmem, const float *b_gmem, float *c_gmem,
                                       const float *residual_gmem, int m, int n, int k, int batches, long a_stride,
                                       long b_stride, int split_steps) {
    __shared__ __align__(16) Tile a_smem[2], b_smem[2];
    Place at = place(m, n, batches, TILE, TILE);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int row = (warp / 2 * 4 + lane / 8) * 4, column = (warp % 2 * 8 + lane % 8) * 4;
    int first_step = at.split * split_steps, steps = min((k + TILE_K - 1) / TILE_K - first_step, split_steps);
    Operand<K_INNER_A<LAYOUT>, ALIGNED> a(a_gmem + at.batch * a_stride, m, k, at.row0, first_step * TILE_K);
    Operand<K_INNER_B<LAYOUT>, ALIGNED> b(b_gmem + at.batch * b_stride, n, k, at.column0, first_step * TILE_K);
    Sums sums = {};

    if (steps > 0) {
        a.fetch(), b.fetch();
        a.put(a_smem[0]), b.put(b_smem[0]);
    }
    for (int step = 0; step < steps; step++) {
        __syncthreads();  // the step's tiles are complete; and nobody still reads those that are overwritten below
        bool more = step + 1 < steps;
        if (more) a.fetch(), b.fetch();
        multiply<ALIGNED ? TILE_K : 2>(sums, a_smem[step % 2], b_smem[step % 2], row, column);
        if (more) a.put(a_smem[(step + 1) % 2]), b.put(b_smem[(step + 1) % 2]);
    }
    if (residual_gmem != nullptr) residual_gmem += at.matrix * m * n;
    store(sums, c_gmem + at.matrix * m * n, residual_gmem, at.row0 + row, at.column0 + column, m, n);
}

}  // namespace

#define MATMUL(NAME, LAYOUT, ALIGNED)                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                           \
        NAME(const float *a, const float *b, float *c, const float *residual, int m, int n, int k, int batches,        \
             long a_stride, long b_stride, int split_steps) {                                                          \
        matmul<Layout::LAYOUT, ALIGNED>(a, b, c, residual, m, n, k, batches, a_stride, b_stride, split_steps);         \
    }

MATMUL(matmul_nn_f32, NN, true)
MATMUL(matmul_nn_f32_unaligned, NN, false)
MATMUL(matmul_nt_f32, NT, true)
MATMUL(matmul_nt_f32_unaligned, NT, false)
MATMUL(matmul_tn_f32, TN, true)
MATMUL(matmul_tn_f32_unaligned, TN, false)

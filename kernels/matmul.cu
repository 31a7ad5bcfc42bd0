// C = op(A) · op(B) + residual on the tensor cores: bf16 inputs, f32 accumulators, C in bf16 or f32.
//   NN: A [M,K] B [K,N]    NT: A [M,K] B [N,K]    TN: A [K,M] B [K,N]    C and residual [M,N]
// Shapes: a_gmem [batches] matrices `a_stride` elements apart, b_gmem likewise (a stride of 0 shares one), c_gmem
//   [splits, batches, M, N], residual_gmem [batches, M, N] or null; it may be c_gmem: then the product is accumulated.
//   With several splits each sums its own part of K, C is an f32 workspace, and matmul_reduce adds the parts.
// Threads: a block computes a tile of 128×128, eight warps as 2×4, each 64×32 = 4×4 products m16n8k16 in registers. A
//   step multiplies 32 deep in K; its tiles, 2 + 2 chunks of 16 bytes a thread, arrive by cp.async STAGES − 1 steps
//   ahead. Variant _64: a tile of 64×128, a warp 32×32, for products with few rows.
// Shared memory: STAGES × (A tile, B tile), 8 KB each, in chunks of 8 elements, swizzled so that 8 rows of an ldmatrix
//   lie in distinct banks. k within a row: [128][4 chunks], chunk c of row r at c ^ (r/2 mod 4).
//   k across rows: [32][16 chunks], at c ^ (r mod 8). At the end each warp reuses 2.5 KB of it to reorder its results,
//   [16][8 + 32] floats, so that 8 lanes store a row of 32 neighbours.
// Bytes: (tiles of N) · M·K + (tiles of M) · N·K elements read, mostly from L2, M·N written. FLOPs: 2·M·N·K.
// Numerics: products of bf16 are exact, sums in f32, k ascending in steps of 16 (within one as the tensor core adds);
//   parts of a split in ascending order, then the residual; one rounding to C. Elements outside count as zeros and meet
//   only elements outside, so a NaN or an infinity stays in its row or column.
// Not yet measured on a card.
#include "matmul.cuh"
#include "ptx.cuh"

namespace {

constexpr int TILE_N = MATMUL_TILE, TILE_K = MATMUL_BF16_STEP, STAGES = MATMUL_BF16_STAGES, THREADS = MATMUL_THREADS;
constexpr int CHUNK = 8, WARP_N = 32;
static_assert(TILE_N == 4 * WARP_N && THREADS == 2 * 4 * WARP, "2 × 4 warps cover a tile");

// With 8 words of padding, four rows start in different quarters of the banks. It stands in front of a row: nvcc cuts a
// two-word store at offset 0 of an array in two.
constexpr int SLAB_PAD = 8, SLAB_PITCH = SLAB_PAD + WARP_N;

// One operand as a block sees it: rows × length in global memory, of which each step needs a tile of ROWS × CHUNKS·8:
// TILE of the outer dimension (M or N) by TILE_K.
template <int TILE, bool K_INNER, bool ALIGNED>
struct Operand {
    static constexpr int ROWS = K_INNER ? TILE : TILE_K, CHUNKS = (K_INNER ? TILE_K : TILE) / CHUNK;
    static constexpr int ROWS_AT_ONCE = THREADS / CHUNKS, BYTES = TILE * TILE_K * sizeof(bf16);
    static_assert(ROWS % ROWS_AT_ONCE == 0 && (CHUNKS == 4 || CHUNKS % 8 == 0), "whole rounds; a known swizzle");

    const bf16 *gmem;
    int rows, length;
    int row0, column0;  // of the tile to be loaded next

    __device__ Operand(const bf16 *gmem, int outer, int k, int outer0, int k0)
        : gmem(gmem), rows(K_INNER ? outer : k), length(K_INNER ? k : outer), row0(K_INNER ? outer0 : k0),
          column0(K_INNER ? k0 : outer0) {}

    static __device__ __forceinline__ char *chunk(char *tile_smem, int row, int chunk) {
        return tile_smem + (row * CHUNKS + (chunk ^ (CHUNKS == 4 ? row / 2 % 4 : row % 8))) * 16;
    }

    // Starts to fill a tile, with zeros beyond the matrix; the next call takes the tile that follows along K.
    __device__ __forceinline__ void load(char *tile_smem) {
        if (ALIGNED || rows_are_aligned())
            load_chunks(tile_smem);
        else
            load_elements(tile_smem);
        (K_INNER ? column0 : row0) += TILE_K;
    }

    __device__ __forceinline__ bool rows_are_aligned() const {
        return length % CHUNK == 0 && reinterpret_cast<uintptr_t>(gmem) % 16 == 0;
    }

    __device__ __forceinline__ void load_chunks(char *tile_smem) {
        int row = threadIdx.x / CHUNKS, column = threadIdx.x % CHUNKS;
        const bf16 *from = gmem + (size_t)(row0 + row) * length + column0 + column * CHUNK;
#pragma unroll
        for (int i = 0; i < ROWS / ROWS_AT_ONCE; i++, row += ROWS_AT_ONCE, from += (size_t)ROWS_AT_ONCE * length) {
            bool inside = row0 + row < rows && column0 + column * CHUNK < length;
            ptx::copy_async_16(chunk(tile_smem, row, column), inside ? from : gmem, inside ? 16 : 0);
        }
    }

    // Neighbouring lanes take neighbouring elements; they are in place once the block has met at a barrier.
    __device__ __forceinline__ void load_elements(char *tile_smem) {
        constexpr int LENGTH = CHUNKS * CHUNK, STRIDE = THREADS / LENGTH, BATCH = 8;
        int row = threadIdx.x / LENGTH, column = threadIdx.x % LENGTH;
        const bf16 *from = gmem + (size_t)(row0 + row) * length + column0 + column;
#pragma unroll 1  // the registers would not suffice for more
        for (int batch = 0; batch < ROWS / STRIDE; batch += BATCH) {
            bf16 element_regs[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; i++, from += (size_t)STRIDE * length) {
                bool inside = row0 + row + (batch + i) * STRIDE < rows && column0 + column < length;
                element_regs[i] = inside ? *from : from_float<bf16>(0.0f);
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                char *to = chunk(tile_smem, row + (batch + i) * STRIDE, column / CHUNK);
                reinterpret_cast<bf16 *>(to)[column % CHUNK] = element_regs[i];
            }
        }
    }

    // 16 of the outer dimension from `outer` by 16 of K from `k`: four 8×8 matrices. From one register to the next mma
    // wants the halves of A's rows to alternate first, of B those of k.
    template <bool OUTER_FIRST>
    static __device__ __forceinline__ void fragment(uint32_t (&to)[4], char *tile_smem, int outer, int k) {
        int lane = threadIdx.x % WARP, row = lane % 8, fast = lane / 8 % 2 * 8, slow = lane / 16 * 8;
        outer += OUTER_FIRST ? fast : slow;
        k += OUTER_FIRST ? slow : fast;
        if (K_INNER)
            ptx::load_matrix_x4(to, chunk(tile_smem, outer + row, k / CHUNK));
        else
            ptx::load_matrix_x4_transposed(to, chunk(tile_smem, k + row, outer / CHUNK));
    }
};

template <int WARP_M>
using Sums = float[WARP_M / 16][WARP_N / 8][4];

// One step: this warp's sums [WARP_M, 32] += [WARP_M, 32] of A · [32, 32] of B.
template <typename A, typename B, int WARP_M>
__device__ __forceinline__ void multiply(Sums<WARP_M> &sums, char *a_smem, char *b_smem, int warp_row,
                                         int warp_column) {
#pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        uint32_t a_regs[WARP_M / 16][4], b_regs[WARP_N / 16][4];
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++) A::template fragment<true>(a_regs[i], a_smem, warp_row + i * 16, k);
#pragma unroll
        for (int j = 0; j < WARP_N / 16; j++) B::template fragment<false>(b_regs[j], b_smem, warp_column + j * 16, k);
#pragma unroll
        for (int i = 0; i < WARP_M / 16; i++)
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j++)
                ptx::mma_bf16(sums[i][j], a_regs[i], b_regs[j / 2][j % 2 * 2], b_regs[j / 2][j % 2 * 2 + 1]);
    }
}

// A slab is 16 rows of the warp's 32 columns; lanes side by side store neighbours.
template <int VEC, typename C>
__device__ __forceinline__ void store_slab(const float *slab_smem, C *c_gmem, const C *residual_gmem, int row0,
                                           int column0, int m, int n) {
    constexpr int LANES = WARP_N / VEC, ROWS_AT_ONCE = WARP / LANES;
    int lane = threadIdx.x % WARP, column = lane % LANES * VEC;
#pragma unroll 4
    for (int row = lane / LANES; row < 16; row += ROWS_AT_ONCE) {
        if (row0 + row >= m || column0 + column >= n) continue;
        float values[VEC];
        load_vector(values, slab_smem + row * SLAB_PITCH + SLAB_PAD + column);
        finish(c_gmem, residual_gmem, (size_t)(row0 + row) * n + column0 + column, values);
    }
}

template <int WARP_M, typename C>
__device__ __forceinline__ void store(Sums<WARP_M> &sums, float *slab_smem, C *c_gmem, const C *residual_gmem, int row0,
                                      int column0, int m, int n) {
    int lane = threadIdx.x % WARP;
    bool fours = rows_of_fours(c_gmem, residual_gmem, n);
#pragma unroll
    for (int i = 0; i < WARP_M / 16; i++) {
        __syncwarp();  // nobody still reads the slab before this one
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int j = 0; j < WARP_N / 8; j++) {
                float pair[2] = {sums[i][j][half * 2], sums[i][j][half * 2 + 1]};
                int row = half * 8 + lane / 4, column = j * 8 + lane % 4 * 2;
                store_vector_shared(slab_smem + row * SLAB_PITCH + SLAB_PAD + column, pair);
            }
        __syncwarp();  // the slab is complete
        if (fours)
            store_slab<4>(slab_smem, c_gmem, residual_gmem, row0 + i * 16, column0, m, n);
        else
            store_slab<1>(slab_smem, c_gmem, residual_gmem, row0 + i * 16, column0, m, n);
    }
}

template <Layout LAYOUT, int TILE_M, typename C, bool ALIGNED>
__device__ __forceinline__ void matmul(const bf16 *a_gmem, const bf16 *b_gmem, C *c_gmem, const C *residual_gmem, int m,
                                       int n, int k, int batches, long a_stride, long b_stride, int split_steps) {
    using A = Operand<TILE_M, K_INNER_A<LAYOUT>, ALIGNED>;
    using B = Operand<TILE_N, K_INNER_B<LAYOUT>, ALIGNED>;
    constexpr int WARP_M = TILE_M / 2, STAGE_BYTES = A::BYTES + B::BYTES;
    static_assert(THREADS / WARP * 16 * SLAB_PITCH * sizeof(float) <= STAGES * STAGE_BYTES, "slabs reuse the stages");
    extern __shared__ __align__(128) char smem[];
    Place at = place(m, n, batches, TILE_M, TILE_N);
    int warp = threadIdx.x / WARP, warp_row = warp / 4 * WARP_M, warp_column = warp % 4 * WARP_N;
    int first_step = at.split * split_steps, steps = min((k + TILE_K - 1) / TILE_K - first_step, split_steps);
    A a(a_gmem + at.batch * a_stride, m, k, at.row0, first_step * TILE_K);
    B b(b_gmem + at.batch * b_stride, n, k, at.column0, first_step * TILE_K);
    Sums<WARP_M> sums = {};

    for (int step = 0; step < STAGES - 1; step++) {
        char *stage = smem + step * STAGE_BYTES;
        if (step < steps) a.load(stage), b.load(stage + A::BYTES);
        ptx::copy_async_commit();
    }
    for (int step = 0; step < steps; step++) {
        ptx::copy_async_wait<STAGES - 2>();  // this thread's part of the step's tiles has arrived
        __syncthreads();                     // everybody's has; and nobody still reads the stage that is filled next
        char *next = smem + (step + STAGES - 1) % STAGES * STAGE_BYTES, *stage = smem + step % STAGES * STAGE_BYTES;
        if (step + STAGES - 1 < steps) a.load(next), b.load(next + A::BYTES);
        ptx::copy_async_commit();
        multiply<A, B, WARP_M>(sums, stage, stage + A::BYTES, warp_row, warp_column);
    }
    __syncthreads();  // nobody still reads the stages that the slabs overwrite
    float *slab_smem = reinterpret_cast<float *>(smem) + warp * 16 * SLAB_PITCH;
    if (residual_gmem != nullptr) residual_gmem += at.matrix * m * n;
    store<WARP_M>(sums, slab_smem, c_gmem + at.matrix * m * n, residual_gmem, at.row0 + warp_row,
                  at.column0 + warp_column, m, n);
}

// The second half of a split product: c [len] = the sum over splits of parts [splits, len], + residual [len] or null.
// A block takes THREADS · VECTOR elements, and its threads VECTOR neighbours each; but where `len` is no multiple of
// VECTOR, and parts after the first begin anywhere, elements that lie THREADS apart. Split after split is added.
template <int VEC, typename C>
__device__ __forceinline__ void reduce_at(const float *parts_gmem, C *c_gmem, const C *residual_gmem, long len,
                                          int splits, long at) {
    if (at >= len) return;
    float sums[VEC] = {};
    for (int split = 0; split < splits; split++) {
        float part_regs[VEC];
        load_vector(part_regs, parts_gmem + split * len + at);
#pragma unroll
        for (int i = 0; i < VEC; i++) sums[i] += part_regs[i];
    }
    finish(c_gmem, residual_gmem, at, sums);
}

template <typename C>
__device__ __forceinline__ void reduce(const float *parts_gmem, C *c_gmem, const C *residual_gmem, long len,
                                       int splits) {
    constexpr int VECTOR = MATMUL_REDUCE_VECTOR;
    long first = (long)blockIdx.x * (THREADS * VECTOR);
    if (len % VECTOR == 0) {
        reduce_at<VECTOR>(parts_gmem, c_gmem, residual_gmem, len, splits, first + threadIdx.x * VECTOR);
    } else {
#pragma unroll 1
        for (int i = 0; i < VECTOR; i++)
            reduce_at<1>(parts_gmem, c_gmem, residual_gmem, len, splits, first + i * THREADS + threadIdx.x);
    }
}

}  // namespace

#define MATMUL(NAME, LAYOUT, TILE_M, C, ALIGNED)                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                           \
        NAME(const bf16 *a, const bf16 *b, C *c, const C *residual, int m, int n, int k, int batches, long a_stride,   \
             long b_stride, int split_steps) {                                                                         \
        matmul<Layout::LAYOUT, TILE_M, C, ALIGNED>(a, b, c, residual, m, n, k, batches, a_stride, b_stride,            \
                                                   split_steps);                                                       \
    }

MATMUL(matmul_nn_bf16, NN, MATMUL_TILE, bf16, true)
MATMUL(matmul_nn_bf16_64, NN, MATMUL_SMALL_TILE, bf16, true)
MATMUL(matmul_nn_bf16_unaligned, NN, MATMUL_TILE, bf16, false)
MATMUL(matmul_nn_bf16_f32, NN, MATMUL_TILE, float, true)
MATMUL(matmul_nn_bf16_f32_64, NN, MATMUL_SMALL_TILE, float, true)
MATMUL(matmul_nn_bf16_f32_unaligned, NN, MATMUL_TILE, float, false)
MATMUL(matmul_nt_bf16, NT, MATMUL_TILE, bf16, true)
MATMUL(matmul_nt_bf16_64, NT, MATMUL_SMALL_TILE, bf16, true)
MATMUL(matmul_nt_bf16_unaligned, NT, MATMUL_TILE, bf16, false)
MATMUL(matmul_nt_bf16_f32, NT, MATMUL_TILE, float, true)
MATMUL(matmul_nt_bf16_f32_64, NT, MATMUL_SMALL_TILE, float, true)
MATMUL(matmul_nt_bf16_f32_unaligned, NT, MATMUL_TILE, float, false)
MATMUL(matmul_tn_bf16, TN, MATMUL_TILE, bf16, true)
MATMUL(matmul_tn_bf16_64, TN, MATMUL_SMALL_TILE, bf16, true)
MATMUL(matmul_tn_bf16_unaligned, TN, MATMUL_TILE, bf16, false)
MATMUL(matmul_tn_bf16_f32, TN, MATMUL_TILE, float, true)
MATMUL(matmul_tn_bf16_f32_64, TN, MATMUL_SMALL_TILE, float, true)
MATMUL(matmul_tn_bf16_f32_unaligned, TN, MATMUL_TILE, float, false)

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_reduce_f32(const float *parts, float *c, const float *residual, long len, int splits) {
    reduce(parts, c, residual, len, splits);
}
extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_reduce_bf16(const float *parts, bf16 *c, const bf16 *residual, long len, int splits) {
    reduce(parts, c, residual, len, splits);
}

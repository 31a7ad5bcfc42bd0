// Embedding: a row of the table for each token id, and the sum of the rows' gradients for each id.
//
//   forward    y[n] = table[ids[n]]
//   backward   d_table[v] += Σ over n with ids[n] = v of d_y[n]
//
// Shapes: table [V,C], ids [n] u32, y, d_y [n,C]; d_table [V,C] f32. An id ≥ V, which the host refuses before,
//   gives a row of NaN in y; the backward leaves it out.
//   Backward, in order: the ids are sorted together with their positions, 8 bits a pass, stably (counts [256,tiles],
//   keys and positions [n]); the sorted list is cut into pieces of 32, and each piece adds up its runs of equal ids. A
//   run within a piece goes to its row; of one that crosses, the parts go to edge [pieces,2,C] f32 (0: begun in an
//   earlier piece, 1: begun here), and the piece where it begins adds them in a second kernel. So an id that makes up
//   most of a batch costs no more than the others, and no two blocks write one row.
// Threads: forward: a warp a token. Sort: blocks of 256 for 1024 tokens, each warp 128 in order. Sums: blocks of 128, a
//   piece on grid x, N neighbouring channels a thread, channel tiles on grid y.
// Shared memory: sort: a count for each warp and digit, [warp][digit].
// Moves: forward 2nC elements; backward nC elements, 2·C f32 for each distinct id, some 50n bytes for the sort.
// Numerics: f32. The rows of one id are added in the order of their positions, within pieces, then over pieces.
// Not yet measured on a card.
#include "common.cuh"

namespace {

constexpr int THREADS = EMBEDDING_THREADS, WARPS = THREADS / WARP, DIGITS = SORT_DIGITS;
constexpr int TILE = SORT_TILE, ROUNDS = TILE / THREADS;
constexpr int PIECE = SUM_PIECE, AT_ONCE = 4;
constexpr int SCAN_THREADS = ONE_BLOCK_THREADS;
static_assert(DIGITS == THREADS && DIGITS == 1 << SORT_DIGIT_BITS, "a thread a digit");
static_assert(ROUNDS * THREADS == TILE && SCAN_THREADS == WARP * WARP, "whole rounds; a lane for each warp's sum");

template <int N, typename T>
__device__ __forceinline__ void gather(const T *table_gmem, const unsigned *ids_gmem, T *y_gmem, long n,
                                       int vocab, int cols) {
    long token = blockIdx.x * static_cast<long>(WARPS) + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (token >= n) return;
    unsigned id = ids_gmem[token];
    bool valid = id < vocab;
    const T *from_gmem = table_gmem + (valid ? id : 0) * static_cast<long>(cols);
    T *to_gmem = y_gmem + token * cols;
    for (int col = lane * N; col < cols; col += WARP * N) {
        float x[N];
        load_vector(x, from_gmem + col);
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = valid ? x[j] : NAN;
        store_vector(to_gmem + col, x);
    }
}

// Adds up one piece of the sorted list, AT_ONCE rows under way at a time.
template <int N, typename T>
__device__ __forceinline__ void sum_piece(const T *d_y_gmem, const unsigned *keys_gmem, const unsigned *positions_gmem,
                                          float *edge_gmem, float *d_table_gmem, int n, int vocab, int cols) {
    int begin = blockIdx.x * PIECE, end = min(begin + PIECE, n);
    int col = (blockIdx.y * SUM_THREADS + threadIdx.x) * N;
    if (col >= cols) return;
    bool open = begin > 0 && keys_gmem[begin - 1] == keys_gmem[begin];
    float sum[N] = {};
    for (int first = begin; first < end; first += AT_ONCE) {
        float d_y[AT_ONCE][N];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (first + i < end)
                load_vector(d_y[i], d_y_gmem + positions_gmem[first + i] * static_cast<long>(cols) + col);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int at = first + i;
            if (at >= end) break;
            unsigned key = keys_gmem[at];
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += d_y[i][j];
            bool closes = at + 1 == n || keys_gmem[at + 1] != key;
            if (!closes && at + 1 < end) continue;
            if (open || !closes) {
                store_vector(edge_gmem + (blockIdx.x * 2l + (open ? 0 : 1)) * cols + col, sum);
            } else if (key < vocab) {
                float *row_gmem = d_table_gmem + key * static_cast<long>(cols) + col;
                float d_row[N];
                load_vector(d_row, row_gmem);
#pragma unroll
                for (int j = 0; j < N; j++) d_row[j] += sum[j];
                store_vector(row_gmem, d_row);
            }
            open = false;
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] = 0.0f;
        }
    }
}

// The run that begins in this piece and goes on, if there is one.
template <int N>
__device__ __forceinline__ void merge_runs(const unsigned *keys_gmem, const float *edge_gmem, float *d_table_gmem,
                                           int n, int vocab, int cols) {
    int begin = blockIdx.x * PIECE, end = min(begin + PIECE, n);
    unsigned key = keys_gmem[end - 1];
    bool goes_on = end < n && keys_gmem[end] == key;
    bool begun_before = begin > 0 && keys_gmem[begin - 1] == key;
    if (!goes_on || begun_before || key >= vocab) return;
    int col = (blockIdx.y * SUM_THREADS + threadIdx.x) * N;
    if (col >= cols) return;
    float sum[N], part[N];
    load_vector(sum, edge_gmem + (blockIdx.x * 2l + 1) * cols + col);
    for (int piece = blockIdx.x + 1; piece * PIECE < n && keys_gmem[piece * PIECE] == key; piece++) {
        load_vector(part, edge_gmem + piece * 2l * cols + col);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += part[j];
    }
    float *row_gmem = d_table_gmem + key * static_cast<long>(cols) + col;
    load_vector(part, row_gmem);
#pragma unroll
    for (int j = 0; j < N; j++) part[j] += sum[j];
    store_vector(row_gmem, part);
}

__device__ __forceinline__ unsigned digit_of(unsigned key, int shift) { return key >> shift & (DIGITS - 1); }

}  // namespace

extern "C" {

__global__ void embedding_forward_f32(const float *table, const unsigned *ids, float *y, long n, int vocab,
                                      int cols) {
    gather<MOST<float>>(table, ids, y, n, vocab, cols);
}
__global__ void embedding_forward_f32_unaligned(const float *table, const unsigned *ids, float *y, long n,
                                                int vocab, int cols) {
    gather<1>(table, ids, y, n, vocab, cols);
}
__global__ void embedding_forward_bf16(const bf16 *table, const unsigned *ids, bf16 *y, long n, int vocab,
                                       int cols) {
    gather<MOST<bf16>>(table, ids, y, n, vocab, cols);
}
__global__ void embedding_forward_bf16_unaligned(const bf16 *table, const unsigned *ids, bf16 *y, long n,
                                                 int vocab, int cols) {
    gather<1>(table, ids, y, n, vocab, cols);
}

// Sort, 1 of 3: counts[digit, tile] of the digit at `shift`. Ids ≥ V count as V. Blocks of 256.
__global__ void embedding_sort_count(const unsigned *keys, unsigned *counts, int n, int vocab, int shift) {
    __shared__ unsigned counts_smem[DIGITS];
    counts_smem[threadIdx.x] = 0;
    __syncthreads();  // the counts are 0
    for (int round = 0; round < ROUNDS; round++) {
        long i = blockIdx.x * static_cast<long>(TILE) + round * THREADS + threadIdx.x;
        if (i < n) atomicAdd(&counts_smem[digit_of(min(keys[i], vocab), shift)], 1u);
    }
    __syncthreads();  // all have counted
    counts[threadIdx.x * static_cast<long>(gridDim.x) + blockIdx.x] = counts_smem[threadIdx.x];
}

// Sort, 2 of 3: counts[i] = Σ over those before i. One block of 1024.
__global__ void embedding_sort_scan(unsigned *counts, long length) {
    __shared__ unsigned sums_smem[WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    unsigned before = 0;
    for (long start = 0; start < length; start += SCAN_THREADS) {
        long i = start + threadIdx.x;
        unsigned own = i < length ? counts[i] : 0, sum = own;
        for (int step = 1; step < WARP; step *= 2) {
            unsigned left = __shfl_up_sync(ALL_LANES, sum, step);
            if (lane >= step) sum += left;
        }
        if (lane == WARP - 1) sums_smem[warp] = sum;
        __syncthreads();  // every warp's sum is there
        unsigned others = sums_smem[lane];
        sum += before + __reduce_add_sync(ALL_LANES, lane < warp ? others : 0);
        before += __reduce_add_sync(ALL_LANES, others);
        if (i < length) counts[i] = sum - own;
        __syncthreads();  // all have read the sums, which the next round overwrites
    }
}

// Sort, 3 of 3: each key to its place, equal digits in their old order. `positions` null: position i is i. Blocks of
// 256.
__global__ void embedding_sort_place(const unsigned *keys, const unsigned *positions, const unsigned *places,
                                     unsigned *sorted_keys, unsigned *sorted_positions, int n, int vocab, int shift) {
    __shared__ unsigned places_smem[WARPS][DIGITS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    for (int i = 0; i < WARPS; i++) places_smem[i][threadIdx.x] = 0;
    __syncthreads();  // the counts are 0
    long start = blockIdx.x * static_cast<long>(TILE) + warp * (TILE / WARPS) + lane;
    for (int round = 0; round < ROUNDS; round++) {
        long i = start + round * WARP;
        if (i < n) atomicAdd(&places_smem[warp][digit_of(min(keys[i], vocab), shift)], 1u);
    }
    __syncthreads();  // all warps have counted
    unsigned place = places[threadIdx.x * static_cast<long>(gridDim.x) + blockIdx.x];
    for (int i = 0; i < WARPS; i++) {
        unsigned count = places_smem[i][threadIdx.x];
        places_smem[i][threadIdx.x] = place;
        place += count;
    }
    __syncthreads();  // the counts have become places
    for (int round = 0; round < ROUNDS; round++) {
        long i = start + round * WARP;
        unsigned key = i < n ? min(keys[i], vocab) : 0, digit = i < n ? digit_of(key, shift) : DIGITS;
        unsigned peers = __match_any_sync(ALL_LANES, digit);
        if (i < n) {
            unsigned to = places_smem[warp][digit] + __popc(peers & ((1u << lane) - 1));
            sorted_keys[to] = key;
            sorted_positions[to] = positions == nullptr ? static_cast<unsigned>(i) : positions[i];
        }
        __syncwarp();  // all lanes have read the places
        if (i < n && lane == __ffs(peers) - 1) places_smem[warp][digit] += __popc(peers);
        __syncwarp();  // the next round sees the places that are left
    }
}

__global__ void __launch_bounds__(SUM_THREADS)
    embedding_backward_f32(const float *d_y, const unsigned *keys, const unsigned *positions, float *edge,
                           float *d_table, int n, int vocab, int cols) {
    sum_piece<SUM_WIDTH>(d_y, keys, positions, edge, d_table, n, vocab, cols);
}
__global__ void __launch_bounds__(SUM_THREADS)
    embedding_backward_f32_unaligned(const float *d_y, const unsigned *keys, const unsigned *positions, float *edge,
                                     float *d_table, int n, int vocab, int cols) {
    sum_piece<1>(d_y, keys, positions, edge, d_table, n, vocab, cols);
}
__global__ void __launch_bounds__(SUM_THREADS)
    embedding_backward_bf16(const bf16 *d_y, const unsigned *keys, const unsigned *positions, float *edge,
                            float *d_table, int n, int vocab, int cols) {
    sum_piece<SUM_WIDTH>(d_y, keys, positions, edge, d_table, n, vocab, cols);
}
__global__ void __launch_bounds__(SUM_THREADS)
    embedding_backward_bf16_unaligned(const bf16 *d_y, const unsigned *keys, const unsigned *positions, float *edge,
                                      float *d_table, int n, int vocab, int cols) {
    sum_piece<1>(d_y, keys, positions, edge, d_table, n, vocab, cols);
}

__global__ void __launch_bounds__(SUM_THREADS)
    embedding_merge(const unsigned *keys, const float *edge, float *d_table, int n, int vocab, int cols) {
    merge_runs<SUM_WIDTH>(keys, edge, d_table, n, vocab, cols);
}
__global__ void __launch_bounds__(SUM_THREADS)
    embedding_merge_unaligned(const unsigned *keys, const float *edge, float *d_table, int n, int vocab, int cols) {
    merge_runs<1>(keys, edge, d_table, n, vocab, cols);
}

}  // extern "C"

// Attention backward, first pass: what the other two need of each query row.
//
//   δ[b,t,h] = d_o[b,t,h,:] · o[b,t,h,:]      statistics[b,h,t] = (ℓ, δ)
//
// ℓ is the row's log-sum-exp; for bf16 it is multiplied by log2 e, because those passes compute p = 2^(s·log2 e − ℓ).
// A row that sees no key has ℓ = −∞ and gets +∞, as do the rows behind the last: p = 2^−∞ = 0 without a test.
//
// o, d_o: [B,Tq,H,D]; logsumexp: f32 [B,Tq,H]; statistics: f32 pairs [B,H,Tp], Tp = Tq rounded up to whole query tiles.
// A block takes 32 queries of 8 heads; a warp every eighth query, four lanes a head: 64 neighbouring bytes at a time.
// Grid: x = (batch, 8 heads, 32 queries), the last fastest.
// Shared memory: the pairs as [8][33], so that they are read by query row and written by head, both without conflicts.
// Bytes moved: 2 B·Tq·H·D elements read, 4 B·Tq·H read and 8 B·H·Tp written. FLOPs: 2 B·Tq·H·D.
// Numerics: products and sums in f32; a lane sums its chunks in order, then a butterfly over the four.
// Not yet measured on a card.
#include "common.cuh"

namespace {

constexpr int QUERIES = DELTA_QUERIES, HEADS = DELTA_HEADS, THREADS = DELTA_THREADS, LANES = 4;
static_assert(HEADS * LANES == WARP && HEADS * WARP == THREADS && QUERIES == WARP, "a warp stores a head's queries");
static_assert(STATISTICS_PAD % QUERIES == 0, "whole blocks of padded queries");

template <typename T>
__device__ __forceinline__ float dot(const T *a, const T *b, int length) {
    constexpr int N = MOST<T>;
    float sum = 0.0f;
    for (int i = threadIdx.x % LANES * N; i < length; i += LANES * N) {
        float a_regs[N], b_regs[N];
        load_vector<N>(a_regs, a + i);
        load_vector<N>(b_regs, b + i);
#pragma unroll
        for (int j = 0; j < N; j++) sum += a_regs[j] * b_regs[j];
    }
    return sum;
}

template <typename T>
__device__ __forceinline__ void delta(const T *o, const T *d_o, const float *logsumexp, float2 *statistics, int tq,
                                      int tq_padded, int n_head, int head_dim, float log_base) {
    __shared__ float2 pairs_smem[HEADS][QUERIES + 1];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int query_tiles = tq_padded / QUERIES, head_tiles = (n_head + HEADS - 1) / HEADS;
    int query0 = blockIdx.x % query_tiles * QUERIES, head0 = blockIdx.x / query_tiles % head_tiles * HEADS;
    size_t batch = blockIdx.x / query_tiles / head_tiles;

    int head = head0 + lane / LANES;
#pragma unroll
    for (int i = warp; i < QUERIES; i += THREADS / WARP) {
        int query = query0 + i;
        bool inside = query < tq && head < n_head;
        size_t row = (batch * tq + query) * n_head + head;
        float sum = inside ? dot(o + row * head_dim, d_o + row * head_dim, head_dim) : 0.0f;
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (lane % LANES == 0) {
            float l = inside ? logsumexp[row] : -INFINITY;
            pairs_smem[lane / LANES][i] = {l == -INFINITY ? INFINITY : l * log_base, sum};
        }
    }
    __syncthreads();  // the pairs of every query are there
    if (head0 + warp < n_head)
        statistics[(batch * n_head + head0 + warp) * tq_padded + query0 + lane] = pairs_smem[warp][lane];
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_delta_f32(const float *o, const float *d_o, const float *logsumexp, float2 *statistics, int tq,
                                 int tq_padded, int n_head, int head_dim) {
    delta(o, d_o, logsumexp, statistics, tq, tq_padded, n_head, head_dim, 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_backward_delta_bf16(const bf16 *o, const bf16 *d_o, const float *logsumexp, float2 *statistics, int tq,
                                  int tq_padded, int n_head, int head_dim) {
    delta(o, d_o, logsumexp, statistics, tq, tq_padded, n_head, head_dim, LOG2_E);
}

// Causal attention, rung 3: one kernel and no scores in memory, as in FlashAttention.
//
// O[i] = Σ_j P[i,j] V[j],  P[i] = softmax over j ≤ i of Q[i]·K[j] / √D. Over tiles of keys, with m the maximum so
// far, l = Σ exp(s_j − m), o = Σ exp(s_j − m) V[j]: a tile that raises m to m' first scales l and o by exp(m − m').
// q, k, v, out [B,T,H,D], f32. D = 64; any T, B·H up to 65,535.
// Threads: a block of (32, 32) has 32 queries, a warp each; lane x has key x of a tile, and channels x and x + 32 of
// the output. blockIdx.z is the head of the batch, b·H + h.
// Shared memory: q_smem [32][64], k_smem [32][64 + 1], v_smem [32][64]; the padding puts one channel of 32 keys into
// 32 banks. Tokens beyond T are stored as zero. P goes from lane to lane by shuffles.
// Moved: Q and the output once, K and V once for every 32 queries: 8·T·D + T²·D/8 bytes a head for 2D·T² FLOPs.
// Numerics: f32; l as a butterfly over the lanes for each tile, tiles ascending; o over the keys ascending.
// Not yet measured on a card.

// Changed: the softmax does not need its whole row at once, so a score lives no longer than its tile. The counters:
// bytes touched, which now grow with T, not T²; and global sectors. Workspace: none.
#include "common.cuh"

constexpr int D = 64, TILE = 32;

// Where token 0 of head b·H + h begins in q, k, v and out; the next one is H·D further on.
__device__ __forceinline__ long first_token(int head, long length, int heads) {
    return (head / heads * length * heads + head % heads) * D;
}

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    ladder_attention_03_online_softmax(const float *q, const float *k, const float *v, float *out, long length,
                                       int heads) {
    __shared__ float q_smem[TILE][D], k_smem[TILE][D + 1], v_smem[TILE][D];
    int x = threadIdx.x, y = threadIdx.y;
    long query0 = blockIdx.x * (long)TILE, query = query0 + y, stride = heads * D;
    long origin = first_token(blockIdx.z, length, heads);
    q += origin, k += origin, v += origin, out += origin;
    for (int d = x; d < D; d += TILE)
        q_smem[y][d] = query < length ? q[query * stride + d] : 0.0f;

    float top = -INFINITY, sum = 0.0f, own[2] = {};
    for (long key0 = 0; key0 <= query0; key0 += TILE) {
        for (int d = x; d < D; d += TILE) {
            long key = key0 + y;
            k_smem[y][d] = key < length ? k[key * stride + d] : 0.0f;
            v_smem[y][d] = key < length ? v[key * stride + d] : 0.0f;
        }
        __syncthreads();  // both tiles are complete
        float score = 0.0f;
#pragma unroll 16
        for (int d = 0; d < D; d++) score = fmaf(q_smem[y][d], k_smem[x][d], score);
        score = key0 + x <= query ? score * rsqrtf(D) : -INFINITY;

        float new_top = max_or_nan(top, warp_max(score));  // finite: every query sees key 0
        float shrink = expf(top - new_top), p = expf(score - new_top);
        top = new_top;
        sum = sum * shrink + warp_sum(p);
        for (int i = 0; i < 2; i++) own[i] *= shrink;
#pragma unroll
        for (int key = 0; key < TILE; key++) {
            float p_of_key = __shfl_sync(ALL_LANES, p, key);
            for (int i = 0; i < 2; i++) own[i] = fmaf(p_of_key, v_smem[key][x + TILE * i], own[i]);
        }
        __syncthreads();  // nobody still reads the tiles that the next step overwrites
    }
    if (query >= length) return;
    for (int i = 0; i < 2; i++) out[query * stride + x + TILE * i] = own[i] / sum;
}

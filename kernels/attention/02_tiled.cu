// Causal attention, rung 2: tiles of Q, K, P and V pass through shared memory.
//
// O[i] = Σ_j P[i,j] V[j],  P[i] = softmax over j ≤ i of Q[i]·K[j] / √D.
// q, k, v, out [B,T,H,D], f32; scores [B,H,T,T], f32: of each row only j ≤ i is written and read. D = 64; any T, B·H
// up to 65,535.
// Threads: a block of (32, 32) has 32 queries y and, for the scores, 32 keys x, for the output, channels x and x +
// 32. blockIdx.z is the head of the batch, b·H + h. Softmax: a warp for each row.
// Shared memory. Scores: q_smem [32][64], k_smem [32][64 + 1]; the lanes read one channel of 32 keys, which the
// padding puts into 32 banks. Output: p_smem [32][32], v_smem [32][64]. Tokens beyond T are stored as zero.
// Moved: every row fetched serves 32 threads: 16 bytes for the 128 FLOPs of a score. The scores still pass through
// global memory, T²/2 floats a head, six times.
// Numerics: f32; the maximum is subtracted before exp; sums over a row's keys as butterflies over the lanes, over
// channels and values ascending.
// Not yet measured on a card.

// Changed: rungs 2 and 3 of the matrix product, applied to both products, and lanes side by side in the softmax;
// tiles above the diagonal are left out. The counter: global sectors. Nearly half of what remains are the scores.
#include "common.cuh"

constexpr int D = 64, TILE = 32;

// Where token 0 of head b·H + h begins in q, k, v and out; the next one is H·D further on.
__device__ __forceinline__ long first_token(int head, long length, int heads) {
    return (head / heads * length * heads + head % heads) * D;
}

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    ladder_attention_02_tiled_scores(const float *q, const float *k, float *scores, long length, int heads) {
    __shared__ float q_smem[TILE][D], k_smem[TILE][D + 1];
    if (blockIdx.y > blockIdx.x) return;
    int x = threadIdx.x, y = threadIdx.y;
    long query0 = blockIdx.x * (long)TILE, key0 = blockIdx.y * (long)TILE, stride = heads * D;
    q += first_token(blockIdx.z, length, heads);
    k += first_token(blockIdx.z, length, heads);
    for (int d = x; d < D; d += TILE) {
        q_smem[y][d] = query0 + y < length ? q[(query0 + y) * stride + d] : 0.0f;
        k_smem[y][d] = key0 + y < length ? k[(key0 + y) * stride + d] : 0.0f;
    }
    __syncthreads();  // both tiles are complete
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d++) sum = fmaf(q_smem[y][d], k_smem[x][d], sum);
    long query = query0 + y, key = key0 + x;
    if (query < length && key <= query) scores[(blockIdx.z * length + query) * length + key] = sum * rsqrtf(D);
}

extern "C" __global__ void __launch_bounds__(128)
    ladder_attention_02_tiled_softmax(float *scores, long length) {
    long query = blockIdx.x * 4L + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (query >= length) return;
    scores += (blockIdx.z * length + query) * length;
    float top = -INFINITY, sum = 0.0f;
    for (long key = lane; key <= query; key += WARP) top = max_or_nan(top, scores[key]);
    top = warp_max(top);
    for (long key = lane; key <= query; key += WARP) sum += expf(scores[key] - top);
    sum = warp_sum(sum);
    for (long key = lane; key <= query; key += WARP) scores[key] = expf(scores[key] - top) / sum;
}

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    ladder_attention_02_tiled_output(const float *p, const float *v, float *out, long length, int heads) {
    __shared__ float p_smem[TILE][TILE], v_smem[TILE][D];
    int x = threadIdx.x, y = threadIdx.y;
    long query0 = blockIdx.x * (long)TILE, query = query0 + y, stride = heads * D;
    v += first_token(blockIdx.z, length, heads);
    out += first_token(blockIdx.z, length, heads);
    float sum[2] = {};
    for (long key0 = 0; key0 <= query0; key0 += TILE) {
        bool seen = query < length && key0 + x <= query;
        p_smem[y][x] = seen ? p[(blockIdx.z * length + query) * length + key0 + x] : 0.0f;
        for (int d = x; d < D; d += TILE)
            v_smem[y][d] = key0 + y < length ? v[(key0 + y) * stride + d] : 0.0f;
        __syncthreads();  // both tiles are complete
#pragma unroll
        for (int key = 0; key < TILE; key++)
#pragma unroll
            for (int i = 0; i < 2; i++) sum[i] = fmaf(p_smem[y][key], v_smem[key][x + TILE * i], sum[i]);
        __syncthreads();  // nobody still reads the tiles that the next step overwrites
    }
    if (query >= length) return;
    for (int i = 0; i < 2; i++) out[query * stride + x + TILE * i] = sum[i];
}

// Causal attention, rung 1: three kernels that write down every score.
//
// O[i] = Σ_j P[i,j] V[j],  P[i] = softmax over j ≤ i of Q[i]·K[j] / √D.
// q, k, v, out [B,T,H,D], f32; scores [B,H,T,T], f32: of each row only j ≤ i is written and read. D = 64; any T, B·H
// up to 65,535.
// Threads, one for one element. Scores: a block of (32, 8) has 32 keys and 8 queries, blockIdx.z is the head of the
// batch, b·H + h. Softmax: a thread for each row. Output: a block of (64, 4) has the 64 channels of 4 queries.
// Shared memory: none.
// Moved: a score reads a row of Q and one of K, 512 bytes for 128 FLOPs; scores and P pass through global memory,
// T²/2 floats a head, six times. 4D FLOPs for each of T²/2 pairs.
// Numerics: f32; the maximum is subtracted before exp; sums in one thread, ascending.
// Not yet measured on a card.

// The counters to watch: global sectors and bytes touched. The lanes of a warp read 32 rows of K, or of scores, that
// lie far apart, as in rung 1 of the matrix product; and what is touched grows with T².
#include "common.cuh"

constexpr int D = 64;

// Where token 0 of head b·H + h begins in q, k, v and out; the next one is H·D further on.
__device__ __forceinline__ long first_token(int head, long length, int heads) {
    return (head / heads * length * heads + head % heads) * D;
}

extern "C" __global__ void __launch_bounds__(256)
    ladder_attention_01_naive_scores(const float *q, const float *k, float *scores, long length, int heads) {
    long query = blockIdx.x * 8L + threadIdx.y, key = blockIdx.y * 32L + threadIdx.x, stride = heads * D;
    if (query >= length || key > query) return;
    q += first_token(blockIdx.z, length, heads) + query * stride;
    k += first_token(blockIdx.z, length, heads) + key * stride;
    float sum = 0.0f;
    for (int d = 0; d < D; d++) sum = fmaf(q[d], k[d], sum);
    scores[(blockIdx.z * length + query) * length + key] = sum * rsqrtf(D);
}

extern "C" __global__ void __launch_bounds__(128)
    ladder_attention_01_naive_softmax(float *scores, long length) {
    long query = blockIdx.x * 128L + threadIdx.x;
    if (query >= length) return;
    scores += (blockIdx.z * length + query) * length;
    float top = -INFINITY, sum = 0.0f;
    for (long key = 0; key <= query; key++) top = max_or_nan(top, scores[key]);
    for (long key = 0; key <= query; key++) sum += expf(scores[key] - top);
    for (long key = 0; key <= query; key++) scores[key] = expf(scores[key] - top) / sum;
}

extern "C" __global__ void __launch_bounds__(256)
    ladder_attention_01_naive_output(const float *p, const float *v, float *out, long length, int heads) {
    long query = blockIdx.x * 4L + threadIdx.y, stride = heads * D;
    if (query >= length) return;
    p += (blockIdx.z * length + query) * length;
    v += first_token(blockIdx.z, length, heads) + threadIdx.x;
    out += first_token(blockIdx.z, length, heads) + threadIdx.x;
    float sum = 0.0f;
    for (long key = 0; key <= query; key++) sum = fmaf(p[key], v[key * stride], sum);
    out[query * stride] = sum;
}

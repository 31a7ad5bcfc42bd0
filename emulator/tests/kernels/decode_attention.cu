// Attention of one new position over a cache: q, o [B,H,D] and k, v [B,T,G,D], bf16, D = 64; query head h reads KV head
// h / (H/G). Flash-decoding: the cache is cut into `splits` ranges of positions, one block each; a second kernel merges.
//
// decode_attention, grid (splits, H, B): the maximum m of the range's scores, the sum l of exp(score − m) and the
// unscaled output, f32 [B,H,splits] and [B,H,splits,D]. A warp takes every fourth position and reads k and v 32 lanes
// wide, two channels a lane. An empty range leaves m = −∞, l = 0 and zeros.
// decode_attention_merge, grid (H, B), D threads: o = Σ_s exp(m_s − m)·out_s / Σ_s exp(m_s − m)·l_s.
#include <cuda_bf16.h>
#include <math.h>

#include "reduce.cuh"

namespace {

constexpr int D = 64, WARPS = 4;

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    decode_attention(const __nv_bfloat16 *__restrict__ q, const __nv_bfloat16 *__restrict__ k,
                     const __nv_bfloat16 *__restrict__ v, float *__restrict__ out, float *__restrict__ max_gmem,
                     float *__restrict__ sum_gmem, int length, int groups) {
    __shared__ float max_smem[WARPS], sum_smem[WARPS];
    __shared__ float out_smem[WARPS][D];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int splits = gridDim.x, split = blockIdx.x, heads = gridDim.y, head = blockIdx.y, batch = blockIdx.z;
    int group = head / (heads / groups), range = (length + splits - 1) / splits;
    int begin = split * range, end = min(begin + range, length);

    const __nv_bfloat162 *q_row = reinterpret_cast<const __nv_bfloat162 *>(q + ((size_t)batch * heads + head) * D);
    float2 query = __bfloat1622float2(q_row[lane]);
    float scale = rsqrtf((float)D), max = -INFINITY, sum = 0.0f;
    float2 own = {0.0f, 0.0f};
    for (int t = begin + warp; t < end; t += WARPS) {
        size_t row = (((size_t)batch * length + t) * groups + group) * D;
        float2 key = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 *>(k + row)[lane]);
        float2 value = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 *>(v + row)[lane]);
        float score = warp_sum(query.x * key.x + query.y * key.y) * scale;
        float top = fmaxf(max, score), shrink = expf(max - top), weight = expf(score - top);
        sum = sum * shrink + weight;
        own.x = own.x * shrink + weight * value.x;
        own.y = own.y * shrink + weight * value.y;
        max = top;
    }
    if (lane == 0) max_smem[warp] = max, sum_smem[warp] = sum;
    reinterpret_cast<float2 *>(out_smem[warp])[lane] = own;
    __syncthreads();  // every warp's part is there

    size_t part = ((size_t)batch * heads + head) * splits + split;
    float top = -INFINITY;
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, max_smem[w]);
    float total = 0.0f, merged = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        float weight = max_smem[w] == -INFINITY ? 0.0f : expf(max_smem[w] - top);
        total += sum_smem[w] * weight;
        if (threadIdx.x < D) merged += out_smem[w][threadIdx.x] * weight;
    }
    if (threadIdx.x < D) out[part * D + threadIdx.x] = merged;
    if (threadIdx.x == 0) max_gmem[part] = top, sum_gmem[part] = total;
}

extern "C" __global__ void decode_attention_merge(const float *__restrict__ out, const float *__restrict__ max_gmem,
                                                  const float *__restrict__ sum_gmem, __nv_bfloat16 *__restrict__ o,
                                                  int splits) {
    size_t row = (size_t)blockIdx.y * gridDim.x + blockIdx.x;
    float top = -INFINITY;
    for (int s = 0; s < splits; s++) top = fmaxf(top, max_gmem[row * splits + s]);
    float total = 0.0f, merged = 0.0f;
    for (int s = 0; s < splits; s++) {
        float weight = expf(max_gmem[row * splits + s] - top);
        total += sum_gmem[row * splits + s] * weight;
        merged += out[(row * splits + s) * D + threadIdx.x] * weight;
    }
    o[row * D + threadIdx.x] = __float2bfloat16(merged / total);
}

// Elementwise functions of n values: y = gelu(x) = x/2·(1 + erf(x/√2)) and its tanh form, silu(x) = x/(1 + e^−x), and
// SwiGLU in packed half and bf16 arithmetic; dropout with Philox 4×32; a mean in f64.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

extern "C" __global__ void gelu(const float *x, float *exact, float *tanh_form, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float v = x[i];
        exact[i] = 0.5f * v * (1.0f + erff(v * 0.70710678f));
        tanh_form[i] = 0.5f * v * (1.0f + tanhf(0.79788456f * (v + 0.044715f * v * v * v)));
    }
}

extern "C" __global__ void silu(const float *x, float *y, float *softplus, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    y[i] = x[i] / (1.0f + __expf(-x[i]));
    softplus[i] = log1pf(expf(x[i]));
}

// y = x·clamp(g) + x, two values at a time.
extern "C" __global__ void gate_f16(const __half2 *x, const __half2 *g, __half2 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 clamped = __hmin2(__hmax2(g[i], __float2half2_rn(-1.0f)), __float2half2_rn(1.0f));
    y[i] = __hfma2(x[i], clamped, __hadd2(x[i], __hmul2(clamped, __float2half2_rn(0.0f))));
}

extern "C" __global__ void gate_bf16(const __nv_bfloat162 *x, const __nv_bfloat162 *g, __nv_bfloat162 *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat162 clamped = __hmin2(__hmax2(g[i], __float2bfloat162_rn(-1.0f)), __float2bfloat162_rn(1.0f));
    y[i] = __hfma2(x[i], clamped, __hadd2(x[i], __hmul2(clamped, __float2bfloat162_rn(0.0f))));
}

namespace {

// Philox 4×32 with ten rounds (Salmon et al. 2011).
__device__ __forceinline__ uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        unsigned high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
        unsigned high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
        counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key.x += 0x9E3779B9u, key.y += 0xBB67AE85u;
    }
    return counter;
}

}  // namespace

// Keeps each value with probability `keep`, scaled by 1/keep; four values a thread.
extern "C" __global__ void dropout(const float *x, float *y, unsigned long long seed, float keep, int n) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    uint4 random = philox(make_uint4(thread, 0, 0, 0), make_uint2((unsigned)seed, (unsigned)(seed >> 32)));
    unsigned bits[4] = {random.x, random.y, random.z, random.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        unsigned i = thread * 4 + j;
        if (i < n) y[i] = (bits[j] >> 8) * 0x1p-24f < keep ? x[i] / keep : 0.0f;
    }
}

// mean and variance in f64, by one block of one warp.
extern "C" __global__ void moments(const float *x, double *out, int n) {
    double sum = 0.0, squares = 0.0;
    for (int i = threadIdx.x; i < n; i += 32) sum += x[i], squares = fma((double)x[i], (double)x[i], squares);
    for (int step = 16; step > 0; step /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, step);
        squares += __shfl_down_sync(0xffffffffu, squares, step);
    }
    if (threadIdx.x == 0) {
        double mean = sum / n;
        out[0] = mean;
        out[1] = sqrt(squares / n - mean * mean);
    }
}

// One step of AdamW for n parameters: f32 master weights and moments, bf16 gradients, and a bf16 copy of the weights.
//
//   m = β₁·m + (1−β₁)·g     v = β₂·v + (1−β₂)·g²
//   w = w − lr·( (m/c₁) / (√(v/c₂) + ε) + λ·w ),  c₁ = 1 − β₁ᵗ, c₂ = 1 − β₂ᵗ
//
// A thread owns four neighbours, moved 16 bytes at a time; the last, incomplete four go one by one.
#include <cuda_bf16.h>

struct AdamwSettings {
    float rate, beta1, beta2, epsilon, decay;
    int step;
};

namespace {

__device__ __forceinline__ float update(float w, float &m, float &v, float g, const AdamwSettings &s, float c1,
                                        float c2) {
    m = s.beta1 * m + (1.0f - s.beta1) * g;
    v = s.beta2 * v + (1.0f - s.beta2) * g * g;
    return w - s.rate * ((m / c1) / (sqrtf(v / c2) + s.epsilon) + s.decay * w);
}

}  // namespace

extern "C" __global__ void adamw(float *weights, __nv_bfloat16 *copy, float *first, float *second,
                                 const __nv_bfloat16 *gradient, AdamwSettings settings, long long n) {
    long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i >= n) return;
    float c1 = 1.0f - powf(settings.beta1, (float)settings.step);
    float c2 = 1.0f - powf(settings.beta2, (float)settings.step);
    if (i + 4 <= n) {
        float4 w = *reinterpret_cast<float4 *>(weights + i);
        float4 m = *reinterpret_cast<float4 *>(first + i);
        float4 v = *reinterpret_cast<float4 *>(second + i);
        const __nv_bfloat162 *g = reinterpret_cast<const __nv_bfloat162 *>(gradient + i);
        float2 g0 = __bfloat1622float2(g[0]), g1 = __bfloat1622float2(g[1]);
        w.x = update(w.x, m.x, v.x, g0.x, settings, c1, c2);
        w.y = update(w.y, m.y, v.y, g0.y, settings, c1, c2);
        w.z = update(w.z, m.z, v.z, g1.x, settings, c1, c2);
        w.w = update(w.w, m.w, v.w, g1.y, settings, c1, c2);
        *reinterpret_cast<float4 *>(weights + i) = w;
        *reinterpret_cast<float4 *>(first + i) = m;
        *reinterpret_cast<float4 *>(second + i) = v;
        __nv_bfloat162 *to = reinterpret_cast<__nv_bfloat162 *>(copy + i);
        to[0] = __floats2bfloat162_rn(w.x, w.y);
        to[1] = __floats2bfloat162_rn(w.z, w.w);
    } else {
        for (; i < n; i++) {
            weights[i] = update(weights[i], first[i], second[i], __bfloat162float(gradient[i]), settings, c1, c2);
            copy[i] = __float2bfloat16(weights[i]);
        }
    }
}

// AdamW in PyTorch's order: decay first, then the step; f32 master weights, and their bf16 copy for the next forward
// pass.
//
//   g = scale g                                   from clipping, read on the device
//   w = w · decay                                 decay = 1 − lr λ, or 1
//   m = β₁ m + (1 − β₁) g,    v = β₂ v + (1 − β₂) g²
//   w = w − step_size m / (√v / root_correction2 + ε)
//                                                 step_size = lr / (1 − β₁ᵗ), root_correction2 = √(1 − β₂ᵗ)
//
// Shapes: w, m, v, g [n] f32; copy [n] bf16 or null; scale [1] f32 or null for 1.
//   A scale that is not finite (a gradient was not) leaves everything as it was.
// Threads: one for four neighbours, 256 a block, on grid x.
// Shared memory: none.
// Moves 28 bytes an element, 2 more with the copy; some 20 FLOPs: bound by memory.
// Numerics: f32; the copy is rounded once.
// Not yet measured on a card.
#include "elementwise.cuh"

namespace {

struct Step {
    float beta1, rest1, beta2, rest2, eps, decay, step_size, root_correction2;
};

__device__ __forceinline__ void update(const Step &step, float &w, float &m, float &v, float g) {
    w *= step.decay;
    m = step.beta1 * m + step.rest1 * g;
    v = step.beta2 * v + step.rest2 * g * g;
    w -= step.step_size * m / (sqrtf(v) / step.root_correction2 + step.eps);
}

}  // namespace

extern "C" __global__ void adamw_step(float *w_gmem, float *m_gmem, float *v_gmem, const float *g_gmem, bf16 *copy_gmem,
                                      long n, const float *scale_gmem, float beta1, float rest1, float beta2,
                                      float rest2, float eps, float decay, float step_size, float root_correction2) {
    constexpr int N = ADAMW_WIDTH;
    Step step = {beta1, rest1, beta2, rest2, eps, decay, step_size, root_correction2};
    float scale = scale_gmem == nullptr ? 1.0f : *scale_gmem;
    if (!isfinite(scale)) return;
    long i = first_element<N>();
    if (i + N <= n) {
        float w[N], m[N], v[N], g[N];
        load_vector(w, w_gmem + i);
        load_vector(m, m_gmem + i);
        load_vector(v, v_gmem + i);
        load_vector(g, g_gmem + i);
#pragma unroll
        for (int j = 0; j < N; j++) update(step, w[j], m[j], v[j], scale * g[j]);
        store_vector(w_gmem + i, w);
        store_vector(m_gmem + i, m);
        store_vector(v_gmem + i, v);
        if (copy_gmem != nullptr) store_vector(copy_gmem + i, w);
    } else {
        for (; i < n; i++) {
            update(step, w_gmem[i], m_gmem[i], v_gmem[i], scale * g_gmem[i]);
            if (copy_gmem != nullptr) copy_gmem[i] = from_float<bf16>(w_gmem[i]);
        }
    }
}

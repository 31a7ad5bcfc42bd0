// SiLU, x times its own sigmoid.
//
//   forward    y = x σ(x)                          σ(x) = 1 / (1 + e⁻ˣ)
//   backward   d_x = d_y σ(x) (1 + x (1 − σ(x)))
//
// Shapes: x, y, d_y, d_x [n]; y may be x, and d_x may be x or d_y.
// Threads: one for 16 bytes of each operand, 256 a block, on grid x.
// Shared memory: none.
// Moves 2n elements forward and 3n backward, some 20 FLOPs each: bound by memory.
// Numerics: f32 inside, rounded once.
// Not yet measured on a card.
#include "elementwise.cuh"

namespace {

struct Silu {
    static __device__ __forceinline__ float of(float x) { return x * sigmoid(x); }
};

struct SiluGradient {
    static __device__ __forceinline__ float of(float x, float d_y) {
        float s = sigmoid(x);
        return d_y * (s * (1.0f + x * (1.0f - s)));
    }
};

}  // namespace

extern "C" {

__global__ void silu_forward_f32(const float *x, float *y, long n) { map<Silu, MOST<float>>(x, y, n); }
__global__ void silu_forward_bf16(const bf16 *x, bf16 *y, long n) { map<Silu, MOST<bf16>>(x, y, n); }

__global__ void silu_backward_f32(const float *x, const float *d_y, float *d_x, long n) {
    zip<SiluGradient, MOST<float>>(x, d_y, d_x, n);
}
__global__ void silu_backward_bf16(const bf16 *x, const bf16 *d_y, bf16 *d_x, long n) {
    zip<SiluGradient, MOST<bf16>>(x, d_y, d_x, n);
}

}  // extern "C"

// GELU in the tanh form of GPT-2.
//
//   forward    y = x/2 (1 + tanh u),                u = √(2/π) (x + 0.044715 x³)
//   backward   d_x = d_y [ (1 + tanh u)/2 + x/2 (1 − tanh² u) √(2/π) (1 + 3·0.044715 x²) ]
//
// Shapes: x, y, d_y, d_x [n]; y may be x, and d_x may be x or d_y.
// Threads: one for 16 bytes of each operand, 256 a block, on grid x.
// Shared memory: none.
// Moves 2n elements forward and 3n backward, some 25 FLOPs each: bound by memory.
// Numerics: f32 inside, rounded once.
// Not yet measured on a card.
#include "elementwise.cuh"

namespace {

constexpr float CUBIC = 0.044715f, ROOT_TWO_OVER_PI = 0.7978845608028654f;

// (1 + tanh u)/2 = σ(2u) and (1 − tanh² u)/4 = σ(2u) σ(−2u), without the differences that lose digits for large |u|.
struct Gate {
    float open, slope;
};

__device__ __forceinline__ Gate gate_of(float x) {
    float twice_u = 2.0f * ROOT_TWO_OVER_PI * (x + CUBIC * x * x * x), e = expf(-fabsf(twice_u));
    float larger = 1.0f / (1.0f + e), smaller = e * larger;
    return {twice_u > 0.0f ? larger : smaller, larger * smaller};
}

struct Gelu {
    static __device__ __forceinline__ float of(float x) { return x * gate_of(x).open; }
};

struct GeluGradient {
    static __device__ __forceinline__ float of(float x, float d_y) {
        Gate gate = gate_of(x);
        float u_slope = ROOT_TWO_OVER_PI * (1.0f + 3.0f * CUBIC * x * x);
        return d_y * (gate.open + 2.0f * x * gate.slope * u_slope);
    }
};

}  // namespace

extern "C" {

__global__ void gelu_forward_f32(const float *x, float *y, long n) { map<Gelu, MOST<float>>(x, y, n); }
__global__ void gelu_forward_bf16(const bf16 *x, bf16 *y, long n) { map<Gelu, MOST<bf16>>(x, y, n); }

__global__ void gelu_backward_f32(const float *x, const float *d_y, float *d_x, long n) {
    zip<GeluGradient, MOST<float>>(x, d_y, d_x, n);
}
__global__ void gelu_backward_bf16(const bf16 *x, const bf16 *d_y, bf16 *d_x, long n) {
    zip<GeluGradient, MOST<bf16>>(x, d_y, d_x, n);
}

}  // extern "C"

// SwiGLU's gate: SiLU of one projection times another. silu(gate) is computed again by the backward, not saved.
//
//   forward    y = silu(gate) ∘ up                 silu(x) = x σ(x)
//   backward   d_gate = d_y ∘ up ∘ silu′(gate)     silu′(x) = σ(x) (1 + x (1 − σ(x)))
//              d_up   = d_y ∘ silu(gate)
//
// Shapes: gate, up, y, d_y, d_gate, d_up [n]; y may be gate or up; d_gate and d_up may each be any of the inputs.
// Threads: one for 16 bytes of each operand, 256 a block, on grid x.
// Shared memory: none.
// Moves 3n elements forward and 5n backward, some 20 FLOPs each: bound by memory.
// Numerics: f32 inside, rounded once.
// Not yet measured on a card.
#include "elementwise.cuh"

namespace {

struct SwiGlu {
    static __device__ __forceinline__ float of(float gate, float up) { return gate * sigmoid(gate) * up; }
};

__device__ __forceinline__ void gradient(float gate, float up, float d_y, float &d_gate, float &d_up) {
    float s = sigmoid(gate);
    d_gate = d_y * up * (s * (1.0f + gate * (1.0f - s)));
    d_up = d_y * (gate * s);
}

template <int N, typename T>
__device__ __forceinline__ void backward(const T *gate_gmem, const T *up_gmem, const T *d_y_gmem, T *d_gate_gmem,
                                         T *d_up_gmem, long n) {
    long i = first_element<N>();
    if (i + N <= n) {
        float gate[N], up[N], d_y[N], d_gate[N], d_up[N];
        load_vector(gate, gate_gmem + i);
        load_vector(up, up_gmem + i);
        load_vector(d_y, d_y_gmem + i);
#pragma unroll
        for (int j = 0; j < N; j++) gradient(gate[j], up[j], d_y[j], d_gate[j], d_up[j]);
        store_vector(d_gate_gmem + i, d_gate);
        store_vector(d_up_gmem + i, d_up);
    } else {
        for (; i < n; i++) {
            float d_gate, d_up;
            gradient(to_float(gate_gmem[i]), to_float(up_gmem[i]), to_float(d_y_gmem[i]), d_gate, d_up);
            d_gate_gmem[i] = from_float<T>(d_gate);
            d_up_gmem[i] = from_float<T>(d_up);
        }
    }
}

}  // namespace

extern "C" {

__global__ void swiglu_forward_f32(const float *gate, const float *up, float *y, long n) {
    zip<SwiGlu, MOST<float>>(gate, up, y, n);
}
__global__ void swiglu_forward_bf16(const bf16 *gate, const bf16 *up, bf16 *y, long n) {
    zip<SwiGlu, MOST<bf16>>(gate, up, y, n);
}

__global__ void swiglu_backward_f32(const float *gate, const float *up, const float *d_y, float *d_gate, float *d_up,
                                    long n) {
    backward<MOST<float>>(gate, up, d_y, d_gate, d_up, n);
}
__global__ void swiglu_backward_bf16(const bf16 *gate, const bf16 *up, const bf16 *d_y, bf16 *d_gate, bf16 *d_up,
                                     long n) {
    backward<MOST<bf16>>(gate, up, d_y, d_gate, d_up, n);
}

}  // extern "C"

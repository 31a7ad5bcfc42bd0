// Conversion between f32 and bf16.
//
//   y = x, rounded to nearest, ties to even
//
// Shapes: x, y [n], in different memory.
// Threads: one for four elements (one if unaligned), 256 a block, on grid x.
// Shared memory: none.
// Moves 6n bytes: bound by memory.
// Numerics: bf16 → f32 is exact; NaN stays NaN, what is too large becomes infinite.
// Not yet measured on a card.
#include "elementwise.cuh"

namespace {

struct Same {
    static __device__ __forceinline__ float of(float x) { return x; }
};

}  // namespace

extern "C" {

__global__ void cast_to_bf16_f32(const float *x, bf16 *y, long n) { map<Same, MOST<float>>(x, y, n); }
__global__ void cast_to_bf16_f32_unaligned(const float *x, bf16 *y, long n) { map<Same, 1>(x, y, n); }
__global__ void cast_to_f32_bf16(const bf16 *x, float *y, long n) { map<Same, MOST<float>>(x, y, n); }
__global__ void cast_to_f32_bf16_unaligned(const bf16 *x, float *y, long n) { map<Same, 1>(x, y, n); }

}  // extern "C"

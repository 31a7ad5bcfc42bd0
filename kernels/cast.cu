// Conversion between f32 and bf16.
//
//   y = x, rounded to nearest, ties to even
//
// Shapes: x, y [n], in different memory.
// Threads: one for four elements, 256 a block, on grid x.
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

__global__ void cast_to_bf16(const float *x, bf16 *y, long n) { map<Same, CAST_WIDTH>(x, y, n); }
__global__ void cast_to_f32(const bf16 *x, float *y, long n) { map<Same, CAST_WIDTH>(x, y, n); }

}  // extern "C"

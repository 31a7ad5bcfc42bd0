// RoPE: pairs of channels turned by an angle that grows with the position.
//
//   y[2i]   = x[2i] cos φ − s x[2i+1] sin φ      s = 1 forward, −1 backward: the inverse of a rotation is its transpose
//   y[2i+1] = s x[2i] sin φ + x[2i+1] cos φ      φ from the tables, for position start + t and pair i
//
// Shapes     x [B,T,H,D], y [B,slots,H,D] in T; token t goes to slot first + t: a cache, or slots = T and first = 0.
//            cos, sin [positions, D/2] in f32.
// Threads    4 (bf16) or 8 (f32) lanes a head, each with vectors of 16 bytes; `_unaligned`, for D that are no
//            multiple of those: 16 lanes, pairs.
// Shared     None.
// Work       An element: 2 tensors moved, 3 FLOPs; the tables' rows are shared by the heads of a token.
// Numerics   f32, one rounding at the end.
// Not yet measured on a card.
#include "rope.cuh"

template <typename T, bool ALIGNED>
__device__ __forceinline__ void rotate_heads(const T *__restrict__ x_gmem, const float *__restrict__ cos_gmem,
                                             const float *__restrict__ sin_gmem, T *__restrict__ y_gmem, int rows,
                                             int tokens, int heads, int dim, int start, int slots, int first,
                                             float direction) {
    using Access = HeadAccess<T, ALIGNED>;
    unsigned row = blockIdx.x * (blockDim.x / Access::LANES) + threadIdx.x / Access::LANES;
    if (row >= rows) return;
    HeadPlace place(row, tokens, heads, slots, first);
    long angles = (static_cast<long>(start) + place.token) * (dim / 2);
    x_gmem += static_cast<long>(row) * dim, y_gmem += place.out_head * dim;
    for (int at = threadIdx.x % Access::LANES * Access::VEC; at < dim; at += WARP) {
        float x[Access::VEC];
        Access::load(x, x_gmem + at);
        Access::rotate(x, cos_gmem + angles, sin_gmem + angles, at, direction);
        Access::store(y_gmem + at, x);
    }
}

#define ROPE(T, ALIGNED, VARIANT) \
    extern "C" __global__ void __launch_bounds__(ROPE_THREADS) \
        rope_##VARIANT(const T *x, const float *cos, const float *sin, T *y, int rows, int tokens, int heads, int dim, \
                       int start, int slots, int first, float direction) { \
        rotate_heads<T, ALIGNED>(x, cos, sin, y, rows, tokens, heads, dim, start, slots, first, direction); \
    }

ROPE(float, true, f32)
ROPE(float, false, f32_unaligned)
ROPE(bf16, true, bf16)
ROPE(bf16, false, bf16_unaligned)

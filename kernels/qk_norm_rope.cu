// QK-Norm then RoPE: RMSNorm of every head of q or k, then its rotation.
//
//   forward    n = r x ∘ g, r = 1/√(mean(x²) + ε) of a head;  y = R(t) n, the rotations of rope at position start + t
//   backward   d_n = R(t)ᵀ d_y;  d_x = r (g ∘ d_n) − x r³/D Σ_d(g ∘ d_n ∘ x);  d_g = Σ over heads of r x ∘ d_n
//
// Shapes     x, d_y, d_x [B,T,H,D], gain [D], y [B,slots,H,D] in T; token t goes to slot first + t: a cache, or
//            slots = T and first = 0. cos, sin [positions, D/2], rstd [B·T·H] (forward: may be null),
//            partial [blocks, D], d_gain [D] in f32.
// Threads    4 (bf16) or 8 (f32) lanes a head, each with vectors of 16 bytes; `_unaligned`, for D that are no
//            multiple of those: 16 lanes, pairs. A head is read twice, the second time from L1. Backward: a block takes
//            every gridDim.x-th set of heads and sums the gain's gradient for 128 channels; wider heads take several
//            windows, grid y.
// Shared     Backward: 4 KB, the gain's sums of each warp.
// Work       An element: forward 2 tensors moved and 7 FLOPs, backward 3 and 16; the tables' rows are shared by the
//            heads of a token.
// Numerics   f32 throughout, one rounding at the end. A head's sum: a lane's own channels in order, lanes by butterfly.
//            Gain: a lane's heads in order, the warp's heads by butterfly, warps in order, then the blocks in
//            qk_norm_rope_gain; the number of blocks follows from the shape alone.
// Not yet measured on a card.
#include "rope.cuh"
#include "rows.cuh"

template <typename T, bool ALIGNED>
__device__ __forceinline__ void forward(const T *__restrict__ x_gmem, const T *__restrict__ gain_gmem,
                                        const float *__restrict__ cos_gmem, const float *__restrict__ sin_gmem,
                                        T *__restrict__ y_gmem, float *__restrict__ rstd_gmem, int rows, int tokens,
                                        int heads, int dim, int start, int slots, int first, float eps) {
    using Access = HeadAccess<T, ALIGNED>;
    unsigned row = blockIdx.x * (blockDim.x / Access::LANES) + threadIdx.x / Access::LANES;
    int lane = threadIdx.x % Access::LANES, own = row < rows ? dim : 0;  // a head behind the last has no channels
    HeadPlace place(row, tokens, heads, slots, first);
    long angles = (static_cast<long>(start) + place.token) * (dim / 2);
    x_gmem += static_cast<long>(row) * dim, y_gmem += place.out_head * dim;

    float x[Access::VEC], squares = 0.0f;
    for (int at = lane * Access::VEC; at < own; at += WARP) {
        Access::load(x, x_gmem + at);
#pragma unroll
        for (int j = 0; j < Access::VEC; j++) squares = fmaf(x[j], x[j], squares);
    }
    float rstd = 1.0f / sqrtf(Access::sum(squares) / dim + eps);
    if (rstd_gmem && lane == 0 && own > 0) rstd_gmem[row] = rstd;

    for (int at = lane * Access::VEC; at < own; at += WARP) {
        float gain[Access::VEC];
        Access::load(x, x_gmem + at);
        Access::load(gain, gain_gmem + at);
#pragma unroll
        for (int j = 0; j < Access::VEC; j++) x[j] = rstd * x[j] * gain[j];
        Access::rotate(x, cos_gmem + angles, sin_gmem + angles, at, 1.0f);
        Access::store(y_gmem + at, x);
    }
}

// One head's operands of the backward pass.
template <typename T, bool ALIGNED>
struct HeadGradient {
    using Access = HeadAccess<T, ALIGNED>;
    const T *x_gmem, *gain_gmem, *d_y_gmem;
    const float *cos_gmem, *sin_gmem;
    float x[Access::VEC], weighted[Access::VEC], d_n[Access::VEC];

    // x, d_n and g ∘ d_n from channel `at` on.
    __device__ __forceinline__ void load(int at) {
        float gain[Access::VEC];
        Access::load(x, x_gmem + at);
        Access::load(d_n, d_y_gmem + at);
        Access::load(gain, gain_gmem + at);
        Access::rotate(d_n, cos_gmem, sin_gmem, at, -1.0f);
#pragma unroll
        for (int j = 0; j < Access::VEC; j++) weighted[j] = gain[j] * d_n[j];
    }
};

constexpr int WINDOW = QK_NORM_WINDOW;
static_assert(WINDOW % WARP == 0 && WINDOW <= ROPE_THREADS, "whole warps of channels, and a thread for each");

// Over the block's heads: over the warp's by butterfly, then over the warps in order.
template <int VEC>
__device__ __forceinline__ void store_gain(const float (&sums)[WINDOW / WARP][VEC], float *partial_gmem, int dim) {
    constexpr int LANES = WARP / VEC;
    __shared__ float sum_smem[ROPE_THREADS / WARP][WINDOW];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < WINDOW / WARP; i++) {
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            float sum = sums[i][j];
#pragma unroll
            for (int step = LANES; step < WARP; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
            if (lane < LANES) sum_smem[warp][i * WARP + lane * VEC + j] = sum;
        }
    }
    __syncthreads();  // every warp's sums are there
    long at = static_cast<long>(blockIdx.y) * WINDOW + threadIdx.x;
    if (threadIdx.x >= WINDOW || at >= dim) return;
    float total = 0.0f;
    for (int w = 0; w < blockDim.x / WARP; w++) total += sum_smem[w][threadIdx.x];
    partial_gmem[static_cast<long>(blockIdx.x) * dim + at] = total;
}

template <typename T, bool ALIGNED>
__device__ __forceinline__ void backward(const T *__restrict__ x_gmem, const T *__restrict__ gain_gmem,
                                         const float *__restrict__ cos_gmem, const float *__restrict__ sin_gmem,
                                         const float *__restrict__ rstd_gmem, const T *__restrict__ d_y_gmem,
                                         T *__restrict__ d_x_gmem, float *__restrict__ partial_gmem, int rows,
                                         int tokens, int heads, int dim, int start) {
    using Access = HeadAccess<T, ALIGNED>;
    constexpr int VEC = Access::VEC, LANES = Access::LANES;
    int lane = threadIdx.x % LANES, window = blockIdx.y * WINDOW, set = blockDim.x / LANES;
    float d_gain[WINDOW / WARP][VEC] = {};
    // The whole warp stays in the loop as long as one of its heads is there: the sums below need all lanes.
    for (unsigned row = blockIdx.x * set + threadIdx.x / LANES; row - threadIdx.x % WARP / LANES < rows;
         row += gridDim.x * set) {
        int own = row < rows ? dim : 0;
        HeadPlace place(row, tokens, heads, tokens, 0);
        long first = static_cast<long>(row) * dim, angles = (static_cast<long>(start) + place.token) * (dim / 2);
        HeadGradient<T, ALIGNED> head{x_gmem + first, gain_gmem, d_y_gmem + first, cos_gmem + angles,
                                      sin_gmem + angles};
        float inner = 0.0f;
        for (int at = lane * VEC; at < own; at += WARP) {
            head.load(at);
#pragma unroll
            for (int j = 0; j < VEC; j++) inner = fmaf(head.weighted[j], head.x[j], inner);
        }
        inner = Access::sum(inner);
        float rstd = own > 0 ? rstd_gmem[row] : 0.0f, along_x = rstd * rstd * rstd * inner / dim;
#pragma unroll
        for (int i = 0; i < WINDOW / WARP; i++) {
            int at = window + i * WARP + lane * VEC;
            if (at >= own) break;
            head.load(at);
            float d_x[VEC];
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                d_x[j] = rstd * head.weighted[j] - along_x * head.x[j];
                d_gain[i][j] += rstd * head.x[j] * head.d_n[j];
            }
            Access::store(d_x_gmem + first + at, d_x);
        }
    }
    store_gain(d_gain, partial_gmem, dim);
}

extern "C" __global__ void __launch_bounds__(WARP * WARP)
    qk_norm_rope_gain(const float *partial, float *d_gain, int parts, long cols, int accumulate) {
    sum_partials(partial, d_gain, parts, cols, cols, accumulate);
}

// 6 blocks a multiprocessor in the forward: left alone, ptxas takes 32 registers on sm_90 in f32, and spills.
#define QK_NORM_ROPE(T, ALIGNED, VARIANT) \
    extern "C" __global__ void __launch_bounds__(ROPE_THREADS, 6) \
        qk_norm_rope_forward_##VARIANT(const T *x, const T *gain, const float *cos, const float *sin, T *y, \
                                       float *rstd, int rows, int tokens, int heads, int dim, int start, int slots, \
                                       int first, float eps) { \
        forward<T, ALIGNED>(x, gain, cos, sin, y, rstd, rows, tokens, heads, dim, start, slots, first, eps); \
    } \
    extern "C" __global__ void __launch_bounds__(ROPE_THREADS) \
        qk_norm_rope_backward_##VARIANT(const T *x, const T *gain, const float *cos, const float *sin, \
                                        const float *rstd, const T *d_y, T *d_x, float *partial, int rows, int tokens, \
                                        int heads, int dim, int start) { \
        backward<T, ALIGNED>(x, gain, cos, sin, rstd, d_y, d_x, partial, rows, tokens, heads, dim, start); \
    }

QK_NORM_ROPE(float, true, f32)
QK_NORM_ROPE(float, false, f32_unaligned)
QK_NORM_ROPE(bf16, true, bf16)
QK_NORM_ROPE(bf16, false, bf16_unaligned)

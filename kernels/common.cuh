// What the kernels share: element types, vector loads, and reductions over a warp and a block in a fixed order.
#pragma once
#include <cstdint>
#include <cuda_bf16.h>
#include <math.h>

#include "shared.h"

using bf16 = __nv_bfloat16;

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

// The most elements that one access can move: 16 bytes.
template <typename T>
constexpr int MOST = 16 / sizeof(T);

// N neighbouring elements, moved by one access; their address is a multiple of their size.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vector {
    T values[N];
};

template <int N, typename T>
__device__ __forceinline__ void load_vector(float (&to)[N], const T *gmem) {
    Vector<T, N> vector = *reinterpret_cast<const Vector<T, N> *>(gmem);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = to_float(vector.values[i]);
}

template <int N, typename T>
__device__ __forceinline__ void store_vector(T *gmem, const float (&from)[N]) {
    Vector<T, N> vector;
#pragma unroll
    for (int i = 0; i < N; i++) vector.values[i] = from_float<T>(from[i]);
    if constexpr (sizeof(vector) % 16 == 0) {
        // Word by word: the compiler may take the copy of a struct apart into its elements.
#pragma unroll
        for (int i = 0; i < sizeof(vector) / 16; i++)
            __stwb(reinterpret_cast<uint4 *>(gmem) + i, reinterpret_cast<const uint4 *>(&vector)[i]);
    } else {
        *reinterpret_cast<Vector<T, N> *>(gmem) = vector;
    }
}

// The same into shared memory.
template <int N, typename T>
__device__ __forceinline__ void store_vector_shared(T *smem, const float (&from)[N]) {
    Vector<T, N> vector;
#pragma unroll
    for (int i = 0; i < N; i++) vector.values[i] = from_float<T>(from[i]);
    *reinterpret_cast<Vector<T, N> *>(smem) = vector;
}

// Butterflies: every lane gets the same bits.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

// NaN wins, unlike in fmaxf: a broken row has to show.
__device__ __forceinline__ float max_or_nan(float a, float b) { return a > b || isnan(a) ? a : b; }

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x = max_or_nan(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// The sum over the block, in every thread, warp by warp and then over the warps. The block is whole warps; `partial_smem`
// holds a float for each, and may be used again at once.
__device__ __forceinline__ float block_sum(float x, float *partial_smem) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_sum(x);
    __syncthreads();  // an earlier reduction may still read `partial_smem`
    if (lane == 0) partial_smem[warp] = x;
    __syncthreads();  // every warp's part is there
    return warp_sum(lane < warps ? partial_smem[lane] : 0.0f);
}

// The maximum, likewise; but nobody may have read `partial_smem` since the last barrier: in all kernels it comes first.
__device__ __forceinline__ float block_max(float x, float *partial_smem) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    x = warp_max(x);
    if (lane == 0) partial_smem[warp] = x;
    __syncthreads();  // every warp's part is there
    return warp_max(lane < warps ? partial_smem[lane] : -INFINITY);
}

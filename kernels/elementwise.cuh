// Kernels without neighbours: element i of the output depends on element i of the inputs alone.
//
// A thread owns N neighbours, moved by one access of each operand; the thread at the end takes what is left one by one.
// Outputs may be inputs, too: a thread reads its elements before it writes them.
#pragma once
#include "common.cuh"

// The first element of a thread, and of this one.
template <int N>
__host__ __device__ constexpr long first_element(unsigned block, unsigned thread) {
    return (block * static_cast<long>(ELEMENTWISE_THREADS) + thread) * N;
}
static_assert(first_element<8>((1u << 20) - 1, 255) == (1l << 31) - 8 && first_element<8>(1u << 20, 0) == 1l << 31 &&
              first_element<1>((1u << 24) - 1, 255) == (1l << 32) - 1 && first_element<1>(1u << 24, 0) == 1l << 32);

template <int N>
__device__ __forceinline__ long first_element() {
    return first_element<N>(blockIdx.x, threadIdx.x);
}

// y[i] = F::of(a[i])
template <typename F, int N, typename T, typename Out>
__device__ __forceinline__ void map(const T *a_gmem, Out *y_gmem, long n) {
    long i = first_element<N>();
    if (i + N <= n) {
        float a[N], y[N];
        load_vector(a, a_gmem + i);
#pragma unroll
        for (int j = 0; j < N; j++) y[j] = F::of(a[j]);
        store_vector(y_gmem + i, y);
    } else {
        for (; i < n; i++) y_gmem[i] = from_float<Out>(F::of(to_float(a_gmem[i])));
    }
}

// y[i] = F::of(a[i], b[i])
template <typename F, int N, typename T>
__device__ __forceinline__ void zip(const T *a_gmem, const T *b_gmem, T *y_gmem, long n) {
    long i = first_element<N>();
    if (i + N <= n) {
        float a[N], b[N], y[N];
        load_vector(a, a_gmem + i);
        load_vector(b, b_gmem + i);
#pragma unroll
        for (int j = 0; j < N; j++) y[j] = F::of(a[j], b[j]);
        store_vector(y_gmem + i, y);
    } else {
        for (; i < n; i++) y_gmem[i] = from_float<T>(F::of(to_float(a_gmem[i]), to_float(b_gmem[i])));
    }
}

// σ(x) = 1 / (1 + e⁻ˣ); e⁻ˣ = ∞ gives 0.
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

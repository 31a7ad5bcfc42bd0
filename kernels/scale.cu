// y = c·x, element by element; in place where y is x.
//
// x, y [n]
// A thread takes VEC neighbours, 16 bytes, the block 256·VEC; element i belongs to block i / (256·VEC).
// No shared memory.
// Moves 2n elements, 1 FLOP for each: bound by memory.
// Computed in f32, rounded once.
// Not yet measured on a card.
#include "elementwise.cuh"

namespace {

template <typename T>
__device__ __forceinline__ void scale(const T *x_gmem, T *y_gmem, float c, long n) {
    constexpr int VEC = MOST<T>;
    long first = first_element<VEC>();
    if (first + VEC <= n) {
        float x_regs[VEC];
        load_vector(x_regs, x_gmem + first);
#pragma unroll
        for (int i = 0; i < VEC; i++) x_regs[i] *= c;
        store_vector(y_gmem + first, x_regs);
    } else {
        for (long i = first; i < n; i++) y_gmem[i] = from_float<T>(c * to_float(x_gmem[i]));
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) scale_f32(const float *x, float *y, float c, long n) {
    scale(x, y, c, n);
}
extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) scale_bf16(const bf16 *x, bf16 *y, float c, long n) {
    scale(x, y, c, n);
}

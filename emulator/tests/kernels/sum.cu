// result = Σ x over n floats, in one launch: every block leaves its part, and the block that finishes last (by a counter
// that wraps to zero, ready for the next launch) adds the parts in their order, so the sum is the same in every run.
#include <math.h>

#include "reduce.cuh"

extern "C" __global__ void sum_last_block(const float *__restrict__ x, float *result, volatile float *parts,
                                          unsigned *finished, int n) {
    __shared__ float partial[32];
    __shared__ bool last;
    float own = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += x[i];
    float part = block_sum(own, partial);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = part;
        __threadfence();  // the part is seen before the count
        last = atomicInc(finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();  // everybody knows whether this block is the last
    if (!last) return;
    own = 0.0f;
    for (int i = threadIdx.x; i < gridDim.x; i += blockDim.x) own += parts[i];
    float total = block_sum(own, partial);
    if (threadIdx.x == 0) *result = total;
}

// The same with one atomic addition a warp: the order, and so the rounding, is left to chance.
extern "C" __global__ void sum_atomic(const float *__restrict__ x, float *result, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = warp_sum(i < n ? x[i] : 0.0f);
    if (threadIdx.x % 32 == 0) atomicAdd(result, sum);
}

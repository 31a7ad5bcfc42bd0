// y = softmax(x) over rows of x [N,C], f32, C at most 1024: a warp takes a row and keeps it in registers, lane l the
// columns l, l + 32, …; the maximum and the sum go through shuffles. No shared memory.
#include <math.h>

#include "reduce.cuh"

extern "C" __global__ void softmax(const float *__restrict__ x, float *__restrict__ y, int n, int c) {
    constexpr int OWN = 1024 / 32;
    int lane = threadIdx.x % 32, row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= n) return;
    x += (size_t)row * c, y += (size_t)row * c;
    float own[OWN], max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        own[i] = i * 32 + lane < c ? x[i * 32 + lane] : -INFINITY;
        max = fmaxf(max, own[i]);
    }
    max = warp_max(max);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        own[i] = expf(own[i] - max);
        sum += own[i];
    }
    float inverse = 1.0f / warp_sum(sum);
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (i * 32 + lane < c) y[i * 32 + lane] = own[i] * inverse;
}

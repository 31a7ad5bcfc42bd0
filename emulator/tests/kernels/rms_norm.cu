// y = x·r·g with r = 1/√(mean(x²) + ε): x, y [N,C], gain g [C], all f32.
//
//   dx_c = r·g_c·dy_c − x_c·r³/C·Σ_j x_j·g_j·dy_j          dg_c = Σ_n dy_nc·x_nc·r_n
//
// Forward: one block a row; r is saved. Backward: block b takes rows b, b + gridDim, …; the gain's gradient is summed in
// two stages without atomics, so that it is the same in every run: each block leaves a row of partial [blocks,C], then
// rms_norm_gain adds these up, a column for each of 32 lanes and the rows shared among the warps.
#include <math.h>

#include "reduce.cuh"

extern "C" __global__ void rms_norm_forward(const float *__restrict__ x, const float *__restrict__ gain,
                                            float *__restrict__ y, float *__restrict__ scale, int c, float epsilon) {
    __shared__ float partial[32];
    size_t row = blockIdx.x;
    x += row * c, y += row * c;
    float own = 0.0f;
    for (int i = threadIdx.x; i < c; i += blockDim.x) own = fmaf(x[i], x[i], own);
    float r = rsqrtf(block_sum(own, partial) / c + epsilon);
    if (threadIdx.x == 0) scale[row] = r;
    for (int i = threadIdx.x; i < c; i += blockDim.x) y[i] = x[i] * r * gain[i];
}

// Dynamic shared memory: c floats, the block's part of the gain's gradient.
extern "C" __global__ void rms_norm_backward(const float *__restrict__ x, const float *__restrict__ gain,
                                             const float *__restrict__ scale, const float *__restrict__ dy,
                                             float *__restrict__ dx, float *__restrict__ partial_gain, int n, int c) {
    __shared__ float partial[32];
    extern __shared__ float gain_smem[];
    for (int i = threadIdx.x; i < c; i += blockDim.x) gain_smem[i] = 0.0f;  // each thread keeps to its own columns
    for (size_t row = blockIdx.x; row < n; row += gridDim.x) {
        const float *x_row = x + row * c, *dy_row = dy + row * c;
        float r = scale[row], own = 0.0f;
        for (int i = threadIdx.x; i < c; i += blockDim.x) own += x_row[i] * gain[i] * dy_row[i];
        float shared = block_sum(own, partial) * r * r * r / c;
        for (int i = threadIdx.x; i < c; i += blockDim.x) {
            dx[row * c + i] = r * gain[i] * dy_row[i] - x_row[i] * shared;
            gain_smem[i] += dy_row[i] * x_row[i] * r;
        }
    }
    for (int i = threadIdx.x; i < c; i += blockDim.x) partial_gain[(size_t)blockIdx.x * c + i] = gain_smem[i];
}

extern "C" __global__ void rms_norm_gain(const float *__restrict__ partial_gain, float *__restrict__ dgain, int rows,
                                         int c) {
    __shared__ float sum[8][32];
    int lane = threadIdx.x, warp = threadIdx.y, column = blockIdx.x * 32 + lane;
    float own = 0.0f;
    if (column < c)
        for (int row = warp; row < rows; row += 8) own += partial_gain[(size_t)row * c + column];
    sum[warp][lane] = own;
    __syncthreads();  // every warp's sums are there
    if (warp == 0 && column < c) {
        float total = 0.0f;
        for (int w = 0; w < 8; w++) total += sum[w][lane];
        dgain[column] = total;
    }
}

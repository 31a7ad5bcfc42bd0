// Reductions over a warp and a block.
#pragma once

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// The sum over the block, in every thread. `partial` holds one float a warp and may be used again at once.
__device__ __forceinline__ float block_sum(float x, float *partial) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();  // an earlier reduction may still read `partial`
    if (lane == 0) partial[warp] = x;
    __syncthreads();  // every warp's part is there
    return warp_sum(lane < warps ? partial[lane] : 0.0f);
}

__device__ __forceinline__ float block_max(float x, float *partial) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_max(x);
    __syncthreads();  // an earlier reduction may still read `partial`
    if (lane == 0) partial[warp] = x;
    __syncthreads();  // every warp's part is there
    return warp_max(lane < warps ? partial[lane] : -INFINITY);
}

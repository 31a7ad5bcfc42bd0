// y[i] = the sum of x over a window of 2·R+1 neighbours (R = 4; beyond the ends it counts as zero), n a multiple of 4.
// Blocks walk over tiles of 256 floats; the next tile is fetched by cp.async while one is summed. Each thread needs its
// neighbours' data, so a wait and a barrier stand before the use. Shared memory [2][R + 256 + R].
#include "ptx.cuh"

namespace {

constexpr int TILE = 256, R = 4, SPAN = TILE + 2 * R, THREADS = 64;

// 66 chunks of 16 bytes, from R before the tile to R behind it.
__device__ __forceinline__ void fetch(float *to, const float *x, int start, int n) {
    for (int chunk = threadIdx.x; chunk < SPAN / 4; chunk += THREADS) {
        int from = start - R + chunk * 4;
        bool inside = from >= 0 && from < n;
        ptx::copy_async_16(to + chunk * 4, x + (inside ? from : 0), inside ? 16 : 0);
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) window_sum(const float *x, float *y, int n) {
    __shared__ __align__(16) float tile[2][SPAN];
    int tiles = (n + TILE - 1) / TILE, buffer = 0;
    if (blockIdx.x < tiles) fetch(tile[0], x, blockIdx.x * TILE, n);
    ptx::copy_async_commit();
    for (int t = blockIdx.x; t < tiles; t += gridDim.x, buffer ^= 1) {
        if (t + gridDim.x < tiles) fetch(tile[buffer ^ 1], x, (t + gridDim.x) * TILE, n);
        ptx::copy_async_commit();
        ptx::copy_async_wait<1>();  // this thread's part of the tile has arrived, the next one's may be under way
        __syncthreads();            // everybody's has
        for (int i = threadIdx.x; i < TILE; i += THREADS) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j <= 2 * R; j++) sum += tile[buffer][i + j];
            if (t * TILE + i < n) y[t * TILE + i] = sum;
        }
        __syncthreads();  // nobody still reads the buffer that the next round fills
    }
}

// Gathers rows of 2 floats and single floats by index, 8 and 4 bytes at a time, and swaps their order within the block.
extern "C" __global__ void gather_reversed(const float *pairs, const float *singles, const int *index, float *y, int n) {
    __shared__ __align__(8) float pair_smem[64][2];
    __shared__ float single_smem[64];
    int i = blockIdx.x * 64 + threadIdx.x, mirror = 63 - threadIdx.x;
    int from = i < n ? index[i] : 0;
    ptx::copy_async_8(pair_smem[threadIdx.x], pairs + 2 * from);
    ptx::copy_async_4(&single_smem[threadIdx.x], singles + from);
    ptx::copy_async_wait_all();
    __syncthreads();  // everybody's data has arrived
    if (i < n) y[i] = pair_smem[mirror][0] + 2.0f * pair_smem[mirror][1] + 4.0f * single_smem[mirror];
}

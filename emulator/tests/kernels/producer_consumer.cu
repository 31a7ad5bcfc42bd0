// y[i] = √|x[i]| + 1 for tiles of 64 floats: warp 0 fetches them, warps 1 and 2 compute. Two buffers and four named
// barriers: 1 and 2 say that a buffer is full, 3 and 4 that it is empty. Who has to wait syncs, who only tells arrives.
#include <math.h>

#include "ptx.cuh"

namespace {

constexpr int TILE = 64, THREADS = 96;
constexpr int FULL = 1, EMPTY = 3;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) producer_consumer(const float *x, float *y, int n) {
    __shared__ float buffer[2][TILE];
    int tiles = (n + TILE - 1) / TILE, round = 0;
    if (threadIdx.x < 32) {
        for (int t = blockIdx.x; t < tiles; t += gridDim.x, round++) {
            ptx::barrier_sync(EMPTY + round % 2, THREADS);  // the consumers are done with this buffer
            for (int i = threadIdx.x; i < TILE; i += 32) buffer[round % 2][i] = t * TILE + i < n ? x[t * TILE + i] : 0.0f;
            ptx::barrier_arrive(FULL + round % 2, THREADS);  // it is full
        }
        return;
    }
    int own = threadIdx.x - 32, mine = blockIdx.x < tiles ? (tiles - 1 - blockIdx.x) / gridDim.x + 1 : 0;
    for (int first = 0; first < min(mine, 2); first++) ptx::barrier_arrive(EMPTY + first, THREADS);  // both are empty
    for (int t = blockIdx.x; t < tiles; t += gridDim.x, round++) {
        ptx::barrier_sync(FULL + round % 2, THREADS);  // the producer has filled this buffer
        float value = buffer[round % 2][own];
        if (round + 2 < mine) ptx::barrier_arrive(EMPTY + round % 2, THREADS);  // it may be filled again
        if (t * TILE + own < n) y[t * TILE + own] = sqrtf(fabsf(value)) + 1.0f;
    }
}

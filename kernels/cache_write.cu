// Tokens copied into a cache: a run of each sequence to its place in the sequence's part of the cache.
//
//   cache[b, first + i] = x[b, i]
//
// Shapes: x [B, run], cache [B, capacity], in words: 16 bytes, or elements in `_unaligned`, for tokens or slots whose
//   bytes are no multiple of 16. `first`, `run` and `capacity` count words.
// Threads: one for a word, 256 a block; grid x along a run, grid y over the batch.
// Shared memory: none.
// Moves 2 elements for each of x, no FLOP: bound by memory.
// Numerics: bits are copied.
// Not yet measured on a card.
#include "common.cuh"

namespace {

template <typename Word>
__device__ __forceinline__ void copy_runs(const Word *__restrict__ x_gmem, Word *__restrict__ cache_gmem, int batch,
                                          long run, long capacity, long first) {
    long at = static_cast<long>(blockIdx.x) * ELEMENTWISE_THREADS + threadIdx.x;
    if (at >= run) return;
    for (long b = blockIdx.y; b < batch; b += gridDim.y)
        cache_gmem[b * capacity + first + at] = x_gmem[b * run + at];
}

}  // namespace

#define CACHE_WRITE(T, WORD, VARIANT) \
    extern "C" __global__ void __launch_bounds__(ELEMENTWISE_THREADS) \
        cache_write_##VARIANT(const T *x, T *cache, int batch, long run, long capacity, long first) { \
        copy_runs(reinterpret_cast<const WORD *>(x), reinterpret_cast<WORD *>(cache), batch, run, capacity, first); \
    }

CACHE_WRITE(float, uint4, f32)
CACHE_WRITE(float, float, f32_unaligned)
CACHE_WRITE(bf16, uint4, bf16)
CACHE_WRITE(bf16, bf16, bf16_unaligned)

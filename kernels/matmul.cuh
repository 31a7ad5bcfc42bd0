// What the two matmul files share: the layouts, which tile a block computes, and how a finished sum is stored.
#pragma once
#include "common.cuh"

enum class Layout { NN, NT, TN };

// Whether k runs within a row of the stored matrix: A [M,K] and B [N,K] against A [K,M] and B [K,N].
template <Layout LAYOUT>
constexpr bool K_INNER_A = LAYOUT != Layout::TN;
template <Layout LAYOUT>
constexpr bool K_INNER_B = LAYOUT == Layout::NT;

// Where in the product a block works.
struct Place {
    int row0, column0, batch, split;
    long matrix;  // index of its [M,N] matrix in the output: split · batches + batch
};

// Tile rows that are walked through together: their blocks run at the same time and share the tiles of B in L2.
constexpr int GROUP = 8;

// Blocks count up through the tiles of one matrix, then the batch, then the splits. Among the tiles, GROUP rows are
// finished, column by column, before the next GROUP begin.
__device__ __forceinline__ Place place(int m, int n, int batches, int tile_m, int tile_n) {
    int tiles_m = (m + tile_m - 1) / tile_m, tiles_n = (n + tile_n - 1) / tile_n, tiles = tiles_m * tiles_n;
    int tile = blockIdx.x % tiles, matrix = blockIdx.x / tiles;
    int group = tile / (GROUP * tiles_n), first = group * GROUP, height = min(GROUP, tiles_m - first);
    int within = tile - first * tiles_n;
    return {(first + within % height) * tile_m, within / height * tile_n, matrix % batches, matrix / batches, matrix};
}

// VEC neighbours of the output, in f32 until here: c = values + residual. To accumulate, the residual is c itself.
template <int VEC, typename T>
__device__ __forceinline__ void finish(T *c_gmem, const T *residual_gmem, size_t at, float (&values)[VEC]) {
    if (residual_gmem != nullptr) {
        float residual_regs[VEC];
        load_vector(residual_regs, residual_gmem + at);
#pragma unroll
        for (int i = 0; i < VEC; i++) values[i] += residual_regs[i];
    }
    store_vector(c_gmem + at, values);
}

// Whether four neighbours of every row can be stored by one access: a null residual counts as aligned.
template <typename T>
__device__ __forceinline__ bool rows_of_fours(const T *c_gmem, const T *residual_gmem, int n) {
    auto bits = reinterpret_cast<uintptr_t>(c_gmem) | reinterpret_cast<uintptr_t>(residual_gmem);
    return n % 4 == 0 && bits % (4 * sizeof(T)) == 0;
}

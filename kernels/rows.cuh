// What the row kernels share: who works on a row, and sums over rows in two stages without atomics.
#pragma once
#include "common.cuh"

// The threads that share a row: a warp, or the whole block where LONG. Of the row they have the vectors
// rank, rank + size, …; of the grid's teams this is number `index` of `count`.
template <bool LONG>
struct Team {
    int rank, size;
    long index, count;

    __device__ __forceinline__ Team() {
        int teams = LONG ? 1 : blockDim.x / WARP;
        rank = LONG ? threadIdx.x : threadIdx.x % WARP;
        size = LONG ? blockDim.x : WARP;
        index = static_cast<long>(blockIdx.x) * teams + (LONG ? 0 : threadIdx.x / WARP);
        count = static_cast<long>(gridDim.x) * teams;
    }

    // In every thread of the team, the same bits.
    __device__ __forceinline__ float sum(float x) const {
        if constexpr (LONG) {
            __shared__ float partial_smem[WARP];
            return block_sum(x, partial_smem);
        }
        return warp_sum(x);
    }

    __device__ __forceinline__ float max(float x) const {
        if constexpr (LONG) {
            __shared__ float partial_smem[WARP];
            return block_max(x, partial_smem);
        }
        return warp_max(x);
    }
};

// What a thread sums over its team's rows: OWN / VEC vectors of columns. A block covers a window of OWN × size columns;
// windows stand along grid y, and each goes through all rows.
template <int VEC, int OWN, bool LONG>
struct ColumnSums {
    static constexpr int VECTORS = OWN / VEC;
    static_assert(VECTORS * VEC == OWN, "whole vectors");
    float sums[VECTORS][VEC] = {};

    // The first column of the thread's vector i; at or behind `cols` there is none.
    static __device__ __forceinline__ long column(const Team<LONG> &team, int i) {
        return ((static_cast<long>(blockIdx.y) * VECTORS + i) * team.size + team.rank) * VEC;
    }

    // Stage one ends: the block's sums go to its row of partial_gmem, rows being `stride` apart.
    __device__ __forceinline__ void store(const Team<LONG> &team, float *partial_gmem, long stride, long cols) {
        partial_gmem += blockIdx.x * stride;
        if constexpr (!LONG) add_warps(team);
        bool last = LONG || threadIdx.x / WARP + 1 == blockDim.x / WARP;
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            long at = column(team, i);
            if (last && at < cols) store_vector(partial_gmem + at, sums[i]);
        }
    }

    // Warp after warp; the last one is left with the sums of all.
    __device__ __forceinline__ void add_warps(const Team<LONG> &team) {
        __shared__ float sum_smem[OWN][WARP];
        int warp = threadIdx.x / WARP;
        for (int turn = 0; turn < blockDim.x / WARP; turn++) {
            if (warp == turn) {
#pragma unroll
                for (int n = 0; n < OWN; n++) {
                    float &sum = sums[n / VEC][n % VEC];
                    if (turn > 0) sum += sum_smem[n][team.rank];
                    sum_smem[n][team.rank] = sum;
                }
            }
            __syncthreads();  // the next warp adds to what this one left
        }
    }
};

// Stage two: column by column the sum of `parts` rows of partial_gmem, `stride` apart, to total_gmem [cols], or added
// to it. Blocks of 32 × 32 threads, a lane a column; warp w takes rows w, w + 32, …, then one warp adds the 32 in order.
__device__ __forceinline__ void sum_partials(const float *__restrict__ partial_gmem, float *__restrict__ total_gmem,
                                             int parts, long stride, long cols, int accumulate) {
    __shared__ float sum_smem[WARP][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    long column = static_cast<long>(blockIdx.x) * WARP + lane;
    float sum = 0.0f;
    if (column < cols)
        for (int part = warp; part < parts; part += WARP) sum += partial_gmem[part * stride + column];
    sum_smem[warp][lane] = sum;
    __syncthreads();  // every warp's sums are there
    if (warp > 0 || column >= cols) return;
    float total = accumulate ? total_gmem[column] : 0.0f;
#pragma unroll
    for (int w = 0; w < WARP; w++) total += sum_smem[w][lane];
    total_gmem[column] = total;
}

// What the attention kernels share: where an element of a Q, K or V tile lies in shared memory, how a tile gets there,
// the mask, and how four lanes trade fragments for 16-byte accesses.
#pragma once
#include "common.cuh"
#include "ptx.cuh"

// A tile is rows of D elements, cut into chunks of 16 bytes. Chunk c of row r is stored at chunk c ^ x(r) of its row,
// so that any 8 consecutive rows have one and the same chunk in 8 different groups of 4 banks: ldmatrix and 16-byte
// loads that go down a column meet no conflict. Rows of 64 or 192 bytes begin half a line apart and need two bits only.
template <typename T, int D>
__device__ __forceinline__ int swizzled(int row, int chunk) {
    constexpr bool WHOLE_LINES = D * sizeof(T) % 128 == 0;
    return row * D + (chunk ^ (WHOLE_LINES ? row % 8 : row / 2 % 4)) * MOST<T>;
}

// Starts the copy of ROWS rows that lie `stride` elements apart; rows from `valid_rows` on become zeros and are not
// read. Thread → data: as many neighbouring threads for a row as it has chunks in a line of 128 (or 64) bytes.
template <int ROWS, int D, int THREADS, typename T>
__device__ __forceinline__ void copy_tile_async(T *smem, const T *gmem, long stride, int valid_rows) {
    constexpr int CHUNK = MOST<T>, LANES = D * sizeof(T) % 128 == 0 ? 8 : 4, PASS = THREADS / LANES;
    static_assert(D % (LANES * CHUNK) == 0 && ROWS % PASS == 0 && PASS % 8 == 0, "whole passes of one swizzle");
    int row = threadIdx.x / LANES, chunk = threadIdx.x % LANES;
    smem += swizzled<T, D>(row, chunk);
    const T *from = gmem + row * stride + chunk * CHUNK;
#pragma unroll
    for (int pass = 0; pass < ROWS / PASS; pass++, row += PASS, from += PASS * stride) {
        bool valid = row < valid_rows;
#pragma unroll
        for (int d = 0; d < D; d += LANES * CHUNK)
            ptx::copy_async_16(smem + pass * PASS * D + d, valid ? from + d : gmem, valid ? 16 : 0);
    }
}

// How many keys, counted from the first, query i sees: the last query of a causal attention sees all `tk`. Zero or less
// for a query that sees none. tq, tk ≤ 2^30.
__device__ __forceinline__ int visible_keys(int i, int tq, int tk, bool causal) {
    return causal ? min(i - tq + 1 + tk, tk) : tk;
}

// Lane t of four neighbours has row t of a 4×4 matrix and gets its column t.
__device__ __forceinline__ void transpose_in_quad(uint32_t (&x)[4], int lane) {
#pragma unroll
    for (int step = 1; step < 4; step *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            bool upper = lane & step;
            uint32_t received = __shfl_xor_sync(ALL_LANES, upper ? x[i] : x[i + step], step);
            (upper ? x[i] : x[i + step]) = received;
        }
}

// Rows that are heads, [B,T,H,D], and the rotation of their channels.
#pragma once
#include "common.cuh"

// How a head is moved. With ALIGNED, VEC channels by accesses of 16 bytes; without, two neighbours one by one, which
// suits any address and any even D. 32 / VEC neighbouring lanes share a head: vectors lane, lane + LANES, … of it.
template <typename T, bool ALIGNED>
struct HeadAccess {
    static constexpr int VEC = ALIGNED ? MOST<T> : 2, LANES = WARP / VEC;

    template <int N, typename E>
    static __device__ __forceinline__ void load(float (&to)[N], const E *gmem) {
        if constexpr (ALIGNED) {
            load_vector<N>(to, gmem);
        } else {
#pragma unroll
            for (int j = 0; j < N; j++) to[j] = to_float(gmem[j]);
        }
    }

    static __device__ __forceinline__ void store(T *gmem, const float (&from)[VEC]) {
        if constexpr (ALIGNED) {
            store_vector(gmem, from);
        } else {
#pragma unroll
            for (int j = 0; j < VEC; j++) gmem[j] = from_float<T>(from[j]);
        }
    }

    // Over the lanes of a head; all lanes of the warp take part.
    static __device__ __forceinline__ float sum(float x) {
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
        return x;
    }

    // Turns the pairs from channel `at` on by the angles of a row of the table, or back where direction = −1.
    static __device__ __forceinline__ void rotate(float (&x)[VEC], const float *cos_gmem, const float *sin_gmem, int at,
                                                  float direction) {
        float cos[VEC / 2], sin[VEC / 2];
        load(cos, cos_gmem + at / 2);
        load(sin, sin_gmem + at / 2);
#pragma unroll
        for (int i = 0; i < VEC / 2; i++) {
            float even = x[2 * i], odd = x[2 * i + 1], s = direction * sin[i];
            x[2 * i] = even * cos[i] - odd * s;
            x[2 * i + 1] = even * s + odd * cos[i];
        }
    }
};

// Where head number `row` of x [B,T,H,D] goes: token t of a sequence to slot first + t of y [B,slots,H,D].
struct HeadPlace {
    int token;      // t
    long out_head;  // the head's number in y

    __device__ __forceinline__ HeadPlace(unsigned row, unsigned tokens, unsigned heads, unsigned slots,
                                         unsigned first) {
        unsigned all = row / heads, batch = all / tokens;
        token = all - batch * tokens;
        out_head = (static_cast<long>(batch) * slots + first + token) * heads + (row - all * heads);
    }
};

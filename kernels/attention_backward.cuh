// What the bf16 passes of attention backward share: the products of a warp's 16 rows, and how they are written.
//
// A warp owns 16 stationary rows. With a streamed tile B of N rows there are two kinds of product:
//   S [16,N]  = A [16,D] · Bᵀ      A and B are read from shared memory, S stays in registers;
//   acc [16,D] += W [16,N] · B     W is such an S, packed to bf16: one product's accumulator is the next one's operand.
// A lane holds of an accumulator rows lane/4 and lane/4 + 8, of every 8 columns 2(lane mod 4) and the next.
#pragma once
#include "attention.cuh"

// scores = A · Bᵀ for rows `row0` … of A.
template <int D, int N>
__device__ __forceinline__ void product(float (&scores)[N / 8][4], const bf16 *a_smem, int row0, const bf16 *b_smem) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) scores[j][i] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t a_regs[4];
        ptx::load_matrix_x4(a_regs, a_smem + swizzled<bf16, D>(row0 + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int j = 0; j < N / 16; j++) {
            uint32_t b_regs[4];  // rows 0-7 and 8-15 of B, each in two halves of the depth
            int row = j * 16 + lane % 8 + lane / 16 * 8;
            ptx::load_matrix_x4(b_regs, b_smem + swizzled<bf16, D>(row, 2 * d + lane / 8 % 2));
            ptx::mma_bf16(scores[2 * j], a_regs, b_regs[0], b_regs[1]);
            ptx::mma_bf16(scores[2 * j + 1], a_regs, b_regs[2], b_regs[3]);
        }
    }
}

// acc += W · B.
template <int D, int N>
__device__ __forceinline__ void accumulate(float (&acc)[D / 8][4], const float (&weights)[N / 8][4],
                                           const bf16 *b_smem) {
    int lane = threadIdx.x % WARP;
#pragma unroll
    for (int j = 0; j < N / 16; j++) {
        const float (&left)[4] = weights[2 * j], (&right)[4] = weights[2 * j + 1];
        uint32_t w_regs[4] = {ptx::pack_bf16(left[0], left[1]), ptx::pack_bf16(left[2], left[3]),
                              ptx::pack_bf16(right[0], right[1]), ptx::pack_bf16(right[2], right[3])};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b_regs[4];
            ptx::load_matrix_x4_transposed(b_regs, b_smem + swizzled<bf16, D>(j * 16 + lane % 16, 2 * d + lane / 16));
            ptx::mma_bf16(acc[2 * d], w_regs, b_regs[0], b_regs[1]);
            ptx::mma_bf16(acc[2 * d + 1], w_regs, b_regs[2], b_regs[3]);
        }
    }
}

// Writes the first `rows` of a warp's 16 rows, times `scale`; a quad of lanes writes 64 neighbouring bytes. (__stwb is
// a plain store, but one: an assignment of 16 bytes is at times compiled to four stores, each of a part of a sector.)
template <int D>
__device__ __forceinline__ void store_rows(bf16 *gmem, size_t stride, int rows, const float (&acc)[D / 8][4],
                                           float scale) {
    int quad = threadIdx.x % WARP / 4, member = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int d = 0; d < D / 8; d += 4) {
            uint32_t pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                pairs[i] = ptx::pack_bf16(acc[d + i][half * 2] * scale, acc[d + i][half * 2 + 1] * scale);
            transpose_in_quad(pairs, member);
            if (quad + half * 8 < rows)
                __stwb(reinterpret_cast<uint4 *>(gmem + (quad + half * 8) * stride + (d + member) * 8),
                       make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]));
        }
}

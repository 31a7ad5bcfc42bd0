// One warp, one product on the tensor cores: C [16,8] = A [16,K] · B [K,8], in f16 (K a multiple of 16) and in tf32 (K a
// multiple of 8). Fragments are read from global memory in the layout that the instruction asks for: of A, lane l holds
// rows l/4 and l/4 + 8; of B, column l/4.
#include "ptx.cuh"

extern "C" __global__ void matmul_f16_warp(const __half *a, const __half *b, float *c, int k) {
    int lane = threadIdx.x, row = lane / 4, part = lane % 4;
    float sum[4] = {};
    for (int k0 = 0; k0 < k; k0 += 16) {
        uint32_t a_regs[4], b_regs[2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = row + i % 2 * 8, d = k0 + part * 2 + i / 2 * 8;
            a_regs[i] = *reinterpret_cast<const uint32_t *>(a + r * k + d);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int d = k0 + part * 2 + i * 8;
            __half2 pair = __halves2half2(b[d * 8 + row], b[(d + 1) * 8 + row]);
            b_regs[i] = *reinterpret_cast<uint32_t *>(&pair);
        }
        ptx::mma_f16(sum, a_regs, b_regs[0], b_regs[1]);
    }
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * 8 + part * 2 + i % 2] = sum[i];
}

extern "C" __global__ void matmul_tf32_warp(const float *a, const float *b, float *c, int k) {
    int lane = threadIdx.x, row = lane / 4, part = lane % 4;
    float sum[4] = {};
    for (int k0 = 0; k0 < k; k0 += 8) {
        uint32_t a_regs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a_regs[i] = ptx::to_tf32(a[(row + i % 2 * 8) * k + k0 + part + i / 2 * 4]);
        ptx::mma_tf32(sum, a_regs, ptx::to_tf32(b[(k0 + part) * 8 + row]), ptx::to_tf32(b[(k0 + part + 4) * 8 + row]));
    }
    for (int i = 0; i < 4; i++) c[(row + i / 2 * 8) * 8 + part * 2 + i % 2] = sum[i];
}

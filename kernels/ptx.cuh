// Instructions that CUDA C++ has no name for: asynchronous copies, matrix loads, tensor-core products. The only file
// with inline PTX; section names are those of the PTX ISA.
#pragma once
#include <cstdint>
#include <cuda_bf16.h>

namespace ptx {

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// cp.async: 16 bytes from global to shared memory, past L1. `valid` of them are read, the others become zeros; with
// valid = 0 the source is not read, but has to be an aligned address all the same.
__device__ __forceinline__ void copy_async_16(void *smem, const void *gmem, int valid = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(smem)), "l"(gmem), "r"(valid)
                 : "memory");
}

// The same for 4 bytes, which need an alignment of 4 only.
__device__ __forceinline__ void copy_async_4(void *smem, const void *gmem, int valid = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(smem)), "l"(gmem), "r"(valid)
                 : "memory");
}

// Closes the group of this thread's copies so far; an empty group is one, too.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's groups are under way.
template <int PENDING>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ldmatrix: four 8×8 matrices of 16-bit elements. Lanes 8m … 8m+7 give the addresses of the rows of matrix m; lane l gets
// of each matrix elements 2(l mod 4) and the next of row l/4.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&to)[4], const void *smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(smem))
                 : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&to)[4], const void *smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(smem))
                 : "memory");
}

// mma.m16n8k16: D [16,8] += A [16,16] · B [16,8], bf16 with f32 accumulators. With row = lane/4 and pair = 2(lane mod 4),
// a lane holds  A: (row, pair), (row+8, pair), (row, pair+8), (row+8, pair+8), two neighbours in each;
//               B: (pair, row), (pair+8, row), two neighbours along k;   D: (row, pair), (row, pair+1), (row+8, …).
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ex2.approx: 2^x, relative error below 2⁻²². 2^−∞ = 0.
__device__ __forceinline__ float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two floats, rounded to a pair of bf16, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

}  // namespace ptx

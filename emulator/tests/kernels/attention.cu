// Causal attention forward as in FlashAttention-2: O = softmax(Q·Kᵀ/√D, masked to the past)·V and the rows' log-sum-exp.
// Q, K, V, O are bf16 [B,T,H,D] (D = 64 or 96); lse is f32 [B,H,T].
//
// A block is 64 queries of one head, four warps of 16 rows each. Tiles of 64 keys pass through a double buffer: while
// one is used, the next arrives by cp.async. The scores stay in registers: the accumulator of Q·Kᵀ, packed to bf16, is
// the left operand of P·V. Rescaling when the running maximum grows; the division by the sum comes last.
// Shared memory: Q [64][D+8], K [2][64][D+8], V [2][64][D+8]; the padding of 16 bytes puts the rows of an ldmatrix into
// distinct banks. Beyond 48 KiB for D = 96, so the launch must opt in.
#include <math.h>

#include "ptx.cuh"

namespace {

constexpr int QUERIES = 64, KEYS = 64, THREADS = 128;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Copies `rows` rows that are `stride` elements apart; what lies beyond is filled with zeros.
template <int D>
__device__ __forceinline__ void load_rows(__nv_bfloat16 *smem, const __nv_bfloat16 *gmem, size_t stride, int rows) {
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = threadIdx.x; i < KEYS * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool inside = row < rows;
        ptx::copy_async_16(smem + row * (D + 8) + chunk * 8, gmem + (inside ? row * stride + chunk * 8 : 0),
                           inside ? 16 : 0);
    }
}

template <int D>
__device__ __forceinline__ void attention(const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v,
                                          __nv_bfloat16 *o, float *lse, int length, int heads) {
    constexpr int ROW = D + 8, TILE = KEYS * ROW;
    extern __shared__ __align__(16) __nv_bfloat16 smem[];
    __nv_bfloat16 *q_smem = smem, *k_smem = q_smem + TILE, *v_smem = k_smem + 2 * TILE;
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * 16;
    int query0 = blockIdx.x * QUERIES, head = blockIdx.y, batch = blockIdx.z;
    size_t stride = (size_t)heads * D, origin = (size_t)batch * length * stride + (size_t)head * D;
    q += origin, k += origin, v += origin, o += origin;

    load_rows<D>(q_smem, q + query0 * stride, stride, length - query0);
    load_rows<D>(k_smem, k, stride, length);
    load_rows<D>(v_smem, v, stride, length);
    ptx::copy_async_commit();

    float scale = rsqrtf((float)D) * LOG2_E;  // exponents are powers of two from here on
    float out[D / 8][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    uint32_t q_regs[D / 16][4];
    int tiles = (min(query0 + QUERIES, length) + KEYS - 1) / KEYS;

    for (int t = 0; t < tiles; t++) {
        ptx::copy_async_wait<0>();  // this thread's part of tile t (and of Q) has arrived
        __syncthreads();            // everybody's has; and nobody still reads the buffer that is filled next
        if (t + 1 < tiles) {
            int key0 = (t + 1) * KEYS, buffer = (t + 1) % 2;
            load_rows<D>(k_smem + buffer * TILE, k + key0 * stride, stride, length - key0);
            load_rows<D>(v_smem + buffer * TILE, v + key0 * stride, stride, length - key0);
            ptx::copy_async_commit();
        }
        if (t == 0) {
#pragma unroll
            for (int d = 0; d < D / 16; d++)
                ptx::load_matrix_x4(q_regs[d], q_smem + (warp_row + lane % 16) * ROW + d * 16 + lane / 16 * 8);
        }
        const __nv_bfloat16 *k_tile = k_smem + t % 2 * TILE, *v_tile = v_smem + t % 2 * TILE;

        float score[KEYS / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++)
#pragma unroll
            for (int j = 0; j < KEYS / 16; j++) {
                uint32_t k_regs[4];  // keys 0-7 and 8-15, each in two halves of the depth
                ptx::load_matrix_x4(k_regs, k_tile + (j * 16 + lane % 8 + lane / 16 * 8) * ROW + d * 16 +
                                                lane / 8 % 2 * 8);
                ptx::mma_bf16(score[2 * j], q_regs[d], k_regs[0], k_regs[1]);
                ptx::mma_bf16(score[2 * j + 1], q_regs[d], k_regs[2], k_regs[3]);
            }

        // Lane owns rows lane/4 and lane/4 + 8, of every group of 8 keys the columns 2·(lane mod 4) and the next.
        bool masked = t == tiles - 1 || (t + 1) * KEYS > query0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = query0 + warp_row + half * 8 + lane / 4;
            float top = max[half];
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &s = score[j][half * 2 + i];
                    int key = t * KEYS + j * 8 + lane % 4 * 2 + i;
                    s = masked && (key > query || key >= length) ? -INFINITY : s * scale;
                    top = fmaxf(top, s);
                }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            float shrink = exp2f(max[half] - top);  // every query sees key 0, so `top` is finite from tile 0 on
            max[half] = top;
            sum[half] *= shrink;
#pragma unroll
            for (int d = 0; d < D / 8; d++) {
                out[d][half * 2] *= shrink;
                out[d][half * 2 + 1] *= shrink;
            }
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &s = score[j][half * 2 + i];
                    s = exp2f(s - top);
                    sum[half] += s;
                }
        }

#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t p[4] = {ptx::pack_bf16(score[2 * j][0], score[2 * j][1]),
                             ptx::pack_bf16(score[2 * j][2], score[2 * j][3]),
                             ptx::pack_bf16(score[2 * j + 1][0], score[2 * j + 1][1]),
                             ptx::pack_bf16(score[2 * j + 1][2], score[2 * j + 1][3])};
#pragma unroll
            for (int d = 0; d < D / 16; d++) {
                uint32_t v_regs[4];
                ptx::load_matrix_x4_transposed(v_regs, v_tile + (j * 16 + lane % 16) * ROW + d * 16 + lane / 16 * 8);
                ptx::mma_bf16(out[2 * d], p, v_regs[0], v_regs[1]);
                ptx::mma_bf16(out[2 * d + 1], p, v_regs[2], v_regs[3]);
            }
        }
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        int query = query0 + warp_row + half * 8 + lane / 4;
        if (query >= length) continue;
        float inverse = 1.0f / sum[half];
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *reinterpret_cast<uint32_t *>(o + query * stride + d * 8 + lane % 4 * 2) =
                ptx::pack_bf16(out[d][half * 2] * inverse, out[d][half * 2 + 1] * inverse);
        if (lane % 4 == 0)
            lse[((size_t)batch * heads + head) * length + query] = (max[half] + log2f(sum[half])) * LN_2;
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_64(const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v, __nv_bfloat16 *o, float *lse,
                 int length, int heads) {
    attention<64>(q, k, v, o, lse, length, heads);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_96(const __nv_bfloat16 *q, const __nv_bfloat16 *k, const __nv_bfloat16 *v, __nv_bfloat16 *o, float *lse,
                 int length, int heads) {
    attention<96>(q, k, v, o, lse, length, heads);
}

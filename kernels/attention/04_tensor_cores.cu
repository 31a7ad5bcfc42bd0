// Causal attention, rung 4: both products on the tensor cores, in bf16.
//
// O[i] = Σ_j P[i,j] V[j],  P[i] = softmax over j ≤ i of Q[i]·K[j] / √D, online as in rung 3.
// q, k, v, out [B,T,H,D], bf16, pointers multiples of 16 bytes. D = 64; any T, B·H up to 65,535.
// Threads: 4 warps have 64 queries, 16 each. Of every 16×8 accumulator lane l holds rows l/4 and l/4 + 8, columns 2(l
// mod 4) and the next; so a row is spread over 4 lanes. blockIdx.z is the head of the batch, b·H + h.
// Shared memory: q_smem, k_smem, v_smem [64][64], row-major: the 8 rows that ldmatrix reads at once begin in the same
// bank, 8-fold conflicts. Tokens beyond T are stored as zero.
// Moved: Q and the output once, K and V once for every 64 queries: 4·T·D + T²·D/32 bytes a head for 2D·T² FLOPs.
// Numerics: scores, maxima, sums and output in f32; P is rounded to bf16 for P·V, but not in its sum; exp(x) as 2^(x
// log2 e), with log2 e / √D as one factor. Sums over a row's keys in each lane, then over its 4 lanes.
// Not yet measured on a card.

// Changed: mma instead of fma. The accumulator of Q·Kᵀ has the layout that the left operand of P·V wants, so P never
// leaves the registers. The counters: tensor-core FLOPs; instructions, 20 times fewer. But the shared wavefronts are
// 6 times their ideal.
#include "common.cuh"
#include "ptx.cuh"

constexpr int D = 64, TILE = 64, THREADS = 128, CHUNK = 8;  // a chunk: 16 bytes

// Where token 0 of head b·H + h begins in q, k, v and out; the next one is H·D further on.
__device__ __forceinline__ long first_token(int head, long length, int heads) {
    return (head / heads * length * heads + head % heads) * D;
}

// Copies the first `tokens` rows, which are `stride` elements apart; the rest of the tile is filled with zeros.
__device__ __forceinline__ void load_tile(bf16 (*smem)[D], const bf16 *gmem, long stride, long tokens) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE * D / CHUNK; i += THREADS) {
        int row = i / (D / CHUNK), column = i % (D / CHUNK) * CHUNK;
        const bf16 *from = gmem + row * stride + column;
        *reinterpret_cast<uint4 *>(&smem[row][column]) =
            row < tokens ? *reinterpret_cast<const uint4 *>(from) : uint4{};
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ladder_attention_04_tensor_cores(const bf16 *q, const bf16 *k, const bf16 *v, bf16 *out, long length, int heads) {
    __shared__ __align__(16) bf16 q_smem[TILE][D], k_smem[TILE][D], v_smem[TILE][D];
    int lane = threadIdx.x % WARP, warp_row = threadIdx.x / WARP * 16;
    long query0 = blockIdx.x * (long)TILE, stride = heads * D, origin = first_token(blockIdx.z, length, heads);
    q += origin, k += origin, v += origin, out += origin;
    load_tile(q_smem, q + query0 * stride, stride, length - query0);

    float scale = rsqrtf(D) * LOG2_E;
    float own[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // of rows lane/4 and lane/4 + 8
    for (long key0 = 0; key0 <= query0; key0 += TILE) {
        load_tile(k_smem, k + key0 * stride, stride, length - key0);
        load_tile(v_smem, v + key0 * stride, stride, length - key0);
        __syncthreads();  // all tiles are complete

        float score[TILE / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            uint32_t q_regs[4];
            ptx::load_matrix_x4(q_regs, &q_smem[warp_row + lane % 16][d + lane / 16 * 8]);
#pragma unroll
            for (int j = 0; j < TILE / 8; j += 2) {
                uint32_t k_regs[4];  // two groups of 8 keys, each in two halves of the depth
                ptx::load_matrix_x4(k_regs, &k_smem[j * 8 + lane % 8 + lane / 16 * 8][d + lane / 8 % 2 * 8]);
                ptx::mma_bf16(score[j], q_regs, k_regs[0], k_regs[1]);
                ptx::mma_bf16(score[j + 1], q_regs, k_regs[2], k_regs[3]);
            }
        }

#pragma unroll
        for (int half = 0; half < 2; half++) {
            int last = query0 - key0 + warp_row + half * 8 + lane / 4;  // the last key of the tile that this row sees
            float new_top = top[half];
#pragma unroll
            for (int j = 0; j < TILE / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &s = score[j][half * 2 + i];
                    s = j * 8 + lane % 4 * 2 + i <= last ? s * scale : -INFINITY;
                    new_top = max_or_nan(new_top, s);
                }
            new_top = max_or_nan(new_top, __shfl_xor_sync(ALL_LANES, new_top, 1));
            new_top = max_or_nan(new_top, __shfl_xor_sync(ALL_LANES, new_top, 2));
            float shrink = ptx::exp2_approximate(top[half] - new_top);
            top[half] = new_top;
            sum[half] *= shrink;
#pragma unroll
            for (int d = 0; d < D / 8; d++)
#pragma unroll
                for (int i = 0; i < 2; i++) own[d][half * 2 + i] *= shrink;
#pragma unroll
            for (int j = 0; j < TILE / 8; j++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &p = score[j][half * 2 + i];
                    p = ptx::exp2_approximate(p - new_top);
                    sum[half] += p;
                }
        }

#pragma unroll
        for (int j = 0; j < TILE / 8; j += 2) {
            uint32_t p_regs[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                p_regs[i] = ptx::pack_bf16(score[j + i / 2][i % 2 * 2], score[j + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (int d = 0; d < D / 8; d += 2) {
                uint32_t v_regs[4];
                ptx::load_matrix_x4_transposed(v_regs, &v_smem[j * 8 + lane % 16][d * 8 + lane / 16 * 8]);
                ptx::mma_bf16(own[d], p_regs, v_regs[0], v_regs[1]);
                ptx::mma_bf16(own[d + 1], p_regs, v_regs[2], v_regs[3]);
            }
        }
        __syncthreads();  // nobody still reads the tiles that the next step overwrites
    }

#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 1);
        sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 2);
        long query = query0 + warp_row + half * 8 + lane / 4;
        if (query >= length) continue;
        bf16 *row = out + query * stride + lane % 4 * 2;
        float inverse = 1.0f / sum[half];
#pragma unroll
        for (int d = 0; d < D / 8; d++)
            *reinterpret_cast<uint32_t *>(row + d * 8) =
                ptx::pack_bf16(own[d][half * 2] * inverse, own[d][half * 2 + 1] * inverse);
    }
}

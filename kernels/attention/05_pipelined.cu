// Causal attention, rung 5: the next keys and values arrive while the present ones are used, and lie where ldmatrix
// finds them without conflicts.
//
// O[i] = Σ_j P[i,j] V[j],  P[i] = softmax over j ≤ i of Q[i]·K[j] / √D, online as in rung 3.
// q, k, v, out [B,T,H,D], bf16, pointers multiples of 16 bytes. D = 64; any T, B·H up to 65,535.
// Threads: as in rung 4, 4 warps have 64 queries, 16 each. blockIdx.z is the head of the batch, b·H + h.
// Shared memory: tiles of [64 tokens][8 chunks], a chunk being 16 bytes, 8 channels: one of Q, two of K, two of V, 40
// KiB. Swizzle: chunk c of row r lies at c ^ (r mod 8), so the 8 rows of an ldmatrix cover all 32 banks. Tokens
// beyond T are zero-filled by the copy.
// Moved: as in rung 4, 4·T·D + T²·D/32 bytes a head for 2D·T² FLOPs.
// Numerics: scores, maxima, sums and output in f32; P is rounded to bf16 for P·V, but not in its sum; exp(x) as 2^(x
// log2 e), with log2 e / √D as one factor. Sums over a row's keys in each lane, then over its 4 lanes.
// Not yet measured on a card.

// Changed: cp.async fills the second buffers of K and V past the registers, one barrier a step is left, and the tiles
// are swizzled. The counters: shared wavefronts, down to their ideal; cp.async instead of global loads. That copies
// and products overlap is what a card gains, and no counter shows it.
#include "common.cuh"
#include "ptx.cuh"

constexpr int D = 64, TILE = 64, THREADS = 128, CHUNK = 8;  // a chunk: 16 bytes

// Where token 0 of head b·H + h begins in q, k, v and out; the next one is H·D further on.
__device__ __forceinline__ long first_token(int head, long length, int heads) {
    return (head / heads * length * heads + head % heads) * D;
}

struct Tile {
    uint4 chunks[TILE][D / CHUNK];
};

__device__ __forceinline__ uint4 *at(Tile &tile, int row, int chunk) { return &tile.chunks[row][chunk ^ (row % 8)]; }

// Begins to copy the first `tokens` rows, which are `stride` elements apart; the rest of the tile is filled with zeros.
__device__ __forceinline__ void load_tile(Tile &tile, const bf16 *gmem, long stride, long tokens) {
#pragma unroll
    for (int i = threadIdx.x; i < TILE * D / CHUNK; i += THREADS) {
        int row = i / (D / CHUNK), chunk = i % (D / CHUNK);
        bool inside = row < tokens;
        ptx::copy_async_16(at(tile, row, chunk), inside ? gmem + row * stride + chunk * CHUNK : gmem, inside ? 16 : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ladder_attention_05_pipelined(const bf16 *q, const bf16 *k, const bf16 *v, bf16 *out, long length, int heads) {
    __shared__ Tile q_smem, k_smem[2], v_smem[2];
    int lane = threadIdx.x % WARP, warp_row = threadIdx.x / WARP * 16;
    long query0 = blockIdx.x * (long)TILE, stride = heads * D, origin = first_token(blockIdx.z, length, heads);
    q += origin, k += origin, v += origin, out += origin;
    load_tile(q_smem, q + query0 * stride, stride, length - query0);
    load_tile(k_smem[0], k, stride, length);
    load_tile(v_smem[0], v, stride, length);
    ptx::copy_async_commit();

    float scale = rsqrtf(D) * LOG2_E;
    float own[D / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // of rows lane/4 and lane/4 + 8
    int now = 0;  // the buffer in use
    for (long key0 = 0; key0 <= query0; key0 += TILE) {
        ptx::copy_async_wait<0>();  // this thread's part of the buffer in use (and of Q) has arrived
        __syncthreads();            // everybody's has; and nobody still reads the buffer that is filled next
        long next = key0 + TILE;
        if (next <= query0) {
            load_tile(k_smem[1 - now], k + next * stride, stride, length - next);
            load_tile(v_smem[1 - now], v + next * stride, stride, length - next);
            ptx::copy_async_commit();
        }

        float score[TILE / 8][4] = {};
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            uint32_t q_regs[4];
            ptx::load_matrix_x4(q_regs, at(q_smem, warp_row + lane % 16, d / CHUNK + lane / 16));
#pragma unroll
            for (int j = 0; j < TILE / 8; j += 2) {
                uint32_t k_regs[4];  // two groups of 8 keys, each in two halves of the depth
                ptx::load_matrix_x4(k_regs,
                                    at(k_smem[now], j * 8 + lane % 8 + lane / 16 * 8, d / CHUNK + lane / 8 % 2));
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
                ptx::load_matrix_x4_transposed(v_regs, at(v_smem[now], j * 8 + lane % 16, d + lane / 16));
                ptx::mma_bf16(own[d], p_regs, v_regs[0], v_regs[1]);
                ptx::mma_bf16(own[d + 1], p_regs, v_regs[2], v_regs[3]);
            }
        }
        now = 1 - now;
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

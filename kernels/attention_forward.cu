// Attention forward in bf16, tiled as in FlashAttention-2 (kernels for f32: attention_forward_f32.cu).
//
//   s_ij = q_i·k_j / √D for the keys j that query i sees,   l_i = ln Σ_j exp s_ij,   o_i = Σ_j exp(s_ij − l_i) v_j
//   causal: j ≤ i + Tk − Tq, so that the last query sees all keys. A query that sees no key gives o = 0 and l = −∞.
//
// Shapes: q, o [B,Tq,H,D]; k, v [B,capacity,Hkv,D], of which the first Tk positions are used; logsumexp f32 [B,Tq,H].
// Query head h reads KV head h / (H/Hkv), in place. D = 32, 64, 96, 128. All bases are multiples of 16 bytes.
//
// Thread → data: a block of 4 warps owns QUERIES queries of one head (128 for D ≤ 64, else 64) and walks over tiles of
// 64 keys. A warp owns 16 rows of each 64, all keys; its lane holds rows lane/4 and lane/4 + 8, of each 8 columns
// 2·(lane mod 4) and the next. Blocks are numbered heads first, then batch, then query tiles from the last: the long
// rows of a causal attention start first, and the heads of a group run side by side and share K and V in L2.
//
// Shared memory, swizzled as in attention.cuh: K [64][D], then V [64][D], one of each. K of the next tile arrives
// during softmax and P·V, V during Q·Kᵀ. Q passes through the place of V on its way to registers, once. So a block
// needs 12 to 32 KiB, and two or three blocks are at work on a multiprocessor.
//
// Bytes: q and o once, k and v once for each query tile (from L2); FLOPs: 4·B·H·Tq·Tk·D, half of it if causal. Tiles
// above the diagonal are not visited, and only tiles that the diagonal or the end of the keys cuts are masked.
//
// Numerics: scores, softmax and output accumulate in f32; P is rounded to bf16 for P·V but not in its sum. exp(s − m)
// is 2^(s·c − m·c), c = log2(e)/√D, one FMA and one ex2.approx: right for |s·c| < 2³¹, as beyond that the rounding of
// m·c alone takes a power of two out of range. Keys are taken in order, so the result does not depend on the launch. A
// NaN in q or k shows in the rows that see it; a NaN in v also in rows of the same tile that do not (0 · NaN).
//
// Not yet measured on a card.
#include "attention.cuh"

namespace {

constexpr int KEYS = ATTENTION_KEYS, THREADS = ATTENTION_THREADS, WARPS = THREADS / WARP;

template <int D>
constexpr int QUERIES = D <= 64 ? ATTENTION_QUERIES_TO_64 : ATTENTION_QUERIES;

// 16 rows of one warp: the accumulators of a tile of scores, of the output, and the state of the softmax. `max` is in
// units of log2, that is times c; `sum` is this lane's part of the row's sum.
template <int D>
struct Rows {
    uint32_t q_regs[D / 16][4];
    float score[KEYS / 8][4];
    float out[D / 8][4];
    float max[2], sum[2];
};

// score = Q·Kᵀ, for the rows from FIRST on.
template <int D, int FIRST, int M>
__device__ __forceinline__ void multiply_queries_keys(Rows<D> (&rows)[M], const bf16 *k_smem, int lane) {
#pragma unroll
    for (int m = FIRST; m < M; m++)
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) rows[m].score[j][i] = 0.0f;
#pragma unroll
    for (int d = 0; d < D / 16; d++)
#pragma unroll
        for (int j = 0; j < KEYS / 16; j++) {
            uint32_t k_regs[4];  // keys 0-7 and 8-15, each in two halves of the depth
            int key = j * 16 + lane % 8 + lane / 16 * 8;
            ptx::load_matrix_x4(k_regs, k_smem + swizzled<bf16, D>(key, d * 2 + lane / 8 % 2));
#pragma unroll
            for (int m = FIRST; m < M; m++) {
                ptx::mma_bf16(rows[m].score[2 * j], rows[m].q_regs[d], k_regs[0], k_regs[1]);
                ptx::mma_bf16(rows[m].score[2 * j + 1], rows[m].q_regs[d], k_regs[2], k_regs[3]);
            }
        }
}

// Takes out the keys from `visible` (of this lane's rows, counted from the tile's first key) on.
template <int D>
__device__ __forceinline__ void mask(Rows<D> &rows, const int (&visible)[2], int lane) {
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (j * 8 + lane % 4 * 2 + i % 2 >= visible[i / 2]) rows.score[j][i] = -INFINITY;
}

// score becomes P = exp(score − max) with the maximum so far; what was summed before shrinks to that maximum.
template <int D>
__device__ __forceinline__ void softmax(Rows<D> &rows, float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = -INFINITY;  // a NaN is passed over here, and shows through its own exponential
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
            top = fmaxf(top, fmaxf(rows.score[j][half * 2], rows.score[j][half * 2 + 1]));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
        top = fmaxf(rows.max[half], top * scale);
        float shift = top == -INFINITY ? 0.0f : top;  // no key seen yet: 2^(−∞ − 0) = 0 instead of −∞ − (−∞)
        float shrink = ptx::exp2_approximate(rows.max[half] - shift);
        rows.max[half] = top;
        rows.sum[half] *= shrink;
#pragma unroll
        for (int d = 0; d < D / 8; d++) {
            rows.out[d][half * 2] *= shrink;
            rows.out[d][half * 2 + 1] *= shrink;
        }
#pragma unroll
        for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
            for (int i = half * 2; i < half * 2 + 2; i++) {
                rows.score[j][i] = ptx::exp2_approximate(fmaf(rows.score[j][i], scale, -shift));
                rows.sum[half] += rows.score[j][i];
            }
    }
}

// out += P·V, for the rows from FIRST on. The accumulators of P, packed to bf16, have the layout of the left operand.
template <int D, int FIRST, int M>
__device__ __forceinline__ void multiply_weights_values(Rows<D> (&rows)[M], const bf16 *v_smem, int lane) {
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
        uint32_t p_regs[M][4];
#pragma unroll
        for (int m = FIRST; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float (&p)[4] = rows[m].score[2 * j + i / 2];
                p_regs[m][i] = ptx::pack_bf16(p[i % 2 * 2], p[i % 2 * 2 + 1]);
            }
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t v_regs[4];  // channels 0-7 and 8-15, each in two halves of the keys
            ptx::load_matrix_x4_transposed(v_regs, v_smem + swizzled<bf16, D>(j * 16 + lane % 16, d * 2 + lane / 16));
#pragma unroll
            for (int m = FIRST; m < M; m++) {
                ptx::mma_bf16(rows[m].out[2 * d], p_regs[m], v_regs[0], v_regs[1]);
                ptx::mma_bf16(rows[m].out[2 * d + 1], p_regs[m], v_regs[2], v_regs[3]);
            }
        }
    }
}

// Divides by the sum and stores, 64 bytes of a row by four neighbouring lanes at once.
template <int D>
__device__ __forceinline__ void store(const Rows<D> &rows, bf16 *o_gmem, long stride, float *lse_gmem, int n_head,
                                      int row, int valid_rows, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8) {
        float sum = rows.sum[half];
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        if (row < valid_rows && lane % 4 == 0)  // without a key, max = −∞ and log2(0) = −∞
            lse_gmem[(long)row * n_head] = (rows.max[half] + log2f(sum)) * LN_2;
#pragma unroll
        for (int d = 0; d < D / 8; d += 4) {
            uint32_t chunk[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                chunk[i] = ptx::pack_bf16(rows.out[d + i][half * 2] * inverse, rows.out[d + i][half * 2 + 1] * inverse);
            transpose_in_quad(chunk, lane);
            if (row < valid_rows)
                __stwb(reinterpret_cast<uint4 *>(o_gmem + row * stride + (d + lane % 4) * 8),
                       make_uint4(chunk[0], chunk[1], chunk[2], chunk[3]));
        }
    }
}

template <int D>
__device__ __forceinline__ void attention_forward(const bf16 *q_gmem, const bf16 *k_gmem, const bf16 *v_gmem,
                                                  bf16 *o_gmem, float *lse_gmem, int batch, int tq, int tk, int n_head,
                                                  int n_kv_head, int kv_capacity, int causal, float scale) {
    constexpr int M = QUERIES<D> / (WARPS * 16);
    static_assert(D % 32 == 0 && M * WARPS * 16 == QUERIES<D>, "whole fragments");
    extern __shared__ __align__(128) unsigned char smem[];
    bf16 *k_smem = reinterpret_cast<bf16 *>(smem), *v_smem = k_smem + KEYS * D, *q_smem = v_smem;
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

    unsigned heads = n_head * batch, head = blockIdx.x % n_head, b = blockIdx.x % heads / n_head;
    int query0 = (gridDim.x / heads - 1 - blockIdx.x / heads) * QUERIES<D>, queries = min(tq - query0, QUERIES<D>);
    long q_stride = (long)n_head * D, kv_stride = (long)n_kv_head * D;
    long q_row = ((long)b * tq + query0) * n_head + head;
    long kv_start = ((long)b * kv_capacity * n_kv_head + head / (n_head / n_kv_head)) * D;
    q_gmem += q_row * D, o_gmem += q_row * D, lse_gmem += q_row;
    k_gmem += kv_start, v_gmem += kv_start;

    int tiles = (max(visible_keys(query0 + queries - 1, tq, tk, causal), 0) + KEYS - 1) / KEYS;
    copy_tile_async<QUERIES<D>, D, THREADS>(q_smem, q_gmem, q_stride, queries);
    ptx::copy_async_commit();
    if (tiles > 0) copy_tile_async<KEYS, D, THREADS>(k_smem, k_gmem, kv_stride, tk);
    ptx::copy_async_commit();

    Rows<D> rows[M] = {};
    ptx::copy_async_wait<1>();  // this thread's part of Q has arrived; K is still under way
    __syncthreads();            // everybody's part of Q has
#pragma unroll
    for (int m = 0; m < M; m++) {
        rows[m].max[0] = rows[m].max[1] = -INFINITY;
#pragma unroll
        for (int d = 0; d < D / 16; d++)
            ptx::load_matrix_x4(rows[m].q_regs[d], q_smem + swizzled<bf16, D>((m * WARPS + warp) * 16 + lane % 16,
                                                                             d * 2 + lane / 16));
    }

    for (int t = 0, key0 = 0; t < tiles; t++, key0 += KEYS) {
        ptx::copy_async_wait<0>();  // this thread's part of K has arrived
        __syncthreads();            // everybody's has; and nobody still reads what V replaces: the last V, at first Q
        copy_tile_async<KEYS, D, THREADS>(v_smem, v_gmem + key0 * kv_stride, kv_stride, tk - key0);
        ptx::copy_async_commit();
        // Whether the first of two sets of rows lies wholly above the diagonal.
        bool skip = M == 2 && key0 >= visible_keys(query0 + WARPS * 16 - 1, tq, tk, causal);
        if (skip)
            multiply_queries_keys<D, M - 1>(rows, k_smem, lane);
        else
            multiply_queries_keys<D, 0>(rows, k_smem, lane);
        ptx::copy_async_wait<0>();  // this thread's part of V has arrived
        __syncthreads();            // everybody's has; and nobody still reads the K that the next one replaces
        if (t + 1 < tiles)
            copy_tile_async<KEYS, D, THREADS>(k_smem, k_gmem + (key0 + KEYS) * kv_stride, kv_stride, tk - key0 - KEYS);
        ptx::copy_async_commit();
#pragma unroll
        for (int m = 0; m < M; m++) {
            if (m == 0 && skip) continue;
            int row = query0 + (m * WARPS + warp) * 16;
            int visible[2] = {visible_keys(row + lane / 4, tq, tk, causal) - key0,
                              visible_keys(row + lane / 4 + 8, tq, tk, causal) - key0};
            if (visible_keys(row, tq, tk, causal) - key0 < KEYS) mask(rows[m], visible, lane);
            softmax(rows[m], scale);
        }
        if (skip)
            multiply_weights_values<D, M - 1>(rows, v_smem, lane);
        else
            multiply_weights_values<D, 0>(rows, v_smem, lane);
    }

#pragma unroll
    for (int m = 0; m < M; m++)
        store(rows[m], o_gmem, q_stride, lse_gmem, n_head, (m * WARPS + warp) * 16 + lane / 4, queries, lane);
}

}  // namespace

#define ATTENTION_FORWARD(D)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_forward_bf16_##D(                                 \
        const bf16 *q, const bf16 *k, const bf16 *v, bf16 *o, float *lse, int batch, int tq, int tk, int n_head,      \
        int n_kv_head, int kv_capacity, int causal, float scale) {                                                    \
        attention_forward<D>(q, k, v, o, lse, batch, tq, tk, n_head, n_kv_head, kv_capacity, causal, scale);          \
    }

ATTENTION_FORWARD(32)
ATTENTION_FORWARD(64)
ATTENTION_FORWARD(96)
ATTENTION_FORWARD(128)

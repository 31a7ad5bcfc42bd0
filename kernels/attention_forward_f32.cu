// Attention forward in f32, tiled and with an online softmax as in attention_forward.cu, but without tensor cores.
//
//   s_ij = q_i·k_j / √D for the keys j that query i sees,   l_i = ln Σ_j exp s_ij,   o_i = Σ_j exp(s_ij − l_i) v_j
//   causal: j ≤ i + Tk − Tq, so that the last query sees all keys. A query that sees no key gives o = 0 and l = −∞.
//
// Shapes: q, o [B,Tq,H,D]; k, v [B,capacity,Hkv,D], of which the first Tk positions are used; logsumexp [B,Tq,H].
// Query head h reads KV head h / (H/Hkv), in place. D = 32, 64, 96, 128. All bases are multiples of 16 bytes.
//
// Thread → data: a block of 128 threads owns 64 queries of one head and walks over tiles of 32 keys. Thread (y, x), 16
// by 8, has the scores of rows y + 16i and keys x + 8j, i, j < 4, and of the same rows the output's channels 4(x + 8c)
// … + 3. The 8 threads of a row are neighbours in a warp: they exchange maxima and weights by shuffles. Blocks are
// numbered heads first, then batch, then query tiles from the last, which are the longest in a causal attention.
//
// Shared memory, swizzled as in attention.cuh: K [32][D], V [32][D], Q [64][D], 16 to 64 KiB. K of the next tile
// arrives during softmax and P·V, V during Q·Kᵀ.
//
// Bytes: q and o once, k and v once for each 64 queries (from L2); FLOPs: 4·B·H·Tq·Tk·D, half of it if causal. Tiles
// above the diagonal are not visited, and only tiles that the diagonal or the end of the keys cuts are masked.
//
// Numerics: f32 throughout; exp(s − m) is 2^(s·c − m·c), c = log2(e)/√D, one FMA and one ex2.approx: right for |s·c| <
// 2³¹, as beyond that the rounding of m·c alone takes a power of two out of range. Each sum has one order, which does
// not depend on the launch. A NaN in q or k shows in the rows that see it; a NaN in v also in rows of the same tile that
// do not (0 · NaN).
//
// Not yet measured on a card.
#include "attention.cuh"

namespace {

constexpr int QUERIES = ATTENTION_F32_QUERIES, KEYS = ATTENTION_F32_KEYS, THREADS = ATTENTION_THREADS;
constexpr int ROWS = 4, COLUMNS = 4;               // of a thread, in a tile of scores
constexpr int ROW_STEP = 16, COLUMN_STEP = 8;      // between them
static_assert(ROWS * ROW_STEP == QUERIES && COLUMNS * COLUMN_STEP == KEYS && ROW_STEP * COLUMN_STEP == THREADS);

// `max` is in units of log2, that is times c; `sum` is this thread's part of the row's sum.
template <int D>
struct Rows {
    float score[ROWS][COLUMNS];
    float4 out[ROWS][D / 32];
    float max[ROWS], sum[ROWS];
};

// score = Q·Kᵀ
template <int D>
__device__ __forceinline__ void multiply_queries_keys(Rows<D> &rows, const float *q_smem, const float *k_smem, int y,
                                                      int x) {
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) rows.score[i][j] = 0.0f;
#pragma unroll 4
    for (int chunk = 0; chunk < D / 4; chunk++) {
        float4 q_regs[ROWS], k_regs[COLUMNS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            q_regs[i] = *reinterpret_cast<const float4 *>(q_smem + swizzled<float, D>(y + i * ROW_STEP, chunk));
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            k_regs[j] = *reinterpret_cast<const float4 *>(k_smem + swizzled<float, D>(x + j * COLUMN_STEP, chunk));
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                float &s = rows.score[i][j];
                s = fmaf(q_regs[i].x, k_regs[j].x, s);
                s = fmaf(q_regs[i].y, k_regs[j].y, s);
                s = fmaf(q_regs[i].z, k_regs[j].z, s);
                s = fmaf(q_regs[i].w, k_regs[j].w, s);
            }
    }
}

// score becomes P = exp(score − max) with the maximum so far; what was summed before shrinks to that maximum.
template <int D>
__device__ __forceinline__ void softmax(Rows<D> &rows, float scale) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float top = -INFINITY;  // a NaN is passed over here, and shows through its own exponential
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) top = fmaxf(top, rows.score[i][j]);
#pragma unroll
        for (int step = 1; step < COLUMN_STEP; step *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, step));
        top = fmaxf(rows.max[i], top * scale);
        float shift = top == -INFINITY ? 0.0f : top;  // no key seen yet: 2^(−∞ − 0) = 0 instead of −∞ − (−∞)
        float shrink = ptx::exp2_approximate(rows.max[i] - shift);
        rows.max[i] = top;
        rows.sum[i] *= shrink;
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            rows.score[i][j] = ptx::exp2_approximate(fmaf(rows.score[i][j], scale, -shift));
            rows.sum[i] += rows.score[i][j];
        }
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            float4 &out = rows.out[i][c];
            out.x *= shrink, out.y *= shrink, out.z *= shrink, out.w *= shrink;
        }
    }
}

// out += P·V
template <int D>
__device__ __forceinline__ void multiply_weights_values(Rows<D> &rows, const float *v_smem, int x) {
#pragma unroll 2
    for (int owner = 0; owner < COLUMN_STEP; owner++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float p[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; i++) p[i] = __shfl_sync(ALL_LANES, rows.score[i][j], owner, COLUMN_STEP);
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                const float *from = v_smem + swizzled<float, D>(owner + j * COLUMN_STEP, x + c * 8);
                float4 v_regs = *reinterpret_cast<const float4 *>(from);
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    float4 &out = rows.out[i][c];
                    out.x = fmaf(p[i], v_regs.x, out.x);
                    out.y = fmaf(p[i], v_regs.y, out.y);
                    out.z = fmaf(p[i], v_regs.z, out.z);
                    out.w = fmaf(p[i], v_regs.w, out.w);
                }
            }
        }
}

// Divides by the sum and stores, 128 bytes of a row by its 8 threads at once.
template <int D>
__device__ __forceinline__ void store(const Rows<D> &rows, float *o_gmem, long stride, float *lse_gmem, int n_head,
                                      int valid_rows, int y, int x) {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        float sum = rows.sum[i];
#pragma unroll
        for (int step = 1; step < COLUMN_STEP; step *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        int row = y + i * ROW_STEP;
        if (row >= valid_rows) continue;
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            float4 out = rows.out[i][c];
            __stwb(reinterpret_cast<float4 *>(o_gmem + row * stride + (x + c * 8) * 4),
                   make_float4(out.x * inverse, out.y * inverse, out.z * inverse, out.w * inverse));
        }
        if (x == 0) lse_gmem[(long)row * n_head] = (rows.max[i] + log2f(sum)) * LN_2;  // without a key, log2(0) = −∞
    }
}

template <int D>
__device__ __forceinline__ void attention_forward(const float *q_gmem, const float *k_gmem, const float *v_gmem,
                                                  float *o_gmem, float *lse_gmem, int batch, int tq, int tk, int n_head,
                                                  int n_kv_head, int kv_capacity, int causal, float scale) {
    static_assert(D % 32 == 0, "8 threads of 4 channels share a row");
    extern __shared__ __align__(128) unsigned char smem[];
    float *k_smem = reinterpret_cast<float *>(smem), *v_smem = k_smem + KEYS * D, *q_smem = v_smem + KEYS * D;
    int y = threadIdx.x / COLUMN_STEP, x = threadIdx.x % COLUMN_STEP;

    unsigned heads = n_head * batch, head = blockIdx.x % n_head, b = blockIdx.x % heads / n_head;
    int query0 = (gridDim.x / heads - 1 - blockIdx.x / heads) * QUERIES, queries = min(tq - query0, QUERIES);
    long q_stride = (long)n_head * D, kv_stride = (long)n_kv_head * D;
    long q_row = ((long)b * tq + query0) * n_head + head;
    long kv_start = ((long)b * kv_capacity * n_kv_head + head / (n_head / n_kv_head)) * D;
    q_gmem += q_row * D, o_gmem += q_row * D, lse_gmem += q_row;
    k_gmem += kv_start, v_gmem += kv_start;

    int tiles = (max(visible_keys(query0 + queries - 1, tq, tk, causal), 0) + KEYS - 1) / KEYS;
    if (tiles > 0) {
        copy_tile_async<QUERIES, D, THREADS>(q_smem, q_gmem, q_stride, queries);
        copy_tile_async<KEYS, D, THREADS>(k_smem, k_gmem, kv_stride, tk);
    }
    ptx::copy_async_commit();

    Rows<D> rows = {};
#pragma unroll
    for (int i = 0; i < ROWS; i++) rows.max[i] = -INFINITY;
    for (int t = 0, key0 = 0; t < tiles; t++, key0 += KEYS) {
        ptx::copy_async_wait<0>();  // this thread's part of K (at first, of Q too) has arrived
        __syncthreads();            // everybody's has; and nobody still reads the V that this one replaces
        copy_tile_async<KEYS, D, THREADS>(v_smem, v_gmem + key0 * kv_stride, kv_stride, tk - key0);
        ptx::copy_async_commit();
        multiply_queries_keys(rows, q_smem, k_smem, y, x);
        ptx::copy_async_wait<0>();  // this thread's part of V has arrived
        __syncthreads();            // everybody's has; and nobody still reads the K that the next one replaces
        if (t + 1 < tiles)
            copy_tile_async<KEYS, D, THREADS>(k_smem, k_gmem + (key0 + KEYS) * kv_stride, kv_stride, tk - key0 - KEYS);
        ptx::copy_async_commit();
        if (visible_keys(query0, tq, tk, causal) - key0 < KEYS)  // the diagonal or the end cuts this tile
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLUMNS; j++)
                    if (key0 + x + j * COLUMN_STEP >= visible_keys(query0 + y + i * ROW_STEP, tq, tk, causal))
                        rows.score[i][j] = -INFINITY;
        softmax(rows, scale);
        multiply_weights_values(rows, v_smem, x);
    }
    store(rows, o_gmem, q_stride, lse_gmem, n_head, queries, y, x);
}

}  // namespace

#define ATTENTION_FORWARD(D)                                                                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_forward_f32_##D(                                  \
        const float *q, const float *k, const float *v, float *o, float *lse, int batch, int tq, int tk, int n_head,  \
        int n_kv_head, int kv_capacity, int causal, float scale) {                                                    \
        attention_forward<D>(q, k, v, o, lse, batch, tq, tk, n_head, n_kv_head, kv_capacity, causal, scale);          \
    }

ATTENTION_FORWARD(32)
ATTENTION_FORWARD(64)
ATTENTION_FORWARD(96)
ATTENTION_FORWARD(128)

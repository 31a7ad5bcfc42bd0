// Attention backward in f32, without tensor cores: gradient of the queries, and gradients of keys and values.
//
//   s = q·kᵀ/√D,  p = exp(s − ℓ) where the query sees the key, else 0,  d_s = p (d_o·vᵀ − δ)
//   d_q = d_s·k/√D;  d_k = Σ d_sᵀ·q/√D,  d_v = Σ pᵀ·d_o,  summed over the queries of the H/Hkv heads of the KV head
//
// q, d_o, d_q: [B,Tq,H,D]; k, v, d_k, d_v: [B,Tk,Hkv,D]; statistics: f32 pairs (ℓ, δ) [B,H,Tp], what
// attention_backward_delta wrote. Query i sees the keys up to i + reach: reach = Tk − Tq if causal, Tk if not. Query
// head h reads KV head h/(H/Hkv).
//
// Both passes are the same computation with the roles exchanged: a block keeps a tile of 32 stationary rows (q and d_o,
// or k and v) and walks through tiles of 32 streamed rows. Of a tile of scores, thread t computes rows
// 4(t/16) … + 3 and columns t mod 16 and + 16; of a gradient [32,D] the same rows, and of every 32 columns 2(t mod 16)
// and the next.
// Grid: x = (batch, head, tile of stationary rows), the last fastest; the longest causal rows first.
// Shared memory, f32: four tiles [32][D+4] (the padding puts rows into distinct banks), and the weights d_s (and p) as
// [streamed][stationary], 32 × 36 each.
// Bytes moved: as in the bf16 passes, for tiles of 32. FLOPs: 6 (d_q) and 8 (d_k, d_v) B·H·D·Tq·Tk, if causal half.
// Numerics: f32 throughout; streamed rows are added one after another within their tile, then tile after tile, head
// after head.
// Not yet measured on a card.
#include "common.cuh"

namespace {

constexpr int TILE = BACKWARD_F32_TILE, THREADS = BACKWARD_F32_THREADS, WEIGHT_ROW = TILE + BACKWARD_F32_PAD;
static_assert(TILE == 2 * 16 && THREADS == TILE / 4 * 16, "4 × 2 scores a thread");

template <int D>
constexpr int ROW = D + BACKWARD_F32_PAD;

template <int D>
constexpr int GRADIENT_COLUMNS = D / 16;

struct Weights {
    float smem[TILE][WEIGHT_ROW];
};

template <int D>
struct Tile {
    float smem[TILE][ROW<D>];
};

// Copies 32 rows that lie `stride` elements apart; rows from `rows` on become zeros.
template <int D>
__device__ __forceinline__ void load_tile(Tile<D> &tile, const float *gmem, size_t stride, int rows) {
    constexpr int CHUNKS = D / 4;
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, column = i % CHUNKS * 4;
        float4 chunk = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < rows) chunk = *reinterpret_cast<const float4 *>(gmem + row * stride + column);
        *reinterpret_cast<float4 *>(&tile.smem[row][column]) = chunk;
    }
}

// products = A · Bᵀ, the thread's 4 × 2 part. Each has four sums, of every fourth channel: exp(s − ℓ) magnifies the
// rounding of s, which grows with the length of a sum.
template <int D>
__device__ __forceinline__ void product(float (&products)[4][2], const Tile<D> &a, const Tile<D> &b) {
    int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16;
    float4 sums[4][2] = {};
#pragma unroll 4
    for (int d = 0; d < D; d += 4) {
        float4 b_regs[2];
#pragma unroll
        for (int c = 0; c < 2; c++) b_regs[c] = *reinterpret_cast<const float4 *>(&b.smem[column0 + 16 * c][d]);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            float4 a_regs = *reinterpret_cast<const float4 *>(&a.smem[row0 + r][d]);
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float4 &sum = sums[r][c];
                sum.x = fmaf(a_regs.x, b_regs[c].x, sum.x);
                sum.y = fmaf(a_regs.y, b_regs[c].y, sum.y);
                sum.z = fmaf(a_regs.z, b_regs[c].z, sum.z);
                sum.w = fmaf(a_regs.w, b_regs[c].w, sum.w);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            products[r][c] = (sums[r][c].x + sums[r][c].y) + (sums[r][c].z + sums[r][c].w);
}

__device__ __forceinline__ void store_weights(Weights &weights, const float (&values)[4][2]) {
    int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16;
#pragma unroll
    for (int c = 0; c < 2; c++)
        *reinterpret_cast<float4 *>(&weights.smem[column0 + 16 * c][row0]) =
            make_float4(values[0][c], values[1][c], values[2][c], values[3][c]);
}

// acc += Wᵀ · B, the thread's 4 × D/16 part. A tile is summed by itself first: shorter sums, so less rounding.
template <int D>
__device__ __forceinline__ void accumulate(float (&acc)[4][GRADIENT_COLUMNS<D>], const Weights &weights,
                                           const Tile<D> &b) {
    int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16 * 2;
    float tile[4][GRADIENT_COLUMNS<D>] = {};
#pragma unroll 4
    for (int j = 0; j < TILE; j++) {
        float4 w = *reinterpret_cast<const float4 *>(&weights.smem[j][row0]);
        float w_regs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int c = 0; c < D / 32; c++) {
            float2 b_regs = *reinterpret_cast<const float2 *>(&b.smem[j][column0 + 32 * c]);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                tile[r][2 * c] = fmaf(w_regs[r], b_regs.x, tile[r][2 * c]);
                tile[r][2 * c + 1] = fmaf(w_regs[r], b_regs.y, tile[r][2 * c + 1]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < GRADIENT_COLUMNS<D>; c++) acc[r][c] += tile[r][c];
}

// (__stwb is a plain store, but one: an assignment of 8 bytes is at times compiled to two, each half a sector.)
template <int D>
__device__ __forceinline__ void store_rows(float *gmem, size_t stride, int rows,
                                           const float (&acc)[4][GRADIENT_COLUMNS<D>], float scale) {
    int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16 * 2;
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < D / 32; c++)
            if (row0 + r < rows)
                __stwb(reinterpret_cast<float2 *>(gmem + (row0 + r) * stride + column0 + 32 * c),
                       make_float2(acc[r][2 * c] * scale, acc[r][2 * c + 1] * scale));
}

template <int D>
__device__ __forceinline__ void d_queries(const float *q_gmem, const float *k_gmem, const float *v_gmem,
                                          const float *d_o_gmem, const float2 *statistics_gmem, float *d_q_gmem, int tq,
                                          int tq_padded, int tk, int n_head, int n_kv_head, int reach) {
    extern __shared__ __align__(16) unsigned char smem[];
    Tile<D> &q_tile = reinterpret_cast<Tile<D> *>(smem)[0], &d_o_tile = reinterpret_cast<Tile<D> *>(smem)[1];
    Tile<D> &k_tile = reinterpret_cast<Tile<D> *>(smem)[2], &v_tile = reinterpret_cast<Tile<D> *>(smem)[3];
    Weights &d_s_weights = *reinterpret_cast<Weights *>(smem + 4 * sizeof(Tile<D>));

    int query_tiles = (tq + TILE - 1) / TILE;
    int query0 = (query_tiles - 1 - blockIdx.x % query_tiles) * TILE, head = blockIdx.x / query_tiles % n_head;
    size_t batch = blockIdx.x / query_tiles / n_head;
    long q_stride = (long)n_head * D, k_stride = (long)n_kv_head * D;
    size_t q_origin = (batch * tq + query0) * q_stride + (size_t)head * D;
    size_t k_origin = batch * tk * k_stride + (size_t)(head / (n_head / n_kv_head)) * D;
    int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16;
    load_tile(q_tile, q_gmem + q_origin, q_stride, tq - query0);
    load_tile(d_o_tile, d_o_gmem + q_origin, q_stride, tq - query0);
    float2 row_regs[4];
#pragma unroll
    for (int r = 0; r < 4; r++)
        row_regs[r] = statistics_gmem[(batch * n_head + head) * tq_padded + query0 + row0 + r];

    const float scale = 1.0f / sqrtf((float)D);
    float acc[4][GRADIENT_COLUMNS<D>] = {};
    int visible = min(query0 + TILE + reach, tk);
    for (int key0 = 0; key0 < visible; key0 += TILE) {
        __syncthreads();  // nobody still reads the last tile
        load_tile(k_tile, k_gmem + k_origin + key0 * k_stride, k_stride, tk - key0);
        load_tile(v_tile, v_gmem + k_origin + key0 * k_stride, k_stride, tk - key0);
        __syncthreads();  // the tile (and that of the queries) is there
        float scores[4][2], d_p[4][2];
        product(scores, q_tile, k_tile);
        product(d_p, d_o_tile, v_tile);
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int key = key0 + column0 + 16 * c;
                bool seen = key <= query0 + row0 + r + reach && key < tk;
                float p = seen ? expf(fmaf(scores[r][c], scale, -row_regs[r].x)) : 0.0f;
                scores[r][c] = p * (d_p[r][c] - row_regs[r].y);
            }
        store_weights(d_s_weights, scores);
        __syncthreads();  // every score's gradient is there
        accumulate(acc, d_s_weights, k_tile);
    }
    store_rows<D>(d_q_gmem + q_origin, q_stride, tq - query0, acc, scale);
}

template <int D>
__device__ __forceinline__ void d_keys_values(const float *q_gmem, const float *k_gmem, const float *v_gmem,
                                              const float *d_o_gmem, const float2 *statistics_gmem, float *d_k_gmem,
                                              float *d_v_gmem, int tq, int tq_padded, int tk, int n_head, int n_kv_head,
                                              int reach) {
    extern __shared__ __align__(16) unsigned char smem[];
    Tile<D> &k_tile = reinterpret_cast<Tile<D> *>(smem)[0], &v_tile = reinterpret_cast<Tile<D> *>(smem)[1];
    Tile<D> &q_tile = reinterpret_cast<Tile<D> *>(smem)[2], &d_o_tile = reinterpret_cast<Tile<D> *>(smem)[3];
    Weights &d_s_weights = reinterpret_cast<Weights *>(smem + 4 * sizeof(Tile<D>))[0];
    Weights &p_weights = reinterpret_cast<Weights *>(smem + 4 * sizeof(Tile<D>))[1];

    int key_tiles = (tk + TILE - 1) / TILE, group = n_head / n_kv_head;
    int key0 = blockIdx.x % key_tiles * TILE, kv_head = blockIdx.x / key_tiles % n_kv_head;
    size_t batch = blockIdx.x / key_tiles / n_kv_head;
    long q_stride = (long)n_head * D, k_stride = (long)n_kv_head * D;
    size_t k_origin = (batch * tk + key0) * k_stride + (size_t)kv_head * D;
    int row0 = threadIdx.x / 16 * 4, column0 = threadIdx.x % 16;
    load_tile(k_tile, k_gmem + k_origin, k_stride, tk - key0);
    load_tile(v_tile, v_gmem + k_origin, k_stride, tk - key0);

    const float scale = 1.0f / sqrtf((float)D);
    float d_k_regs[4][GRADIENT_COLUMNS<D>] = {}, d_v_regs[4][GRADIENT_COLUMNS<D>] = {};
    int first = max(key0 - reach, 0) / TILE * TILE;  // the first query tile that sees a key
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int query0 = first; query0 < tq; query0 += TILE) {
            size_t from = (batch * tq + query0) * q_stride + (size_t)head * D;
            const float2 *statistics = statistics_gmem + (batch * n_head + head) * tq_padded + query0;
            __syncthreads();  // nobody still reads the last tile
            load_tile(q_tile, q_gmem + from, q_stride, tq - query0);
            load_tile(d_o_tile, d_o_gmem + from, q_stride, tq - query0);
            float2 column_regs[2] = {statistics[column0], statistics[column0 + 16]};
            __syncthreads();  // the tile (and that of the keys) is there
            float scores[4][2], d_p[4][2];
            product(scores, k_tile, q_tile);
            product(d_p, v_tile, d_o_tile);
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    bool seen = key0 + row0 + r <= query0 + column0 + 16 * c + reach;
                    float p = seen ? expf(fmaf(scores[r][c], scale, -column_regs[c].x)) : 0.0f;
                    scores[r][c] = p;
                    d_p[r][c] = p * (d_p[r][c] - column_regs[c].y);
                }
            store_weights(p_weights, scores);
            store_weights(d_s_weights, d_p);
            __syncthreads();  // every probability and score's gradient is there
            accumulate(d_v_regs, p_weights, d_o_tile);
            accumulate(d_k_regs, d_s_weights, q_tile);
        }
    store_rows<D>(d_k_gmem + k_origin, k_stride, tk - key0, d_k_regs, scale);
    store_rows<D>(d_v_gmem + k_origin, k_stride, tk - key0, d_v_regs, 1.0f);
}

}  // namespace

#define BACKWARD(D)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward_dq_f32_##D(                            \
        const float *q, const float *k, const float *v, const float *d_o, const float2 *statistics, float *d_q,        \
        int tq, int tq_padded, int tk, int n_head, int n_kv_head, int reach) {                                         \
        d_queries<D>(q, k, v, d_o, statistics, d_q, tq, tq_padded, tk, n_head, n_kv_head, reach);                      \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward_dkv_f32_##D(                           \
        const float *q, const float *k, const float *v, const float *d_o, const float2 *statistics, float *d_k,        \
        float *d_v, int tq, int tq_padded, int tk, int n_head, int n_kv_head, int reach) {                             \
        d_keys_values<D>(q, k, v, d_o, statistics, d_k, d_v, tq, tq_padded, tk, n_head, n_kv_head, reach);             \
    }

BACKWARD(32)
BACKWARD(64)
BACKWARD(96)
BACKWARD(128)

// Attention backward, gradient of the queries, bf16 on tensor cores.
//
//   s = q·kᵀ/√D,  p = exp(s − ℓ) where the query sees the key, else 0,  d_s = p (d_o·vᵀ − δ),  d_q = d_s·k/√D
//
// q, d_o, d_q: [B,Tq,H,D]; k, v: [B,Tk,Hkv,D]; statistics: f32 pairs (ℓ log2 e, δ) [B,H,Tp], what
// attention_backward_delta wrote. Query i sees the keys up to i + reach: reach = Tk − Tq if causal, Tk if not. Query
// head h reads KV head h/(H/Hkv).
//
// A block is one tile of QUERIES queries of one head, a warp 16 of them. Tiles of KEYS keys pass a double buffer:
// while one is used, the next arrives by cp.async. Both products of scores, and the accumulator of d_q, stay in
// registers; P is computed again rather than read. Tiles behind the last visible key are never loaded, and a warp skips
// those that none of its queries sees.
// Grid: x = (batch, head, query tile), the last fastest and from the last tile on, which has the most keys.
// Shared memory, bf16, swizzled as in attention.cuh: Q [QUERIES][D], dO [QUERIES][D], K [2][KEYS][D], V [2][KEYS][D].
// Bytes moved: 3 B·Tq·H·D elements, and k and v once for each query tile. FLOPs: 6 B·H·D·Tq·Tk, half of it if causal.
// Numerics: scores and d_q in f32, d_s rounded to bf16 for its product; keys are added tile after tile in order.
// Not yet measured on a card.
#include "attention_backward.cuh"

namespace {

// d_s in place of `scores`, from s and `d_p` = d_o·vᵀ. The lane's rows see the keys up to `last`; the tile begins at
// `key0`.
template <int KEYS>
__device__ __forceinline__ void score_gradients(float (&scores)[KEYS / 8][4], const float (&d_p)[KEYS / 8][4],
                                                const float2 (&row)[2], float scale_log2, bool masked,
                                                const int (&last)[2], int key0) {
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = key0 + j * 8 + threadIdx.x % 4 * 2 + i % 2;
            float p = ptx::exp2_approximate(scores[j][i] * scale_log2 - row[i / 2].x);
            if (masked && key > last[i / 2]) p = 0.0f;
            scores[j][i] = p * (d_p[j][i] - row[i / 2].y);
        }
}

template <int D, int QUERIES, int KEYS>
__device__ __forceinline__ void d_queries(const bf16 *q_gmem, const bf16 *k_gmem, const bf16 *v_gmem,
                                          const bf16 *d_o_gmem, const float2 *statistics_gmem, bf16 *d_q_gmem, int tq,
                                          int tq_padded, int tk, int n_head, int n_kv_head, int reach) {
    constexpr int THREADS = QUERIES / 16 * WARP, TILE = KEYS * D;
    static_assert(STATISTICS_PAD % QUERIES == 0 && KEYS % 16 == 0);
    extern __shared__ __align__(16) bf16 smem[];
    bf16 *q_smem = smem, *d_o_smem = q_smem + QUERIES * D;
    bf16 *k_smem = d_o_smem + QUERIES * D, *v_smem = k_smem + 2 * TILE;

    int query_tiles = (tq + QUERIES - 1) / QUERIES;
    int query0 = (query_tiles - 1 - blockIdx.x % query_tiles) * QUERIES, head = blockIdx.x / query_tiles % n_head;
    size_t batch = blockIdx.x / query_tiles / n_head;
    long q_stride = (long)n_head * D, k_stride = (long)n_kv_head * D;
    size_t q_origin = (batch * tq + query0) * q_stride + (size_t)head * D;
    size_t k_origin = batch * tk * k_stride + (size_t)(head / (n_head / n_kv_head)) * D;

    int row0 = threadIdx.x / WARP * 16, warp_query = query0 + row0;
    float2 row_regs[2];
    int last[2];  // the last key that the lane's rows see
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = warp_query + half * 8 + threadIdx.x % WARP / 4;
        row_regs[half] = statistics_gmem[(batch * n_head + head) * tq_padded + query];
        last[half] = min(query + reach, tk - 1);
    }
    int visible = min(query0 + QUERIES + reach, tk), tiles = max((visible + KEYS - 1) / KEYS, 0);

    auto copy_keys_async = [&](int tile) {
        size_t from = k_origin + (size_t)tile * KEYS * k_stride;
        int rows = tk - tile * KEYS, to = tile % 2 * TILE;
        copy_tile_async<KEYS, D, THREADS>(k_smem + to, k_gmem + from, k_stride, rows);
        copy_tile_async<KEYS, D, THREADS>(v_smem + to, v_gmem + from, k_stride, rows);
        ptx::copy_async_commit();
    };
    if (tiles > 0) {
        copy_tile_async<QUERIES, D, THREADS>(q_smem, q_gmem + q_origin, q_stride, tq - query0);
        copy_tile_async<QUERIES, D, THREADS>(d_o_smem, d_o_gmem + q_origin, q_stride, tq - query0);
        copy_keys_async(0);
    }

    const float scale = 1.0f / sqrtf((float)D);
    float acc[D / 8][4] = {};
    for (int tile = 0; tile < tiles; tile++) {
        ptx::copy_async_wait<0>();  // this thread's part of the tile (and of Q and dO) has arrived
        __syncthreads();            // everybody's has; and nobody still reads the buffer that is filled next
        if (tile + 1 < tiles) copy_keys_async(tile + 1);
        int key0 = tile * KEYS;
        if (key0 > warp_query + 15 + reach) continue;  // no query of the warp sees a key of the tile

        const bf16 *k_tile = k_smem + tile % 2 * TILE, *v_tile = v_smem + tile % 2 * TILE;
        float scores[KEYS / 8][4], d_p[KEYS / 8][4];
        product<D, KEYS>(scores, q_smem, row0, k_tile);
        product<D, KEYS>(d_p, d_o_smem, row0, v_tile);
        bool masked = key0 + KEYS - 1 > min(warp_query + reach, tk - 1);
        score_gradients<KEYS>(scores, d_p, row_regs, scale * LOG2_E, masked, last, key0);
        accumulate<D, KEYS>(acc, scores, k_tile);
    }
    store_rows<D>(d_q_gmem + q_origin + row0 * q_stride, q_stride, tq - warp_query, acc, scale);
}

}  // namespace

#define D_QUERIES(D, BLOCKS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(BACKWARD_STATIONARY * 2, BLOCKS) attention_backward_dq_bf16_##D(      \
        const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_o, const float2 *statistics, bf16 *d_q, int tq,     \
        int tq_padded, int tk, int n_head, int n_kv_head, int reach) {                                                 \
        d_queries<D, BACKWARD_STATIONARY, DQ_KEYS_##D>(q, k, v, d_o, statistics, d_q, tq, tq_padded, tk, n_head,       \
                                                       n_kv_head, reach);                                              \
    }

D_QUERIES(32, 2)
D_QUERIES(64, 2)
D_QUERIES(96, 1)
D_QUERIES(128, 1)

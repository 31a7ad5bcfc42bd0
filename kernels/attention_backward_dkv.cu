// Attention backward, gradients of keys and values, bf16 on tensor cores.
//
//   s = q·kᵀ/√D,  p = exp(s − ℓ) where the query sees the key, else 0,  d_s = p (d_o·vᵀ − δ)
//   d_v = Σ pᵀ·d_o,  d_k = Σ d_sᵀ·q/√D,  summed over the queries of all H/Hkv heads that read the KV head
//
// q, d_o: [B,Tq,H,D]; k, v, d_k, d_v: [B,Tk,Hkv,D]; statistics: f32 pairs (ℓ log2 e, δ) [B,H,Tp], what
// attention_backward_delta wrote. Query i sees the keys up to i + reach: reach = Tk − Tq if causal, Tk if not.
//
// A block is one tile of KEYS keys of one KV head, a warp 16 of them. It walks through the query heads of the group,
// for each through the tiles of QUERIES queries that see the keys, in a double buffer: while one is used, the next
// arrives by cp.async. All is computed transposed, Sᵀ = K·Qᵀ and dPᵀ = V·dOᵀ, so that Pᵀ and dSᵀ are in registers what
// the next products need; both gradients are summed in registers and written once: no atomics, nothing of the size of
// the query heads. A warp skips tiles none of whose queries sees its keys.
// Grid: x = (batch, KV head, key tile), the last fastest; the first tile has the most queries.
// Shared memory, swizzled as in attention.cuh: bf16 K [KEYS][D], V [KEYS][D], Q [2][QUERIES][D], dO [2][QUERIES][D];
// f32 pairs [2][QUERIES].
// Bytes moved: 4 B·Tk·Hkv·D elements, and q and d_o once for each key tile. FLOPs: 8 B·H·D·Tq·Tk, half of it if causal.
// Numerics: scores and gradients in f32, p and d_s rounded to bf16 for their products; queries are added tile after
// tile, head after head. A key that no query sees gets 0.
// Not yet measured on a card.
#include "attention_backward.cuh"

namespace {

// Pᵀ in place of `scores`, and dSᵀ in place of `d_p` = V·dOᵀ. Columns are queries, with their statistics; the key of
// the lane's first row is seen from column `first_query` on.
template <int QUERIES>
__device__ __forceinline__ void score_gradients(float (&scores)[QUERIES / 8][4], float (&d_p)[QUERIES / 8][4],
                                                const float2 *statistics_smem, float scale_log2, bool masked,
                                                int first_query) {
#pragma unroll
    for (int j = 0; j < QUERIES / 8; j++) {
        int column = j * 8 + threadIdx.x % 4 * 2;
        float4 pairs = *reinterpret_cast<const float4 *>(statistics_smem + column);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float l = i % 2 ? pairs.z : pairs.x, delta = i % 2 ? pairs.w : pairs.y;
            float p = ptx::exp2_approximate(scores[j][i] * scale_log2 - l);
            if (masked && column + i % 2 < first_query + i / 2 * 8) p = 0.0f;
            scores[j][i] = p;
            d_p[j][i] = p * (d_p[j][i] - delta);
        }
    }
}

template <int D, int KEYS, int QUERIES>
__device__ __forceinline__ void d_keys_values(const bf16 *q_gmem, const bf16 *k_gmem, const bf16 *v_gmem,
                                              const bf16 *d_o_gmem, const float2 *statistics_gmem, bf16 *d_k_gmem,
                                              bf16 *d_v_gmem, int tq, int tq_padded, int tk, int n_head, int n_kv_head,
                                              int reach) {
    constexpr int THREADS = KEYS / 16 * WARP, TILE = QUERIES * D;
    static_assert(STATISTICS_PAD % QUERIES == 0 && QUERIES % 16 == 0 && QUERIES / 2 <= THREADS);
    extern __shared__ __align__(16) bf16 smem[];
    bf16 *k_smem = smem, *v_smem = k_smem + KEYS * D, *q_smem = v_smem + KEYS * D, *d_o_smem = q_smem + 2 * TILE;
    float2 *statistics_smem = reinterpret_cast<float2 *>(d_o_smem + 2 * TILE);

    int key_tiles = (tk + KEYS - 1) / KEYS, group = n_head / n_kv_head;
    int key0 = blockIdx.x % key_tiles * KEYS, kv_head = blockIdx.x / key_tiles % n_kv_head;
    size_t batch = blockIdx.x / key_tiles / n_kv_head;
    long q_stride = (long)n_head * D, k_stride = (long)n_kv_head * D;
    size_t k_origin = (batch * tk + key0) * k_stride + (size_t)kv_head * D;
    int row0 = threadIdx.x / WARP * 16, warp_key = key0 + row0;

    // A step is one query tile of one head of the group.
    int first_tile = max(key0 - reach, 0) / QUERIES, tiles = max((tq + QUERIES - 1) / QUERIES - first_tile, 0);
    int steps = group * tiles;
    auto copy_queries_async = [&](int step) {
        int query0 = (first_tile + step % tiles) * QUERIES, head = kv_head * group + step / tiles, buffer = step % 2;
        size_t from = (batch * tq + query0) * q_stride + (size_t)head * D;
        copy_tile_async<QUERIES, D, THREADS>(q_smem + buffer * TILE, q_gmem + from, q_stride, tq - query0);
        copy_tile_async<QUERIES, D, THREADS>(d_o_smem + buffer * TILE, d_o_gmem + from, q_stride, tq - query0);
        const float2 *statistics = statistics_gmem + (batch * n_head + head) * tq_padded + query0;
        int pair = threadIdx.x * 2;
        if (pair < QUERIES) ptx::copy_async_16(statistics_smem + buffer * QUERIES + pair, statistics + pair);
        ptx::copy_async_commit();
    };
    if (steps > 0) {
        copy_tile_async<KEYS, D, THREADS>(k_smem, k_gmem + k_origin, k_stride, tk - key0);
        copy_tile_async<KEYS, D, THREADS>(v_smem, v_gmem + k_origin, k_stride, tk - key0);
        copy_queries_async(0);
    }

    const float scale = 1.0f / sqrtf((float)D);
    float d_k_regs[D / 8][4] = {}, d_v_regs[D / 8][4] = {};
    for (int step = 0; step < steps; step++) {
        ptx::copy_async_wait<0>();  // this thread's part of the tile (and of K and V) has arrived
        __syncthreads();            // everybody's has; and nobody still reads the buffer that is filled next
        if (step + 1 < steps) copy_queries_async(step + 1);
        int query0 = (first_tile + step % tiles) * QUERIES, buffer = step % 2;
        if (warp_key >= tk || warp_key > query0 + QUERIES - 1 + reach) continue;  // no query sees a key of the warp

        const bf16 *q_tile = q_smem + buffer * TILE, *d_o_tile = d_o_smem + buffer * TILE;
        float scores[QUERIES / 8][4], d_p[QUERIES / 8][4];
        product<D, QUERIES>(scores, k_smem, row0, q_tile);
        product<D, QUERIES>(d_p, v_smem, row0, d_o_tile);
        bool masked = warp_key + 15 > query0 + reach;
        int first_query = warp_key + threadIdx.x % WARP / 4 - reach - query0;
        score_gradients<QUERIES>(scores, d_p, statistics_smem + buffer * QUERIES, scale * LOG2_E, masked, first_query);
        accumulate<D, QUERIES>(d_v_regs, scores, d_o_tile);
        accumulate<D, QUERIES>(d_k_regs, d_p, q_tile);
    }
    size_t to = k_origin + row0 * k_stride;
    store_rows<D>(d_k_gmem + to, k_stride, tk - warp_key, d_k_regs, scale);
    store_rows<D>(d_v_gmem + to, k_stride, tk - warp_key, d_v_regs, 1.0f);
}

}  // namespace

#define D_KEYS_VALUES(D, BLOCKS)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BACKWARD_STATIONARY * 2, BLOCKS) attention_backward_dkv_bf16_##D(     \
        const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_o, const float2 *statistics, bf16 *d_k, bf16 *d_v,  \
        int tq, int tq_padded, int tk, int n_head, int n_kv_head, int reach) {                                         \
        d_keys_values<D, BACKWARD_STATIONARY, DKV_QUERIES_##D>(q, k, v, d_o, statistics, d_k, d_v, tq, tq_padded, tk,  \
                                                               n_head, n_kv_head, reach);                              \
    }

D_KEYS_VALUES(32, 2)
D_KEYS_VALUES(64, 1)
D_KEYS_VALUES(96, 1)
D_KEYS_VALUES(128, 1)

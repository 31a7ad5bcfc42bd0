// Attention of a few new positions over a long cache: decode, in f32 and bf16.
//
//   s_ij = q_i·k_j / √D for the keys j that query i sees,   o_i = Σ_j exp(s_ij − m_i) v_j / Σ_j exp(s_ij − m_i)
//   causal: j ≤ i + Tk − Tq, so that the last query sees all keys. A query that sees no key gives o = 0.
//
// Shapes: q, o [B,Tq,H,D]; k, v [B,capacity,Hkv,D], of which the first Tk positions are used, and no other is read;
// o_part f32 [B·Tq·H,splits,D] and lse_part f32 [B·Tq·H,splits], only for splits > 1. D = 32, 64, 96, 128. All bases
// are multiples of 16 bytes.
//
// Thread → data: the cache is what has to be read, so its bytes decide. A block takes one KV head of one sequence, a
// range of key tiles (`split`), and the rows of all g = H/Hkv query heads: row i·g + h is query i of the group's head
// h. Its 4 warps are `row_tiles` (1, 2, 4) by 4/row_tiles: the first number cuts the rows, the second the keys of a
// tile.
//   bf16: 16 rows of a warp are one tensor-core operand (empty rows are zeros); tiles of 64 keys, 16 at a time.
//   f32: 4 rows of a warp; tiles of 32 keys, 8 at a time: lane = 8·quarter of the depth + key for the scores, and for
//        the output channels lane, lane + 32, …
// Rows beyond row_tiles·16 (or ·4) go to further blocks, which find the cache in L2.
// attention_decode_merge: a warp for each row [B·Tq·H], lanes are channels.
//
// Shared memory: STAGES tiles K [KEYS][D], V [KEYS][D], swizzled as in attention.cuh, filled by cp.async while earlier
// ones are used; f32 also Q [16][D]; at the end the warps' results out [4·ROWS][D+8], max and sum [4·ROWS] in their
// place. 24 to 72 KiB.
//
// Bytes: k and v once, 2·B·Tk·Hkv·D elements; FLOPs: 4·B·H·Tq·Tk·D. So it is bound by memory for any group.
//
// Numerics: scores, softmax and output in f32; bf16 rounds P for P·V but not in its sum. exp(s − m) is 2^(s·c − m·c), c
// = log2(e)/√D. Parts are merged in a fixed order, weighted by their maxima (in a block) or log-sum-exps (over splits);
// the same number of splits gives the same bits. A NaN in q or k shows in the rows that see it; a NaN in v also in rows
// of the call that do not (0 · NaN).
//
// Not yet measured on a card.
#include "attention.cuh"

namespace {

constexpr int WARPS = DECODE_WARPS, THREADS = WARPS * WARP;

template <typename T>
constexpr int ROWS = sizeof(T) == 2 ? DECODE_BF16_ROWS : DECODE_F32_ROWS;  // of a warp
template <typename T>
constexpr int STEP = sizeof(T) == 2 ? 16 : 8;  // keys that a warp takes at a time
template <typename T>
constexpr int KEYS = sizeof(T) == 2 ? DECODE_BF16_KEYS : DECODE_F32_KEYS;
template <int D>
constexpr int STAGES = D <= 64 ? DECODE_STAGES_TO_64 : DECODE_STAGES;
static_assert(KEYS<bf16> == WARPS * STEP<bf16> && KEYS<float> == WARPS * STEP<float>, "a step a warp");
static_assert(ROWS<bf16> == 16 && ROWS<float> == 4, "what struct Warp is written for");

struct Shape {
    int batch, tq, tk, n_head, n_kv_head, kv_capacity, causal;

    __device__ int group() const { return n_head / n_kv_head; }
    __device__ int rows() const { return tq * group(); }
    // The row of q and o [B·Tq·H] that is row r of a KV head.
    __device__ long query_row(int b, int kv_head, int r) const {
        return ((long)b * tq + r / group()) * n_head + kv_head * group() + r % group();
    }
    __device__ int visible(int r) const { return visible_keys(r / group(), tq, tk, causal); }
};

// Where a warp works: sequence, KV head, the first of its rows, and its lane.
struct Place {
    int b, kv_head, row0, lane;
};

// A new maximum of a row: returns the factor by which sums so far shrink; sets `shift`, which is subtracted from
// scores.
__device__ __forceinline__ float raise_max(float &max, float top, float &shift) {
    top = fmaxf(max, top);
    shift = top == -INFINITY ? 0.0f : top;  // no key seen yet: 2^(−∞ − 0) = 0 instead of −∞ − (−∞)
    float shrink = ptx::exp2_approximate(max - shift);
    max = top;
    return shrink;
}

// Two floats by one access: a float2 may be taken apart by the compiler, and would then meet bank conflicts.
__device__ __forceinline__ void store_pair(float *smem, float first, float second) {
    *reinterpret_cast<double *>(smem) = __hiloint2double(__float_as_int(second), __float_as_int(first));
}

// The rows of one warp: its queries, the online softmax and the output so far. `max` is in units of log2, times c;
// `sum` is this lane's part.
template <typename T, int D>
struct Warp;

template <int D>
struct Warp<bf16, D> {
    uint32_t q_regs[D / 16][4];
    float out[D / 8][4], max[2], sum[2];
    int visible[2];

    __device__ __forceinline__ Warp(const Shape &shape, const Place &at, const bf16 *q_gmem, bf16 *)
        : out{}, max{-INFINITY, -INFINITY}, sum{} {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = at.row0 + half * 8 + at.lane / 4;
            visible[half] = shape.visible(row);
            const bf16 *from = q_gmem + shape.query_row(at.b, at.kv_head, row) * D + at.lane % 4 * 8;
#pragma unroll
            for (int d = 0; d < D; d += 32) {  // four lanes read 64 bytes of a row, then deal them out
                uint4 chunk = {0, 0, 0, 0};
                if (row < shape.rows()) chunk = *reinterpret_cast<const uint4 *>(from + d);
                uint32_t pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
                transpose_in_quad(pairs, at.lane);
#pragma unroll
                for (int i = 0; i < 4; i++) q_regs[d / 16 + i / 2][i % 2 * 2 + half] = pairs[i];
            }
        }
    }

    // Keys key0 … key0 + 15 lie in rows step0 … of the tile.
    __device__ __forceinline__ void step(const bf16 *k_smem, const bf16 *v_smem, int step0, int key0, float scale,
                                         int lane) {
        float score[2][4] = {};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t k_regs[4];
            int key = step0 + lane % 8 + lane / 16 * 8;
            ptx::load_matrix_x4(k_regs, k_smem + swizzled<bf16, D>(key, d * 2 + lane / 8 % 2));
            ptx::mma_bf16(score[0], q_regs[d], k_regs[0], k_regs[1]);
            ptx::mma_bf16(score[1], q_regs[d], k_regs[2], k_regs[3]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = -INFINITY, shift;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &s = score[i / 2][half * 2 + i % 2];
                if (key0 + i / 2 * 8 + lane % 4 * 2 + i % 2 >= visible[half]) s = -INFINITY;
                top = fmaxf(top, s);
            }
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            float shrink = raise_max(max[half], top * scale, shift);
            sum[half] *= shrink;
#pragma unroll
            for (int d = 0; d < D / 8; d++) out[d][half * 2] *= shrink, out[d][half * 2 + 1] *= shrink;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &s = score[i / 2][half * 2 + i % 2];
                s = ptx::exp2_approximate(fmaf(s, scale, -shift));
                sum[half] += s;
            }
        }
        uint32_t p_regs[4];
#pragma unroll
        for (int i = 0; i < 4; i++) p_regs[i] = ptx::pack_bf16(score[i / 2][i % 2 * 2], score[i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t v_regs[4];
            ptx::load_matrix_x4_transposed(v_regs, v_smem + swizzled<bf16, D>(step0 + lane % 16, d * 2 + lane / 16));
            ptx::mma_bf16(out[2 * d], p_regs, v_regs[0], v_regs[1]);
            ptx::mma_bf16(out[2 * d + 1], p_regs, v_regs[2], v_regs[3]);
        }
    }

    __device__ __forceinline__ void put(float *out_smem, float *max_smem, float *sum_smem, int lane) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = half * 8 + lane / 4;
            sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 1);
            sum[half] += __shfl_xor_sync(ALL_LANES, sum[half], 2);
#pragma unroll
            for (int d = 0; d < D / 8; d++)
                store_pair(out_smem + row * (D + 8) + d * 8 + lane % 4 * 2, out[d][half * 2], out[d][half * 2 + 1]);
            if (lane % 4 == 0) max_smem[row] = max[half], sum_smem[row] = sum[half];
        }
    }
};

template <int D>
struct Warp<float, D> {
    const float *q_smem;
    float out[4][D / 32], max[4], sum[4];
    int visible[4];

    // Every warp writes the queries of its rows to a place of its own, also where warps share rows. Other lanes read
    // them after the barrier before the first tile.
    __device__ __forceinline__ Warp(const Shape &shape, const Place &at, const float *q_gmem, float *to_smem)
        : q_smem(to_smem), out{}, max{}, sum{} {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int row = at.row0 + r;
            max[r] = -INFINITY;
            visible[r] = shape.visible(row);
            const float *from = q_gmem + shape.query_row(at.b, at.kv_head, row) * D + at.lane;
#pragma unroll
            for (int d = 0; d < D; d += WARP) to_smem[r * D + d + at.lane] = row < shape.rows() ? from[d] : 0.0f;
        }
    }

    // Keys key0 … key0 + 7 lie in rows step0 … of the tile.
    __device__ __forceinline__ void step(const float *k_smem, const float *v_smem, int step0, int key0, float scale,
                                         int lane) {
        float score[4] = {};
#pragma unroll
        for (int chunk = lane / 8; chunk < D / 4; chunk += 4) {
            float4 key = *reinterpret_cast<const float4 *>(k_smem + swizzled<float, D>(step0 + lane % 8, chunk));
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float4 query = *reinterpret_cast<const float4 *>(q_smem + r * D + chunk * 4);
                score[r] = fmaf(query.x, key.x, score[r]);
                score[r] = fmaf(query.y, key.y, score[r]);
                score[r] = fmaf(query.z, key.z, score[r]);
                score[r] = fmaf(query.w, key.w, score[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            score[r] += __shfl_xor_sync(ALL_LANES, score[r], 8);
            score[r] += __shfl_xor_sync(ALL_LANES, score[r], 16);
            if (key0 + lane % 8 >= visible[r]) score[r] = -INFINITY;
            float top = score[r], shift;
#pragma unroll
            for (int i = 1; i < 8; i *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, i));
            float shrink = raise_max(max[r], top * scale, shift);
            score[r] = ptx::exp2_approximate(fmaf(score[r], scale, -shift));
            sum[r] = sum[r] * shrink + score[r];
#pragma unroll
            for (int c = 0; c < D / 32; c++) out[r][c] *= shrink;
        }
#pragma unroll
        for (int key = 0; key < 8; key++) {
            float p[4];
#pragma unroll
            for (int r = 0; r < 4; r++) p[r] = __shfl_sync(ALL_LANES, score[r], key);
#pragma unroll
            for (int c = 0; c < D / 32; c++) {
                float value = v_smem[swizzled<float, D>(step0 + key, c * 8 + lane / 4) + lane % 4];
#pragma unroll
                for (int r = 0; r < 4; r++) out[r][c] = fmaf(p[r], value, out[r][c]);
            }
        }
    }

    __device__ __forceinline__ void put(float *out_smem, float *max_smem, float *sum_smem, int lane) {
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int i = 1; i < 8; i *= 2) sum[r] += __shfl_xor_sync(ALL_LANES, sum[r], i);
            if (lane == 0) max_smem[r] = max[r], sum_smem[r] = sum[r];
#pragma unroll
            for (int c = 0; c < D / 32; c++) out_smem[r * (D + 8) + c * WARP + lane] = out[r][c];
        }
    }
};

// Merges what the warps put into shared memory, 4 channels a thread, and stores it: to `o` if this block has seen all
// keys, else to the partial results of its split.
template <typename T, int D>
__device__ __forceinline__ void merge_warps(const Shape &shape, const Place &at, int row_tiles, const float *out_smem,
                                            const float *max_smem, const float *sum_smem, T *o_gmem, float *o_part,
                                            float *lse_part, int split, int splits) {
    int valid_rows = min(shape.rows() - at.row0, row_tiles * ROWS<T>);
    for (int i = threadIdx.x; i < valid_rows * (D / 4); i += THREADS) {
        int row = i / (D / 4), channel = i % (D / 4) * 4, step = row_tiles * ROWS<T>;
        float max = -INFINITY, sum = 0.0f, out[4] = {};
        for (int part = row; part < WARPS * ROWS<T>; part += step) max = fmaxf(max, max_smem[part]);
        float shift = max == -INFINITY ? 0.0f : max;
        for (int part = row; part < WARPS * ROWS<T>; part += step) {
            float weight = ptx::exp2_approximate(max_smem[part] - shift), values[4];
            load_vector(values, out_smem + part * (D + 8) + channel);
            sum = fmaf(weight, sum_smem[part], sum);
#pragma unroll
            for (int c = 0; c < 4; c++) out[c] = fmaf(weight, values[c], out[c]);
        }
        float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
        for (int c = 0; c < 4; c++) out[c] *= inverse;
        long to = shape.query_row(at.b, at.kv_head, at.row0 + row);
        if (splits == 1) {
            store_vector(o_gmem + to * D + channel, out);
        } else {
            store_vector(o_part + (to * splits + split) * D + channel, out);
            if (channel == 0) lse_part[to * splits + split] = max + log2f(sum);  // in units of log2
        }
    }
}

template <typename T, int D>
__device__ __forceinline__ void attention_decode(const T *q_gmem, const T *k_gmem, const T *v_gmem, T *o_gmem,
                                                 float *o_part, float *lse_part, const Shape &shape, int row_tiles,
                                                 int splits, int tiles_per_split, float scale) {
    constexpr int TILE = KEYS<T> * D, STAGE = 2 * TILE, AHEAD = STAGES<D> - 1;
    extern __shared__ __align__(128) unsigned char smem[];
    T *stages_smem = reinterpret_cast<T *>(smem);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;

    int split = blockIdx.x % splits, unit = blockIdx.x / splits;  // unit = (b·Hkv + kv_head)·row_blocks + row_block
    int block_rows = row_tiles * ROWS<T>, row_blocks = (shape.rows() + block_rows - 1) / block_rows;
    int row0 = unit % row_blocks * block_rows, head = unit / row_blocks;
    Place at = {head / shape.n_kv_head, head % shape.n_kv_head, row0, lane};
    long stride = (long)shape.n_kv_head * D;
    k_gmem += ((long)at.b * shape.kv_capacity * shape.n_kv_head + at.kv_head) * D;
    v_gmem += ((long)at.b * shape.kv_capacity * shape.n_kv_head + at.kv_head) * D;
    int tile0 = split * tiles_per_split, tiles = min((shape.tk + KEYS<T> - 1) / KEYS<T> - tile0, tiles_per_split);

    auto copy_stage = [&](int t) {
        if (t < tiles) {
            int key0 = (tile0 + t) * KEYS<T>;
            T *k_smem = stages_smem + t % STAGES<D> * STAGE;
            copy_tile_async<KEYS<T>, D, THREADS>(k_smem, k_gmem + key0 * stride, stride, shape.tk - key0);
            copy_tile_async<KEYS<T>, D, THREADS>(k_smem + TILE, v_gmem + key0 * stride, stride, shape.tk - key0);
        }
        ptx::copy_async_commit();
    };
#pragma unroll
    for (int t = 0; t < AHEAD; t++) copy_stage(t);

    Place mine = at;
    mine.row0 += warp % row_tiles * ROWS<T>;
    Warp<T, D> rows(shape, mine, q_gmem, stages_smem + STAGES<D> * STAGE + warp * ROWS<T> * D);
    for (int t = 0; t < tiles; t++) {
        ptx::copy_async_wait<AHEAD - 1>();  // this thread's part of tile t has arrived
        __syncthreads();                    // everybody's has; and nobody still reads the tile that is replaced next
        copy_stage(t + AHEAD);
        const T *k_smem = stages_smem + t % STAGES<D> * STAGE;
        for (int step0 = warp / row_tiles * STEP<T>; step0 < KEYS<T>; step0 += WARPS / row_tiles * STEP<T>)
            rows.step(k_smem, k_smem + TILE, step0, (tile0 + t) * KEYS<T> + step0, scale, lane);
    }

    float *out_smem = reinterpret_cast<float *>(smem), *max_smem = out_smem + WARPS * ROWS<T> * (D + 8);
    float *sum_smem = max_smem + WARPS * ROWS<T>;
    static_assert(WARPS * ROWS<T> * (D + 10) * sizeof(float) <= STAGES<D> * STAGE * sizeof(T), "fits in the stages");
    __syncthreads();  // nobody still reads the last tile, whose place the warps' results take
    rows.put(out_smem + warp * ROWS<T> * (D + 8), max_smem + warp * ROWS<T>, sum_smem + warp * ROWS<T>, lane);
    __syncthreads();  // every warp's results are there
    merge_warps<T, D>(shape, at, row_tiles, out_smem, max_smem, sum_smem, o_gmem, o_part, lse_part, split, splits);
}

// o = Σ_s 2^(lse_s − top) o_s / Σ_s 2^(lse_s − top); a row without a key has lse_s = −∞ everywhere and gives 0.
template <typename T>
__device__ __forceinline__ void merge_splits(const float *o_part, const float *lse_part, T *o_gmem, long rows,
                                             int splits, int head_dim) {
    long row = (long)blockIdx.x * WARPS + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (row >= rows) return;
    o_part += row * splits * head_dim, lse_part += row * splits, o_gmem += row * head_dim;
    float top = -INFINITY;
    for (int s = 0; s < splits; s++) top = fmaxf(top, lse_part[s]);
    float shift = top == -INFINITY ? 0.0f : top, sum = 0.0f, out[4] = {};
    for (int s = 0; s < splits; s++) {
        float weight = ptx::exp2_approximate(lse_part[s] - shift);
        sum += weight;
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c * WARP < head_dim) out[c] = fmaf(weight, o_part[(long)s * head_dim + c * WARP + lane], out[c]);
    }
    float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (c * WARP < head_dim) o_gmem[c * WARP + lane] = from_float<T>(out[c] * inverse);
}

}  // namespace

#define ATTENTION_DECODE(TYPE, NAME, D)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_decode_split_##NAME##_##D(                     \
        const TYPE *q, const TYPE *k, const TYPE *v, TYPE *o, float *o_part, float *lse_part, int batch, int tq,      \
        int tk, int n_head, int n_kv_head, int kv_capacity, int causal, int row_tiles, int splits,                    \
        int tiles_per_split, float scale) {                                                                           \
        Shape shape = {batch, tq, tk, n_head, n_kv_head, kv_capacity, causal};                                        \
        attention_decode<TYPE, D>(q, k, v, o, o_part, lse_part, shape, row_tiles, splits, tiles_per_split, scale);    \
    }

ATTENTION_DECODE(bf16, bf16, 32)
ATTENTION_DECODE(bf16, bf16, 64)
ATTENTION_DECODE(bf16, bf16, 96)
ATTENTION_DECODE(bf16, bf16, 128)
ATTENTION_DECODE(float, f32, 32)
ATTENTION_DECODE(float, f32, 64)
ATTENTION_DECODE(float, f32, 96)
ATTENTION_DECODE(float, f32, 128)

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_decode_merge_bf16(const float *o_part, const float *lse_part, bf16 *o, long rows, int splits,
                                int head_dim) {
    merge_splits(o_part, lse_part, o, rows, splits, head_dim);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention_decode_merge_f32(const float *o_part, const float *lse_part, float *o, long rows, int splits,
                               int head_dim) {
    merge_splits(o_part, lse_part, o, rows, splits, head_dim);
}

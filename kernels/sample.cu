// The next token of each row of logits: the largest, or a draw from the likeliest that together reach top_p.
//
//   argmax   the largest logit, the lowest id among equals
//   top_p    pᵢ ∝ exp((xᵢ − m) / temperature), m = max x. Tokens in order of falling logit, equal ones in order of id,
//            stay while the mass before them is below top_p (so at least one does); among those, the first whose mass,
//            added to that of all before it, is above u times the mass of all that stay
//
// Shapes: logits [rows,stride], of which the first V of a row are looked at and may be chosen; u [rows] f32 in 0..1;
//   choice [rows] u32: 2³² − 1 if one of the V is NaN or +∞, or all are −∞.
// Threads: a block of 512 a row, on grid x; neighbouring threads read neighbouring logits.
// Shared memory: top_p 64 KB of mass, [16 digits][512 threads], so that no thread waits for another and no bank is
//   asked twice; a number for each warp.
// Moves: the row, again and again from L2: twice for its maximum and mass; for each of the two searches (one with top_p
//   = 1) 8 times, or 4 with bf16 logits; twice for the id.
// Numerics: masses are whole multiples of 2⁻⁴³ of the likeliest token's, so sums are exact in any order. exp in f32.
//   There is no sort: the token at which the mass crosses a target is found digit by digit, 4 bits a pass, in the
//   order-preserving bits of its logit; then, among equal logits, by counting.
// Not yet measured on a card.
#include "common.cuh"

namespace {

using Mass = unsigned long long;
constexpr int THREADS = SAMPLE_THREADS, WARPS = THREADS / WARP;
constexpr int DIGIT_BITS = SAMPLE_DIGIT_BITS, DIGITS = 1 << DIGIT_BITS;
constexpr unsigned NO_CHOICE = 0xffffffffu;
constexpr float UNIT = 0x1p43f;  // the mass of the likeliest token
static_assert(DIGITS == WARPS, "a warp a digit");
static_assert(SAMPLE_MOST_VOCAB <= 0x1p63 / UNIT, "the mass of a row leaves a bit of 64 to spare");

struct Best {
    float logit;
    unsigned id;
};

struct Row {
    float max, temperature;
    int vocab;
};

__device__ __forceinline__ Best better(Best a, Best b) {
    return b.logit > a.logit || (b.logit == a.logit && b.id < a.id) ? b : a;
}

__device__ __forceinline__ Best warp_best(Best best) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) {
        Best other = {__shfl_xor_sync(ALL_LANES, best.logit, step), __shfl_xor_sync(ALL_LANES, best.id, step)};
        best = better(best, other);
    }
    return best;
}

// In every thread; id = NO_CHOICE if there is none.
template <typename T>
__device__ __forceinline__ Best block_best(const T *x_gmem, int vocab) {
    __shared__ Best best_smem[WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Best best = {-INFINITY, NO_CHOICE};
    bool broken = false;
    for (int id = threadIdx.x; id < vocab; id += THREADS) {
        float x = to_float(x_gmem[id]);
        broken |= !(x < INFINITY);
        if (x > best.logit) best = {x, static_cast<unsigned>(id)};
    }
    best = warp_best(best);
    if (lane == 0) best_smem[warp] = best;
    broken = __syncthreads_or(broken);  // every warp's best is there
    best = warp_best(best_smem[lane % WARPS]);
    return broken ? Best{NAN, NO_CHOICE} : best;
}

// Larger logits have larger keys, equal ones equal keys; 16 bits for bf16.
template <typename T>
__device__ __forceinline__ unsigned key_of(float x) {
    unsigned bits = __float_as_uint(x + 0.0f);  // −0 becomes 0
    return (bits >> 31 ? ~bits : bits | 0x80000000u) >> (32 - 8 * sizeof(T));
}

// Its inverse.
template <typename T>
__device__ __forceinline__ float logit_of(unsigned key) {
    constexpr int WIDTH = 8 * sizeof(T);
    constexpr unsigned SIGN = 1u << (WIDTH - 1);
    return __uint_as_float((key & SIGN ? key ^ SIGN : ~key) << (32 - WIDTH));
}

__device__ __forceinline__ Mass mass_of(float x, const Row &row) {
    return __float2ull_rn(expf((x - row.max) / row.temperature) * UNIT);
}

__device__ __forceinline__ Mass warp_sum_mass(Mass x) {
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

template <typename T>
__device__ __forceinline__ Mass total_mass(const T *x_gmem, const Row &row, Mass *sums_smem) {
    Mass sum = 0;
    for (int id = threadIdx.x; id < row.vocab; id += THREADS) sum += mass_of(to_float(x_gmem[id]), row);
    sum = warp_sum_mass(sum);
    if (threadIdx.x % WARP == 0) sums_smem[threadIdx.x / WARP] = sum;
    __syncthreads();  // every warp's sum is there
    sum = 0;
    for (int i = 0; i < WARPS; i++) sum += sums_smem[i];
    return sum;
}

// Where the mass, added up in order, first reaches `target`: the key, the mass of all larger keys, and the how-manieth
// of the tokens with that key it is, from 1.
struct Crossing {
    unsigned key, place;
    Mass before, each;
};

template <typename T>
__device__ __forceinline__ Crossing find(const T *x_gmem, const Row &row, Mass target, Mass (*mass_smem)[THREADS],
                                         Mass *sums_smem) {
    int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    unsigned key = 0;
    Mass before = 0;
    for (int shift = 8 * sizeof(T) - DIGIT_BITS; shift >= 0; shift -= DIGIT_BITS) {
        for (int digit = 0; digit < DIGITS; digit++) mass_smem[digit][thread] = 0;
        for (int id = thread; id < row.vocab; id += THREADS) {
            float x = to_float(x_gmem[id]);
            unsigned shifted = key_of<T>(x) >> shift;
            if (shifted >> DIGIT_BITS == key) mass_smem[shifted % DIGITS][thread] += mass_of(x, row);
        }
        __syncthreads();  // every thread's masses are there
        Mass sum = 0;
        for (int i = lane; i < THREADS; i += WARP) sum += mass_smem[warp][i];
        sum = warp_sum_mass(sum);
        if (lane == 0) sums_smem[warp] = sum;
        __syncthreads();  // every digit's mass is there, and the threads' masses have been read
        int digit = DIGITS - 1;
        while (digit > 0 && before + sums_smem[digit] < target) before += sums_smem[digit--];
        key = key << DIGIT_BITS | digit;
    }
    Mass each = mass_of(logit_of<T>(key), row);
    return {key, static_cast<unsigned>((target - before + each - 1) / each), before, each};
}

// The id of the `place`-th token with that key. One thread returns it, the others NO_CHOICE.
template <typename T>
__device__ __forceinline__ unsigned id_at(const T *x_gmem, int vocab, unsigned key, unsigned place) {
    __shared__ unsigned counts_smem[WARPS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int share = (vocab + THREADS - 1) / THREADS * WARP, begin = warp * share, end = min(begin + share, vocab);
    unsigned count = 0;
    for (int first = begin; first < end; first += WARP) {
        int id = first + lane;
        count += __popc(__ballot_sync(ALL_LANES, id < end && key_of<T>(to_float(x_gmem[id])) == key));
    }
    if (lane == 0) counts_smem[warp] = count;
    __syncthreads();  // every warp's count is there
    for (int i = 0; i < warp; i++) place -= min(place, counts_smem[i]);
    if (place == 0 || place > count) return NO_CHOICE;
    for (int first = begin; first < end; first += WARP) {
        int id = first + lane;
        unsigned found = __ballot_sync(ALL_LANES, id < end && key_of<T>(to_float(x_gmem[id])) == key);
        if (place <= __popc(found)) {
            bool own = found >> lane & 1 && __popc(found & ((1u << lane) - 1)) + 1 == place;
            return own ? id : NO_CHOICE;
        }
        place -= __popc(found);
    }
    return NO_CHOICE;
}

// ⌈share · total⌉ or, with `above`, the least mass greater than share · total; from 1 to total.
__device__ __forceinline__ Mass target_of(float share, Mass total, bool above) {
    double mass = static_cast<double>(share) * static_cast<double>(total);
    Mass target = above ? __double2ull_rd(mass) + 1 : __double2ull_ru(mass);
    return min(max(target, static_cast<Mass>(1)), total);
}

template <typename T>
__device__ __forceinline__ void argmax(const T *logits_gmem, unsigned *choice_gmem, int vocab, int stride) {
    Best best = block_best(logits_gmem + blockIdx.x * static_cast<long>(stride), vocab);
    if (threadIdx.x == 0) choice_gmem[blockIdx.x] = best.id;
}

template <typename T>
__device__ __forceinline__ void top_p_draw(const T *logits_gmem, const float *u_gmem, unsigned *choice_gmem, int vocab,
                                           int stride, float temperature, float top_p) {
    extern __shared__ Mass mass_smem[][THREADS];
    __shared__ Mass sums_smem[WARPS];
    const T *x_gmem = logits_gmem + blockIdx.x * static_cast<long>(stride);
    Best best = block_best(x_gmem, vocab);
    if (best.id == NO_CHOICE) {
        if (threadIdx.x == 0) choice_gmem[blockIdx.x] = NO_CHOICE;
        return;
    }
    Row row = {best.logit, temperature, vocab};
    Mass stay = total_mass(x_gmem, row, sums_smem);
    if (top_p < 1.0f) {
        Crossing last = find(x_gmem, row, target_of(top_p, stay, false), mass_smem, sums_smem);
        stay = last.before + last.place * last.each;
    }
    Crossing chosen = find(x_gmem, row, target_of(u_gmem[blockIdx.x], stay, true), mass_smem, sums_smem);
    unsigned id = id_at(x_gmem, vocab, chosen.key, chosen.place);
    if (id != NO_CHOICE) choice_gmem[blockIdx.x] = id;
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(THREADS)
    sample_argmax_f32(const float *logits, unsigned *choice, int vocab, int stride) {
    argmax(logits, choice, vocab, stride);
}
__global__ void __launch_bounds__(THREADS)
    sample_argmax_bf16(const bf16 *logits, unsigned *choice, int vocab, int stride) {
    argmax(logits, choice, vocab, stride);
}
__global__ void __launch_bounds__(THREADS)
    sample_top_p_f32(const float *logits, const float *u, unsigned *choice, int vocab, int stride, float temperature,
                     float top_p) {
    top_p_draw(logits, u, choice, vocab, stride, temperature, top_p);
}
__global__ void __launch_bounds__(THREADS)
    sample_top_p_bf16(const bf16 *logits, const float *u, unsigned *choice, int vocab, int stride, float temperature,
                      float top_p) {
    top_p_draw(logits, u, choice, vocab, stride, temperature, top_p);
}

}  // extern "C"

// The global norm of many gradients, and the factor that clips them; whoever uses the gradients multiplies by it.
//
//   ‖g‖ = √ Σ over all buffers of g²
//   scale = min(1, max_norm / (‖g‖ + 1e-6)),  1 with max_norm = 0,  NaN where the norm is not finite
//
// Shapes: g [n] f32 or bf16, one launch a buffer; any n, but g is at a multiple of 16 bytes; partial [slots] f64,
//   `first_slot` and on for this buffer, a slot a block; norm, scale [1] f32.
// Threads: 256 a block; a thread takes 16 bytes every blocks · 256; what is left at the end, one thread takes one by one.
//   The second stage is one block.
// Shared memory: a number for each warp.
// Moves each gradient once; 2 FLOPs an element, of which few in f64: bound by memory.
// Numerics: the squares of one 16-byte access are added in f32 where that is safe, in f64 where one could overflow or
//   underflow, and all else in f64, in order: threads, lanes, warps, slots.
// Not yet measured on a card.
#include "common.cuh"

namespace {

constexpr int THREADS = NORM_THREADS, WARPS = THREADS / WARP;
constexpr float SAFE_LEAST = 0x1p-50f, SAFE_MOST = 0x1p60f;

template <int N>
__device__ __forceinline__ double sum_of_squares(const float (&g)[N]) {
    float largest = 0.0f, sum = 0.0f;
#pragma unroll
    for (int j = 0; j < N; j++) largest = max_or_nan(largest, fabsf(g[j])), sum += g[j] * g[j];
    if (largest == 0.0f || (largest >= SAFE_LEAST && largest <= SAFE_MOST)) return sum;
    double exact = 0.0;
#pragma unroll
    for (int j = 0; j < N; j++) exact += static_cast<double>(g[j]) * g[j];
    return exact;
}

// In thread 0.
__device__ __forceinline__ double block_sum_f64(double x, double *partial_smem) {
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    if (lane == 0) partial_smem[warp] = x;
    __syncthreads();  // every warp's part is there
    x = 0.0;
    for (int i = 0; threadIdx.x == 0 && i < WARPS; i++) x += partial_smem[i];
    return x;
}

template <typename T>
__device__ __forceinline__ void partial_sums(const T *g_gmem, double *partial_gmem, long n, long first_slot) {
    constexpr int N = MOST<T>;
    __shared__ double partial_smem[WARPS];
    long stride = gridDim.x * static_cast<long>(THREADS) * N;
    double sum = 0.0;
    for (long i = (blockIdx.x * static_cast<long>(THREADS) + threadIdx.x) * N; i < n; i += stride) {
        if (i + N <= n) {
            float g[N];
            load_vector(g, g_gmem + i);
            sum += sum_of_squares(g);
        } else {
            for (long tail = i; tail < n; tail++) {
                float g[1] = {to_float(g_gmem[tail])};
                sum += sum_of_squares(g);
            }
        }
    }
    sum = block_sum_f64(sum, partial_smem);
    if (threadIdx.x == 0) partial_gmem[first_slot + blockIdx.x] = sum;
}

}  // namespace

extern "C" {

__global__ void global_norm_squares_f32(const float *g, double *partial, long n, long first_slot) {
    partial_sums(g, partial, n, first_slot);
}
__global__ void global_norm_squares_bf16(const bf16 *g, double *partial, long n, long first_slot) {
    partial_sums(g, partial, n, first_slot);
}

// One block.
__global__ void global_norm_finish(const double *partial, float *norm, float *scale, long slots, float max_norm) {
    __shared__ double partial_smem[WARPS];
    double sum = 0.0;
    for (long slot = threadIdx.x; slot < slots; slot += THREADS) sum += partial[slot];
    sum = block_sum_f64(sum, partial_smem);
    if (threadIdx.x > 0) return;
    float length = static_cast<float>(sqrt(sum));
    *norm = length;
    if (!isfinite(length)) {
        *scale = NAN;
    } else {
        *scale = max_norm == 0.0f ? 1.0f : fminf(1.0f, max_norm / (length + 1e-6f));
    }
}

}  // extern "C"

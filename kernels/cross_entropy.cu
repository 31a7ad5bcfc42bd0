// Cross-entropy of next-token prediction with its softmax, and its gradient in place over the logits.
//
//   forward    loss[n] = ln Σᵥ exp(x[n,v] − mₙ) + (mₙ − x[n, target n])         mₙ = maxᵥ x[n,v]
//   backward   x[n,v] ← scale (p[n,v] − [v = target n]),                        p[n,v] = exp(x[n,v] − mₙ) / Σ
//   mean       L = Σₙ loss[n] / N,      scale = d_L / N                         N = targets ≠ ignore_index
//
// Shapes: x [rows,V], a chunk of the logits or all of them; targets [rows] i32; loss [rows] f32; scale and 1/N are
//   numbers, as the host counts the targets. Ignored rows have loss 0 and gradient 0. A target that is neither
//   ignore_index nor in 0..V, which the host refuses before, gives NaN in its row.
// Threads: a block a row, on grid x. A row starts at any element: what precedes the first multiple of 16 bytes goes one
//   by one, then each thread takes 16 bytes, blockDim.x · 16 bytes apart, then the rest goes one by one. The mean:
//   one block of 1024 threads.
// Shared memory: a number for each warp.
// Moves, with the gradient, 2 reads and a write of each logit, the second read from L2 as a row is far smaller; some 30
//   FLOPs a logit: bound by memory.
// Numerics: f32. Each thread keeps a maximum and a sum relative to it, merged over lanes, then warps. NaN and +∞ among the logits make loss and gradient of the row NaN.
// Not yet measured on a card.
#include "common.cuh"

namespace {

static_assert(ONE_BLOCK_THREADS == WARP * WARP, "a lane for each warp's number");

struct RunningSum {
    float max, sum;  // Σ exp(x − max)
};

// −∞ as the largest value so far stands for "nothing yet": differences from it would be NaN.
__device__ __forceinline__ float shift_of(float max) { return max == -INFINITY ? 0.0f : max; }

template <int N>
__device__ __forceinline__ void include(RunningSum &running, const float (&x)[N]) {
    float max = running.max;
#pragma unroll
    for (int j = 0; j < N; j++) max = max_or_nan(max, x[j]);
    float shift = shift_of(max), sum = running.sum * expf(running.max - shift);
#pragma unroll
    for (int j = 0; j < N; j++) sum += expf(x[j] - shift);
    running = {max, sum};
}

// Calls visit(part, first): all elements of the row once, each always by the same thread, N = 1 or MOST at a time.
template <typename T, typename Visit>
__device__ __forceinline__ void for_each_part(const T *row_gmem, int vocab, Visit visit) {
    int past = static_cast<int>(reinterpret_cast<uintptr_t>(row_gmem) % 16 / sizeof(T));
    int head = min((MOST<T> - past) % MOST<T>, vocab), vectors = (vocab - head) / MOST<T>;
    int tail = head + vectors * MOST<T>, thread = threadIdx.x;
    float one[1], most[MOST<T>];
    if (thread < head) visit(one, thread);
    for (int i = thread; i < vectors; i += blockDim.x) visit(most, head + i * MOST<T>);
    if (thread < vocab - tail) visit(one, tail + thread);
}

template <bool GRADIENT, typename T>
__device__ __forceinline__ void cross_entropy(const T *logits_gmem, T *d_logits_gmem, const int *targets_gmem,
                                              float *loss_gmem, float scale, int vocab, int ignore_index) {
    __shared__ float partial_smem[WARP];
    long row = blockIdx.x, start = row * vocab;
    const T *x_gmem = logits_gmem + start;
    int target = targets_gmem[row];
    if (target == ignore_index) {
        if (threadIdx.x == 0) loss_gmem[row] = 0.0f;
        if constexpr (GRADIENT) {
            for_each_part(x_gmem, vocab, [&](auto &part, int first) {
                for (float &x : part) x = 0.0f;
                store_vector(d_logits_gmem + start + first, part);
            });
        }
        return;
    }
    bool valid = 0 <= target && target < vocab;
    float target_logit = valid ? to_float(x_gmem[target]) : NAN;

    RunningSum own = {-INFINITY, 0.0f};
    for_each_part(x_gmem, vocab, [&](auto &part, int first) {
        load_vector(part, x_gmem + first);
        include(own, part);
    });
    float max = block_max(own.max, partial_smem);
    float sum = block_sum(own.sum * expf(own.max - shift_of(max)), partial_smem);
    if (threadIdx.x == 0) loss_gmem[row] = logf(sum) + (max - target_logit);

    if constexpr (GRADIENT) {
        float factor = valid ? scale : NAN, inverse = 1.0f / sum;
        for_each_part(x_gmem, vocab, [&](auto &part, int first) {
            load_vector(part, x_gmem + first);
            int j = 0;
            for (float &x : part) {
                float p = expf(x - max) * inverse;
                x = factor * (first + j++ == target ? p - 1.0f : p);
            }
            store_vector(d_logits_gmem + start + first, part);
        });
    }
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(CROSS_ENTROPY_THREADS)
    cross_entropy_forward_f32(const float *logits, const int *targets, float *loss, int vocab, int ignore_index) {
    cross_entropy<false, float>(logits, nullptr, targets, loss, 0.0f, vocab, ignore_index);
}
__global__ void __launch_bounds__(CROSS_ENTROPY_THREADS)
    cross_entropy_forward_bf16(const bf16 *logits, const int *targets, float *loss, int vocab, int ignore_index) {
    cross_entropy<false, bf16>(logits, nullptr, targets, loss, 0.0f, vocab, ignore_index);
}
__global__ void __launch_bounds__(CROSS_ENTROPY_THREADS)
    cross_entropy_gradient_f32(float *logits, const int *targets, float *loss, float scale, int vocab,
                               int ignore_index) {
    cross_entropy<true>(logits, logits, targets, loss, scale, vocab, ignore_index);
}
__global__ void __launch_bounds__(CROSS_ENTROPY_THREADS)
    cross_entropy_gradient_bf16(bf16 *logits, const int *targets, float *loss, float scale, int vocab,
                                int ignore_index) {
    cross_entropy<true>(logits, logits, targets, loss, scale, vocab, ignore_index);
}

// mean = Σ loss · inverse_count. One block.
__global__ void __launch_bounds__(ONE_BLOCK_THREADS)
    cross_entropy_mean(const float *loss, float *mean, long rows, float inverse_count) {
    __shared__ float partial_smem[WARP];
    float sum = 0.0f;
    for (long row = threadIdx.x; row < rows; row += ONE_BLOCK_THREADS) sum += loss[row];
    sum = block_sum(sum, partial_smem);
    if (threadIdx.x == 0) *mean = sum * inverse_count;
}

}  // extern "C"

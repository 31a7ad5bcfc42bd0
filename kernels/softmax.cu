// Softmax of rows.
//
//   forward    y = exp(x − m) / Σ exp(x − m),   m = max(x);  a row of −∞ only gives zeros
//   backward   d_x = y (d_y − Σ y d_y)
//
// Shapes     x, y, d_y, d_x [rows, C] in T.
// Threads    A warp a row up to 1024 columns, else (`_long`) a block a row; a thread has every size-th vector of
//            16 bytes (`_unaligned`: element). A row is read again from L1, forward twice and backward once.
// Shared     Twice 32 floats, for a maximum and a sum over the block (`_long`).
// Work       An element: forward 2 tensors moved, 2 exponentials and 5 FLOPs, backward 3 and 4.
// Numerics   f32 throughout, one rounding at the end. Sums: a thread's own columns in order, lanes by butterfly, warps
//            by butterfly. NaN or +∞ in a row makes all of it NaN.
// Not yet measured on a card.
#include "rows.cuh"

template <typename T, int VEC, bool LONG>
__device__ __forceinline__ void forward(const T *__restrict__ x_gmem, T *__restrict__ y_gmem, long rows, long cols) {
    Team<LONG> team;
    long row = team.index, step = team.size * VEC;
    if (row >= rows) return;
    x_gmem += row * cols, y_gmem += row * cols;

    float x[VEC], max = -INFINITY, sum = 0.0f;
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_vector<VEC>(x, x_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) max = max_or_nan(x[j], max);
    }
    max = team.max(max);
    if (max == -INFINITY) max = 0.0f;  // then every exponential is 0
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_vector<VEC>(x, x_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) sum += expf(x[j] - max);
    }
    sum = team.sum(sum);
    if (sum == 0.0f) sum = 1.0f;
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_vector<VEC>(x, x_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) x[j] = expf(x[j] - max) / sum;
        store_vector(y_gmem + at, x);
    }
}

template <typename T, int VEC, bool LONG>
__device__ __forceinline__ void backward(const T *__restrict__ y_gmem, const T *__restrict__ d_y_gmem,
                                         T *__restrict__ d_x_gmem, long rows, long cols) {
    Team<LONG> team;
    long row = team.index, step = team.size * VEC;
    if (row >= rows) return;
    y_gmem += row * cols, d_y_gmem += row * cols, d_x_gmem += row * cols;

    float y[VEC], d_y[VEC], inner = 0.0f;
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_vector<VEC>(y, y_gmem + at);
        load_vector<VEC>(d_y, d_y_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) inner = fmaf(y[j], d_y[j], inner);
    }
    inner = team.sum(inner);
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_vector<VEC>(y, y_gmem + at);
        load_vector<VEC>(d_y, d_y_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) d_y[j] = y[j] * (d_y[j] - inner);
        store_vector(d_x_gmem + at, d_y);
    }
}

#define SOFTMAX(T, VEC, LONG, VARIANT) \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS) \
        softmax_forward_##VARIANT(const T *x, T *y, long rows, long cols) { \
        forward<T, VEC, LONG>(x, y, rows, cols); \
    } \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS) \
        softmax_backward_##VARIANT(const T *y, const T *d_y, T *d_x, long rows, long cols) { \
        backward<T, VEC, LONG>(y, d_y, d_x, rows, cols); \
    }

SOFTMAX(float, MOST<float>, false, f32)
SOFTMAX(float, 1, false, f32_unaligned)
SOFTMAX(float, MOST<float>, true, f32_long)
SOFTMAX(float, 1, true, f32_long_unaligned)
SOFTMAX(bf16, MOST<bf16>, false, bf16)
SOFTMAX(bf16, 1, false, bf16_unaligned)
SOFTMAX(bf16, MOST<bf16>, true, bf16_long)
SOFTMAX(bf16, 1, true, bf16_long_unaligned)

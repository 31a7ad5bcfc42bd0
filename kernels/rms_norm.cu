// RMSNorm of rows, alone or with the residual sum in front of it.
//
//   forward    h = x + residual, rounded to T (without residual h = x);  r = 1/√(mean(h²) + ε);  y = r h ∘ g
//   backward   d_x = r (g ∘ d_y) − h r³/C Σ_c(g ∘ d_y ∘ h)  (+ d_h);   d_g = Σ over rows of r h ∘ d_y
//
// Shapes     x, residual, h, y, d_y, d_h, d_x [rows, C] and gain [C] in T; rstd [rows], partial [blocks, C] and
//            d_gain [C] in f32. Forward: residual and h may both be null. Backward: x is what was normalised, so h;
//            d_h may be null.
// Threads    A warp a row up to 1024 columns, else (`_long`) a block a row; a thread has every size-th vector of
//            16 bytes (`_unaligned`: element). A row is read twice, the second time from L1. Backward: a team takes
//            every count-th row; a thread keeps the gain's sums for 32 columns; wider rows take windows along grid y.
// Shared     32 floats for a sum over the block (`_long`); backward 4 KB, in which the warps add up the gain's sums.
// Work       An element: forward 2 tensors moved (residual: 4) and 4 FLOPs, backward 3 (4 with d_h) and 10.
// Numerics   f32 throughout, one rounding at the end. A row's sum: a thread's own columns in order, lanes by butterfly,
//            warps by butterfly. Gain: a team's rows in order, warps in order, then rms_norm_gain adds the blocks'
//            parts, always in the same order; the number of blocks follows from the shape alone.
// Not yet measured on a card.
#include "rows.cuh"

template <int VEC, typename T>
__device__ __forceinline__ void load_sum(float (&h)[VEC], const T *x_gmem, const T *residual_gmem, long at) {
    load_vector<VEC>(h, x_gmem + at);
    if (!residual_gmem) return;
    float residual[VEC];
    load_vector<VEC>(residual, residual_gmem + at);
#pragma unroll
    for (int j = 0; j < VEC; j++) h[j] = to_float(from_float<T>(h[j] + residual[j]));
}

template <typename T, int VEC, bool LONG>
__device__ __forceinline__ void forward(const T *__restrict__ x_gmem, const T *__restrict__ residual_gmem,
                                        const T *__restrict__ gain_gmem, T *__restrict__ h_gmem, T *__restrict__ y_gmem,
                                        float *__restrict__ rstd_gmem, long rows, long cols, float eps) {
    Team<LONG> team;
    long row = team.index, step = team.size * VEC;
    if (row >= rows) return;
    x_gmem += row * cols, y_gmem += row * cols;
    if (residual_gmem) residual_gmem += row * cols, h_gmem += row * cols;

    float h[VEC], squares = 0.0f;
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_sum(h, x_gmem, residual_gmem, at);
        if (residual_gmem) store_vector(h_gmem + at, h);
#pragma unroll
        for (int j = 0; j < VEC; j++) squares = fmaf(h[j], h[j], squares);
    }
    float rstd = 1.0f / sqrtf(team.sum(squares) / cols + eps);
    if (team.rank == 0) rstd_gmem[row] = rstd;

    for (long at = team.rank * VEC; at < cols; at += step) {
        float gain[VEC];
        load_sum(h, x_gmem, residual_gmem, at);
        load_vector<VEC>(gain, gain_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) h[j] = rstd * h[j] * gain[j];
        store_vector(y_gmem + at, h);
    }
}

// Σ g ∘ d_y ∘ x of a row, this thread's part.
template <int VEC, bool LONG, typename T>
__device__ __forceinline__ float inner_product(const Team<LONG> &team, const T *x_gmem, const T *gain_gmem,
                                               const T *d_y_gmem, long cols) {
    float inner = 0.0f;
    for (long at = team.rank * VEC; at < cols; at += team.size * VEC) {
        float x[VEC], gain[VEC], d_y[VEC];
        load_vector<VEC>(x, x_gmem + at);
        load_vector<VEC>(d_y, d_y_gmem + at);
        load_vector<VEC>(gain, gain_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) inner = fmaf(gain[j] * d_y[j], x[j], inner);
    }
    return inner;
}

template <typename T, int VEC, bool LONG>
__device__ __forceinline__ void backward(const T *__restrict__ x_gmem, const T *__restrict__ gain_gmem,
                                         const float *__restrict__ rstd_gmem, const T *__restrict__ d_y_gmem,
                                         const T *__restrict__ d_h_gmem, T *__restrict__ d_x_gmem,
                                         float *__restrict__ partial_gmem, long rows, long cols) {
    Team<LONG> team;
    ColumnSums<VEC, RMS_NORM_OWN, LONG> d_gain;
    for (long row = team.index; row < rows; row += team.count) {
        long first = row * cols;
        float inner = team.sum(inner_product<VEC>(team, x_gmem + first, gain_gmem, d_y_gmem + first, cols));
        float rstd = rstd_gmem[row], along_x = rstd * rstd * rstd * inner / cols;
#pragma unroll
        for (int i = 0; i < d_gain.VECTORS; i++) {
            long at = d_gain.column(team, i);
            if (at >= cols) break;
            float x[VEC], gain[VEC], d_y[VEC], d_x[VEC] = {};
            load_vector<VEC>(x, x_gmem + first + at);
            load_vector<VEC>(d_y, d_y_gmem + first + at);
            load_vector<VEC>(gain, gain_gmem + at);
            if (d_h_gmem) load_vector<VEC>(d_x, d_h_gmem + first + at);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                d_x[j] += rstd * (gain[j] * d_y[j]) - along_x * x[j];
                d_gain.sums[i][j] += rstd * x[j] * d_y[j];
            }
            store_vector(d_x_gmem + first + at, d_x);
        }
    }
    d_gain.store(team, partial_gmem, cols, cols);
}

extern "C" __global__ void __launch_bounds__(WARP * WARP)
    rms_norm_gain(const float *partial, float *d_gain, int parts, long cols, int accumulate) {
    sum_partials(partial, d_gain, parts, cols, cols, accumulate);
}

#define RMS_NORM(T, VEC, LONG, VARIANT) \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS) \
        rms_norm_forward_##VARIANT(const T *x, const T *residual, const T *gain, T *h, T *y, float *rstd, long rows, \
                                   long cols, float eps) { \
        forward<T, VEC, LONG>(x, residual, gain, h, y, rstd, rows, cols, eps); \
    } \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS) \
        rms_norm_backward_##VARIANT(const T *x, const T *gain, const float *rstd, const T *d_y, const T *d_h, \
                                    T *d_x, float *partial, long rows, long cols) { \
        backward<T, VEC, LONG>(x, gain, rstd, d_y, d_h, d_x, partial, rows, cols); \
    }

RMS_NORM(float, MOST<float>, false, f32)
RMS_NORM(float, 1, false, f32_unaligned)
RMS_NORM(float, MOST<float>, true, f32_long)
RMS_NORM(float, 1, true, f32_long_unaligned)
RMS_NORM(bf16, MOST<bf16>, false, bf16)
RMS_NORM(bf16, 1, false, bf16_unaligned)
RMS_NORM(bf16, MOST<bf16>, true, bf16_long)
RMS_NORM(bf16, 1, true, bf16_long_unaligned)

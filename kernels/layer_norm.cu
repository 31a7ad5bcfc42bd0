// LayerNorm of rows.
//
//   forward    μ = mean(x);  r = 1/√(mean((x − μ)²) + ε);  x̂ = r (x − μ);  y = x̂ ∘ g + b
//   backward   with w = g ∘ d_y:  d_x = r (w − mean(w) − x̂ mean(w ∘ x̂))
//              d_g = Σ over rows of x̂ ∘ d_y;  d_b = Σ over rows of d_y
//
// Shapes     x, y, d_y, d_x [rows, C], gain and bias [C] in T; mean, rstd [rows], partial [blocks, 2, C] (gain, then
//            bias), d_gain and d_bias [C] in f32.
// Threads    A warp a row up to 512 columns, else (`_long`) a block a row; a thread has every size-th vector of
//            16 bytes (`_unaligned`: element). A row is read again from L1, forward twice and backward once.
//            Backward: a team takes every count-th row; a thread keeps both sums for 16 columns; wider rows take
//            several windows, grid y.
// Shared     32 floats for sums over the block (`_long`); backward 2 KB, in which the warps add up their sums.
// Work       An element: forward 2 tensors moved and 7 FLOPs, backward 3 and 15.
// Numerics   f32 throughout, one rounding at the end; the variance from differences to the mean, not from
//            E[x²] − E[x]². Orders as in rms_norm: fixed by the shape alone.
// Not yet measured on a card.
#include "rows.cuh"

template <typename T, int VEC, bool LONG>
__device__ __forceinline__ void forward(const T *__restrict__ x_gmem, const T *__restrict__ gain_gmem,
                                        const T *__restrict__ bias_gmem, T *__restrict__ y_gmem,
                                        float *__restrict__ mean_gmem, float *__restrict__ rstd_gmem, long rows,
                                        long cols, float eps) {
    Team<LONG> team;
    long row = team.index, step = team.size * VEC;
    if (row >= rows) return;
    x_gmem += row * cols, y_gmem += row * cols;

    float x[VEC], sum = 0.0f, squares = 0.0f;
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_vector<VEC>(x, x_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) sum += x[j];
    }
    float mean = team.sum(sum) / cols;
    for (long at = team.rank * VEC; at < cols; at += step) {
        load_vector<VEC>(x, x_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) squares = fmaf(x[j] - mean, x[j] - mean, squares);
    }
    float rstd = 1.0f / sqrtf(team.sum(squares) / cols + eps);
    if (team.rank == 0) mean_gmem[row] = mean, rstd_gmem[row] = rstd;

    for (long at = team.rank * VEC; at < cols; at += step) {
        float gain[VEC], bias[VEC];
        load_vector<VEC>(x, x_gmem + at);
        load_vector<VEC>(gain, gain_gmem + at);
        load_vector<VEC>(bias, bias_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) x[j] = rstd * (x[j] - mean) * gain[j] + bias[j];
        store_vector(y_gmem + at, x);
    }
}

// mean(w) and mean(w ∘ x̂) of a row.
template <int VEC, bool LONG, typename T>
__device__ __forceinline__ float2 means(const Team<LONG> &team, const T *x_gmem, const T *gain_gmem, const T *d_y_gmem,
                                        float mean, float rstd, long cols) {
    float sum = 0.0f, inner = 0.0f;
    for (long at = team.rank * VEC; at < cols; at += team.size * VEC) {
        float x[VEC], gain[VEC], d_y[VEC];
        load_vector<VEC>(x, x_gmem + at);
        load_vector<VEC>(d_y, d_y_gmem + at);
        load_vector<VEC>(gain, gain_gmem + at);
#pragma unroll
        for (int j = 0; j < VEC; j++) {
            float w = gain[j] * d_y[j];
            sum += w;
            inner = fmaf(w, rstd * (x[j] - mean), inner);
        }
    }
    sum = team.sum(sum);
    return make_float2(sum / cols, team.sum(inner) / cols);
}

template <typename T, int VEC, bool LONG>
__device__ __forceinline__ void backward(const T *__restrict__ x_gmem, const T *__restrict__ gain_gmem,
                                         const float *__restrict__ mean_gmem, const float *__restrict__ rstd_gmem,
                                         const T *__restrict__ d_y_gmem, T *__restrict__ d_x_gmem,
                                         float *__restrict__ partial_gmem, long rows, long cols) {
    Team<LONG> team;
    ColumnSums<VEC, LAYER_NORM_OWN, LONG> d_gain, d_bias;
    for (long row = team.index; row < rows; row += team.count) {
        long first = row * cols;
        float mean = mean_gmem[row], rstd = rstd_gmem[row];
        float2 of_row = means<VEC>(team, x_gmem + first, gain_gmem, d_y_gmem + first, mean, rstd, cols);
#pragma unroll
        for (int i = 0; i < d_gain.VECTORS; i++) {
            long at = d_gain.column(team, i);
            if (at >= cols) break;
            float x[VEC], gain[VEC], d_y[VEC], d_x[VEC];
            load_vector<VEC>(x, x_gmem + first + at);
            load_vector<VEC>(d_y, d_y_gmem + first + at);
            load_vector<VEC>(gain, gain_gmem + at);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                float normalized = rstd * (x[j] - mean);
                d_x[j] = rstd * (gain[j] * d_y[j] - of_row.x - normalized * of_row.y);
                d_gain.sums[i][j] += normalized * d_y[j];
                d_bias.sums[i][j] += d_y[j];
            }
            store_vector(d_x_gmem + first + at, d_x);
        }
    }
    d_gain.store(team, partial_gmem, 2 * cols, cols);
    d_bias.store(team, partial_gmem + cols, 2 * cols, cols);
}

extern "C" __global__ void __launch_bounds__(WARP * WARP)
    layer_norm_gain(const float *partial, float *d_gain, float *d_bias, int parts, long cols, int accumulate) {
    bool bias = blockIdx.y == 1;
    sum_partials(bias ? partial + cols : partial, bias ? d_bias : d_gain, parts, 2 * cols, cols, accumulate);
}

#define LAYER_NORM(T, VEC, LONG, VARIANT) \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS) \
        layer_norm_forward_##VARIANT(const T *x, const T *gain, const T *bias, T *y, float *mean, float *rstd, \
                                     long rows, long cols, float eps) { \
        forward<T, VEC, LONG>(x, gain, bias, y, mean, rstd, rows, cols, eps); \
    } \
    extern "C" __global__ void __launch_bounds__(ROW_THREADS) \
        layer_norm_backward_##VARIANT(const T *x, const T *gain, const float *mean, const float *rstd, const T *d_y, \
                                      T *d_x, float *partial, long rows, long cols) { \
        backward<T, VEC, LONG>(x, gain, mean, rstd, d_y, d_x, partial, rows, cols); \
    }

LAYER_NORM(float, MOST<float>, false, f32)
LAYER_NORM(float, 1, false, f32_unaligned)
LAYER_NORM(float, MOST<float>, true, f32_long)
LAYER_NORM(float, 1, true, f32_long_unaligned)
LAYER_NORM(bf16, MOST<bf16>, false, bf16)
LAYER_NORM(bf16, 1, false, bf16_unaligned)
LAYER_NORM(bf16, MOST<bf16>, true, bf16_long)
LAYER_NORM(bf16, 1, true, bf16_long_unaligned)

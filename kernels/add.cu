// Addition: residual sums of one shape, and a second operand repeated over rows (biases, position tables).
//
//   forward         y[r,c] = a[r,c] + b[r,c]   or   a[r,c] + b[c]
//   backward        d_a = d_y;   d_b[c] = Σᵣ d_y[r,c], in two stages
//
// Shapes: a, y, d_y [rows,cols]; b [rows,cols] or [cols]; partial [chunks,cols] f32; d_b [cols] f32. y may be a or b.
// Threads: same shape: one for 16 bytes of each operand, on grid x. Repeated: blocks of 32 × 8; a thread owns N
//   neighbouring columns of one row (16 bytes; one in `_unaligned`, for rows that are no multiple of that), in the
//   backward of every 8th row of a chunk. Forward: tiles of 32 · N columns × 8 rows on grid x, row by row. Backward:
//   column tiles on grid x, chunks of rows on grid y; the chunks are then added as in rows.cuh.
// Shared memory: backward 8 × N × (32 + 32/N) floats: [row of threads][column of the thread][lane], skewed so that
//   neither lanes nor neighbouring columns share a bank; then 4 KB for the chunks' sums.
// Moves 3·rows·cols elements (2 if repeated, as b stays in L1; backward 1, and the partial sums twice), a FLOP each:
//   bound by memory.
// Numerics: f32 inside, rounded once. d_b: a thread adds its rows in order, then the 8 threads of a column, then
//   sum_partials the chunks, each in a fixed order.
// Not yet measured on a card.
#include "elementwise.cuh"
#include "rows.cuh"

namespace {

constexpr int LANES = ADD_LANES, THREAD_ROWS = ADD_THREAD_ROWS;
static_assert(LANES * MOST<bf16> <= LANES * THREAD_ROWS, "a thread for each column of a tile");

struct Sum {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

// `cols` is a multiple of N. The block's tile is blockIdx.x, column tiles first.
template <int N, typename T>
__device__ __forceinline__ void add_repeated(const T *a_gmem, const T *b_gmem, T *y_gmem, long rows, long cols) {
    unsigned tiles = (cols + LANES * N - 1) / (LANES * N);
    long col = (blockIdx.x % tiles * static_cast<long>(LANES) + threadIdx.x) * N;
    long row = blockIdx.x / tiles * static_cast<long>(THREAD_ROWS) + threadIdx.y;
    if (row >= rows || col >= cols) return;
    float a[N], b[N];
    load_vector(a, a_gmem + row * cols + col);
    load_vector(b, b_gmem + col);
#pragma unroll
    for (int j = 0; j < N; j++) a[j] += b[j];
    store_vector(y_gmem + row * cols + col, a);
}

// Block (x, y) adds up rows y·chunk_rows … of column tile x.
template <int N, typename T>
__device__ __forceinline__ void column_sums(const T *d_y_gmem, float *partial_gmem, long rows, long cols,
                                            long chunk_rows) {
    constexpr int SKEWED = LANES + LANES / N, TILE = LANES * N;
    __shared__ float sums_smem[THREAD_ROWS][N][SKEWED];
    int lane = threadIdx.x, thread_row = threadIdx.y;
    long tile = blockIdx.x * static_cast<long>(TILE), col = tile + lane * N;
    long begin = blockIdx.y * chunk_rows, end = min(begin + chunk_rows, rows);
    float sum[N] = {};
    if (col < cols) {
#pragma unroll 4
        for (long row = begin + thread_row; row < end; row += THREAD_ROWS) {
            float d_y[N];
            load_vector(d_y, d_y_gmem + row * cols + col);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] += d_y[j];
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) sums_smem[thread_row][j][lane] = sum[j];
    __syncthreads();  // the sums of all rows of threads are there
    int thread = thread_row * LANES + lane;
    if (thread < TILE && tile + thread < cols) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; i++) total += sums_smem[i][thread % N][thread / N];
        partial_gmem[blockIdx.y * cols + tile + thread] = total;
    }
}

}  // namespace

extern "C" {

__global__ void add_forward_f32(const float *a, const float *b, float *y, long n) { zip<Sum, MOST<float>>(a, b, y, n); }
__global__ void add_forward_bf16(const bf16 *a, const bf16 *b, bf16 *y, long n) { zip<Sum, MOST<bf16>>(a, b, y, n); }

__global__ void add_repeated_forward_f32(const float *a, const float *b, float *y, long rows, long cols) {
    add_repeated<MOST<float>>(a, b, y, rows, cols);
}
__global__ void add_repeated_forward_f32_unaligned(const float *a, const float *b, float *y, long rows, long cols) {
    add_repeated<1>(a, b, y, rows, cols);
}
__global__ void add_repeated_forward_bf16(const bf16 *a, const bf16 *b, bf16 *y, long rows, long cols) {
    add_repeated<MOST<bf16>>(a, b, y, rows, cols);
}
__global__ void add_repeated_forward_bf16_unaligned(const bf16 *a, const bf16 *b, bf16 *y, long rows, long cols) {
    add_repeated<1>(a, b, y, rows, cols);
}

__global__ void add_repeated_backward_f32(const float *d_y, float *partial, long rows, long cols, long chunk_rows) {
    column_sums<MOST<float>>(d_y, partial, rows, cols, chunk_rows);
}
__global__ void add_repeated_backward_f32_unaligned(const float *d_y, float *partial, long rows, long cols,
                                                    long chunk_rows) {
    column_sums<1>(d_y, partial, rows, cols, chunk_rows);
}
__global__ void add_repeated_backward_bf16(const bf16 *d_y, float *partial, long rows, long cols, long chunk_rows) {
    column_sums<MOST<bf16>>(d_y, partial, rows, cols, chunk_rows);
}
__global__ void add_repeated_backward_bf16_unaligned(const bf16 *d_y, float *partial, long rows, long cols,
                                                     long chunk_rows) {
    column_sums<1>(d_y, partial, rows, cols, chunk_rows);
}

// d_b = Σ over the chunks, or += with `accumulate`.
__global__ void __launch_bounds__(WARP * WARP)
    add_repeated_reduce(const float *partial, float *d_b, int chunks, long cols, int accumulate) {
    sum_partials(partial, d_b, chunks, cols, cols, accumulate);
}

}  // extern "C"

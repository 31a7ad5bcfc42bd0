// Kernels that need more of a card than some launches may have.

extern "C" __global__ void plain(float *y) { y[threadIdx.x + blockIdx.x * blockDim.x] = 1.0f; }

// 60 KiB of static shared memory; the limit is 48.
extern "C" __global__ void large_static_shared(const float *x, float *y) {
    __shared__ float tile[15 * 1024];
    for (int i = threadIdx.x; i < 15 * 1024; i += blockDim.x) tile[i] = x[0];
    __syncthreads();
    y[threadIdx.x] = tile[15 * 1024 - 1 - threadIdx.x];
}

extern "C" __global__ void dynamic_shared(const float *x, float *y, int n) {
    extern __shared__ float tile[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) tile[i] = x[0];
    __syncthreads();
    y[threadIdx.x] = tile[n - 1 - threadIdx.x];
}

// 128 sums that live at once: 1024 threads of them do not fit into 65,536 registers.
extern "C" __global__ void many_registers(const float *x, float *y, int n) {
    float sum[128];
#pragma unroll
    for (int j = 0; j < 128; j++) sum[j] = 0.0f;
    for (int i = 0; i < n; i++) {
        float value = x[i * blockDim.x + threadIdx.x];
#pragma unroll
        for (int j = 0; j < 128; j++) sum[j] = fmaf(sum[j], value, value + j);
    }
#pragma unroll
    for (int j = 0; j < 128; j++) y[j * blockDim.x + threadIdx.x] = sum[j];
}

extern "C" __global__ void __launch_bounds__(128) at_most_128_threads(float *y) { y[threadIdx.x] = 1.0f; }

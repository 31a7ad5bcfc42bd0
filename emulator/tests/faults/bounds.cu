// Access outside of what the program may touch. The line of each mistake carries `FAULT:` and its kernel's name; compiled
// with -DFIXED, the kernels are right.
#include "helper.cuh"

#ifdef FIXED
constexpr bool WRONG = false;
#else
constexpr bool WRONG = true;
#endif

// Blocks of 64 threads over n elements in each of these.

extern "C" __global__ void read_out_of_bounds(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int from = WRONG && i == 101 ? i + 100000 : i;
    y[i] = x[from];  // FAULT: read_out_of_bounds
}

extern "C" __global__ void write_out_of_bounds(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = x[i] * 2.0f;
    int to = WRONG && i == 70 ? i + 100000 : i;
    y[to] = value;  // FAULT: write_out_of_bounds
}

// The usual mistake: <= for <.
extern "C" __global__ void past_the_end(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (WRONG ? i <= n : i < n) {
        float value = x[i];  // FAULT: past_the_end
        y[i] = value;
    }
}

extern "C" __global__ void before_the_start(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || (!WRONG && i == 0)) return;
    float left = x[i - 1];  // FAULT: before_the_start
    y[i] = left;
}

extern "C" __global__ void shared_out_of_bounds(const float *x, float *y, int n) {
    __shared__ float tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    int right = WRONG ? threadIdx.x + 1 : (threadIdx.x + 1) % 64;
    y[i] = tile[right];  // FAULT: shared_out_of_bounds
}

// Dynamic shared memory: the launch gives 64 floats.
extern "C" __global__ void dynamic_shared_out_of_bounds(const float *x, float *y, int n) {
    extern __shared__ float dynamic_tile[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int to = WRONG ? threadIdx.x * 2 : threadIdx.x;
    dynamic_tile[to] = x[i];  // FAULT: dynamic_shared_out_of_bounds
    __syncthreads();
    y[i] = dynamic_tile[to];
}

// `order` names the element of a local array of 8.
extern "C" __global__ void local_out_of_bounds(const int *order, float *y, int n) {
    float own[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 0; j < 8; j++) own[order[j]] = (float)j;
    int from = WRONG && i == 66 ? 8 : order[i % 8];
    y[i] = own[from];  // FAULT: local_out_of_bounds
}

// The host frees x before the launch.
extern "C" __global__ void use_after_free(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i];  // FAULT: use_after_free
}

extern "C" __global__ void misaligned_vector(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    const float4 *from = reinterpret_cast<const float4 *>(x + (WRONG && i == 5 ? 1 : 0));
    float4 four = from[i];  // FAULT: misaligned_vector
    y[i] = four.x + four.y + four.z + four.w;
}

extern "C" __global__ void misaligned_store(const float *x, char *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float *to = reinterpret_cast<float *>(y + i * 4 + (WRONG && i == 3 ? 2 : 0));
    *to = x[i];  // FAULT: misaligned_store
}

extern "C" __global__ void atomic_out_of_bounds(const unsigned *x, unsigned *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned bin = WRONG ? x[i] : x[i] % 16;
    atomicAdd(&y[bin], 1u);  // FAULT: atomic_out_of_bounds
}

extern "C" __global__ void inside_a_helper(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = x[i] + 1.0f;
    put(y, WRONG && i == 9 ? -1 : i, value);  // FAULT: inside_a_helper
}

extern "C" __global__ void inside_two_helpers(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 2) return;
    y[i] = fetch_pair(x, WRONG && i == 9 ? n : i);  // FAULT: inside_two_helpers
}

// cp.async of 16 bytes of which the last 4 lie beyond the allocation.
extern "C" __global__ void copy_out_of_bounds(const float *x, float *y, int n) {
    __shared__ __align__(16) float tile[4 * 64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x * 4]);
    int valid = max(0, min(16, (n - i * 4) * 4));
    if (WRONG && valid > 0) valid = 16;
    const float *from = valid > 0 ? x + i * 4 : x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory"); // FAULT: copy_out_of_bounds
    asm volatile("cp.async.wait_all;" ::: "memory");
    if (i * 4 < n) y[i] = tile[threadIdx.x * 4];
}

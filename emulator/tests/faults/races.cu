// Accesses that nothing orders. The line of each mistake's discovery carries `FAULT:` and its kernel's name (where either
// of two accesses may come last, both lines do); compiled with -DFIXED, the kernels are right.
#ifdef FIXED
#define MISSING(barrier) barrier
constexpr bool WRONG = false;
#else
#define MISSING(barrier)
constexpr bool WRONG = true;
#endif

// Blocks of 64 threads: each thread reads what the other warp wrote.
extern "C" __global__ void read_after_write(const float *x, float *y) {
    __shared__ float tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = 0.0f;
    __syncthreads();
    tile[threadIdx.x] = x[i];  // FAULT: read_after_write
    MISSING(__syncthreads());
    y[i] = tile[63 - threadIdx.x];  // FAULT: read_after_write
}

extern "C" __global__ void write_after_read(const float *x, float *y, int rounds) {
    __shared__ float tile[64];
    float sum = 0.0f;
    for (int round = 0; round < rounds; round++) {
        tile[threadIdx.x] = x[round * 64 + threadIdx.x];  // FAULT: write_after_read
        __syncthreads();
        sum += tile[63 - threadIdx.x];  // FAULT: write_after_read
        MISSING(__syncthreads());
    }
    y[threadIdx.x] = sum;
}

extern "C" __global__ void write_after_write(const float *x, float *y) {
    __shared__ float total;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (WRONG ? threadIdx.x % 32 == 0 : threadIdx.x == 0) total = x[i];  // FAULT: write_after_write
    __syncthreads();
    y[i] = total;
}

// Lanes of one warp are not in step either.
extern "C" __global__ void within_a_warp(const float *x, float *y) {
    __shared__ float tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    tile[warp * 32 + lane] = x[i];  // FAULT: within_a_warp
    MISSING(__syncwarp());
    y[i] = tile[warp * 32 + 31 - lane];  // FAULT: within_a_warp
}

// A barrier of half the warp does not order the other half.
extern "C" __global__ void half_a_warp(const float *x, float *y) {
    __shared__ float tile[32];
    int lane = threadIdx.x;
    tile[lane] = x[lane];  // FAULT: half_a_warp
    if (WRONG) {
        if (lane < 16) __syncwarp(0x0000ffffu);
    } else {
        __syncwarp();
    }
    y[lane] = tile[31 - lane];  // FAULT: half_a_warp
}

// An atomic and a plain access.
extern "C" __global__ void atomic_and_plain(const int *x, int *y) {
    __shared__ int total;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    atomicAdd(&total, x[threadIdx.x]);  // FAULT: atomic_and_plain
    MISSING(__syncthreads());
    if (threadIdx.x == 40) *y = total;  // FAULT: atomic_and_plain
}

// Through global memory, in one block.
extern "C" __global__ void global_in_a_block(const float *x, float *scratch, float *y) {
    scratch[threadIdx.x] = x[threadIdx.x];  // FAULT: global_in_a_block
    MISSING(__syncthreads());
    y[threadIdx.x] = scratch[63 - threadIdx.x];  // FAULT: global_in_a_block
}

// Two blocks write one word.
extern "C" __global__ void global_between_blocks(const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int to = WRONG ? threadIdx.x : i;
    y[to] = x[i];  // FAULT: global_between_blocks
}

// The copy's data is for the thread that waited; for the others only after a barrier.
extern "C" __global__ void copy_without_barrier(const float *x, float *y) {
    __shared__ float tile[64];
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + threadIdx.x) : "memory"); // FAULT: copy_without_barrier
    asm volatile("cp.async.wait_all;" ::: "memory"); // FAULT: copy_without_barrier
    MISSING(__syncthreads());
    y[threadIdx.x] = tile[63 - threadIdx.x];  // FAULT: copy_without_barrier
}

extern "C" __global__ void copy_without_wait(const float *x, float *y) {
    __shared__ float tile[64];
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + threadIdx.x) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    MISSING(asm volatile("cp.async.wait_group 0;" ::: "memory"));
    y[threadIdx.x] = tile[threadIdx.x];  // FAULT: copy_without_wait
}

// The wait leaves one group under way, and it is the one that is read.
extern "C" __global__ void copy_of_the_wrong_group(const float *x, float *y) {
    __shared__ float tile[2][64];
    for (int i = 0; i < 2; i++) {
        unsigned to = (unsigned)__cvta_generic_to_shared(&tile[i][threadIdx.x]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + i * 64 + threadIdx.x) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    y[threadIdx.x] = tile[WRONG ? 1 : 0][threadIdx.x];  // FAULT: copy_of_the_wrong_group
}

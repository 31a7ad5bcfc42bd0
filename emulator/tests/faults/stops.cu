// Kernels that do not end well. The line of each mistake carries `FAULT:` and its kernel's name; compiled with -DFIXED, the
// kernels are right.
#include <cassert>

#ifdef FIXED
constexpr bool WRONG = false;
#else
constexpr bool WRONG = true;
#endif

extern "C" __global__ void divergent_barrier(const float *x, float *y) {
    __shared__ float total;
    int i = threadIdx.x;
    if (i == 0) total = x[0];
    if (!WRONG || i % 32 < 16) {
        __syncthreads();  // FAULT: divergent_barrier
        y[i] = total;
    } else {
        y[i] = 2.0f;
        __syncthreads();  // FAULT: divergent_barrier
        y[i] += total;
    }
}

// Half a warp waits for the whole at a warp barrier, the other half at a block barrier.
extern "C" __global__ void lanes_never_meet(const float *x, float *y) {
    int i = threadIdx.x;
    if (!WRONG) {
        __syncwarp();
        __syncthreads();
    } else if (i % 32 < 16) {
        __syncwarp();  // FAULT: lanes_never_meet
    } else {
        __syncthreads();  // FAULT: lanes_never_meet
    }
    y[i] = x[i];
}

// A shuffle reads a lane that left.
extern "C" __global__ void shuffle_from_absent_lane(const int *x, int *y) {
    int i = threadIdx.x, value = x[i];
    if (WRONG && i % 32 >= 30) {
        y[i] = value;
    } else {
        unsigned mask = WRONG ? 0x3fffffffu : 0xffffffffu;
        y[i] = __shfl_down_sync(mask, value, 1);  // FAULT: shuffle_from_absent_lane
    }
}

// Two warps, each at another barrier.
extern "C" __global__ void deadlock(const float *x, float *y) {
    int id = WRONG && threadIdx.x >= 32 ? 2 : 1;
    asm volatile("bar.sync %0, 64;" ::"r"(id) : "memory");  // FAULT: deadlock
    y[threadIdx.x] = x[threadIdx.x];
}

// Waits for a flag that nobody sets.
extern "C" __global__ void endless_loop(const float *x, volatile int *flag, float *y) {
    while (*flag == (WRONG ? 0 : 1)) {  // FAULT: endless_loop
    }
    y[threadIdx.x] = x[threadIdx.x];
}

extern "C" __global__ void trapped(const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (WRONG && i == 75) __trap();  // FAULT: trapped
    y[i] = x[i];
}

extern "C" __global__ void asserted(const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    assert(!WRONG || i != 75);  // FAULT: asserted
    y[i] = x[i];
}


// Cross entropy of logits [N,V] with targets [N]; a target of −100 is ignored: loss 0 and gradient 0.
//
//   lse_n = log Σ_v exp(x_nv)     loss_n = lse_n − x_n,target     dx_nv = (exp(x_nv − lse_n) − [v = target])·scale
//
// One block a row. Forward reads the row once: every thread keeps a running maximum and a sum relative to it, and the
// pairs are merged by shuffles, then through shared memory. Backward reads and writes the row in place.
#include <cuda_bf16.h>
#include <math.h>

namespace {

constexpr int IGNORED = -100;

struct RunningSum {
    float max, sum;
};

__device__ __forceinline__ RunningSum merge(RunningSum x, RunningSum y) {
    float max = fmaxf(x.max, y.max);
    if (max == -INFINITY) return x;  // both are empty
    return {max, x.sum * expf(x.max - max) + y.sum * expf(y.max - max)};
}

__device__ __forceinline__ RunningSum warp_merge(RunningSum x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        float max = __shfl_down_sync(0xffffffffu, x.max, step);
        float sum = __shfl_down_sync(0xffffffffu, x.sum, step);
        x = merge(x, {max, sum});
    }
    return x;
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void set(float &to, float x) { to = x; }
__device__ __forceinline__ void set(__nv_bfloat16 &to, float x) { to = __float2bfloat16(x); }

template <typename T>
__device__ __forceinline__ void forward(const T *logits, const int *targets, float *loss, float *lse, int v) {
    __shared__ RunningSum partial[32];
    int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const T *x = logits + (size_t)row * v;
    RunningSum own = {-INFINITY, 0.0f};
    for (int i = threadIdx.x; i < v; i += blockDim.x) own = merge(own, {to_float(x[i]), 1.0f});
    own = warp_merge(own);
    if (lane == 0) partial[warp] = own;
    __syncthreads();  // every warp's pair is there
    if (warp == 0) {
        own = lane < blockDim.x / 32 ? partial[lane] : RunningSum{-INFINITY, 0.0f};
        own = warp_merge(own);
        if (lane == 0) {
            float log_sum = own.max + logf(own.sum);
            int target = targets[row];
            lse[row] = log_sum;
            loss[row] = target == IGNORED ? 0.0f : log_sum - to_float(x[target]);
        }
    }
}

template <typename T>
__device__ __forceinline__ void backward(T *logits, const int *targets, const float *lse, float scale, int v) {
    int row = blockIdx.x, target = targets[row];
    T *x = logits + (size_t)row * v;
    float log_sum = lse[row];
    for (int i = threadIdx.x; i < v; i += blockDim.x) {
        float probability = expf(to_float(x[i]) - log_sum);
        float slope = target == IGNORED ? 0.0f : (probability - (i == target ? 1.0f : 0.0f)) * scale;
        set(x[i], slope);
    }
}

}  // namespace

extern "C" __global__ void cross_entropy_forward_f32(const float *logits, const int *targets, float *loss, float *lse,
                                                     int v) {
    forward(logits, targets, loss, lse, v);
}

extern "C" __global__ void cross_entropy_forward_bf16(const __nv_bfloat16 *logits, const int *targets, float *loss,
                                                      float *lse, int v) {
    forward(logits, targets, loss, lse, v);
}

extern "C" __global__ void cross_entropy_backward_f32(float *logits, const int *targets, const float *lse, float scale,
                                                      int v) {
    backward(logits, targets, lse, scale, v);
}

extern "C" __global__ void cross_entropy_backward_bf16(__nv_bfloat16 *logits, const int *targets, const float *lse,
                                                       float scale, int v) {
    backward(logits, targets, lse, scale, v);
}

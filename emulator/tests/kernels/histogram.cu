// counts[b] += the number of bytes equal to b, for 256 bins. Each block counts in shared memory with atomics, then adds
// its bins to the result. A thread reads four bytes at a time; the last, incomplete four go one by one.

extern "C" __global__ void histogram(const unsigned char *__restrict__ data, unsigned *counts, unsigned n) {
    __shared__ unsigned bins[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) bins[i] = 0;
    __syncthreads();  // all bins are zero
    unsigned stride = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < (n + 3) / 4; i += stride) {
        if (i * 4 + 4 <= n) {
            uchar4 four = reinterpret_cast<const uchar4 *>(data)[i];
            atomicAdd(&bins[four.x], 1);
            atomicAdd(&bins[four.y], 1);
            atomicAdd(&bins[four.z], 1);
            atomicAdd(&bins[four.w], 1);
        } else {
            for (unsigned j = i * 4; j < n; j++) atomicAdd(&bins[data[j]], 1);
        }
    }
    __syncthreads();  // the block has counted everything
    for (int i = threadIdx.x; i < 256; i += blockDim.x)
        if (bins[i] != 0) atomicAdd(&counts[i], bins[i]);
}

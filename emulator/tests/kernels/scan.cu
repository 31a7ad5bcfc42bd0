// Inclusive prefix sum of n 32-bit integers, in three kernels: scan_blocks leaves each block's own scan and total,
// a second scan_blocks scans the totals (so at most 1024 blocks), scan_add adds the total of all earlier blocks.
//
// Within a warp the sums double their reach in shared memory, with warp barriers between reading and writing; warp 0 then
// does the same with the warps' totals.

namespace {

__device__ __forceinline__ int warp_scan(int x, int *slots) {
    int lane = threadIdx.x % 32;
    slots[lane] = x;
    __syncwarp();  // all slots are written
#pragma unroll
    for (int reach = 1; reach < 32; reach *= 2) {
        int left = lane >= reach ? slots[lane - reach] : 0;
        __syncwarp();  // all neighbours are read
        x += left;
        slots[lane] = x;
        __syncwarp();  // all slots are written
    }
    return x;
}

}  // namespace

extern "C" __global__ void scan_blocks(const int *x, int *y, int *totals, int n) {
    __shared__ int slots[32][32];
    __shared__ int warp_totals[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = warp_scan(i < n ? x[i] : 0, slots[warp]);
    if (lane == 31) warp_totals[warp] = sum;
    __syncthreads();  // every warp's total is there
    if (warp == 0) {
        int total = warp_scan(lane < blockDim.x / 32 ? warp_totals[lane] : 0, slots[0]);
        warp_totals[lane] = total;
    }
    __syncthreads();  // the totals are scanned
    if (warp > 0) sum += warp_totals[warp - 1];
    if (i < n) y[i] = sum;
    if (totals != nullptr && threadIdx.x == blockDim.x - 1) totals[blockIdx.x] = sum;
}

extern "C" __global__ void scan_add(int *y, const int *scanned_totals, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.x > 0 && i < n) y[i] += scanned_totals[blockIdx.x - 1];
}

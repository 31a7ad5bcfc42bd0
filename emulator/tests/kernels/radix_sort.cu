// Sorts up to 2048 unsigned keys in one block of 256 threads, four bits a pass. The ranks within a warp come from
// __match_any_sync: lanes with the same digit find each other, and their order among themselves from the lanes below.
//
// A pass: every warp owns 256 neighbouring keys, 8 rounds of 32, and counts its digits in counts[digit][warp]; the counts
// are scanned in that order; then each key goes to the place of its digit, stable, so that passes compose.

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32, KEYS = 2048, ROUNDS = KEYS / THREADS, DIGITS = 16;

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS) radix_sort(const unsigned *in, unsigned *out, int n) {
    __shared__ unsigned keys[2][KEYS];
    __shared__ unsigned counts[DIGITS * WARPS];
    int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    for (int i = thread; i < KEYS; i += THREADS) keys[0][i] = i < n ? in[i] : 0xffffffffu;

    for (int pass = 0; pass < 8; pass++) {
        const unsigned *from = keys[pass % 2];
        unsigned *to = keys[1 - pass % 2];
        if (thread < DIGITS * WARPS) counts[thread] = 0;
        __syncthreads();  // the keys are in place, the counts are zero
        for (int round = 0; round < ROUNDS; round++) {
            unsigned digit = from[warp * (KEYS / WARPS) + round * 32 + lane] >> (pass * 4) & 15u;
            unsigned peers = __match_any_sync(0xffffffffu, digit);
            if (lane == __ffs(peers) - 1) counts[digit * WARPS + warp] += __popc(peers);
            __syncwarp();  // the next round's leaders see these counts
        }
        __syncthreads();  // all digits are counted
        if (warp == 0) {  // exclusive scan of 128 counts: four a lane
            unsigned own[4], sum = 0;
            for (int i = 0; i < 4; i++) own[i] = counts[lane * 4 + i];
            for (int i = 0; i < 4; i++) {
                unsigned count = own[i];
                own[i] = sum;
                sum += count;
            }
            unsigned before = sum;
            for (int step = 1; step < 32; step *= 2) {
                unsigned left = __shfl_up_sync(0xffffffffu, before, step);
                if (lane >= step) before += left;
            }
            for (int i = 0; i < 4; i++) counts[lane * 4 + i] = before - sum + own[i];
        }
        __syncthreads();  // the counts have become places
        for (int round = 0; round < ROUNDS; round++) {
            unsigned key = from[warp * (KEYS / WARPS) + round * 32 + lane], digit = key >> (pass * 4) & 15u;
            unsigned peers = __match_any_sync(0xffffffffu, digit);
            unsigned place = counts[digit * WARPS + warp] + __popc(peers & ((1u << lane) - 1));
            to[place] = key;
            __syncwarp();  // all lanes have read the places
            if (lane == __ffs(peers) - 1) counts[digit * WARPS + warp] += __popc(peers);
            __syncwarp();  // the next round sees the places that are left
        }
        __syncthreads();  // the pass is complete before its counts are cleared
    }
    for (int i = thread; i < n; i += THREADS) out[i] = keys[0][i];
}

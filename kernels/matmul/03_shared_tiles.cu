// Matrix product, rung 3: a block fetches tiles of A and B once, and its threads share them.
//
// C[i,j] = Σ_l A[i,l] B[l,j]. All f32 and row-major: a [M,K], b [K,N], c [M,N]; any M, N, K.
// Threads: a block of (32, 32) has a tile of 32×32 of C; thread (x, y) has row y and column x, and fetches element
// (y, x) of both tiles.
// Shared memory: a_smem [32 rows][32 of K], b_smem [32 of K][32 columns]. A warp reads one word of a_smem (a
// broadcast) and a row of b_smem: no bank conflicts. What lies outside the matrices is stored as zero.
// Moved: every element fetched serves 32 threads: 8K/32 bytes for 2K FLOPs.
// Numerics: f32, one fused multiply-add for each l, ascending.
// Not yet measured on a card.

// Changed: neighbouring elements of C need the same rows and columns; the block now fetches them together, 32 times
// fewer loads. The counter: global sectors, from 5 to 8/32 for each multiply-add of a warp. The price, two
// shared-memory wavefronts for each multiply-add, is what the next rung pays less of.

constexpr int TILE = 32;

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    ladder_matmul_03_shared_tiles(const float *a, const float *b, float *c, long m, long n, long k) {
    __shared__ float a_smem[TILE][TILE], b_smem[TILE][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    long row = blockIdx.x * (long)TILE + y, column = blockIdx.y * (long)TILE + x;
    float sum = 0.0f;
    for (long k0 = 0; k0 < k; k0 += TILE) {
        a_smem[y][x] = row < m && k0 + x < k ? a[row * k + k0 + x] : 0.0f;
        b_smem[y][x] = k0 + y < k && column < n ? b[(k0 + y) * n + column] : 0.0f;
        __syncthreads();  // both tiles are complete
#pragma unroll
        for (int l = 0; l < TILE; l++) sum = fmaf(a_smem[y][l], b_smem[l][x], sum);
        __syncthreads();  // nobody still reads the tiles that the next step overwrites
    }
    if (row < m && column < n) c[row * n + column] = sum;
}

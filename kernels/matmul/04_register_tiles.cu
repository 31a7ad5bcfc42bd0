// Matrix product, rung 4: a thread computes 8×8 elements, from operands that it keeps in registers.
//
// C[i,j] = Σ_l A[i,l] B[l,j]. All f32 and row-major: a [M,K], b [K,N], c [M,N]; any M, N, K.
// Threads: a block of (16, 16) has a tile of 128×128 of C; thread (x, y) owns rows y + 16i and columns x + 16j, i, j
// < 8.
// Shared memory: a_smem [128 rows][8 of K], b_smem [8 of K][128 columns]. A warp reads two words of a_smem, 8 banks
// apart, and 16 neighbours of b_smem: no bank conflicts. What lies outside the matrices is stored as zero.
// Moved: every element fetched serves a row or column of 128: 8K/128 bytes for 2K FLOPs.
// Numerics: f32, one fused multiply-add for each l, ascending.
// Not yet measured on a card.

// Changed: 16 words from shared memory now feed 64 multiply-adds instead of 8, and the larger tile reads global
// memory four times less. The counters: shared wavefronts, from 2 to 1/4 for each multiply-add of a warp; and
// instructions, because most of them are now multiply-adds.

constexpr int TILE = 128, STEP = 8, SIDE = 16, OWN = TILE / SIDE, THREADS = SIDE * SIDE;

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    ladder_matmul_04_register_tiles(const float *a, const float *b, float *c, long m, long n, long k) {
    __shared__ float a_smem[TILE][STEP], b_smem[STEP][TILE];
    int x = threadIdx.x, y = threadIdx.y;
    long row0 = blockIdx.x * (long)TILE, column0 = blockIdx.y * (long)TILE;
    float sum[OWN][OWN] = {};

    a += row0 * k, b += column0, c += row0 * n + column0;                               // the tiles' corners
    int rows = min(m - row0, (long)TILE), columns = min(n - column0, (long)TILE);  // inside the matrices

    for (long k0 = 0; k0 < k; k0 += STEP) {
        int depths = min(k - k0, (long)STEP);
        for (int i = y * SIDE + x; i < TILE * STEP; i += THREADS) {
            int row = i / STEP, depth = i % STEP;
            a_smem[row][depth] = row < rows && depth < depths ? a[row * k + k0 + depth] : 0.0f;
        }
        for (int i = y * SIDE + x; i < STEP * TILE; i += THREADS) {
            int depth = i / TILE, column = i % TILE;
            b_smem[depth][column] = depth < depths && column < columns ? b[(k0 + depth) * n + column] : 0.0f;
        }
        __syncthreads();  // both tiles are complete
#pragma unroll
        for (int depth = 0; depth < STEP; depth++) {
            float a_regs[OWN], b_regs[OWN];
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                a_regs[i] = a_smem[y + SIDE * i][depth];
                b_regs[i] = b_smem[depth][x + SIDE * i];
            }
#pragma unroll
            for (int i = 0; i < OWN; i++)
#pragma unroll
                for (int j = 0; j < OWN; j++) sum[i][j] = fmaf(a_regs[i], b_regs[j], sum[i][j]);
        }
        __syncthreads();  // nobody still reads the tiles that the next step overwrites
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            int row = y + SIDE * i, column = x + SIDE * j;
            if (row < rows && column < columns) c[row * n + column] = sum[i][j];
        }
}

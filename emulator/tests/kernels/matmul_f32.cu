// C [M,N] = A [M,K] · B [K,N], all f32 and row-major.
//
// A block of 16×16 threads computes a tile of 64×64: a thread owns 4×4 elements, rows ty + 16i, columns tx + 16j.
// The tiles of A and B pass through shared memory, 16 wide in K; what lies outside the matrices counts as zero.
// Reduction order: k ascending, one fused multiply-add each.

constexpr int TILE = 64, STEP = 16, SIDE = 16, OWN = TILE / SIDE;

extern "C" __global__ void __launch_bounds__(SIDE *SIDE)
    matmul_f32(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c, int m, int n, int k) {
    __shared__ float a_smem[STEP][TILE + 1];  // transposed; the padding spreads its columns over the banks
    __shared__ float b_smem[STEP][TILE];
    int tx = threadIdx.x, ty = threadIdx.y, thread = ty * SIDE + tx;
    int row0 = blockIdx.y * TILE, column0 = blockIdx.x * TILE;
    float sum[OWN][OWN] = {};

    for (int k0 = 0; k0 < k; k0 += STEP) {
        for (int i = thread; i < TILE * STEP; i += SIDE * SIDE) {
            int row = i / STEP, depth = i % STEP;
            bool inside = row0 + row < m && k0 + depth < k;
            a_smem[depth][row] = inside ? a[(row0 + row) * k + k0 + depth] : 0.0f;
        }
        for (int i = thread; i < STEP * TILE; i += SIDE * SIDE) {
            int depth = i / TILE, column = i % TILE;
            bool inside = k0 + depth < k && column0 + column < n;
            b_smem[depth][column] = inside ? b[(k0 + depth) * n + column0 + column] : 0.0f;
        }
        __syncthreads();  // both tiles are complete
#pragma unroll
        for (int depth = 0; depth < STEP; depth++) {
            float a_regs[OWN], b_regs[OWN];
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                a_regs[i] = a_smem[depth][ty + SIDE * i];
                b_regs[i] = b_smem[depth][tx + SIDE * i];
            }
#pragma unroll
            for (int i = 0; i < OWN; i++)
#pragma unroll
                for (int j = 0; j < OWN; j++) sum[i][j] = fmaf(a_regs[i], b_regs[j], sum[i][j]);
        }
        __syncthreads();  // nobody still reads the tiles that the next round overwrites
    }
    for (int i = 0; i < OWN; i++)
        for (int j = 0; j < OWN; j++) {
            int row = row0 + ty + SIDE * i, column = column0 + tx + SIDE * j;
            if (row < m && column < n) c[row * n + column] = sum[i][j];
        }
}

// y [C,N] = transpose of x [N,C], f32. Blocks of 32×8 threads move tiles of 32×32 through shared memory, so that reads
// and writes are both along rows; the column of padding puts a tile's column into distinct banks.

constexpr int TILE = 32, ROWS = 8;

extern "C" __global__ void transpose(const float *__restrict__ x, float *__restrict__ y, int n, int c) {
    __shared__ float tile[TILE][TILE + 1];
    int column = blockIdx.x * TILE + threadIdx.x, row = blockIdx.y * TILE + threadIdx.y;
    for (int i = 0; i < TILE; i += ROWS)
        if (row + i < n && column < c) tile[threadIdx.y + i][threadIdx.x] = x[(size_t)(row + i) * c + column];
    __syncthreads();  // the tile is complete
    column = blockIdx.y * TILE + threadIdx.x, row = blockIdx.x * TILE + threadIdx.y;
    for (int i = 0; i < TILE; i += ROWS)
        if (row + i < c && column < n) y[(size_t)(row + i) * n + column] = tile[threadIdx.x][threadIdx.y + i];
}

// Values that nobody wrote. The line of each mistake's discovery carries `FAULT:` and its kernel's name; compiled with
// -DFIXED, the kernels are right.
#ifdef FIXED
constexpr bool WRONG = false;
#else
constexpr bool WRONG = true;
#endif

// The host writes only the first 100 of x's 128 floats.
extern "C" __global__ void uninitialised_global(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int from = !WRONG && i >= 100 ? 0 : i;
    y[i] = x[from] + 1.0f;  // FAULT: uninitialised_global
}

extern "C" __global__ void uninitialised_shared(const float *x, float *y, int n) {
    __shared__ float tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (!WRONG || threadIdx.x != 13) tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = tile[63 - threadIdx.x];  // FAULT: uninitialised_shared
}

extern "C" __global__ void uninitialised_local(const int *order, float *y, int n) {
    float own[8];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 0; j < (WRONG ? 7 : 8); j++) own[order[j]] = (float)j;
    y[i] = own[order[i % 8]];  // FAULT: uninitialised_local
}

// A register of the assembly that only some lanes set.
extern "C" __global__ void uninitialised_register(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .f32 t;\n"
                 "setp.ne.s32 p, %2, %3;\n"
                 "@p mov.f32 t, 0f3F800000;\n"
                 "add.f32 %0, t, %1;\n"
                 "}"
                 : "=f"(sum)
                 : "f"(x[i]), "r"(i), "r"(WRONG ? 77 : -1));
    y[i] = sum;  // FAULT: uninitialised_register
}

// Only the predicate depends on it.
extern "C" __global__ void uninitialised_branch(const int *flags, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int from = !WRONG && i >= 100 ? 0 : i;
    if (flags[from] > 3) y[0] = 1.0f;  // FAULT: uninitialised_branch
}

// Only an address depends on it.
extern "C" __global__ void uninitialised_address(const int *index, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int from = !WRONG && i >= 100 ? 0 : i;
    y[i] = x[index[from]];  // FAULT: uninitialised_address
}

// cp.async has no register that could carry the mark on: the copy itself is the use.
extern "C" __global__ void uninitialised_copy(const float *x, float *y, int n) {
    __shared__ float tile[64];
    int i = blockIdx.x * blockDim.x + threadIdx.x, from = !WRONG && i >= 100 ? 0 : i;
    unsigned to = (unsigned)__cvta_generic_to_shared(&tile[threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + from) : "memory");  // FAULT: uninitialised_copy
    asm volatile("cp.async.wait_all;" ::: "memory");
    y[i] = tile[threadIdx.x];
}

// Read into a register, used for nothing that counts: no finding.
extern "C" __global__ void uninitialised_unused(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float value = x[i];
    y[i] = i < 100 ? value : 0.0f;
}

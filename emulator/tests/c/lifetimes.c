/* Streams, threads and host memory that come and go: what still counts as unfinished work, and what no longer does. */
#include "driver.h"
#include <pthread.h>

enum { INVALID_VALUE = 1, ILLEGAL_STATE = 401, ILLEGAL_ADDRESS = 700, N = 256, BYTES = 4 * N, THREADS = 50 };

CUresult cuMemsetD32Async_ptsz(CUdeviceptr to, unsigned value, size_t count, CUstream stream);
CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, size_t (*shared)(int), size_t, int);

static CUcontext context;
static CUfunction saxpy;

static CUresult run(CUstream stream, CUdeviceptr x, CUdeviceptr y, int n) {
    float a = 2;
    void *params[] = {&n, &a, &x, &y};
    return cuLaunchKernel(saxpy, (unsigned)(n + 127) / 128, 1, 1, 128, 1, 1, 0, stream, params, NULL);
}

/* A new stream is not ordered after the work of one that was destroyed. */
static void destroyed_streams(CUdeviceptr x, CUdeviceptr y) {
    CUstream stream;
    for (int i = 0; i < 3; i++) {
        OK(cuStreamCreate(&stream, 1));
        OK(run(stream, x, y, N));
        OK(cuStreamDestroy_v2(stream));
        OK(cuStreamCreate(&stream, 1));
        FAILS(ILLEGAL_STATE, "missing synchronisation: kernel saxpy on stream", run(stream, x, y, N));
        OK(cuStreamDestroy_v2(stream));
        CHECK(cuCtxSynchronize() == ILLEGAL_STATE); /* the launch's error once more */
    }
    OK(cuStreamCreate(&stream, 1));
    OK(run(stream, x, y, N));
    OK(cuStreamDestroy_v2(stream));
}

static void fill(void *data) { memset(data, 9, BYTES); }

/* A host function comes after the copies before it: it may fill their source anew. */
static void host_functions(CUdeviceptr x) {
    CUstream stream;
    unsigned char *host, seen[BYTES];
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAllocHost_v2((void **)&host, BYTES));
    memset(host, 1, BYTES);
    OK(cuMemcpyHtoDAsync_v2(x, host, BYTES, stream));
    OK(cuLaunchHostFunc(stream, fill, host));
    OK(cuMemcpyHtoDAsync_v2(x, host, BYTES, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemcpyDtoH_v2(seen, x, BYTES));
    CHECK(seen[0] == 9 && seen[BYTES - 1] == 9);
    /* A change before it is found there, and the function runs all the same. */
    OK(cuMemcpyHtoDAsync_v2(x, host, BYTES, stream));
    host[0] = 3;
    FAILS(ILLEGAL_STATE, "the host changed the 1024 bytes at", cuLaunchHostFunc(stream, fill, host));
    CHECK(host[0] == 9);
    OK(cuStreamSynchronize(stream));
    /* Copies to one block stay unseen until the wait, however many there are. */
    memset(host, 5, BYTES);
    OK(cuMemcpyDtoHAsync_v2(host, x, 4, stream));
    OK(cuMemcpyDtoHAsync_v2(host + 4, x, 4, stream));
    OK(run(stream, x, x, N));
    CHECK(host[0] == 0xff && host[7] == 0xff);
    OK(cuStreamSynchronize(stream));
    CHECK(host[0] == 9 && host[7] == 9 && host[8] == 5);
    OK(cuMemFreeHost(host));
    OK(cuStreamDestroy_v2(stream));
}

static void freed_host_memory(CUdeviceptr x) {
    unsigned char *host, *other, pageable[BYTES];
    OK(cuMemAllocHost_v2((void **)&host, BYTES));
    OK(cuMemAllocHost_v2((void **)&other, BYTES));
    OK(cuMemFreeHost(host));
    FAILS(INVALID_VALUE, "freed already", cuMemcpyHtoD_v2(x, host, BYTES));
    FAILS(INVALID_VALUE, "freed already", cuMemcpyDtoH_v2(host + 8, x, 4));
    FAILS(INVALID_VALUE, "freed already", cuMemcpyDtoHAsync_v2(host, x, BYTES, NULL));
    FAILS(INVALID_VALUE, "freed twice", cuMemFreeHost(host));
    OK(cuMemcpyDtoH_v2(other, x, BYTES));
    OK(cuMemcpyDtoH_v2(pageable, x, BYTES));
    OK(cuMemFreeHost(other));
    FAILS(INVALID_VALUE, "do not fit", cuMemcpyHtoD_v2(x, pageable, (size_t)-8));
    OK(cuMemAllocHost_v2((void **)&other, BYTES));
    FAILS(INVALID_VALUE, "", cuMemcpyHtoD_v2(x, other + 8, (size_t)-8));
    OK(cuMemFreeHost(other));
}

/* Mapped memory is the same memory by either address. */
static void mapped_memory(CUdeviceptr x, CUdeviceptr y) {
    CUstream a, b;
    CUdeviceptr mapped;
    void *host;
    OK(cuStreamCreate(&a, 1));
    OK(cuStreamCreate(&b, 1));
    OK(cuMemAllocHost_v2(&host, BYTES));
    memset(host, 0, BYTES);
    OK(cuMemHostGetDevicePointer_v2(&mapped, host, 0));
    OK(cuMemcpyDtoHAsync_v2(host, x, BYTES, a));
    FAILS(ILLEGAL_STATE, "the 1024 bytes of pinned host memory at", run(b, mapped, y, N));
    CHECK(cuCtxSynchronize() == ILLEGAL_STATE);
    OK(run(a, x, mapped, N));
    FAILS(ILLEGAL_STATE, "kernel saxpy on stream", cuMemcpyHtoDAsync_v2(y, host, BYTES, b));
    OK(cuCtxSynchronize());
    OK(run(a, mapped, y, N));
    OK(cuMemcpyDtoHAsync_v2(host, x, BYTES, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemFreeHost(host));
    OK(cuStreamDestroy_v2(a));
    OK(cuStreamDestroy_v2(b));
}

static void *work_of_a_thread(void *y) {
    OK(cuCtxSetCurrent(context));
    OK(cuMemsetD32Async_ptsz(*(CUdeviceptr *)y, 1, N, NULL));
    return NULL;
}

/* The default stream waits for threads' own default streams, also for those of threads that ended. */
static void threads(CUdeviceptr y) {
    CUstream free_running;
    pthread_t thread;
    unsigned host[N];
    OK(cuStreamCreate(&free_running, 1));
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&thread, NULL, work_of_a_thread, &y);
        pthread_join(thread, NULL);
        if (i == 0) FAILS(ILLEGAL_STATE, "per-thread default stream wrote", cuMemsetD32Async(y, 2, N, free_running));
        OK(cuCtxSynchronize());
        pthread_create(&thread, NULL, work_of_a_thread, &y);
        pthread_join(thread, NULL);
        OK(cuMemcpyDtoH_v2(host, y, BYTES));
        CHECK(host[0] == 1);
    }
    OK(cuStreamDestroy_v2(free_running));
}

static void *synchronize(void *unused) {
    OK(cuCtxSetCurrent(context));
    OK(cuCtxSynchronize());
    return unused;
}

static size_t shared_of(int block) {
    pthread_t thread;
    pthread_create(&thread, NULL, synchronize, NULL);
    pthread_join(thread, NULL);
    return 32 * (size_t)block;
}

/* A failed launch is returned once more; of two it is the later. */
static void failed_launches(CUdeviceptr x, CUdeviceptr y) {
    CHECK(run(NULL, x, y, N + 1) == ILLEGAL_ADDRESS);
    CHECK(run(NULL, x, y + BYTES - 8, 3) == ILLEGAL_ADDRESS);
    const char *latest = text_of(ILLEGAL_ADDRESS); /* the driver keeps its strings */
    CHECK(cuCtxSynchronize() == ILLEGAL_ADDRESS);
    CHECK(strcmp(latest, text_of(ILLEGAL_ADDRESS)) == 0);
    OK(cuCtxSynchronize());
}

/* cuMemFree waits for the work that may use the memory. */
static void freeing_waits(CUdeviceptr x, CUdeviceptr y) {
    CUstream stream;
    CUdeviceptr z;
    OK(cuStreamCreate(&stream, 1));
    OK(cuMemAlloc_v2(&z, 8));
    OK(run(stream, x, y, N));
    OK(cuMemFree_v2(z));
    OK(run(NULL, x, y, N));
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(stream));
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    size_t bytes;
    char *ptx = read_file(argv[1], &bytes);
    CUmodule module;
    CUdeviceptr x, y;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    OK(cuMemAlloc_v2(&x, BYTES));
    OK(cuMemAlloc_v2(&y, BYTES));
    OK(cuMemsetD32_v2(x, 0, N));
    OK(cuMemsetD32_v2(y, 0, N));
    OK(cuCtxSynchronize());
    destroyed_streams(x, y);
    OK(cuCtxSynchronize());
    host_functions(x);
    freed_host_memory(x);
    mapped_memory(x, y);
    threads(y);
    int grid, block;
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, saxpy, shared_of, 0, 256));
    CHECK(grid > 0 && block > 0);
    failed_launches(x, y);
    freeing_waits(x, y);
    OK(cuMemFree_v2(x));
    OK(cuMemFree_v2(y));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    printf("%d failures\n", failures);
    return failures != 0;
}
